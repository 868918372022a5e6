package forge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// gitLabClient is a Client of GitLab, whose pull requests are merge requests. It makes the
// requests itself: GitLab's client library requires a newer CEL than Kubernetes' libraries.
type gitLabClient struct {
	rest
	// api is the address of the API.
	api *url.URL
}

type (
	gitLabUser struct {
		ID       int64  `json:"id"`
		Username string `json:"username"`
	}
	gitLabRequest struct {
		IID             int        `json:"iid"`
		SourceBranch    string     `json:"source_branch"`
		TargetBranch    string     `json:"target_branch"`
		SourceProjectID int64      `json:"source_project_id"`
		TargetProjectID int64      `json:"target_project_id"`
		SHA             string     `json:"sha"`
		MergeCommitSHA  string     `json:"merge_commit_sha"`
		SquashCommitSHA string     `json:"squash_commit_sha"`
		Title           string     `json:"title"`
		Description     string     `json:"description"`
		WebURL          string     `json:"web_url"`
		State           string     `json:"state"`
		Author          gitLabUser `json:"author"`
		MergeUser       gitLabUser `json:"merge_user"`
		ClosedBy        gitLabUser `json:"closed_by"`
	}
	// gitLabReview is an approval, or a reviewer.
	gitLabReview struct {
		User       gitLabUser `json:"user"`
		ApprovedAt time.Time  `json:"approved_at"`
		State      string     `json:"state"`
		CreatedAt  time.Time  `json:"created_at"`
	}
	gitLabVersion struct {
		ID            int64     `json:"id"`
		HeadCommitSHA string    `json:"head_commit_sha"`
		CreatedAt     time.Time `json:"created_at"`
	}
	gitLabStatus struct {
		Name         string `json:"name"`
		Status       string `json:"status"`
		AllowFailure bool   `json:"allow_failure"`
	}
)

// gitLabList returns all entries of a list, which must have the fields that missing checks.
func gitLabList[T any](ctx context.Context, g *gitLabClient, most int, what string, missing func(T) string, query url.Values, path ...string) ([]T, error) {
	return collect(most, g.tooMany(what, most), missing, func(number int) ([]T, bool, error) {
		var list []T
		header, err := g.call(ctx, http.MethodGet, paged(number, "per_page", query), nil, &list, path...)
		return list, header.Get("X-Next-Page") != "", err
	})
}

func (g *gitLabClient) Open(ctx context.Context) ([]PullRequest, error) {
	query := url.Values{"state": {"opened"}, "target_branch": {g.base}, "scope": {"all"}, "order_by": {"created_at"}, "sort": {"asc"}}
	missing := func(entry gitLabRequest) string { pull := entry.pull(); return pull.missing() }
	list, err := gitLabList(ctx, g, MaxOpen, "open merge requests", missing, query, "merge_requests")
	if err != nil {
		return nil, g.listed("listing merge requests", "the project", err)
	}
	var open []PullRequest
	for i := range list {
		if list[i].TargetBranch == g.base { // what the answer says counts, not what was asked
			open = append(open, list[i].pull())
		}
	}
	return open, nil
}

func (g *gitLabClient) Get(ctx context.Context, number int) (PullRequest, error) {
	var found gitLabRequest
	if _, err := g.call(ctx, http.MethodGet, nil, nil, &found, "merge_requests", strconv.Itoa(number)); err != nil {
		return PullRequest{}, g.failed(reading(number), request(number), err)
	}
	pull := found.pull()
	return pull, g.whole(&pull, reading(number))
}

