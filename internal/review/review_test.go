package review_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/forge/forgetest"
	"github.com/numaform/numaform/internal/review"
	"github.com/numaform/numaform/internal/store"
)

// bench is a test's environment: a real repository, and a forge.
type bench struct {
	*testing.T

	plans *plans
	forge *forgetest.Forge
	// server serves forge with the API of GitHub or GitLab; nil if the reviewer calls it
	// directly.
	server *forgetest.Server
	git    *store.Git
	remote string
	// clone is a person's working copy.
	clone    string
	clock    *clocktesting.FakePassiveClock
	events   *recorder
	config   review.Config
	reviewer *review.Reviewer
}

// plans are the ScalePlans of a cluster.
type plans []v1alpha1.ScalePlan

func (p *plans) Plans(context.Context) ([]v1alpha1.ScalePlan, error) { return slices.Clone(*p), nil }

func (p *plans) Undecided(plan *v1alpha1.ScalePlan) bool {
	approved, _ := plan.Approval()
	rejected, _ := plan.Rejection()
	return plan.Status.Phase == v1alpha1.ScalePlanPending && approved == "" && rejected == ""
}

func (p *plans) Pictures(string) map[string][]byte { return nil }

func (p *plans) SetPullRequest(_ context.Context, name string, request *v1alpha1.ScalePlanPullRequest) error {
	for i := range *p {
		if (*p)[i].Name == name {
			(*p)[i].Status.PullRequest = request
		}
	}
	return nil
}

// recorder records the messages of events.
type recorder struct{ messages []string }

func (r *recorder) Publish(published ...events.Event) {
	for _, event := range published {
		r.messages = append(r.messages, event.Reason+": "+event.Message)
	}
}

// kind is the forge of a test: GitHub or GitLab with a contract server and git over http, or
// empty for a forge that the reviewer calls directly.
type kind = forge.Kind

// everywhere runs a test at each kind of forge.
func everywhere(t *testing.T, test func(*testing.T, kind)) {
	t.Parallel()
	for _, at := range []kind{"", forge.GitHub, forge.GitLab} {
		t.Run("at="+string(at), func(t *testing.T) {
			t.Parallel()
			test(t, at)
		})
	}
}

// pushing tells the forge about pushes, as its own git server would.
type pushing struct {
	*store.Git
	forge *forgetest.Forge
}

func (p pushing) Propose(ctx context.Context, proposal store.Proposal) (string, error) {
	head, err := p.Git.Propose(ctx, proposal)
	if err == nil {
		p.forge.Push(proposal.Branch, head)
	}
	return head, err
}

func newBench(t *testing.T, at kind, policy review.Policy) *bench {
	t.Helper()
	b := &bench{T: t, events: &recorder{}, plans: &plans{}, forge: forgetest.New("main"), remote: t.TempDir(), clone: t.TempDir()}
	b.run(b.remote, "init", "--quiet", "--bare", "--initial-branch=main")
	b.run(b.clone, "clone", "--quiet", b.remote, ".")
	b.run(b.clone, "switch", "--quiet", "--create", "main")
	b.write("README.md", "the fleet\n")
	b.commit("start")
	config := store.GitConfig{Clone: filepath.Join(t.TempDir(), "git"), Remote: b.remote}
	if at != "" {
		b.server = forgetest.Serve(t, at, b.forge, b.remote, "secret")
		config.Remote, config.Auth = b.server.Remote, store.GitAuth{Username: "numaform", Token: "secret"}
	}
	var err error
	if b.git, err = store.NewGit(config); err != nil {
		t.Fatal(err)
	}
	b.clock = clocktesting.NewFakePassiveClock(time.Unix(1767225600, 0))
	b.config = review.Config{
		Plans: b.plans, Repository: pushing{b.git, b.forge}, Forge: b.forge, Policy: policy, ClusterID: "lab", Branch: "main",
		Every: time.Minute, Clock: b.clock, Events: b.events, Labels: []string{"numaform"}, Reviewers: policy.Approvers,
		Reference: func(number int) string { return fmt.Sprintf("refs/pull/%d/head", number) },
	}
	if at != "" {
		b.config.Repository, b.config.Forge = b.git, b.server.Client()
	}
	if at == forge.GitLab {
		b.config.Reference = func(number int) string { return fmt.Sprintf("refs/merge-requests/%d/head", number) }
	}
	b.reviewer = review.New(b.config)
	return b
}

func (b *bench) run(dir string, args ...string) string {
	b.Helper()
	command := exec.Command("git", args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=person", "GIT_AUTHOR_EMAIL=person@example",
		"GIT_COMMITTER_NAME=person", "GIT_COMMITTER_EMAIL=person@example", "GIT_EDITOR=true")
	out, err := command.CombinedOutput()
	if err != nil {
		b.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (b *bench) write(name, content string) {
	b.Helper()
	path := filepath.Join(b.clone, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		b.Fatal(err)
	}
}

// commit commits all files of the person's working copy, and pushes them to main.
func (b *bench) commit(message string) {
	b.Helper()
	b.run(b.clone, "add", "--all")
	b.run(b.clone, "commit", "--quiet", "-m", message)
	b.run(b.clone, "push", "--quiet", "origin", "HEAD:main")
}

// add adds a plan. digit distinguishes the hashes of plans.
func (b *bench) add(name, digit string, edits ...func(*v1alpha1.ScalePlan)) *v1alpha1.ScalePlan {
	plan := v1alpha1.ScalePlan{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1767225600+int64(len(*b.plans)), 0))},
		Spec: v1alpha1.ScalePlanSpec{
			Direction: v1alpha1.ScaleUp, NodePools: []string{"workers"}, RequestedBy: "provisioning", Summary: "1 to create on lab/pve-1",
			Why: "1 pod needs a new node", PlanHash: strings.Repeat(digit, 64), Diff: "# Host lab/pve-1\nthe plan " + digit + "\n",
			Hosts:   []v1alpha1.ScalePlanHost{{Host: "lab/pve-1"}},
			Verdict: v1alpha1.ScalePlanVerdict{Decision: v1alpha1.VerdictAllow},
		},
		Status: v1alpha1.ScalePlanStatus{Phase: v1alpha1.ScalePlanPending},
	}
	for _, edit := range edits {
		edit(&plan)
	}
	*b.plans = append(*b.plans, plan)
	return &(*b.plans)[len(*b.plans)-1]
}

