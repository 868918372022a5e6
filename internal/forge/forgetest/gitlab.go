package forgetest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/forge"
)

// gitLab registers the operations of GitLab's API.
func (s *Server) gitLab() {
	const project = "/api/v4/projects/{id}"
	handle := func(pattern string, status int, run func(w http.ResponseWriter, r *http.Request) (any, error)) {
		s.api.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := run(w, r)
			respond(w, status, body, err)
		})
	}
	list := func(w http.ResponseWriter, r *http.Request, all []any) any {
		found, next := page(r, "per_page", all)
		if next > 0 {
			w.Header().Set("X-Next-Page", strconv.Itoa(next))
		}
		return found
	}
	one := func(found *pull, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		return gitLabRequest(&found.PullRequest), nil
	}
	handle("GET /api/v4/users", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		user := r.URL.Query().Get("username")
		return []any{map[string]any{"id": s.userID(user), "username": user}}, nil
	})
	handle("GET "+project+"/merge_requests", http.StatusOK, func(w http.ResponseWriter, r *http.Request) (any, error) {
		query := r.URL.Query()
		states := map[forge.State]string{forge.Open: "opened", forge.Merged: "merged", forge.Closed: "closed"}
		found, err := s.listed(query.Get("sort") != "asc", func(p *forge.PullRequest) bool {
			return (query.Get("state") == "all" || query.Get("state") == states[p.State]) &&
				(query.Get("target_branch") == "" || query.Get("target_branch") == p.Base) &&
				(query.Get("source_branch") == "" || query.Get("source_branch") == p.Head)
		})
		requests := []any{}
		for i := range found {
			requests = append(requests, gitLabRequest(&found[i]))
		}
		return list(w, r, requests), err
	})
	handle("POST "+project+"/merge_requests", http.StatusCreated, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		sent := decode[struct {
			Title, Description, Labels string
			Branch                     string `json:"source_branch"`
			Reviewers                  []int  `json:"reviewer_ids"`
		}](s, r)
		wanted := forge.NewPullRequest{Head: sent.Branch, Title: sent.Title, Body: sent.Description, Labels: strings.Split(sent.Labels, ",")}
		for _, id := range sent.Reviewers {
			wanted.Reviewers = append(wanted.Reviewers, s.user(id))
		}
		created, err := s.Create(r.Context(), wanted)
		return gitLabRequest(&created), err
	})
	handle("GET "+project+"/merge_requests/{number}", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return one(s.numbered(r))
	})
	handle("PUT "+project+"/merge_requests/{number}", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		sent := decode[struct {
			Title, Description *string
			Event              string `json:"state_event"`
		}](s, r)
		return one(s.edit(r, sent.Title, sent.Description, sent.Event == "close"))
	})
	handle("PUT "+project+"/merge_requests/{number}/merge", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err != nil {
			return nil, err
		}
		if _, err := s.Merge(r.Context(), found.Number, decode[struct{ SHA string }](s, r).SHA); err != nil {
			return nil, err
		}
		return one(s.numbered(r))
	})
	handle("POST "+project+"/merge_requests/{number}/notes", http.StatusCreated, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return map[string]any{"id": 1}, s.comment(r, decode[struct{ Body string }](s, r).Body)
	})
	handle("GET "+project+"/merge_requests/{number}/approvals", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err != nil {
			return nil, err
		}
		approved := []any{}
		for _, user := range sortedKeys(found.reviews) {
			if review := found.reviews[user]; review.State == forge.Approved {
				approved = append(approved, map[string]any{"user": map[string]any{"username": user}, "approved_at": review.At.Format(time.RFC3339Nano)})
			}
		}
		return map[string]any{"approved_by": approved}, nil
	})
	handle("GET "+project+"/merge_requests/{number}/reviewers", http.StatusOK, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err != nil {
			return nil, err
		}
		reviewers := []any{}
		for _, user := range sortedKeys(found.reviews) {
			if review := found.reviews[user]; review.State == forge.ChangesRequested {
				reviewers = append(reviewers, map[string]any{
					"user": map[string]any{"username": user}, "state": "requested_changes", "created_at": review.At.Format(time.RFC3339Nano),
				})
			}
		}
		return reviewers, nil
	})
	handle("GET "+project+"/merge_requests/{number}/versions", http.StatusOK, func(w http.ResponseWriter, r *http.Request) (any, error) {
		found, err := s.numbered(r)
		if err != nil {
			return nil, err
		}
		versions := []any{}
		for i, v := range found.versions {
			versions = append([]any{map[string]any{"id": i + 1, "head_commit_sha": v.sha, "created_at": v.at.Format(time.RFC3339Nano)}}, versions...)
		}
		return list(w, r, versions), nil
	})
	handle("GET "+project+"/repository/commits/{sha}/statuses", http.StatusOK, func(w http.ResponseWriter, r *http.Request) (any, error) {
		checks, err := s.Checks(r.Context(), r.PathValue("sha"))
		names := map[forge.CheckState]string{forge.Success: "success", forge.Pending: "pending", forge.Failure: "failed", forge.Neutral: "skipped"}
		statuses := []any{}
		for _, check := range checks {
			if wanted := r.URL.Query().Get("name"); wanted == "" || wanted == check.Name {
				statuses = append(statuses, map[string]any{"name": check.Name, "status": names[check.State]})
			}
		}
		return list(w, r, statuses), err
	})
	handle("POST "+project+"/statuses/{sha}", http.StatusCreated, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		// As in app/services/ci/create_commit_status_service.rb of GitLab.
		if branches, err := s.run("for-each-ref", "--contains", r.PathValue("sha"), "refs/heads"); err != nil || branches == "" {
			return nil, &forge.NotFoundError{Forge: name, What: "References for commit"}
		}
		sent := decode[struct {
			State, Name, Description string
			URL                      string `json:"target_url"`
		}](s, r)
		states := map[string]forge.CheckState{"success": forge.Success, "pending": forge.Pending, "failed": forge.Failure}
		return map[string]any{"id": 1}, s.SetStatus(r.Context(), r.PathValue("sha"),
			forge.Status{Context: sent.Name, State: states[sent.State], Description: sent.Description, URL: sent.URL})
	})
}

// userID returns the ID of a user, which differs from 0.
func (s *Server) userID(login string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.users, login) {
		s.users = append(s.users, login)
	}
	return slices.Index(s.users, login) + 1
}

// user returns the user with an ID of userID.
func (s *Server) user(id int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users[id-1]
}

func gitLabRequest(p *forge.PullRequest) map[string]any {
	states := map[forge.State]string{forge.Open: "opened", forge.Merged: "merged", forge.Closed: "closed"}
	request := map[string]any{
		"iid": p.Number, "state": states[p.State], "title": p.Title, "description": p.Body, "web_url": p.URL,
		"author": map[string]any{"username": p.Author}, "source_branch": p.Head, "target_branch": p.Base, "source_project_id": 1, "target_project_id": 1,
		"sha": p.HeadSHA, "merge_commit_sha": nil, "squash_commit_sha": nil, "merge_user": nil, "closed_by": nil,
	}
	if p.Fork {
		request["source_project_id"] = 2
	}
	if p.State == forge.Merged {
		request["merge_commit_sha"], request["merge_user"] = p.MergeSHA, map[string]any{"username": p.MergedBy}
	}
	if p.State == forge.Closed && p.ClosedBy != "" {
		request["closed_by"] = map[string]any{"username": p.ClosedBy}
	}
	return request
}
