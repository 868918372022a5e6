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

// giteaClient is a Client of Gitea or Forgejo. It makes the requests itself: Gitea's SDK has
// no context for a request, no filter of a list by branch, and drops the reason of a refused
// merge.
type giteaClient struct{ rest }

type (
	giteaUser struct {
		Login string `json:"login"`
	}
	giteaBranch struct {
		Ref    string `json:"ref"`
		SHA    string `json:"sha"`
		RepoID int64  `json:"repo_id"`
	}
	giteaPull struct {
		Number         int         `json:"number"`
		User           giteaUser   `json:"user"`
		Title          string      `json:"title"`
		Body           string      `json:"body"`
		State          string      `json:"state"`
		HTMLURL        string      `json:"html_url"`
		Merged         bool        `json:"merged"`
		MergeCommitSHA string      `json:"merge_commit_sha"`
		MergedBy       giteaUser   `json:"merged_by"`
		Base           giteaBranch `json:"base"`
		Head           giteaBranch `json:"head"`
		ClosedAt       time.Time   `json:"closed_at"`
	}
	giteaEvent struct {
		Type string    `json:"type"`
		User giteaUser `json:"user"`
	}
	giteaReview struct {
		User        giteaUser `json:"user"`
		State       string    `json:"state"`
		CommitID    string    `json:"commit_id"`
		Dismissed   bool      `json:"dismissed"`
		SubmittedAt time.Time `json:"submitted_at"`
	}
	giteaStatus struct {
		Context string `json:"context"`
		Status  string `json:"status"`
	}
	giteaLabel struct {
		ID   int64  `json:"id"`
		Name string `json:"name"`
	}
)

// giteaList returns all entries of a list, which must have the fields that missing checks.
func giteaList[T any](ctx context.Context, g *giteaClient, most int, what string, missing func(T) string, query url.Values, path ...string) ([]T, error) {
	seen := 0
	return collect(most, g.tooMany(what, most), missing, func(number int) ([]T, bool, error) {
		var list []T
		header, err := g.call(ctx, http.MethodGet, paged(number, "limit", query), nil, &list, path...)
		if err != nil {
			return nil, false, err
		}
		seen += len(list)
		more, err := hasMore(header, seen)
		return present(list), more, err
	})
}

