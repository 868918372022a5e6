package forge

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/google/go-github/v89/github"
)

// gitHubClient is a Client of GitHub or GitHub Enterprise Server.
type gitHubClient struct {
	connection
	api         *github.Client
	owner, repo string
}

func newGitHub(c connection, base *url.URL, owner, repo string) (Client, error) {
	// The client's own check of rates would refuse requests by a clock that may be wrong.
	options := []github.ClientOptionsFunc{
		github.WithHTTPClient(c.http), github.WithAuthToken(c.token), github.WithUserAgent("numaform"), github.WithDisableRateLimitCheck(),
	}
	if base.Host != "github.com" {
		options = append(options, github.WithEnterpriseURLs(base.String(), base.String()))
	}
	api, err := github.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("fleet.git.forge: opening GitHub at %s: %w", base.Host, err)
	}
	return &gitHubClient{connection: c, api: api, owner: owner, repo: repo}, nil
}

func (g *gitHubClient) Open(ctx context.Context) ([]PullRequest, error) {
	options := &github.PullRequestListOptions{State: "open", Base: g.base, Sort: "created", Direction: "asc"}
	missing := func(entry *github.PullRequest) string { pull := pullOfGitHub(entry); return pull.missing() }
	list, err := collect(MaxOpen, g.tooMany("open pull requests", MaxOpen), missing, func(page int) ([]*github.PullRequest, bool, error) {
		options.ListOptions = github.ListOptions{Page: page, PerPage: pageSize}
		list, answer, err := g.api.PullRequests.List(ctx, g.owner, g.repo, options)
		return list, more(answer), err
	})
	if err != nil {
		return nil, g.listed("listing pull requests", "the repository", err)
	}
	var open []PullRequest
	for _, entry := range list {
		if entry.GetBase().GetRef() == g.base { // what the answer says counts, not what was asked
			open = append(open, pullOfGitHub(entry))
		}
	}
	return open, nil
}

// more reports whether there is another page.
func more(answer *github.Response) bool { return answer != nil && answer.NextPage != 0 }

func (g *gitHubClient) Get(ctx context.Context, number int) (PullRequest, error) {
	found, _, err := g.api.PullRequests.Get(ctx, g.owner, g.repo, number)
	if err != nil {
		return PullRequest{}, g.failed(reading(number), request(number), err)
	}
	pull := pullOfGitHub(found)
	if err := g.whole(&pull, reading(number)); err != nil {
		return PullRequest{}, err
	}
	if pull.State == Closed {
		issue, _, err := g.api.Issues.Get(ctx, g.owner, g.repo, number) // a pull request lacks who closed it
		if err == nil && issue.GetNumber() != number {
			err = errors.New("the answer is not the issue of the pull request")
		}
		if err != nil {
			return PullRequest{}, g.failed(reading(number), request(number), err)
		}
		pull.ClosedBy = issue.GetClosedBy().GetLogin()
	}
	return pull, nil
}

func (g *gitHubClient) Create(ctx context.Context, wanted NewPullRequest) (PullRequest, error) {
	if err := g.checkText(wanted.Title, wanted.Body); err != nil {
		return PullRequest{}, err
	}
	created, _, err := g.api.PullRequests.Create(ctx, g.owner, g.repo, &github.NewPullRequest{
		Title: &wanted.Title, Body: &wanted.Body, Head: &wanted.Head, Base: &g.base,
	})
	if err != nil {
		return PullRequest{}, g.failed("opening a pull request of branch "+wanted.Head, "the repository", err)
	}
	pull := pullOfGitHub(created)
	if err := g.whole(&pull, "opening a pull request of branch "+wanted.Head); err != nil {
		return PullRequest{}, err
	}

	var refused error
	if len(wanted.Labels) > 0 {
		_, _, err := g.api.Issues.AddLabelsToIssue(ctx, g.owner, g.repo, pull.Number, wanted.Labels)
		refused = errors.Join(refused, g.failed("adding labels", request(pull.Number), err))
	}
	for _, reviewer := range wanted.Reviewers { // of several, the forge asks none if one cannot be asked
		_, _, err := g.api.PullRequests.RequestReviewers(ctx, g.owner, g.repo, pull.Number, github.ReviewersRequest{Reviewers: []string{reviewer}})
		refused = errors.Join(refused, g.failed("requesting a review by "+reviewer, "user "+reviewer, err))
	}
	if refused != nil {
		return pull, &IncompleteError{Forge: g.name, Number: pull.Number, Err: refused}
	}
	return pull, nil
}

func (g *gitHubClient) Edit(ctx context.Context, number int, title, body string) error {
	if err := g.checkText(title, body); err != nil {
		return err
	}
	_, _, err := g.api.PullRequests.Edit(ctx, g.owner, g.repo, number, &github.PullRequest{Title: &title, Body: &body})
	return g.failed("editing "+request(number), request(number), err)
}

func (g *gitHubClient) Close(ctx context.Context, number int, comment string) error {
	if comment != "" {
		_, _, err := g.api.Issues.CreateComment(ctx, g.owner, g.repo, number, &github.IssueComment{Body: &comment})
		if err != nil {
			return g.failed("commenting on "+request(number), request(number), err)
		}
	}
	closed := "closed"
	_, _, err := g.api.PullRequests.Edit(ctx, g.owner, g.repo, number, &github.PullRequest{State: &closed})
	return g.failed("closing "+request(number), request(number), err)
}

