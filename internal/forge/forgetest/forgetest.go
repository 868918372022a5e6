// Package forgetest has a forge in memory, for tests of code that uses a forge.Client. It
// runs no git: a test tells it the commits of branches with Push. Start at New.
package forgetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/numaform/numaform/internal/forge"
)

// name is the repository in errors.
const name = "a forge in memory"

// Forge is a forge.Client with one repository in memory. A test acts as its users with the
// other methods.
type Forge struct {
	// User is the login of the client.
	User string
	// OnMerge, if set, merges a branch: it returns the commit on the base branch.
	OnMerge func(head, headSHA string) (mergeSHA string, err error)

	mu       sync.Mutex
	base     string
	now      time.Time
	pulls    []*pull
	branches map[string]string
	statuses map[string]map[string]forge.Status
	fault    error
}

type pull struct {
	forge.PullRequest
	labels, reviewers, comments []string
	reviews                     map[string]forge.Review
	// versions are the heads that it had, with their times.
	versions []version
}

type version struct {
	sha string
	at  time.Time
}

// move sets the head of a pull request.
func (p *pull) move(sha string, at time.Time) {
	if p.HeadSHA != sha || len(p.versions) == 0 {
		p.versions = append(p.versions, version{sha: sha, at: at})
	}
	p.HeadSHA = sha
}

var _ forge.Client = (*Forge)(nil)

// New returns a forge whose pull requests are against the branch base.
func New(base string) *Forge {
	return &Forge{
		User: "numaform", base: base, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		branches: map[string]string{}, statuses: map[string]map[string]forge.Status{},
	}
}

// Fail makes each later request fail with err; nil ends this.
func (f *Forge) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = err
}

// Push sets the head of a branch, and of its open pull requests, to a commit. Earlier
// reviews remain, bound to their commits.
func (f *Forge) Push(branch, sha string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.branches[branch] = sha
	for _, p := range f.pulls {
		if p.State == forge.Open && p.Head == branch && !p.Fork && p.HeadSHA != sha {
			p.move(sha, f.tick())
		}
	}
}

// OpenBy opens a pull request as another user, and returns its number.
func (f *Forge) OpenBy(author, head, sha, title string, fork bool) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open(forge.PullRequest{Head: head, HeadSHA: sha, Title: title, Author: author, Fork: fork}).Number
}

// Review reviews the current head of a pull request as a user.
func (f *Forge) Review(number int, user string, state forge.ReviewState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err != nil {
		panic(err) // a mistake of the test
	}
	p.reviews[user] = forge.Review{User: user, State: state, SHA: p.HeadSHA, At: f.tick()}
}

// Update changes a pull request as another user, who may for example merge, close or
// retarget it.
func (f *Forge) Update(number int, change func(*forge.PullRequest)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err != nil {
		panic(err) // a mistake of the test
	}
	change(&p.PullRequest)
	p.move(p.HeadSHA, f.tick())
}

// Status returns the status with a context of a commit.
func (f *Forge) Status(sha, statusContext string) (forge.Status, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status, ok := f.statuses[sha][statusContext]
	return status, ok
}

// Comments returns the comments of a pull request.
func (f *Forge) Comments(number int) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err != nil {
		panic(err) // a mistake of the test
	}
	return slices.Clone(p.comments)
}

// Comment comments on a pull request.
func (f *Forge) Comment(number int, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err != nil {
		panic(err) // a mistake of the test
	}
	p.comments = append(p.comments, text)
}

// Ask adds labels and requested reviewers to a pull request.
func (f *Forge) Ask(number int, labels, reviewers []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err != nil {
		panic(err) // a mistake of the test
	}
	p.labels, p.reviewers = append(p.labels, labels...), append(p.reviewers, reviewers...)
}

// Asked returns the labels and the requested reviewers of a pull request.
func (f *Forge) Asked(number int) (labels, reviewers []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err != nil {
		panic(err) // a mistake of the test
	}
	return slices.Clone(p.labels), slices.Clone(p.reviewers)
}

// Open implements forge.Client.
func (f *Forge) Open(context.Context) ([]forge.PullRequest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return nil, f.fault
	}
	var list []forge.PullRequest
	for _, p := range f.pulls {
		if p.State == forge.Open && p.Base == f.base {
			list = append(list, p.PullRequest)
		}
	}
	if len(list) > forge.MaxOpen {
		return nil, &forge.TooManyError{Forge: name, What: "open pull requests", Max: forge.MaxOpen}
	}
	return list, nil
}

// Get implements forge.Client.
func (f *Forge) Get(_ context.Context, number int) (forge.PullRequest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err := cmp.Or(f.fault, err); err != nil {
		return forge.PullRequest{}, err
	}
	return p.PullRequest, nil
}