func (g *gitLabClient) Create(ctx context.Context, wanted NewPullRequest) (PullRequest, error) {
	if err := g.checkText(wanted.Title, wanted.Body); err != nil {
		return PullRequest{}, err
	}
	sent := map[string]any{"title": wanted.Title, "description": wanted.Body, "source_branch": wanted.Head, "target_branch": g.base}
	reviewers, refused := g.users(ctx, wanted.Reviewers)
	if len(reviewers) > 0 {
		sent["reviewer_ids"] = reviewers
	}
	if len(wanted.Labels) > 0 {
		sent["labels"] = strings.Join(wanted.Labels, ",")
	}
	var created gitLabRequest
	if _, err := g.call(ctx, http.MethodPost, nil, sent, &created, "merge_requests"); err != nil {
		return PullRequest{}, g.failed("opening a merge request of branch "+wanted.Head, "the project", err)
	}
	pull := created.pull()
	if err := g.whole(&pull, "opening a merge request of branch "+wanted.Head); err != nil {
		return PullRequest{}, err
	}
	if refused != nil {
		return pull, &IncompleteError{Forge: g.name, Number: pull.Number, Err: refused}
	}
	return pull, nil
}

// users returns the IDs of users, and an error for those that do not exist.
func (g *gitLabClient) users(ctx context.Context, logins []string) (ids []int64, refused error) {
	for _, login := range logins {
		var found []gitLabUser
		_, err := g.callAt(ctx, g.api, http.MethodGet, url.Values{"username": {login}}, nil, &found, "users")
		switch {
		case err != nil:
			refused = errors.Join(refused, g.failed("searching reviewer "+login, "user "+login, err))
		case len(found) != 1 || found[0].ID == 0:
			refused = errors.Join(refused, &NotFoundError{Forge: g.name, What: "user " + login})
		default:
			ids = append(ids, found[0].ID)
		}
	}
	return ids, refused
}

// Reviews returns the approvals, and the requests for changes, of a merge request. GitLab
// records the time of an approval, but not its commit: the commit is the head of the newest
// version that existed at that time. Both times are GitLab's.
func (g *gitLabClient) Reviews(ctx context.Context, number int) ([]Review, error) {
	doing, at := "listing the approvals of "+request(number), []string{"merge_requests", strconv.Itoa(number)}
	var approvals struct {
		ApprovedBy []gitLabReview `json:"approved_by"`
	}
	_, err := g.call(ctx, http.MethodGet, nil, nil, &approvals, append(at, "approvals")...)
	if err == nil {
		err = complete(approvals.ApprovedBy, func(r gitLabReview) string { return named("user", r.User.Username) })
	}
	if err != nil {
		return nil, g.failed(doing, request(number), err)
	}
	var reviewers []gitLabReview
	_, err = g.call(ctx, http.MethodGet, nil, nil, &reviewers, append(at, "reviewers")...)
	if err == nil {
		err = complete(reviewers, func(r gitLabReview) string { return cmp.Or(named("user", r.User.Username), named("state", r.State)) })
	}
	if err != nil {
		return nil, g.failed(doing, request(number), err)
	}
	// The versions are read after the approvals, so that an approval of a newer version is
	// not taken for one of the version before it.
	missing := func(v gitLabVersion) string { return cmp.Or(named("id", v.ID), named("created_at", v.CreatedAt)) }
	versions, err := gitLabList(ctx, g, MaxReviews, "versions of "+request(number), missing, nil, append(at, "versions")...)
	if err != nil {
		return nil, g.listed(doing, request(number), err)
	}

	var reviews []Review
	for _, approval := range approvals.ApprovedBy {
		if approval.ApprovedAt.IsZero() {
			continue // an old GitLab reports no time: its approvals cannot be bound to a commit
		}
		head := headAt(versions, approval.ApprovedAt)
		reviews = append(reviews, Review{User: approval.User.Username, State: Approved, SHA: head, At: approval.ApprovedAt})
	}
	for _, reviewer := range reviewers {
		if reviewer.State == "requested_changes" { // until it is withdrawn, whatever the head
			head := headAt(versions, time.Time{})
			reviews = append(reviews, Review{User: reviewer.User.Username, State: ChangesRequested, SHA: head, At: reviewer.CreatedAt})
		}
	}
	return newestReviews(reviews), nil
}

// headAt returns the head of the newest version that was created before a time, or of the
// newest one for the zero time; empty if there is none.
func headAt(versions []gitLabVersion, at time.Time) string {
	existed := slices.DeleteFunc(slices.Clone(versions), func(v gitLabVersion) bool { return !at.IsZero() && !v.CreatedAt.Before(at) })
	if len(existed) == 0 {
		return ""
	}
	return slices.MaxFunc(existed, func(a, b gitLabVersion) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	}).HeadCommitSHA
}