// plan returns a plan by its name.
func (b *bench) plan(name string) *v1alpha1.ScalePlan {
	b.Helper()
	for i := range *b.plans {
		if (*b.plans)[i].Name == name {
			return &(*b.plans)[i]
		}
	}
	b.Fatalf("no plan %s", name)
	return nil
}

func (b *bench) pass() {
	b.Helper()
	if err := b.reviewer.Pass(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// restart replaces the reviewer by a new one, as after a restart of the controller.
func (b *bench) restart() { b.reviewer = review.New(b.config) }

// drawn are plans of which each has a picture of lab/pve-1.
type drawn struct{ *plans }

func (drawn) Pictures(plan string) map[string][]byte {
	return map[string][]byte{"lab/pve-1": []byte("<svg>" + plan + "</svg>")}
}

// request returns the recorded pull request of a plan.
func (b *bench) request(name string) *v1alpha1.ScalePlanPullRequest {
	b.Helper()
	request := b.plan(name).Status.PullRequest
	if request == nil {
		b.Fatalf("plan %s has no pull request", name)
	}
	return request
}

// at returns a pull request as the forge has it.
func (b *bench) at(number int64) forge.PullRequest {
	b.Helper()
	found, err := b.forge.Get(b.Context(), int(number))
	if err != nil {
		b.Fatal(err)
	}
	return found
}

// merge merges the pull request of a plan as a person, in the given way.
func (b *bench) merge(name, way string) {
	b.Helper()
	request := b.request(name)
	b.mergeBranch(request.Branch, way)
	sha := b.run(b.clone, "rev-parse", "HEAD")
	b.forge.Update(int(request.Number), func(p *forge.PullRequest) { p.State, p.MergeSHA = forge.Merged, sha })
}

func (b *bench) mergeBranch(branch, way string) {
	b.Helper()
	b.run(b.clone, "fetch", "--quiet", "origin")
	b.run(b.clone, "reset", "--quiet", "--hard", "origin/main")
	switch way {
	case "squash":
		b.run(b.clone, "merge", "--quiet", "--squash", "origin/"+branch)
		b.run(b.clone, "commit", "--quiet", "-m", "squashed")
	case "rebase":
		b.run(b.clone, "cherry-pick", "origin/"+branch)
	default:
		b.run(b.clone, "merge", "--quiet", "--no-ff", "-m", "merged", "origin/"+branch)
	}
	b.run(b.clone, "push", "--quiet", "origin", "HEAD:main")
}

// wantProposals checks which proposals are on main.
func (b *bench) wantProposals(want ...string) {
	b.Helper()
	got := strings.Fields(b.run(b.remote, "ls-tree", "-r", "--name-only", "main", "proposals/"))
	if !slices.Equal(got, want) {
		b.Errorf("main has the proposals %q, want %q", got, want)
	}
}

// wantBranches checks which branches of proposals exist.
func (b *bench) wantBranches(want ...string) {
	b.Helper()
	got := strings.Fields(b.run(b.remote, "for-each-ref", "--format=%(refname:short)", "refs/heads/numaform"))
	if !slices.Equal(got, want) {
		b.Errorf("the branches are %q, want %q", got, want)
	}
}

// wantPending checks that a plan was neither approved nor rejected by its pull request.
func (b *bench) wantPending(name string) {
	b.Helper()
	if request := b.request(name); request.Approved != "" || request.Rejected != "" {
		b.Errorf("plan %s is decided: %+v", name, request)
	}
}

// wantApproved checks that the pull request approved exactly the plan's hash.
func (b *bench) wantApproved(name, by string) {
	b.Helper()
	if request := b.request(name); request.Approved != b.plan(name).Spec.PlanHash || request.DecidedBy != by {
		b.Errorf("plan %s is not approved by %s: %+v", name, by, request)
	}
}

var oneOfTwo = review.Policy{Approvers: []string{"alice", "bob"}}

// TestOpened opens a pull request for a plan: the digest is in its text, in its file and in
// the status of its commit, and nothing of the fleet changes. A restart opens no other one.
func TestOpened(t *testing.T) { everywhere(t, testOpened) }

func testOpened(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	plan := b.add("workers-up-1", "1")
	hash := plan.Spec.PlanHash
	b.pass()
	request := b.request("workers-up-1")
	opened := b.at(request.Number)
	if opened.State != forge.Open || opened.Head != "numaform/lab/workers-up-1" || opened.HeadSHA != request.Head || !strings.Contains(opened.Body, hash) {
		t.Errorf("opened %+v", opened)
	}
	if labels, reviewers := b.forge.Asked(1); !slices.Equal(labels, []string{"numaform"}) || !slices.Equal(reviewers, oneOfTwo.Approvers) {
		t.Errorf("labels %q, requested reviewers %q", labels, reviewers)
	}
	if status, _ := b.forge.Status(request.Head, "numaform/plan"); status.State != forge.Success || !strings.Contains(status.Description, hash) {
		t.Errorf("status %+v", status)
	}
	if file := b.run(b.remote, "show", request.Head+":proposals/workers-up-1.diff"); !strings.Contains(file, hash) || !strings.Contains(file, "the plan 1") {
		t.Errorf("the file has %q", file)
	}
	b.pass()
	b.restart()
	b.pass()
	b.wantPending("workers-up-1")
	if got := b.request("workers-up-1"); got.Number != 1 || got.Head != request.Head {
		t.Errorf("another pull request %+v", got)
	}
	if waits := b.request("workers-up-1").Waits; !strings.Contains(waits, "alice, bob") {
		t.Errorf("waits: %q", waits)
	}
	// A crash before the pull request was recorded opens no second one.
	b.plan("workers-up-1").Status.PullRequest = nil
	b.pass()
	if got := b.request("workers-up-1"); got.Number != 1 {
		t.Errorf("another pull request %+v", got)
	}
	b.wantProposals()
}

// TestMergedByAPerson approves exactly the plan's digest, however the branch is merged.
func TestMergedByAPerson(t *testing.T) { everywhere(t, testMergedByAPerson) }

func testMergedByAPerson(t *testing.T, at kind) {
	for _, way := range []string{"merge", "squash", "rebase"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, at, oneOfTwo)
			b.add("workers-up-1", "1")
			b.pass()
			b.forge.Review(1, "alice", forge.Approved)
			b.pass()
			b.wantPending("workers-up-1") // not before the merge
			b.write("README.md", "another commit\n")
			b.commit("another commit")
			b.merge("workers-up-1", way)
			b.pass()
			b.wantApproved("workers-up-1", "alice")
			b.wantProposals("proposals/workers-up-1.diff")

			b.plan("workers-up-1").Status.Phase = v1alpha1.ScalePlanApplied
			b.pass()
			b.wantProposals()
			b.wantBranches()
			if !b.request("workers-up-1").Closed {
				t.Error("the pull request is not finished")
			}
		})
	}
}

