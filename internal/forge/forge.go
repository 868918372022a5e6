// Package forge reads and writes pull requests at a git forge: GitHub, GitLab, Gitea or
// Forgejo. It works by polling alone, and reads no comments: only the reviews, checks and
// states that the forge itself keeps. Start at New; package forgetest has a forge in memory.
package forge

import (
	"context"
	"time"
)

// Client accesses the pull requests of one repository against one base branch. Its methods
// return the errors of this package: NotFoundError, RateLimitError, RightsError, MovedError,
// ConflictError, HeadError, TooManyError and UnavailableError. They can be called
// concurrently.
type Client interface { //nolint:interfacebloat // the operations on one pull request belong together
	// Open returns all open pull requests against the base branch, the lowest number first,
	// or an error if there are more than MaxOpen.
	Open(ctx context.Context) ([]PullRequest, error)
	// Get returns a pull request against any branch.
	Get(ctx context.Context, number int) (PullRequest, error)
	// Create opens a pull request of a branch of the repository. If the branch already has
	// an open one, it returns a ConflictError. If the forge refuses only labels or reviewers,
	// it returns the pull request and an IncompleteError.
	Create(ctx context.Context, request NewPullRequest) (PullRequest, error)
	// Edit replaces the title and the body of a pull request.
	Edit(ctx context.Context, number int, title, body string) error
	// Close adds a comment, unless it is empty, and closes a pull request without merging it.
	Close(ctx context.Context, number int, comment string) error
	// Reviews returns the reviews of a pull request that count: the newest one of each user,
	// by user. Comments are not reviews.
	Reviews(ctx context.Context, number int) ([]Review, error)
	// Checks returns the newest state of each check of a commit, by name.
	Checks(ctx context.Context, sha string) ([]Check, error)
	// SetStatus sets the status of a commit with a context, which replaces the earlier one.
	SetStatus(ctx context.Context, sha string, status Status) error
	// Merge merges a pull request if its head is still headSHA and the forge permits the
	// merge, and returns the commit on the base branch. If the head has changed, it returns a
	// HeadError; if the forge refuses the merge, a ConflictError.
	Merge(ctx context.Context, number int, headSHA string) (mergeSHA string, err error)
}

// Bounds of what a forge returns: a larger answer is an error, not a truncated list.
const (
	// MaxOpen is the largest number of open pull requests against the base branch.
	MaxOpen = 500
	// MaxReviews is the largest number of reviews of a pull request.
	MaxReviews = 1000
	// MaxChecks is the largest number of checks of a commit.
	MaxChecks = 1000
)

// Bounds of what a forge accepts, the smallest of all supported forges.
const (
	// MaxTitle is the longest title of a pull request, in characters (GitLab).
	MaxTitle = 255
	// MaxBody is the longest body of a pull request, in bytes (GitHub: 65536 characters).
	MaxBody = 64 << 10
	// MaxDescription is the longest description of a status, in characters (GitHub).
	MaxDescription = 140
)

// State is the state of a pull request.
type State string

// The states of a pull request.
const (
	Open   State = "Open"
	Merged State = "Merged"
	// Closed is closed without a merge.
	Closed State = "Closed"
)

// PullRequest is a pull request, or a merge request of GitLab. Everyone who can open a pull
// request wrote its Head, Title, Body and Author: they are untrusted text.
type PullRequest struct {
	Number int
	// Head is the branch with the change, without refs/heads/. In a fork, it may have the
	// name of any branch of the repository.
	Head string
	// HeadSHA is the commit at the head of the branch, as the forge knows it.
	HeadSHA string
	// Base is the branch that the change is merged into.
	Base        string
	Title, Body string
	// URL is the page of the pull request.
	URL string
	// Author is the login of the user who opened it.
	Author string
	State  State
	// MergeSHA is the commit that the merge added to the base branch; empty unless State is
	// Merged.
	MergeSHA string
	// MergedBy is the login of the user who merged it. Only Get sets it, and only if the forge
	// reports the user.
	MergedBy string
	// ClosedBy is the login of the user who closed it without a merge. Only Get sets it, and
	// only if the forge reports the user.
	ClosedBy string
	// Fork is set if the branch is in another repository than the base branch.
	Fork bool
}

// NewPullRequest is a pull request to open.
type NewPullRequest struct {
	// Head is a branch of the repository.
	Head        string
	Title, Body string
	// Labels that do not exist are created where the forge requires it.
	Labels []string
	// Reviewers are logins that are asked for a review, in addition to the owners in CODEOWNERS.
	Reviewers []string
}

// ReviewState is the state of a review.
type ReviewState string

// The states of a review.
const (
	Approved         ReviewState = "Approved"
	ChangesRequested ReviewState = "ChangesRequested"
	// Dismissed is a review that the forge or a person has dismissed, for example after a new
	// commit. It approves nothing.
	Dismissed ReviewState = "Dismissed"
)

// Review is the opinion of a user on a commit.
type Review struct {
	User  string
	State ReviewState
	// SHA is the head that the user reviewed; empty if the forge does not know it, in which
	// case the review approves nothing. GitLab records no commit: SHA is the head of its
	// newest version at the time of the approval, by GitLab's clock.
	SHA string
	At  time.Time
}

// CheckState is the state of a check.
type CheckState string

// The states of a check.
const (
	Success CheckState = "Success"
	Pending CheckState = "Pending"
	// Failure includes errors, timeouts and canceled checks.
	Failure CheckState = "Failure"
	// Neutral is a check that was skipped or has no opinion.
	Neutral CheckState = "Neutral"
)

// Check is a commit status, a check run of GitHub, or a job that reports as a status.
type Check struct {
	Name  string
	State CheckState
}

// Status is a commit status that numaform sets.
type Status struct {
	// Context names the status, such as numaform/plan.
	Context string
	// State is Success, Pending or Failure.
	State CheckState
	// Description is cut to MaxDescription characters.
	Description string
	// URL is a page with details, or empty.
	URL string
}