// present returns a list of Gitea's, which is null if it is empty. Its X-Total-Count shows that
// it is one.
func present[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// hasMore reports whether a list has more entries than those seen. The server may return
// smaller pages than requested, so the size of a page tells nothing.
func hasMore(header http.Header, seen int) (bool, error) {
	total, err := strconv.Atoi(header.Get("X-Total-Count"))
	if err != nil {
		return false, errors.New("the answer has no X-Total-Count")
	}
	return seen < total, nil
}

func (g *giteaClient) Open(ctx context.Context) ([]PullRequest, error) {
	missing := func(entry giteaPull) string { pull := entry.pull(); return pull.missing() }
	list, err := giteaList(ctx, g, MaxOpen, "open pull requests", missing, url.Values{"state": {"open"}, "base_branch": {g.base}, "sort": {"oldest"}}, "pulls")
	if err != nil {
		return nil, g.listed("listing pull requests", "the repository", err)
	}
	var open []PullRequest
	for i := range list {
		if list[i].Base.Ref == g.base {
			open = append(open, list[i].pull())
		}
	}
	return open, nil
}

func (g *giteaClient) Get(ctx context.Context, number int) (PullRequest, error) {
	var found giteaPull
	if _, err := g.call(ctx, http.MethodGet, nil, nil, &found, "pulls", strconv.Itoa(number)); err != nil {
		return PullRequest{}, g.failed(reading(number), request(number), err)
	}
	pull := found.pull()
	if err := g.whole(&pull, reading(number)); err != nil {
		return PullRequest{}, err
	}
	if pull.State == Closed {
		var err error
		if pull.ClosedBy, err = g.closedBy(ctx, number, found.ClosedAt); err != nil {
			return PullRequest{}, g.failed(reading(number), request(number), err)
		}
	}
	return pull, nil
}

// closedBy returns who closed a pull request, or "" if its first MaxReviews events do not
// contain that. The events are those that changed since then, in the order of their creation:
// whoever edits old comments moves the closing to a later page. An empty page is not the end,
// because Gitea omits comments on code and references that the user may not see from each page
// (v1.26.0, routers/api/v1/repo/issue_comment.go, ListIssueCommentsAndTimeline).
func (g *giteaClient) closedBy(ctx context.Context, number int, at time.Time) (string, error) {
	since := url.Values{"since": {at.Format(time.RFC3339)}}
	for page := 1; page <= MaxReviews/pageSize; page++ {
		var events []giteaEvent
		header, err := g.call(ctx, http.MethodGet, paged(page, "limit", since), nil, &events, "issues", strconv.Itoa(number), "timeline")
		if err == nil {
			_, err = hasMore(header, 0) // the total is that of the page
		}
		if err != nil {
			return "", err
		}
		for _, event := range events {
			if event.Type == "close" {
				return event.User.Login, nil
			}
		}
	}
	return "", nil
}

func (g *giteaClient) Create(ctx context.Context, wanted NewPullRequest) (PullRequest, error) {
	if err := g.checkText(wanted.Title, wanted.Body); err != nil {
		return PullRequest{}, err
	}
	var created giteaPull
	doing := "opening a pull request of branch " + wanted.Head
	sent := map[string]any{"title": wanted.Title, "body": wanted.Body, "head": wanted.Head, "base": g.base}
	if _, err := g.call(ctx, http.MethodPost, nil, sent, &created, "pulls"); err != nil {
		return PullRequest{}, g.failed(doing, "branch "+wanted.Head, err)
	}
	pull := created.pull()
	if err := g.whole(&pull, doing); err != nil {
		return PullRequest{}, err
	}
	refused := g.label(ctx, pull.Number, wanted.Labels)
	for _, reviewer := range wanted.Reviewers { // of several, the forge asks none if one cannot be asked
		_, err := g.call(ctx, http.MethodPost, nil, map[string]any{"reviewers": []string{reviewer}}, nil, "pulls", strconv.Itoa(pull.Number), "requested_reviewers")
		refused = errors.Join(refused, g.failed("requesting a review by "+reviewer, "user "+reviewer, err))
	}
	if refused != nil {
		return pull, &IncompleteError{Forge: g.name, Number: pull.Number, Err: refused}
	}
	return pull, nil
}

// label adds labels to a pull request, and creates those that do not exist.
func (g *giteaClient) label(ctx context.Context, number int, names []string) error {
	if len(names) == 0 {
		return nil
	}
	missing := func(l giteaLabel) string { return cmp.Or(named("id", l.ID), named("name", l.Name)) }
	labels, err := giteaList(ctx, g, MaxChecks, "labels", missing, nil, "labels")
	if err != nil {
		return g.listed("listing labels", "the repository", err)
	}
	ids := make([]int64, len(names))
	for i, name := range names {
		at := slices.IndexFunc(labels, func(l giteaLabel) bool { return l.Name == name })
		if at < 0 {
			var created giteaLabel
			if _, err := g.call(ctx, http.MethodPost, nil, map[string]string{"name": name, "color": "#0e8a16"}, &created, "labels"); err != nil {
				return g.failed("creating label "+name, "the repository", err)
			}
			ids[i] = created.ID
			continue
		}
		ids[i] = labels[at].ID
	}
	_, err = g.call(ctx, http.MethodPost, nil, map[string]any{"labels": ids}, nil, "issues", strconv.Itoa(number), "labels")
	return g.failed("adding labels", request(number), err)
}

func (g *giteaClient) Reviews(ctx context.Context, number int) ([]Review, error) {
	missing := func(r giteaReview) string { return named("state", r.State) }
	list, err := giteaList(ctx, g, MaxReviews, "reviews of "+request(number), missing, nil, "pulls", strconv.Itoa(number), "reviews")
	if err != nil {
		return nil, g.listed("listing the reviews of "+request(number), request(number), err)
	}
	states := map[string]ReviewState{"APPROVED": Approved, "REQUEST_CHANGES": ChangesRequested}
	var reviews []Review
	for _, entry := range list {
		state, ok := states[entry.State]
		if !ok {
			continue
		}
		if entry.Dismissed {
			state = Dismissed
		}
		reviews = append(reviews, Review{User: entry.User.Login, State: state, SHA: entry.CommitID, At: entry.SubmittedAt})
	}
	return newestReviews(reviews), nil
}

func (g *giteaClient) Checks(ctx context.Context, sha string) ([]Check, error) {
	doing := fmt.Sprintf("listing the checks of commit %.12s", sha)
	seen := 0
	missing := func(s giteaStatus) string { return named("context", s.Context) }
	statuses, err := collect(MaxChecks, g.tooMany("checks of a commit", MaxChecks), missing, func(number int) ([]giteaStatus, bool, error) {
		var combined struct {
			Statuses []giteaStatus `json:"statuses"`
		}
		header, err := g.call(ctx, http.MethodGet, paged(number, "limit", nil), nil, &combined, "commits", sha, "status")
		if err != nil {
			return nil, false, err
		}
		seen += len(combined.Statuses)
		more, err := hasMore(header, seen)
		return present(combined.Statuses), more, err
	})
	if err != nil {
		return nil, g.listed(doing, "the commit", err)
	}
	checks := make([]Check, len(statuses))
	for i, status := range statuses {
		checks[i] = Check{Name: status.Context, State: stateOfStatus(status.Status)}
	}
	return sortChecks(checks), nil
}

func (g *giteaClient) SetStatus(ctx context.Context, sha string, status Status) error {
	state, err := g.nameOf(status, map[CheckState]string{Success: "success", Pending: "pending", Failure: "failure"})
	if err != nil {
		return err
	}
	_, err = g.call(ctx, http.MethodPost, nil, map[string]string{
		"state": state, "context": status.Context, "description": shorten(status.Description, MaxDescription), "target_url": status.URL,
	}, nil, "statuses", sha)
	return g.failed(fmt.Sprintf("setting the status of commit %.12s", sha), "the commit", err)
}

func (g *giteaClient) Merge(ctx context.Context, number int, headSHA string) (string, error) {
	var repository struct {
		Merge           bool `json:"allow_merge_commits"`
		Squash          bool `json:"allow_squash_merge"`
		RebaseMerge     bool `json:"allow_rebase_explicit"`
		Rebase          bool `json:"allow_rebase"`
		FastForwardOnly bool `json:"allow_fast_forward_only_merge"`
	}
	if _, err := g.call(ctx, http.MethodGet, nil, nil, &repository); err != nil {
		return "", g.failed("reading the repository", "the repository", err)
	}
	style := "merge"
	switch {
	case repository.Merge:
	case repository.Squash:
		style = "squash"
	case repository.RebaseMerge:
		style = "rebase-merge"
	case repository.Rebase:
		style = "rebase"
	case repository.FastForwardOnly:
		style = "fast-forward-only"
	}
	sent := map[string]any{"Do": style, "head_commit_id": headSHA}
	if _, err := g.call(ctx, http.MethodPost, nil, sent, nil, "pulls", strconv.Itoa(number), "merge"); err != nil {
		err = g.refused(ctx, g, number, headSHA, g.failed("merging "+request(number), request(number), err))
		if conflict := (*ConflictError)(nil); errors.As(err, &conflict) && strings.Contains(conflict.Reason, "try again later") {
			// Gitea 1.26.0 has one answer for both.
			conflict.Reason += ": it still checks for conflicts with the base branch, or has found some: if this does not end, remove them from the base branch, or close the pull request"
		}
		return "", err
	}
	merged, err := g.Get(ctx, number)
	return merged.MergeSHA, err
}

func (p *giteaPull) pull() PullRequest {
	state := map[string]State{"open": Open, "closed": Closed}[p.State]
	if p.Merged {
		state = Merged
	}
	pull := PullRequest{
		Number: p.Number, Head: p.Head.Ref, HeadSHA: p.Head.SHA, Base: p.Base.Ref, Title: p.Title, Body: p.Body, URL: p.HTMLURL,
		Author: p.User.Login, State: state, Fork: p.Head.RepoID != p.Base.RepoID,
	}
	if state == Merged {
		pull.MergeSHA, pull.MergedBy = p.MergeCommitSHA, p.MergedBy.Login
	}
	return pull
}