// TestMergedByNumaform merges an approved pull request, and none without an approval.
func TestMergedByNumaform(t *testing.T) { everywhere(t, testMergedByNumaform) }

func testMergedByNumaform(t *testing.T, at kind) {
	b := newBench(t, at, review.Policy{Approvers: []string{"alice", "bob"}, Quorum: 2, Merge: true})
	b.forge.OnMerge = func(head, _ string) (string, error) {
		b.mergeBranch(head, "squash")
		return b.run(b.clone, "rev-parse", "HEAD"), nil
	}
	b.add("workers-up-1", "1")
	b.pass()
	b.forge.Review(1, "alice", forge.Approved)
	b.pass()
	b.wantPending("workers-up-1")
	b.forge.Review(1, "bob", forge.Approved)
	b.pass()
	b.wantApproved("workers-up-1", "alice, bob")
}

// TestUpdated continues the pull request of a plan that is replaced by another one. The
// approval of the first one does not count.
func TestUpdated(t *testing.T) { everywhere(t, testUpdated) }

func testUpdated(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	first := b.request("workers-up-1").Head
	b.forge.Review(1, "alice", forge.Approved)
	now := metav1.NewTime(b.config.Clock.Now())
	status := &b.plan("workers-up-1").Status
	status.Phase, status.FinishedAt = v1alpha1.ScalePlanSuperseded, &now
	b.pass() // the next plan is proposed a moment later
	b.add("workers-up-2", "2")
	b.pass()
	request := b.request("workers-up-2")
	if request.Number != 1 || request.Head == first || !b.request("workers-up-1").Closed {
		t.Errorf("the pull requests are %+v and %+v", b.request("workers-up-1"), request)
	}
	if now := b.at(1); now.State != forge.Open || now.HeadSHA != request.Head || !strings.Contains(now.Body, b.plan("workers-up-2").Spec.PlanHash) {
		t.Errorf("the pull request is %+v", now)
	}
	if got := b.run(b.remote, "diff", "--name-only", "main", request.Branch); got != "proposals/workers-up-2.diff" {
		t.Errorf("the branch adds %q", got)
	}
	b.pass()
	if !strings.Contains(b.request("workers-up-2").Waits, "another commit") {
		t.Errorf("it waits: %q", b.request("workers-up-2").Waits)
	}
	b.merge("workers-up-2", "squash")
	b.pass()
	b.wantPending("workers-up-2")
}

// TestMergedWithoutApproval applies nothing, and opens the pull request again, with a commit
// that another merge adds to the fleet's branch.
func TestMergedWithoutApproval(t *testing.T) { everywhere(t, testMergedWithoutApproval) }

func testMergedWithoutApproval(t *testing.T, at kind) {
	for _, way := range []string{"squash", "merge", "rebase"} {
		t.Run(way, func(t *testing.T) { t.Parallel(); testMergedUnapproved(t, at, way) })
	}
}

func testMergedUnapproved(t *testing.T, at kind, way string) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	b.merge("workers-up-1", way)
	b.pass()
	b.wantPending("workers-up-1")
	request := b.request("workers-up-1")
	if now := b.at(request.Number); request.Number != 2 || now.State != forge.Open || !strings.Contains(now.Body, "#1 was merged, but nothing was applied") {
		t.Errorf("the pull request is %+v", now)
	}
	b.wantProposals()
	b.pass()
	if now := b.at(2); !strings.Contains(now.Body, "#1 was merged") {
		t.Error("the note vanished")
	}
	b.forge.Review(2, "bob", forge.Approved)
	b.merge("workers-up-1", "merge")
	b.wantProposals("proposals/workers-up-1.diff")
	b.pass()
	b.wantApproved("workers-up-1", "bob")
}

// TestDifferentAfterMerge holds an approved plan that is different after its merge: the new
// plan has its own pull request, which needs its own approval.
func TestDifferentAfterMerge(t *testing.T) { everywhere(t, testDifferentAfterMerge) }

func testDifferentAfterMerge(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	b.forge.Review(1, "alice", forge.Approved)
	b.merge("workers-up-1", "rebase")
	b.pass()
	b.wantApproved("workers-up-1", "alice")
	b.plan("workers-up-1").Status.Phase = v1alpha1.ScalePlanSuperseded
	b.add("workers-up-2", "2")
	b.pass()
	b.wantPending("workers-up-2")
	request := b.request("workers-up-2")
	if now := b.at(request.Number); request.Number != 2 || !strings.Contains(now.Body, "#1 was merged, but nothing was applied: the plan is different now") {
		t.Errorf("the pull request is %+v", now)
	}
	b.wantProposals()
	b.wantBranches("numaform/lab/workers-up-2")
}