// Create implements forge.Client.
func (f *Forge) Create(_ context.Context, request forge.NewPullRequest) (forge.PullRequest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := cmp.Or(f.fault, checkText(request.Title, request.Body)); err != nil {
		return forge.PullRequest{}, err
	}
	sha, ok := f.branches[request.Head]
	if !ok {
		return forge.PullRequest{}, &forge.NotFoundError{Forge: name, What: "branch " + request.Head}
	}
	for _, p := range f.pulls {
		if p.State == forge.Open && p.Head == request.Head && p.Base == f.base && !p.Fork {
			return forge.PullRequest{}, &forge.ConflictError{Forge: name, Doing: "opening a pull request", Reason: "the branch already has one"}
		}
	}
	p := f.open(forge.PullRequest{Head: request.Head, HeadSHA: sha, Title: request.Title, Body: request.Body, Author: f.User})
	p.labels, p.reviewers = slices.Clone(request.Labels), slices.Clone(request.Reviewers)
	return p.PullRequest, nil
}

// Edit implements forge.Client.
func (f *Forge) Edit(_ context.Context, number int, title, body string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err := cmp.Or(f.fault, err, checkText(title, body)); err != nil {
		return err
	}
	p.Title, p.Body = title, body
	return nil
}

// Close implements forge.Client.
func (f *Forge) Close(_ context.Context, number int, comment string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err := cmp.Or(f.fault, err); err != nil {
		return err
	}
	if comment != "" {
		p.comments = append(p.comments, comment)
	}
	if p.State == forge.Open {
		p.State, p.ClosedBy = forge.Closed, f.User
	}
	return nil
}

// Reviews implements forge.Client.
func (f *Forge) Reviews(_ context.Context, number int) ([]forge.Review, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err := cmp.Or(f.fault, err); err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(p.reviews), func(a, b forge.Review) int { return cmp.Compare(a.User, b.User) }), nil
}

// Checks implements forge.Client.
func (f *Forge) Checks(_ context.Context, sha string) ([]forge.Check, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return nil, f.fault
	}
	var list []forge.Check
	for _, key := range slices.Sorted(maps.Keys(f.statuses[sha])) {
		list = append(list, forge.Check{Name: key, State: f.statuses[sha][key].State})
	}
	return list, nil
}

// SetStatus implements forge.Client.
func (f *Forge) SetStatus(_ context.Context, sha string, status forge.Status) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return f.fault
	}
	if f.statuses[sha] == nil {
		f.statuses[sha] = map[string]forge.Status{}
	}
	f.statuses[sha][status.Context] = status
	return nil
}

// Merge implements forge.Client.
func (f *Forge) Merge(_ context.Context, number int, headSHA string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(number)
	if err := cmp.Or(f.fault, err); err != nil {
		return "", err
	}
	if p.State != forge.Open {
		return "", &forge.ConflictError{Forge: name, Doing: fmt.Sprintf("merging pull request %d", number), Reason: "it is not open"}
	}
	if p.HeadSHA != headSHA {
		return "", &forge.HeadError{Forge: name, Number: number, Want: headSHA, Have: p.HeadSHA}
	}
	merged := headSHA
	if f.OnMerge != nil {
		if merged, err = f.OnMerge(p.Head, headSHA); err != nil {
			return "", err
		}
	}
	p.State, p.MergeSHA, p.MergedBy = forge.Merged, merged, f.User
	return merged, nil
}

func (f *Forge) open(request forge.PullRequest) *pull {
	request.Number = len(f.pulls) + 1
	request.Base = f.base
	request.URL = fmt.Sprintf("https://forge.example.com/fleet/pulls/%d", request.Number)
	request.State = forge.Open
	p := &pull{PullRequest: request, reviews: map[string]forge.Review{}}
	p.move(request.HeadSHA, f.tick())
	f.pulls = append(f.pulls, p)
	return p
}

func (f *Forge) find(number int) (*pull, error) {
	if number < 1 || number > len(f.pulls) {
		return nil, &forge.NotFoundError{Forge: name, What: fmt.Sprintf("pull request %d", number)}
	}
	return f.pulls[number-1], nil
}

func (f *Forge) tick() time.Time {
	f.now = f.now.Add(time.Second)
	return f.now
}

func checkText(title, body string) error {
	if utf8.RuneCountInString(title) > forge.MaxTitle || len(body) > forge.MaxBody {
		return &forge.ConflictError{Forge: name, Doing: "writing a pull request", Reason: "the title or the body is too long"}
	}
	return nil
}