func (g *gitHubClient) Reviews(ctx context.Context, number int) ([]Review, error) {
	states := map[string]ReviewState{"APPROVED": Approved, "CHANGES_REQUESTED": ChangesRequested, "DISMISSED": Dismissed}
	missing := func(entry *github.PullRequestReview) string { return named("state", entry.GetState()) }
	all, err := collect(MaxReviews, g.tooMany("reviews of "+request(number), MaxReviews), missing, func(page int) ([]*github.PullRequestReview, bool, error) {
		list, answer, err := g.api.PullRequests.ListReviews(ctx, g.owner, g.repo, number, &github.ListOptions{Page: page, PerPage: pageSize})
		return list, more(answer), err
	})
	if err != nil {
		return nil, g.listed("listing the reviews of "+request(number), request(number), err)
	}
	var reviews []Review
	for _, entry := range all {
		if state, ok := states[entry.GetState()]; ok {
			reviews = append(reviews, Review{User: entry.GetUser().GetLogin(), State: state, SHA: entry.GetCommitID(), At: entry.GetSubmittedAt().Time})
		}
	}
	return newestReviews(reviews), nil
}

func (g *gitHubClient) Checks(ctx context.Context, sha string) ([]Check, error) {
	doing := fmt.Sprintf("listing the checks of commit %.12s", sha)
	tooMany := g.tooMany("checks of a commit", MaxChecks)
	ofStatus := func(entry *github.RepoStatus) string { return named("context", entry.GetContext()) }
	statuses, err := collect(MaxChecks, tooMany, ofStatus, func(page int) ([]*github.RepoStatus, bool, error) {
		combined, answer, err := g.api.Repositories.GetCombinedStatus(ctx, g.owner, g.repo, sha, &github.ListOptions{Page: page, PerPage: pageSize})
		if err != nil || combined == nil {
			return nil, false, err
		}
		return combined.Statuses, more(answer), nil
	})
	if err != nil {
		return nil, g.listed(doing, "the commit", err)
	}
	ofRun := func(entry *github.CheckRun) string { return named("name", entry.GetName()) }
	runs, err := collect(MaxChecks, tooMany, ofRun, func(page int) ([]*github.CheckRun, bool, error) {
		found, answer, err := g.api.Checks.ListCheckRunsForRef(ctx, g.owner, g.repo, sha, &github.ListCheckRunsOptions{
			ListOptions: github.ListOptions{Page: page, PerPage: pageSize},
		})
		if err != nil || found == nil {
			return nil, false, err
		}
		return found.CheckRuns, more(answer), nil
	})
	if err != nil {
		return nil, g.listed(doing, "the commit", err)
	}
	var checks []Check
	for _, status := range statuses {
		checks = append(checks, Check{Name: status.GetContext(), State: stateOfStatus(status.GetState())})
	}
	for _, run := range runs {
		checks = append(checks, Check{Name: run.GetName(), State: stateOfRun(run.GetStatus(), run.GetConclusion())})
	}
	return sortChecks(checks), nil
}

func (g *gitHubClient) SetStatus(ctx context.Context, sha string, status Status) error {
	state, err := g.nameOf(status, map[CheckState]string{Success: "success", Pending: "pending", Failure: "failure"})
	if err != nil {
		return err
	}
	description := shorten(status.Description, MaxDescription)
	sent := github.RepoStatus{State: &state, Context: &status.Context, Description: &description}
	if status.URL != "" {
		sent.TargetURL = &status.URL
	}
	_, _, err = g.api.Repositories.CreateStatus(ctx, g.owner, g.repo, sha, sent)
	return g.failed(fmt.Sprintf("setting the status of commit %.12s", sha), "the commit", err)
}

func (g *gitHubClient) Merge(ctx context.Context, number int, headSHA string) (string, error) {
	repository, _, err := g.api.Repositories.Get(ctx, g.owner, g.repo)
	if err != nil {
		return "", g.failed("reading the repository", "the repository", err)
	}
	method := "merge"
	switch {
	case repository.GetAllowMergeCommit():
	case repository.GetAllowSquashMerge():
		method = "squash"
	case repository.GetAllowRebaseMerge():
		method = "rebase"
	}
	merged, _, err := g.api.PullRequests.Merge(ctx, g.owner, g.repo, number, "", &github.PullRequestOptions{SHA: headSHA, MergeMethod: method})
	if err != nil {
		return "", g.refused(ctx, g, number, headSHA, g.failed("merging "+request(number), request(number), err))
	}
	return merged.GetSHA(), nil
}

func pullOfGitHub(p *github.PullRequest) PullRequest {
	state := map[string]State{"open": Open, "closed": Closed}[p.GetState()]
	if !p.GetMergedAt().IsZero() || p.GetMerged() {
		state = Merged
	}
	pull := PullRequest{
		Number: p.GetNumber(), Head: p.GetHead().GetRef(), HeadSHA: p.GetHead().GetSHA(), Base: p.GetBase().GetRef(),
		Title: p.GetTitle(), Body: p.GetBody(), URL: p.GetHTMLURL(), Author: p.GetUser().GetLogin(), State: state,
		// The repository of a deleted fork is null.
		Fork:     p.GetHead().GetRepo() == nil || p.GetHead().GetRepo().GetID() != p.GetBase().GetRepo().GetID(),
		MergedBy: p.GetMergedBy().GetLogin(),
	}
	if state == Merged { // until then, it is a trial merge
		pull.MergeSHA = p.GetMergeCommitSHA()
	}
	return pull
}

// stateOfStatus converts the state of a commit status of GitHub or Gitea.
func stateOfStatus(state string) CheckState {
	switch state {
	case "success":
		return Success
	case "pending":
		return Pending
	case "warning", "skipped":
		return Neutral
	}
	return Failure
}

// stateOfRun converts the state of a check run.
func stateOfRun(status, conclusion string) CheckState {
	if status != "completed" {
		return Pending
	}
	switch conclusion {
	case "success":
		return Success
	case "neutral", "skipped":
		return Neutral
	}
	return Failure
}