// TestMergedContentDiffers approves nothing if main does not have exactly the proposal after
// the merge: a person edited it, resolved a conflict, or reverted the merge.
func TestMergedContentDiffers(t *testing.T) { everywhere(t, testMergedContentDiffers) }

func testMergedContentDiffers(t *testing.T, at kind) {
	for name, change := range map[string]func(b *bench){
		"edited": func(b *bench) {
			b.write("proposals/workers-up-1.diff", "something else\n")
			b.commit("resolve a conflict")
		},
		"reverted": func(b *bench) {
			b.run(b.clone, "revert", "--no-edit", "HEAD")
			b.run(b.clone, "push", "--quiet", "origin", "HEAD:main")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, at, oneOfTwo)
			b.add("workers-up-1", "1")
			b.pass()
			b.forge.Review(1, "alice", forge.Approved)
			b.merge("workers-up-1", "squash")
			change(b)
			b.pass()
			b.wantPending("workers-up-1")
			if now := b.at(b.request("workers-up-1").Number); now.Number != 2 || !strings.Contains(now.Body, "exactly the proposal") {
				t.Errorf("the pull request is %+v", now)
			}
			b.wantProposals()
		})
	}
}

// TestClosed rejects the plan of a pull request that a person closes.
func TestClosed(t *testing.T) { everywhere(t, testClosed) }

func testClosed(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	b.forge.Update(1, func(p *forge.PullRequest) { p.State, p.ClosedBy = forge.Closed, "Bob" })
	b.pass()
	if request := b.request("workers-up-1"); request.Rejected == "" || request.Approved != "" || request.DecidedBy != "Bob" {
		t.Errorf("the plan is not rejected: %+v", request)
	}
	b.plan("workers-up-1").Status.Phase = v1alpha1.ScalePlanRejected
	b.pass()
	b.wantBranches()
	if comments := b.forge.Comments(1); len(comments) > 0 {
		t.Errorf("comments on a closed pull request: %q", comments)
	}
}

// TestClosedByOthers opens another pull request for one that a user closed who is no
// approver, at most every ten minutes. Without approvers, whoever closes it rejects.
func TestClosedByOthers(t *testing.T) { everywhere(t, testClosedByOthers) }

func testClosedByOthers(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	shut := func(p *forge.PullRequest) { p.State, p.ClosedBy = forge.Closed, "mallory" }
	b.forge.Update(1, shut)
	b.pass()
	b.wantPending("workers-up-1")
	if now := b.at(b.request("workers-up-1").Number); now.Number != 2 || now.State != forge.Open || !strings.Contains(now.Body, "closed by mallory") {
		t.Errorf("the pull request is %+v", now)
	}
	b.forge.Update(2, shut)
	b.pass()
	b.wantPending("workers-up-1")
	if request := b.request("workers-up-1"); request.Number != 2 || !strings.Contains(request.Waits, "opens another one at 2026-01-01T00:10:00Z") {
		t.Errorf("the pull request is %+v", request)
	}
	b.clock.SetTime(b.clock.Now().Add(10 * time.Minute))
	b.pass()
	if request := b.request("workers-up-1"); request.Number != 3 {
		t.Errorf("the pull request is %+v", request)
	}
	b.forge.Review(3, "alice", forge.Approved)
	b.merge("workers-up-1", "squash")
	b.pass()
	b.wantApproved("workers-up-1", "alice")

	c := newBench(t, at, review.Policy{})
	c.add("workers-up-1", "1")
	c.pass()
	c.forge.Update(1, shut)
	c.pass()
	if request := c.request("workers-up-1"); request.Rejected == "" || request.DecidedBy != "mallory" {
		t.Errorf("without approvers: %+v", request)
	}
}

// TestDecidedElsewhere closes pull requests with the reason when they are no longer needed,
// or when their plan was decided in the cluster.
func TestDecidedElsewhere(t *testing.T) { everywhere(t, testDecidedElsewhere) }

func testDecidedElsewhere(t *testing.T, at kind) {
	for name, c := range map[string]struct {
		change func(plan *v1alpha1.ScalePlan)
		want   string
	}{
		"superseded": {func(plan *v1alpha1.ScalePlan) {
			plan.Status.Phase, plan.Status.Result = v1alpha1.ScalePlanSuperseded, "pods no longer need it"
		}, "Superseded: pods no longer need it"},
		"approved": {func(plan *v1alpha1.ScalePlan) {
			plan.Spec.Approve, plan.Spec.ApprovedBy = plan.Spec.PlanHash, "carol"
		}, "carol approved ScalePlan workers-up-1 in the cluster"},
		"rejected": {func(plan *v1alpha1.ScalePlan) {
			plan.Spec.Reject, plan.Spec.RejectedBy = "not today", "carol"
		}, "carol rejected ScalePlan workers-up-1 in the cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, at, oneOfTwo)
			b.add("workers-up-1", "1")
			b.pass()
			c.change(b.plan("workers-up-1"))
			b.pass()
			comments := b.forge.Comments(1)
			if b.at(1).State != forge.Closed || len(comments) != 1 || !strings.Contains(comments[0], c.want) {
				t.Errorf("the pull request is %s with the comments %q", b.at(1).State, comments)
			}
			b.wantBranches()
			b.pass()
			if got := len(b.forge.Comments(1)); got != 1 {
				t.Errorf("%d comments after another pass", got)
			}
		})
	}
}

// TestDeletedPlan closes the pull request of a plan that a user deleted.
func TestDeletedPlan(t *testing.T) { everywhere(t, testDeletedPlan) }

func testDeletedPlan(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	*b.plans = nil
	b.pass()
	b.pass()
	if b.at(1).State != forge.Closed {
		t.Error("the pull request is open")
	}
	b.wantBranches()
}

// TestStrangers checks that changes of other clients to a pull request end: the branch and
// the text are restored, and with another target a new pull request is opened. Only approvals
// of exactly numaform's commit count.
func TestStrangers(t *testing.T) { everywhere(t, testStrangers) }

