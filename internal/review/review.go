// Package review shows ScalePlans as pull requests at a forge, and takes decisions about them
// from there: a ScalePlan and its pull request are two views of one proposal with one hash.
// It approves nothing by itself and changes no fleet: package approval decides whether an
// approved plan may begin. Start at New; DESIGN.md in this directory describes the protocol.
package review

import (
	"context"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/store"
)

// Plans are the ScalePlans; *approval.Approvals implements it.
type Plans interface {
	// Plans returns the ScalePlans that numaform proposed.
	Plans(ctx context.Context) ([]v1alpha1.ScalePlan, error)
	// Undecided reports whether a plan is pending and was neither approved nor rejected.
	Undecided(plan *v1alpha1.ScalePlan) bool
	// Pictures returns images of a plan's hosts before and after the change, by host; nil if
	// there are none.
	Pictures(plan string) map[string][]byte
	// SetPullRequest records the pull request of a plan, with its decision.
	SetPullRequest(ctx context.Context, plan string, request *v1alpha1.ScalePlanPullRequest) error
}

// Repository is the fleet's repository; *store.Git implements it.
type Repository interface { //nolint:interfacebloat // the operations on the branches of proposals belong together
	Read(ctx context.Context) (generator.Files, store.Revision, error)
	Propose(ctx context.Context, p store.Proposal) (commit string, err error)
	PicturePath(name, picture string) string
	Pictures(ctx context.Context, branch, commit, name string, pictures ...string) ([]string, error)
	HasProposal(ctx context.Context, name string, content []byte) (bool, error)
	DropProposals(ctx context.Context, at time.Time, names ...string) error
	ClearProposal(ctx context.Context, at time.Time, branch, commit, name string) (removed []string, err error)
	DropBranch(ctx context.Context, branch, commit string) error
	AfterMerge(ctx context.Context, reference, commit string) (now, after generator.Files, err error)
}

// Check evaluates the fleet's files as they would be after the merge of a person's pull
// request. With trusted unset, it must use the files only as data: no engine, no credential.
type Check func(ctx context.Context, now, after generator.Files, trusted bool) (ok bool, summary string, err error)

// Policy selects who approves, and who merges.
type Policy struct {
	// Approvers are the users of the forge whose approvals count. If it is empty, the merge
	// itself is the approval: the forge decides who may merge.
	Approvers []string
	// Quorum is how many of them must approve; 0 means one.
	Quorum int
	// Merge makes numaform merge approved pull requests. Otherwise a person merges them.
	Merge bool
}

// Config configures a Reviewer.
type Config struct {
	Plans      Plans
	Repository Repository
	Forge      forge.Client
	Policy     Policy
	// ClusterID is part of the names of branches, because several installations can share a
	// repository.
	ClusterID string
	// Branch is the fleet's branch.
	Branch string
	// Reference returns the reference of a pull request's head in the fleet's repository.
	Reference func(number int) string
	// FileURLs returns the addresses of a file of a commit, as forge.FileURLs; nil means that
	// texts have no pictures.
	FileURLs func(request *forge.PullRequest, commit, file string) (content, page string)
	// Labels and Reviewers are set when a pull request is opened.
	Labels, Reviewers []string
	// Check evaluates pull requests of persons; nil ignores them.
	Check Check
	// Every is the interval between requests to the forge.
	Every  time.Duration
	Clock  clock.PassiveClock
	Events events.Recorder
}

// Reviewer keeps ScalePlans and pull requests consistent. Run it on the leader only.
type Reviewer struct {
	config Config
	// stated are the commits that have numaform's status, with its text.
	stated map[string]string
	// drawn are the pictures on a branch, by its head.
	drawn map[string][]string
	// checked are the commits of persons that were checked, with the revision of the fleet.
	checked map[string]bool
	// stray are pull requests that belonged to no plan in the last pass.
	stray map[int]bool
	// reopened is when the last pull request of a plan was opened because the one before it
	// was closed by a user who may not reject.
	reopened map[string]time.Time
	// failing are the plans whose pull request caused an error in the last pass.
	failing map[string]bool
}

// New returns the reviewer of one numaform installation. It does no I/O.
func New(config Config) *Reviewer {
	config.Policy.Quorum = max(config.Policy.Quorum, 1)
	return &Reviewer{
		config: config, stated: map[string]string{}, checked: map[string]bool{}, stray: map[int]bool{}, drawn: map[string][]string{},
		reopened: map[string]time.Time{}, failing: map[string]bool{},
	}
}

// ReasonFailed is the reason of events on ScalePlans whose pull request could not be opened,
// read, updated, merged or closed.
const ReasonFailed = "PullRequestFailed"

// proposals begins the names of the branches of all installations' proposals.
const proposals = "numaform/"

// prefix begins the names of the branches of this installation's proposals.
func (r *Reviewer) prefix() string { return proposals + r.config.ClusterID + "/" }