func (g *gitLabClient) Checks(ctx context.Context, sha string) ([]Check, error) {
	statuses, err := g.statuses(ctx, sha, nil)
	if err != nil {
		return nil, err
	}
	checks := make([]Check, len(statuses))
	for i, status := range statuses {
		checks[i] = Check{Name: status.Name, State: stateOfJob(status)}
	}
	return sortChecks(checks), nil
}

// statuses returns the newest status of each job and external check of a commit.
func (g *gitLabClient) statuses(ctx context.Context, sha string, query url.Values) ([]gitLabStatus, error) {
	missing := func(s gitLabStatus) string { return named("name", s.Name) }
	list, err := gitLabList(ctx, g, MaxChecks, "checks of a commit", missing, query, "repository", "commits", sha, "statuses")
	return list, g.listed(fmt.Sprintf("listing the checks of commit %.12s", sha), "the commit", err)
}

// SetStatus sets a status, unless it is pending already: GitLab refuses that, but replaces a
// status that has ended. It returns a NotFoundError for the commit of a fork, which no branch
// of the project contains.
func (g *gitLabClient) SetStatus(ctx context.Context, sha string, status Status) error {
	state, err := g.nameOf(status, map[CheckState]string{Success: "success", Pending: "pending", Failure: "failed"})
	if err != nil {
		return err
	}
	if status.State == Pending {
		have, err := g.statuses(ctx, sha, url.Values{"name": {status.Context}})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(have, func(s gitLabStatus) bool { return s.Name == status.Context && s.Status == state }) {
			return nil
		}
	}
	sent := map[string]string{"state": state, "name": status.Context, "description": shorten(status.Description, MaxDescription)}
	if status.URL != "" {
		sent["target_url"] = status.URL
	}
	_, err = g.call(ctx, http.MethodPost, nil, sent, nil, "statuses", sha)
	return g.failed(fmt.Sprintf("setting the status of commit %.12s", sha), "the commit", err)
}

func (g *gitLabClient) Merge(ctx context.Context, number int, headSHA string) (string, error) {
	var merged gitLabRequest
	_, err := g.call(ctx, http.MethodPut, nil, map[string]string{"sha": headSHA}, &merged, "merge_requests", strconv.Itoa(number), "merge")
	var answer *answerError
	if errors.As(err, &answer) && answer.status == http.StatusUnauthorized {
		// The answer if the user may not merge, although the token is valid.
		return "", &RightsError{Forge: g.name, Doing: "merging " + request(number), Reason: answer.Error()}
	}
	if err != nil {
		return "", g.refused(ctx, g, number, headSHA, g.failed("merging "+request(number), request(number), err))
	}
	return merged.pull().MergeSHA, nil
}

func (m *gitLabRequest) pull() PullRequest {
	// A locked merge request is about to be merged or to be open again.
	states := map[string]State{"opened": Open, "locked": Open, "merged": Merged, "closed": Closed}
	pull := PullRequest{
		Number: m.IID, Head: m.SourceBranch, HeadSHA: m.SHA, Base: m.TargetBranch, Title: m.Title, Body: m.Description, URL: m.WebURL,
		Author: m.Author.Username, State: states[m.State], Fork: m.SourceProjectID != m.TargetProjectID,
	}
	if pull.State == Merged {
		pull.MergeSHA = cmp.Or(m.MergeCommitSHA, m.SquashCommitSHA, m.SHA) // a fast-forward adds no commit
		pull.MergedBy = m.MergeUser.Username
	}
	if pull.State == Closed {
		pull.ClosedBy = m.ClosedBy.Username
	}
	return pull
}

// stateOfJob converts the status of a job or an external check.
func stateOfJob(status gitLabStatus) CheckState {
	switch status.Status {
	case "success":
		return Success
	case "skipped", "manual":
		return Neutral
	case "failed", "canceled", "canceling":
		if status.AllowFailure {
			return Neutral
		}
		return Failure
	}
	return Pending
}