func testStrangers(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	request := *b.request("workers-up-1")

	b.run(b.clone, "fetch", "--quiet", "origin")
	b.run(b.clone, "switch", "--quiet", "--create", "theirs", "origin/main")
	b.write("lab/pve-1/node-evil.tf", "module \"evil\" {}\n")
	b.run(b.clone, "add", "--all")
	b.run(b.clone, "commit", "--quiet", "-m", "evil")
	b.run(b.clone, "push", "--quiet", "--force", "origin", "HEAD:"+request.Branch)
	b.forge.Push(request.Branch, b.run(b.clone, "rev-parse", "HEAD"))
	b.forge.Review(1, "alice", forge.Approved) // of the stranger's commit
	b.forge.Update(1, func(p *forge.PullRequest) { p.Title, p.Body = "harmless", "nothing to see" })
	b.pass()
	b.wantPending("workers-up-1")
	now := b.at(1)
	if got := b.run(b.remote, "diff", "--name-only", "main", request.Branch); got != "proposals/workers-up-1.diff" {
		t.Errorf("the branch changes %q", got)
	}
	if now.Title == "harmless" || !strings.Contains(now.Body, "digest") || now.HeadSHA != b.request("workers-up-1").Head {
		t.Errorf("the pull request is %+v", now)
	}
	b.merge("workers-up-1", "squash")
	b.pass()
	b.wantPending("workers-up-1") // alice approved another commit

	b.forge.Update(2, func(p *forge.PullRequest) { p.Base = "release" })
	b.forge.Review(2, "alice", forge.Approved)
	b.pass()
	b.pass()
	b.wantPending("workers-up-1")
	if b.at(2).State != forge.Closed || b.request("workers-up-1").Number != 3 {
		t.Errorf("the pull requests are %+v and %+v", b.at(2), b.request("workers-up-1"))
	}

	b.forge.Review(3, "alice", forge.Approved)
	b.forge.Update(3, func(p *forge.PullRequest) { p.Base, p.State = "release", forge.Merged })
	b.pass()
	b.wantPending("workers-up-1") // merged elsewhere
	if b.request("workers-up-1").Number != 4 {
		t.Errorf("the pull request is %+v", b.request("workers-up-1"))
	}
}

// TestTwoReviewers runs two controllers at once, as during a change of the leader: there is
// one pull request, and one decision.
func TestTwoReviewers(t *testing.T) { everywhere(t, testTwoReviewers) }

func testTwoReviewers(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1")
	// Both read the plan before either has recorded a pull request.
	stale := slices.Clone(*b.plans)
	second := b.config
	second.Plans = &behind{plans: b.plans, first: stale}
	other := review.New(second)
	b.pass()
	if err := other.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if open, _ := b.forge.Open(t.Context()); len(open) != 1 {
		t.Errorf("%d open pull requests", len(open))
	}
	b.forge.Review(1, "bob", forge.Approved)
	b.merge("workers-up-1", "squash")
	b.pass()
	if err := other.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.wantApproved("workers-up-1", "bob")
	if open, _ := b.forge.Open(t.Context()); len(open) != 0 {
		t.Errorf("%d open pull requests after the merge", len(open))
	}
}

// behind returns an earlier state of the plans once.
type behind struct {
	*plans
	first []v1alpha1.ScalePlan
}

func (s *behind) Plans(ctx context.Context) ([]v1alpha1.ScalePlan, error) {
	if first := s.first; first != nil {
		s.first = nil
		return first, nil
	}
	return s.plans.Plans(ctx)
}

// TestForgeFails reports errors of the forge, decides nothing, and continues afterwards.
func TestForgeFails(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", oneOfTwo)
	b.add("workers-up-1", "1")
	b.pass()
	b.forge.Review(1, "alice", forge.Approved)
	b.merge("workers-up-1", "squash")
	down := errors.New("connection refused")
	b.forge.Fail(down)
	if err := b.reviewer.Pass(t.Context()); !errors.Is(err, down) {
		t.Errorf("got %v", err)
	}
	b.wantPending("workers-up-1")

	limit := &forge.RateLimitError{Reset: b.config.Clock.Now().Add(2 * time.Minute)}
	for reset, want := range map[time.Duration]time.Duration{2 * time.Minute: 2 * time.Minute, time.Hour: 5 * time.Minute, -time.Hour: time.Minute} {
		limit.Reset = b.config.Clock.Now().Add(reset)
		b.forge.Fail(limit)
		if result, err := b.reviewer.Reconcile(t.Context()); err != nil || result.RequeueAfter != want {
			t.Errorf("limited until %s from now: %v, %v", reset, result, err)
		}
	}
	b.forge.Fail(nil)
	b.pass()
	b.wantApproved("workers-up-1", "alice")
}

// TestMergeRefused reports why an approved pull request cannot be merged by numaform, for
// example because the branch is protected.
func TestMergeRefused(t *testing.T) { everywhere(t, testMergeRefused) }

func testMergeRefused(t *testing.T, at kind) {
	b := newBench(t, at, review.Policy{Approvers: []string{"alice"}, Merge: true})
	b.forge.OnMerge = func(string, string) (string, error) {
		return "", &forge.ConflictError{Doing: "merging", Reason: "the branch main is protected"}
	}
	b.add("workers-up-1", "1")
	b.pass()
	b.forge.Review(1, "alice", forge.Approved)
	if err := b.reviewer.Pass(t.Context()); !errors.As(err, new(*forge.ConflictError)) {
		t.Errorf("got %v", err)
	}
	b.wantPending("workers-up-1")
	if waits := b.request("workers-up-1").Waits; !strings.Contains(waits, "main is protected") {
		t.Errorf("it waits: %q", waits)
	}
	b.merge("workers-up-1", "squash") // by an administrator
	b.pass()
	b.wantApproved("workers-up-1", "alice")
}

// TestFaults checks that nothing is decided while a forge refuses requests, that the reason is
// in the status and, if it continues, in an event, and that the decision follows afterwards.
func TestFaults(t *testing.T) { everywhere(t, testFaults) }

