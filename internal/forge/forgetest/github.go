package forgetest

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/forge"
)

// gitHub registers the operations of GitHub's API.
func (s *Server) gitHub() {
	const repo = "/api/v3/repos/{owner}/{repo}"
	handle := func(pattern string, status int, run func(w http.ResponseWriter, r *http.Request) (any, error)) {
		s.api.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := run(w, r)
			respond(w, status, body, err)
		})
	}
	handle("GET "+repo, http.StatusOK, func(http.ResponseWriter, *http.Request) (any, error) {
		return map[string]any{"id": 1, "allow_merge_commit": false, "allow_squash_merge": true, "allow_rebase_merge": false}, nil
	})
	handle("GET "+repo+"/pulls", http.StatusOK, func(w http.ResponseWriter, r *http.Request) (any, error) {
		query := r.URL.Query()
		list, err := s.listed(query.Get("direction") == "desc", func(p *forge.PullRequest) bool {
			open := p.State == forge.Open
			return (query.Get("state") == "all" || open == (query.Get("state") == "open")) &&
				(query.Get("base") == "" || query.Get("base") == p.Base) &&
				(query.Get("head") == "" || query.Get("head") == "ops:"+p.Head && !p.Fork)
		})
		found, next := page(r, "per_page", list)
		if next > 0 {
			w.Header().Set("Link", fmt.Sprintf(`<%s%s?page=%d>; rel="next"`, s.URL, r.URL.EscapedPath(), next))
		}
		pulls := []any{}
		for i := range found {
			pulls = append(pulls, gitHubPull(&found[i]))
		}
		return pulls, err
	})
	handle("POST "+repo+"/pulls", http.StatusCreated, func(w http.ResponseWriter, r *http.Request) (any, error) {
		sent := decode[struct{ Title, Head, Body string }](s, r)
		created, err := s.Create(r.Context(), forge.NewPullRequest{Head: sent.Head, Title: sent.Title, Body: sent.Body})
		return gitHubPull(&created), err
	})
	handle("GET "+repo+"/pulls/{number}", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err != nil {
			return nil, err
		}
		return gitHubPull(&found.PullRequest), nil
	})
	handle("PATCH "+repo+"/pulls/{number}", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		sent := decode[struct {
			Title, Body *string
			State       string
		}](s, r)
		changed, err := s.edit(r, sent.Title, sent.Body, sent.State == "closed")
		if err != nil {
			return nil, err
		}
		return gitHubPull(&changed.PullRequest), nil
	})
	handle("PUT "+repo+"/pulls/{number}/merge", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err != nil {
			return nil, err
		}
		sent := decode[struct {
			SHA    string
			Method string `json:"merge_method"`
		}](s, r)
		if sent.Method != "squash" {
			return nil, &forge.ConflictError{Forge: name, Doing: "merging", Reason: "Merge commits are not allowed on this repository."}
		}
		sha, err := s.Merge(r.Context(), found.Number, sent.SHA)
		return map[string]any{"sha": sha, "merged": true, "message": "merged"}, err
	})
	handle("GET "+repo+"/pulls/{number}/reviews", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err != nil {
			return nil, err
		}
		states := map[forge.ReviewState]string{forge.Approved: "APPROVED", forge.ChangesRequested: "CHANGES_REQUESTED", forge.Dismissed: "DISMISSED"}
		list := []any{}
		for i, user := range sortedKeys(found.reviews) {
			review := found.reviews[user]
			list = append(list, map[string]any{
				"id": i, "user": map[string]any{"login": user}, "state": states[review.State], "commit_id": review.SHA,
				"submitted_at": review.At.Format(time.RFC3339),
			})
		}
		reviews, _ := page(r, "per_page", list)
		return reviews, nil
	})
	handle("POST "+repo+"/issues/{number}/labels", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err == nil {
			s.Ask(found.Number, decode[[]string](s, r), nil)
		}
		return []any{}, err
	})
	handle("POST "+repo+"/pulls/{number}/requested_reviewers", http.StatusCreated, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err != nil {
			return nil, err
		}
		s.Ask(found.Number, nil, decode[struct{ Reviewers []string }](s, r).Reviewers)
		return gitHubPull(&found.PullRequest), nil
	})
	handle("GET "+repo+"/issues/{number}", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err != nil {
			return nil, err
		}
		issue := map[string]any{"number": found.Number, "closed_by": nil}
		if found.ClosedBy != "" {
			issue["closed_by"] = map[string]any{"login": found.ClosedBy}
		}
		return issue, nil
	})
	handle("POST "+repo+"/issues/{number}/comments", http.StatusCreated, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return map[string]any{"id": 1}, s.comment(r, decode[struct{ Body string }](s, r).Body)
	})
	handle("GET "+repo+"/commits/{ref}/status", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		checks, err := s.Checks(r.Context(), r.PathValue("ref"))
		statuses := []any{}
		for _, check := range checks {
			if check.State != forge.Neutral {
				statuses = append(statuses, map[string]any{"context": check.Name, "state": strings.ToLower(string(check.State))})
			}
		}
		return map[string]any{"state": "pending", "statuses": statuses}, err
	})
	handle("GET "+repo+"/commits/{ref}/check-runs", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		checks, err := s.Checks(r.Context(), r.PathValue("ref"))
		runs := []any{}
		for _, check := range checks {
			if check.State == forge.Neutral { // a commit status cannot be neutral
				runs = append(runs, map[string]any{"name": check.Name, "status": "completed", "conclusion": "neutral"})
			}
		}
		return map[string]any{"total_count": len(runs), "check_runs": runs}, err
	})
	handle("POST "+repo+"/statuses/{sha}", http.StatusCreated, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		sent := decode[struct {
			State, Context, Description string
			URL                         string `json:"target_url"`
		}](s, r)
		states := map[string]forge.CheckState{"success": forge.Success, "pending": forge.Pending, "failure": forge.Failure}
		return map[string]any{"id": 1}, s.SetStatus(r.Context(), r.PathValue("sha"),
			forge.Status{Context: sent.Context, State: states[sent.State], Description: sent.Description, URL: sent.URL})
	})
}

func gitHubPull(p *forge.PullRequest) map[string]any {
	repository := map[string]any{"id": 1, "full_name": "ops/fleet"}
	head := map[string]any{"ref": p.Head, "sha": p.HeadSHA, "repo": repository}
	if p.Fork {
		head["repo"] = map[string]any{"id": 2, "full_name": p.Author + "/fleet"}
	}
	pull := map[string]any{
		"number": p.Number, "state": "open", "title": p.Title, "body": p.Body, "html_url": p.URL, "user": map[string]any{"login": p.Author},
		"head": head, "base": map[string]any{"ref": p.Base, "sha": "", "repo": repository},
		"merged_at": nil, "merge_commit_sha": nil,
	}
	if p.State != forge.Open {
		pull["state"] = "closed"
	}
	if p.State == forge.Merged {
		pull["merged"], pull["merged_at"], pull["merge_commit_sha"] = true, "2026-01-01T00:00:00Z", p.MergeSHA
		pull["merged_by"] = map[string]any{"login": p.MergedBy}
	}
	return pull
}