func testFaults(t *testing.T, at kind) {
	if at == "" {
		return // the faults are answers of a server
	}
	answer := func(status int, header, value, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set(header, value)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
			return true
		}
	}
	for name, fault := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request) bool
		want   string
	}{
		"token expired":  {answer(401, "X-Test", "1", `{"message":"token expired"}`), "create a new one and set NUMAFORM_FORGE_TOKEN"},
		"without rights": {answer(403, "X-Test", "1", `{"message":"not accessible"}`), "grant the rights in docs/pull-requests.md"},
		"renamed":        {answer(301, "Location", "https://git.example/ops/other", ""), "set fleet.git.remote to its new URL"},
		"down": {func(w http.ResponseWriter, _ *http.Request) bool {
			connection, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				err = connection.Close()
			}
			if err != nil {
				t.Error(err)
			}
			return true
		}, "the forge is not available"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, at, oneOfTwo)
			b.add("workers-up-1", "1")
			b.pass()
			b.forge.Review(1, "alice", forge.Approved)
			b.merge("workers-up-1", "squash")
			b.server.Fault(fault.answer)
			for range 2 {
				if err := b.reviewer.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), fault.want) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v", err)
				}
				b.wantPending("workers-up-1")
			}
			if waits := b.request("workers-up-1").Waits; !strings.Contains(waits, fault.want) {
				t.Errorf("it waits: %q", waits)
			}
			if len(b.events.messages) != 1 || !strings.Contains(b.events.messages[0], fault.want) {
				t.Errorf("events %q, want one of the second pass", b.events.messages)
			}
			b.server.Fault(nil)
			b.pass()
			b.wantApproved("workers-up-1", "alice")
		})
	}
}

// TestPushRefused keeps a change pending while the forge refuses numaform's pushes, and opens
// its pull request once it accepts them. A merged proposal whose removal is refused stays
// until then.
func TestPushRefused(t *testing.T) { everywhere(t, testPushRefused) }

func testPushRefused(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	hook := filepath.Join(b.remote, "hooks", "update")
	protect := func(pattern string) {
		t.Helper()
		script := "#!/bin/sh\ncase $1 in " + pattern + ") echo protected branch >&2; exit 1;; esac\n"
		if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(hook, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.add("workers-up-1", "1")
	protect("refs/heads/numaform/*")
	for range 2 {
		if err := b.reviewer.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), "pushing the proposal workers-up-1 to branch numaform/lab/workers-up-1") {
			t.Errorf("got %v", err)
		}
	}
	if len(b.events.messages) != 1 || !strings.Contains(b.events.messages[0], "PullRequestFailed: reviewing scaleplan workers-up-1") ||
		!strings.Contains(b.events.messages[0], "allow numaform's user to push to it") {
		t.Errorf("events %q", b.events.messages)
	}
	protect("nothing")
	b.pass()
	b.forge.Review(1, "alice", forge.Approved)
	b.merge("workers-up-1", "squash")
	b.pass()
	b.wantApproved("workers-up-1", "alice")

	b.plan("workers-up-1").Status.Phase = v1alpha1.ScalePlanApplied
	protect("refs/heads/main")
	if err := b.reviewer.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), "removing finished proposals") {
		t.Errorf("got %v", err)
	}
	b.wantProposals("proposals/workers-up-1.diff")
	protect("nothing")
	b.pass()
	b.wantProposals()
	if !b.request("workers-up-1").Closed {
		t.Error("the pull request is not finished")
	}
}

// TestComments checks that comments decide nothing and are not read.
func TestComments(t *testing.T) { everywhere(t, testComments) }

func testComments(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	hash := b.add("workers-up-1", "1").Spec.PlanHash
	b.pass()
	for i := range 10_000 {
		b.forge.Comment(1, fmt.Sprintf("/approve\nnumaform approve %s\n@numaform LGTM %d", hash, i))
	}
	b.pass()
	b.wantPending("workers-up-1")
	if b.server == nil {
		return
	}
	for _, request := range b.server.Requests() {
		if strings.HasPrefix(request, "GET ") && (strings.Contains(request, "comments") || strings.Contains(request, "notes")) {
			t.Errorf("%s reads comments", request)
		}
	}
}

// TestDecisions checks which reviews approve, and which checks stop a merge by numaform.
func TestDecisions(t *testing.T) { everywhere(t, testDecisions) }

func testDecisions(t *testing.T, at kind) {
	type reviewed struct {
		user  string
		state forge.ReviewState
	}
	for name, c := range map[string]struct {
		policy  review.Policy
		reviews []reviewed
		checks  map[string]forge.CheckState
		want    bool
		waits   string
	}{
		"nobody":           {policy: oneOfTwo, waits: "waits for the approval of 1 of alice, bob"},
		"one":              {policy: oneOfTwo, reviews: []reviewed{{"Alice", forge.Approved}}, want: true},
		"a stranger":       {policy: oneOfTwo, reviews: []reviewed{{"mallory", forge.Approved}}, waits: "waits for the approval of 1 of alice, bob"},
		"dismissed":        {policy: oneOfTwo, reviews: []reviewed{{"alice", forge.Dismissed}}, waits: "waits for the approval of 1 of alice, bob"},
		"changes":          {policy: oneOfTwo, reviews: []reviewed{{"alice", forge.Approved}, {"bob", forge.ChangesRequested}}, waits: "bob requests changes"},
		"half a quorum":    {policy: review.Policy{Approvers: []string{"alice", "bob"}, Quorum: 2}, reviews: []reviewed{{"bob", forge.Approved}}, waits: "waits for the approval of 1 of alice"},
		"the author alone": {policy: review.Policy{Approvers: []string{"numaform", "alice"}}, reviews: []reviewed{{"numaform", forge.Approved}}, waits: "waits for the approval of 1 of alice"},
		"a failed check": {
			policy: oneOfTwo, reviews: []reviewed{{"alice", forge.Approved}}, checks: map[string]forge.CheckState{"lint": forge.Failure},
			waits: "waits for the check lint, which is failure",
		},
		"a skipped check": {policy: oneOfTwo, reviews: []reviewed{{"alice", forge.Approved}}, checks: map[string]forge.CheckState{"lint": forge.Neutral}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.policy.Merge = true
			b := newBench(t, at, c.policy)
			b.forge.OnMerge = func(head, _ string) (string, error) { b.mergeBranch(head, "squash"); return "", nil }
			b.add("workers-up-1", "1")
			b.pass()
			for _, r := range c.reviews {
				b.forge.Review(1, r.user, r.state)
			}
			for check, state := range c.checks {
				if err := b.forge.SetStatus(t.Context(), b.request("workers-up-1").Head, forge.Status{Context: check, State: state}); err != nil {
					t.Fatal(err)
				}
			}
			b.pass()
			request := b.request("workers-up-1")
			if got := request.Approved != ""; got != c.want || request.Waits != c.waits {
				t.Errorf("approved %t, waits %q; want %t, %q", got, request.Waits, c.want, c.waits)
			}
		})
	}
}

// TestWithoutApprovers takes the merge itself as the approval.
func TestWithoutApprovers(t *testing.T) { everywhere(t, testWithoutApprovers) }

func testWithoutApprovers(t *testing.T, at kind) {
	b := newBench(t, at, review.Policy{})
	b.add("workers-up-1", "1")
	b.pass()
	b.merge("workers-up-1", "merge")
	b.pass()
	b.wantApproved("workers-up-1", "the merge of pull request #1") // this forge does not report who merged it

	b.add("workers-up-2", "2")
	b.pass()
	b.merge("workers-up-2", "merge")
	b.forge.Update(2, func(p *forge.PullRequest) { p.MergedBy = "carol" })
	b.pass()
	b.wantApproved("workers-up-2", "carol")
}

// TestLargePlan opens a pull request for many VMs with long reasons: its text is not too long
// for any forge, and still has the digest.
func TestLargePlan(t *testing.T) { everywhere(t, testLargePlan) }

func testLargePlan(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.add("workers-up-1", "1", func(plan *v1alpha1.ScalePlan) {
		plan.Spec.Why = strings.Repeat("a reason with ``` ", 200)
		for range 512 {
			plan.Spec.VMs = append(plan.Spec.VMs, v1alpha1.ScalePlanVM{Action: v1alpha1.ScalePlanCreate, Host: "lab/pve-1", Reason: strings.Repeat("ä", 512)})
		}
	})
	b.pass()
	body := b.at(1).Body
	if len(body) > forge.MaxBody || !strings.Contains(body, b.plan("workers-up-1").Spec.PlanHash) || !strings.Contains(body, "more VMs, listed in the file") {
		t.Errorf("the text has %d bytes", len(body))
	}
}

// TestPersonsOwn sets the status of a person's pull request, and sets it again when its head
// or the fleet changes. Files from a fork are not trusted.
func TestPersonsOwn(t *testing.T) { everywhere(t, testPersonsOwn) }

func testPersonsOwn(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	var trusts []bool
	b.config.Check = func(_ context.Context, now, after generator.Files, trusted bool) (bool, string, error) {
		trusts = append(trusts, trusted)
		return len(after) >= len(now), fmt.Sprintf("%d files become %d", len(now), len(after)), nil
	}
	b.restart()
	files, err := generator.Current().Render(fleet.Fleet{ClusterID: "lab", Backend: fleet.Backend{Type: "local"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		b.write(name, string(content))
	}
	b.commit("a fleet")
	b.run(b.clone, "switch", "--quiet", "--create", "mine")
	b.run(b.clone, "rm", "--quiet", "fleet.json")
	b.run(b.clone, "commit", "--quiet", "-m", "remove it")
	head := b.run(b.clone, "rev-parse", "HEAD")
	b.run(b.clone, "push", "--quiet", "origin", "HEAD:mine", "HEAD:"+b.config.Reference(1), "HEAD:"+b.config.Reference(2))
	b.forge.OpenBy("mallory", "mine", head, "a title", false)
	b.pass()
	if status, _ := b.forge.Status(head, "numaform/plan"); status.State != forge.Failure || !strings.HasPrefix(status.Description, fmt.Sprintf("%d files become", len(files))) {
		t.Errorf("status %+v", status)
	}
	b.pass()
	if len(trusts) != 1 || !trusts[0] {
		t.Errorf("checked with trust %v", trusts)
	}
	b.forge.Update(1, func(p *forge.PullRequest) { p.State = forge.Closed })

	// A name of a branch below numaform/ does not avoid the check.
	b.forge.OpenBy("mallory", "numaform/other/mine", head, "a title", false)
	b.restart()
	if err := b.forge.SetStatus(t.Context(), head, forge.Status{Context: "numaform/plan", State: forge.Success}); err != nil {
		t.Fatal(err)
	}
	b.pass()
	if status, _ := b.forge.Status(head, "numaform/plan"); status.State != forge.Failure {
		t.Errorf("status of a branch below numaform/: %+v", status)
	}
	b.forge.Update(2, func(p *forge.PullRequest) { p.State = forge.Closed })
	b.run(b.clone, "commit", "--quiet", "--amend", "-m", "remove it from a fork")
	head = b.run(b.clone, "rev-parse", "HEAD")
	b.forge.OpenBy("mallory", "main", head, "a title", true)
	b.run(b.clone, "revert", "--no-edit", "HEAD")
	b.run(b.clone, "push", "--quiet", "--force", "origin", "HEAD:"+b.config.Reference(3))
	b.pass()
	hasStatus := at != forge.GitLab // which has none for the commit of a fork
	if status, _ := b.forge.Status(head, "numaform/plan"); hasStatus && (status.State != forge.Failure || !strings.Contains(status.Description, "is at commit")) {
		t.Errorf("status of a head that has moved: %+v", status)
	}
	head = b.run(b.clone, "rev-parse", "HEAD")
	b.forge.Update(3, func(p *forge.PullRequest) { p.HeadSHA = head })
	b.pass()
	if status, _ := b.forge.Status(head, "numaform/plan"); hasStatus && status.State != forge.Success || trusts[len(trusts)-1] {
		t.Errorf("status of a fork %+v, trust %v", status, trusts)
	}
}

// TestOtherInstallations leaves the status of the proposals of another installation, which
// shares the repository, as that installation has set it.
func TestOtherInstallations(t *testing.T) { everywhere(t, testOtherInstallations) }

func testOtherInstallations(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.config.Check = func(context.Context, generator.Files, generator.Files, bool) (bool, string, error) {
		return true, "no VM changes", nil
	}
	b.restart()
	other := b.config
	other.ClusterID, other.Plans = "other", b.plans
	b.add("workers-up-1", "1")
	theirs := review.New(other)
	if err := theirs.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	head := b.request("workers-up-1").Head
	b.run(b.remote, "update-ref", b.config.Reference(1), head)
	*b.plans = nil
	b.pass()
	b.pass()
	if status, _ := b.forge.Status(head, "numaform/plan"); !strings.HasPrefix(status.Description, "digest ") || b.at(1).State != forge.Open {
		t.Errorf("the pull request of another installation is %s with the status %+v", b.at(1).State, status)
	}
}

// TestManyForks checks the pull request of a member of the team first, however many forks of
// strangers have one.
func TestManyForks(t *testing.T) { everywhere(t, testManyForks) }

func testManyForks(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.config.Check = func(context.Context, generator.Files, generator.Files, bool) (bool, string, error) {
		return true, "fine", nil
	}
	b.restart()
	b.run(b.clone, "switch", "--quiet", "--create", "mine")
	b.write("README.md", "changed\n")
	b.run(b.clone, "commit", "--quiet", "--all", "-m", "mine")
	head := b.run(b.clone, "rev-parse", "HEAD")
	b.run(b.clone, "push", "--quiet", "origin", "mine")
	for i := range 20 {
		b.forge.OpenBy("mallory", "main", fmt.Sprintf("%040d", i+1), "a title", true)
	}
	number := b.forge.OpenBy("alice", "mine", head, "a title", false)
	b.run(b.remote, "update-ref", b.config.Reference(number), head)
	b.pass()
	if status, _ := b.forge.Status(head, "numaform/plan"); status.Description != "fine" {
		t.Errorf("status %+v", status)
	}
}

// TestPictures shows the pictures of a plan: they are on the branch at the commit that is
// reviewed, stay the same after a restart without them, and are removed with the proposal.
func TestPictures(t *testing.T) { everywhere(t, testPictures) }

func testPictures(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.config.Plans = drawn{b.plans}
	b.config.FileURLs = func(request *forge.PullRequest, commit, file string) (content, page string) {
		return strings.TrimSuffix(request.URL, "/pulls/1") + "/raw/" + commit + "/" + file, request.URL
	}
	b.restart()
	b.add("workers-up-1", "1")
	b.pass()
	request := *b.request("workers-up-1")
	image := "](https://forge.example.com/fleet/raw/" + request.Head + "/proposals/workers-up-1.lab.pve-1.svg)"
	first := b.at(1).Body
	if !strings.Contains(first, image) {
		t.Errorf("no image %s in\n%s", image, first)
	}
	if got := b.run(b.remote, "show", request.Branch+":proposals/workers-up-1.lab.pve-1.svg"); got != "<svg>workers-up-1</svg>" {
		t.Errorf("the branch has the picture %q", got)
	}

	b.config.Plans = b.plans // after a restart, there are no pictures in memory
	b.restart()
	b.pass()
	if now := b.at(1); now.Body != first || now.HeadSHA != request.Head {
		t.Errorf("after a restart, the head is %s with the text\n%s", now.HeadSHA, now.Body)
	}
	b.forge.Review(1, "alice", forge.Approved)
	b.merge("workers-up-1", "squash")
	b.pass()
	b.wantApproved("workers-up-1", "alice")
	b.plan("workers-up-1").Status.Phase = v1alpha1.ScalePlanApplied
	b.pass()
	if got := b.run(b.remote, "ls-tree", "-r", "--name-only", "main"); strings.Contains(got, "svg") {
		t.Errorf("main has the files %q", got)
	}
}

// refusing is a forge that opens pull requests without their labels and reviewers.
type refusing struct{ forge.Client }

func (f refusing) Create(ctx context.Context, request forge.NewPullRequest) (forge.PullRequest, error) {
	request.Labels, request.Reviewers = nil, nil
	opened, err := f.Client.Create(ctx, request)
	if err == nil {
		err = &forge.IncompleteError{Number: opened.Number, Err: errors.New("the label is not permitted")}
	}
	return opened, err
}

// TestLabels sets labels and reviewers, and does not stop where the forge refuses them.
func TestLabels(t *testing.T) { everywhere(t, testLabels) }

func testLabels(t *testing.T, at kind) {
	b := newBench(t, at, oneOfTwo)
	b.config.Labels, b.config.Reviewers = []string{"numaform", "scale"}, []string{"alice"}
	b.restart()
	b.add("workers-up-1", "1")
	b.pass()
	if labels, reviewers := b.forge.Asked(1); !slices.Equal(labels, b.config.Labels) || !slices.Equal(reviewers, b.config.Reviewers) {
		t.Errorf("labels %q, reviewers %q", labels, reviewers)
	}

	b.config.Forge = refusing{b.config.Forge}
	b.restart()
	b.add("other-up-2", "2", func(plan *v1alpha1.ScalePlan) { plan.Spec.NodePools = []string{"other"} })
	b.pass()
	if request := b.request("other-up-2"); request.Number != 2 {
		t.Errorf("the pull request is %+v", request)
	}
	b.forge.Review(2, "alice", forge.Approved)
	b.merge("other-up-2", "squash")
	b.pass()
	b.wantApproved("other-up-2", "alice")
}
