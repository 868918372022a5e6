package forge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/forge/forgetest"
)

// operation is a request with an answer of a test.
type operation struct {
	method string
	// path is the escaped path, as a regular expression.
	path string
	// answer returns the status and the body, for the parameters and the fields.
	answer func(query url.Values, fields map[string]any) (int, any)
}

// contract is a server with answers of one forge. A request that the forge's published
// description does not have fails the test.
type contract struct {
	t    *testing.T
	kind forge.Kind
	// header and value are how the forge expects the token.
	header, value string
	operations    []operation
	// mu guards the following.
	mu    sync.Mutex
	seen  []string
	once  http.Header
	fault func(http.ResponseWriter, *http.Request) bool
}

func (c *contract) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, r.Method+" "+r.URL.EscapedPath())
	if c.fault != nil && c.fault(w, r) {
		return
	}
	if got := r.Header.Get(c.header); got != c.value {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"message":"Bad credentials"}`))
		return
	}
	for _, op := range c.operations {
		if op.method != r.Method || !regexp.MustCompile("^"+op.path+"$").MatchString(r.URL.EscapedPath()) {
			continue
		}
		fields := map[string]any{}
		if r.ContentLength > 0 {
			if err := json.NewDecoder(r.Body).Decode(&fields); err != nil {
				c.t.Errorf("%s %s: %v", r.Method, r.URL, err)
			}
		}
		for _, problem := range forgetest.Undescribed(c.kind, r, fields) {
			c.t.Error(problem)
		}
		status, body := op.answer(r.URL.Query(), fields)
		for name, values := range c.once {
			w.Header()[name] = values
		}
		c.once = nil
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
		return
	}
	c.t.Errorf("%s %s is not in the contract", r.Method, r.URL)
	w.WriteHeader(http.StatusNotFound)
}

// answers returns an operation's answer that is always the same.
func answers(status int, body any) func(url.Values, map[string]any) (int, any) {
	return func(url.Values, map[string]any) (int, any) { return status, body }
}

func serve(t *testing.T, c *contract, kind forge.Kind, remote string) forge.Client {
	t.Helper()
	c.t = t
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	client, err := forge.New(forge.Config{Remote: server.URL + remote, Base: "main", Kind: kind, URL: server.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

type object = map[string]any

const (
	oldHead = "1111111111111111111111111111111111111111"
	newHead = "2222222222222222222222222222222222222222"
)

func gitHubPull(number int, more object) object {
	pull := object{
		"number": number, "state": "open", "title": "t", "body": "b", "html_url": "https://github.com/ops/fleet/pull/1", "user": object{"login": "bot"},
		"head": object{"ref": "numaform/a", "sha": newHead, "repo": object{"id": 1, "full_name": "ops/fleet"}},
		"base": object{"ref": "main", "sha": oldHead, "repo": object{"id": 1, "full_name": "ops/fleet"}}, "updated_at": "2026-11-28T10:00:00Z",
		"merged_at": nil, "merge_commit_sha": "3333333333333333333333333333333333333333",
	}
	for key, value := range more {
		pull[key] = value
	}
	return pull
}

// gitHub returns a server with the operations of GitHub's REST API, version 2022-11-28, as
// docs.github.com/rest describes them.
func gitHub() *contract {
	const repo = "/api/v3/repos/ops/fleet"
	c := &contract{kind: forge.GitHub, header: "Authorization", value: "Bearer secret"}
	c.operations = []operation{
		{method: "GET", path: repo + "/pulls", answer: func(query url.Values, _ map[string]any) (int, any) {
			if query.Get("head") != "" && query.Get("head") != "ops:numaform/a" {
				return 200, []any{}
			}
			fork := object{"ref": "numaform/a", "sha": oldHead, "repo": nil, "user": object{"login": "ops"}}
			if query.Get("page") == "1" {
				c.once = http.Header{"Link": {`<https://api.github.com/x?page=2>; rel="next", <https://api.github.com/x?page=2>; rel="last"`}}
				return 200, []any{gitHubPull(6, object{"head": fork, "user": object{"login": "mallory"}}), gitHubPull(5, object{"base": object{"ref": "other"}})}
			}
			return 200, []any{gitHubPull(7, nil)}
		}},
		{method: "GET", path: repo + "/pulls/7", answer: answers(200, gitHubPull(7, object{"merged": false}))},
		{method: "GET", path: repo + "/pulls/8", answer: answers(200, gitHubPull(8, object{
			"state": "closed", "merged": true, "merged_at": "2026-11-28T10:00:00Z", "merged_by": object{"login": "ann"},
		}))},
		{method: "GET", path: repo + "/pulls/10", answer: answers(200, gitHubPull(10, object{"state": "closed", "merged": false}))},
		{method: "GET", path: repo + "/issues/10", answer: answers(200, object{"number": 10, "closed_by": object{"login": "mallory"}})},
		{method: "GET", path: repo + "/pulls/9", answer: answers(404, object{"message": "Not Found", "documentation_url": "https://docs.github.com", "status": "404"})},
		{method: "POST", path: repo + "/pulls", answer: func(_ url.Values, fields map[string]any) (int, any) {
			if fields["head"] != "numaform/a" {
				return 422, object{"message": "Validation Failed", "errors": []any{object{"resource": "PullRequest", "code": "custom", "message": "A pull request already exists for ops:" + fmt.Sprint(fields["head"]) + "."}}}
			}
			return 201, gitHubPull(7, nil)
		}},
		{method: "POST", path: repo + "/issues/7/labels", answer: answers(200, []any{})},
		{method: "POST", path: repo + "/pulls/7/requested_reviewers", answer: answers(422, object{"message": "Reviews may only be requested from collaborators."})},
		{method: "PATCH", path: repo + "/pulls/7", answer: answers(200, gitHubPull(7, nil))},
		{method: "POST", path: repo + "/issues/7/comments", answer: answers(201, object{"id": 1})},
		{method: "GET", path: repo + "/pulls/7/reviews", answer: answers(200, []any{
			object{"id": 1, "user": object{"login": "ann"}, "state": "APPROVED", "commit_id": oldHead, "submitted_at": "2026-11-28T09:00:00Z"},
			object{"id": 2, "user": object{"login": "bob"}, "state": "CHANGES_REQUESTED", "commit_id": newHead, "submitted_at": "2026-11-28T09:30:00Z"},
			object{"id": 3, "user": object{"login": "bob"}, "state": "APPROVED", "commit_id": newHead, "submitted_at": "2026-11-28T09:40:00Z"},
			object{"id": 4, "user": object{"login": "ann"}, "state": "COMMENTED", "commit_id": newHead, "submitted_at": "2026-11-28T09:50:00Z"},
			object{"id": 5, "user": nil, "state": "APPROVED", "commit_id": newHead, "submitted_at": "2026-11-28T09:50:00Z"},
			object{"id": 6, "user": object{"login": "cyd"}, "state": "DISMISSED", "commit_id": newHead, "submitted_at": "2026-11-28T09:50:00Z"},
			object{"id": 7, "user": object{"login": "dee"}, "state": "APPROVED", "commit_id": nil, "submitted_at": "2026-11-28T09:50:00Z"},
		})},
		{method: "GET", path: repo + "/commits/" + newHead + "/status", answer: answers(200, object{"state": "pending", "statuses": []any{
			object{"context": "ci/a", "state": "success"}, object{"context": "ci/b", "state": "error"}, object{"context": "ci/c", "state": "pending"},
		}})},
		{method: "GET", path: repo + "/commits/" + newHead + "/check-runs", answer: answers(200, object{"total_count": 3, "check_runs": []any{
			object{"name": "build", "status": "completed", "conclusion": "timed_out"},
			object{"name": "lint", "status": "in_progress", "conclusion": nil},
			object{"name": "skip", "status": "completed", "conclusion": "skipped"},
			object{"name": "ci/a", "status": "completed", "conclusion": "failure"},
		}})},
		{method: "POST", path: repo + "/statuses/" + newHead, answer: func(_ url.Values, fields map[string]any) (int, any) {
			if n := len([]rune(fields["description"].(string))); n > 140 {
				return 422, object{"message": "Validation Failed", "errors": []any{"description is too long"}}
			}
			return 201, object{"id": 1}
		}},
		{method: "GET", path: repo, answer: answers(200, object{"id": 1, "allow_merge_commit": false, "allow_squash_merge": true, "allow_rebase_merge": true})},
		{method: "PUT", path: repo + "/pulls/7/merge", answer: func(_ url.Values, fields map[string]any) (int, any) {
			switch {
			case fields["merge_method"] != "squash":
				return 405, object{"message": "Merge commits are not allowed on this repository."}
			case fields["sha"] != newHead:
				return 409, object{"message": "Head branch was modified. Review and try the merge again."}
			}
			return 200, object{"sha": "4444444444444444444444444444444444444444", "merged": true, "message": "Pull Request successfully merged"}
		}},
	}
	return c
}

func gitLabRequest(number int, more object) object {
	request := object{
		"iid": number, "state": "opened", "title": "t", "description": "b", "web_url": "https://gitlab.com/infra/ops/fleet/-/merge_requests/7",
		"author": object{"id": 1, "username": "bot"}, "source_branch": "numaform/a", "target_branch": "main", "source_project_id": 1, "target_project_id": 1,
		"sha": newHead, "merge_commit_sha": nil, "squash_commit_sha": nil, "merge_user": nil, "updated_at": "2026-11-28T10:00:00.123Z",
	}
	for key, value := range more {
		request[key] = value
	}
	return request
}

// gitLab returns a server with the operations of GitLab's REST API, as docs.gitlab.com/api
// describes them.
func gitLab() *contract {
	const project = "/api/v4/projects/infra%2Fops%2Ffleet"
	c := &contract{kind: forge.GitLab, header: "Private-Token", value: "secret"}
	c.operations = []operation{
		{method: "GET", path: project + "/merge_requests", answer: func(query url.Values, _ map[string]any) (int, any) {
			if branch := query.Get("source_branch"); branch != "" && branch != "numaform/a" {
				return 200, []any{}
			}
			if query.Get("page") == "1" {
				c.once = http.Header{"X-Next-Page": {"2"}}
				return 200, []any{gitLabRequest(6, object{"source_project_id": 2, "sha": oldHead, "author": object{"username": "mallory"}}), gitLabRequest(5, object{"target_branch": "other"})}
			}
			return 200, []any{gitLabRequest(7, nil)}
		}},
		{method: "GET", path: project + "/merge_requests/7", answer: answers(200, gitLabRequest(7, nil))},
		{method: "GET", path: project + "/merge_requests/8", answer: answers(200, gitLabRequest(8, object{
			"state": "merged", "merge_commit_sha": "3333333333333333333333333333333333333333", "merge_user": object{"username": "ann"},
		}))},
		{method: "GET", path: project + "/merge_requests/10", answer: answers(200, gitLabRequest(10, object{
			"state": "closed", "closed_by": object{"username": "mallory"},
		}))},
		{method: "GET", path: project + "/merge_requests/9", answer: answers(404, object{"message": "404 Not found"})},
		{method: "GET", path: "/api/v4/users", answer: func(query url.Values, _ map[string]any) (int, any) {
			if query.Get("username") == "ann" {
				return 200, []any{object{"id": 42, "username": "ann"}}
			}
			return 200, []any{}
		}},
		{
			method: "POST", path: project + "/merge_requests",
			answer: func(_ url.Values, fields map[string]any) (int, any) {
				if fields["source_branch"] != "numaform/a" {
					return 409, object{"message": []any{"Another open merge request already exists for this source branch: !7"}}
				}
				return 201, gitLabRequest(7, nil)
			},
		},
		{method: "PUT", path: project + "/merge_requests/7", answer: answers(200, gitLabRequest(7, nil))},
		{method: "POST", path: project + "/merge_requests/7/notes", answer: answers(201, object{"id": 1})},
		{method: "GET", path: project + "/merge_requests/7/approvals", answer: answers(200, object{"approved_by": []any{
			object{"user": object{"username": "ann"}, "approved_at": "2026-11-28T09:00:00.000Z"},
			object{"user": object{"username": "bob"}, "approved_at": "2026-11-28T09:40:00.000Z"},
			object{"user": object{"username": "dee"}, "approved_at": nil},
			object{"user": object{"username": "eve"}, "approved_at": "2026-11-28T08:00:00.000Z"},
		}})},
		{method: "GET", path: project + "/merge_requests/7/reviewers", answer: answers(200, []any{
			object{"user": object{"username": "cyd"}, "state": "requested_changes", "created_at": "2026-11-28T09:50:00.000Z"},
			object{"user": object{"username": "ann"}, "state": "unreviewed", "created_at": "2026-11-28T09:50:00.000Z"},
		})},
		{method: "GET", path: project + "/merge_requests/7/versions", answer: answers(200, []any{
			object{"id": 2, "head_commit_sha": newHead, "created_at": "2026-11-28T09:30:00.000Z"},
			object{"id": 1, "head_commit_sha": oldHead, "created_at": "2026-11-28T08:30:00.000Z"},
		})},
		{method: "GET", path: project + "/repository/commits/" + newHead + "/statuses", answer: func(query url.Values, _ map[string]any) (int, any) {
			all := []any{
				object{"name": "build", "status": "success"},
				object{"name": "flaky", "status": "failed", "allow_failure": true},
				object{"name": "numaform/plan", "status": "pending"},
				object{"name": "test", "status": "canceled"},
				object{"name": "deploy", "status": "manual"},
			}
			if query.Get("name") != "" {
				return 200, all[2:3]
			}
			return 200, all
		}},
		{method: "POST", path: project + "/statuses/" + newHead, answer: func(_ url.Values, fields map[string]any) (int, any) {
			if fields["state"] == "pending" {
				return 400, object{"message": "Cannot transition status via :enqueue from :pending"}
			}
			return 201, object{"id": 1}
		}},
		{
			method: "PUT", path: project + "/merge_requests/7/merge",
			answer: func(_ url.Values, fields map[string]any) (int, any) {
				if fields["sha"] != newHead {
					return 409, object{"message": "SHA does not match HEAD of source branch: " + newHead}
				}
				return 200, gitLabRequest(7, object{"state": "merged", "squash_commit_sha": "4444444444444444444444444444444444444444"})
			},
		},
		{method: "PUT", path: project + "/merge_requests/8/merge", answer: answers(401, object{"message": "401 Unauthorized"})},
	}
	return c
}

// TestContracts runs each operation of the clients of GitHub and GitLab against servers
// that accept only what the forges' published descriptions contain.
func TestContracts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kind    forge.Kind
		server  *contract
		remote  string
		reviews []forge.Review
		checks  []forge.Check
	}{
		{
			kind: forge.GitHub, server: gitHub(), remote: "/ops/fleet.git",
			reviews: []forge.Review{
				{User: "ann", State: forge.Approved, SHA: oldHead},
				{User: "bob", State: forge.Approved, SHA: newHead},
				{User: "cyd", State: forge.Dismissed, SHA: newHead},
				{User: "dee", State: forge.Approved},
			},
			checks: []forge.Check{
				{Name: "build", State: forge.Failure},
				{Name: "ci/a", State: forge.Failure},
				{Name: "ci/b", State: forge.Failure},
				{Name: "ci/c", State: forge.Pending},
				{Name: "lint", State: forge.Pending},
				{Name: "skip", State: forge.Neutral},
			},
		},
		{
			kind: forge.GitLab, server: gitLab(), remote: "/infra/ops/fleet.git",
			reviews: []forge.Review{
				{User: "ann", State: forge.Approved, SHA: oldHead},
				{User: "bob", State: forge.Approved, SHA: newHead},
				{User: "cyd", State: forge.ChangesRequested, SHA: newHead},
				{User: "eve", State: forge.Approved},
			},
			checks: []forge.Check{
				{Name: "build", State: forge.Success},
				{Name: "deploy", State: forge.Neutral},
				{Name: "flaky", State: forge.Neutral},
				{Name: "numaform/plan", State: forge.Pending},
				{Name: "test", State: forge.Failure},
			},
		},
	} {
		t.Run(string(test.kind), func(t *testing.T) {
			t.Parallel()
			ctx, client := t.Context(), serve(t, test.server, test.kind, test.remote)

			open, err := client.Open(ctx)
			if err != nil || len(open) != 2 || !open[0].Fork || open[0].Author != "mallory" || open[1].Fork || open[1].Number != 7 || open[1].HeadSHA != newHead || open[1].MergeSHA != "" {
				t.Errorf("Open = %+v, %v", open, err)
			}
			merged, err := client.Get(ctx, 8)
			if err != nil || merged.State != forge.Merged || merged.MergedBy != "ann" || merged.MergeSHA != "3333333333333333333333333333333333333333" {
				t.Errorf("Get = %+v, %v", merged, err)
			}
			closed, err := client.Get(ctx, 10)
			if err != nil || closed.State != forge.Closed || closed.ClosedBy != "mallory" {
				t.Errorf("Get = %+v, %v", closed, err)
			}
			if _, err := client.Get(ctx, 9); !errors.As(err, new(*forge.NotFoundError)) {
				t.Errorf("Get = %v", err)
			}

			created, err := client.Create(ctx, forge.NewPullRequest{Head: "numaform/a", Title: "t", Body: "b", Reviewers: []string{"ann", "nobody"}})
			if !errors.As(err, new(*forge.IncompleteError)) || created.Number != 7 {
				t.Errorf("Create = %+v, %v", created, err)
			}
			_, err = client.Create(ctx, forge.NewPullRequest{Head: "numaform/b", Title: "t"})
			if conflict := new(forge.ConflictError); !errors.As(err, &conflict) || !strings.Contains(conflict.Reason, "already exists") {
				t.Errorf("Create = %v", err)
			}
			if err := errors.Join(client.Edit(ctx, 7, "new", "text"), client.Close(ctx, 7, "why")); err != nil {
				t.Error(err)
			}
			reviews, err := client.Reviews(ctx, 7)
			for i := range reviews {
				reviews[i].At = time.Time{}
			}
			if err != nil || !slices.Equal(reviews, test.reviews) {
				t.Errorf("Reviews = %+v, %v\nwant %+v", reviews, err, test.reviews)
			}
			if checks, err := client.Checks(ctx, newHead); err != nil || !slices.Equal(checks, test.checks) {
				t.Errorf("Checks = %+v, %v", checks, err)
			}
			for _, state := range []forge.CheckState{forge.Pending, forge.Success, forge.Failure} {
				if err := client.SetStatus(ctx, newHead, forge.Status{Context: "numaform/plan", State: state, Description: strings.Repeat("é", 300)}); err != nil {
					t.Error(err)
				}
			}
			_, err = client.Merge(ctx, 7, oldHead)
			if moved := new(forge.HeadError); !errors.As(err, &moved) || moved.Have != newHead {
				t.Errorf("Merge = %v", err)
			}
			if sha, err := client.Merge(ctx, 7, newHead); err != nil || sha != "4444444444444444444444444444444444444444" {
				t.Errorf("Merge = %v, %v", sha, err)
			}
			for _, seen := range test.server.seen {
				if strings.HasSuffix(seen, "/comments") && !strings.HasPrefix(seen, "POST") || strings.HasSuffix(seen, "/notes") && !strings.HasPrefix(seen, "POST") {
					t.Errorf("%s: comments are read", seen)
				}
			}
		})
	}
	t.Run("gitlab merge without rights", func(t *testing.T) {
		t.Parallel()
		_, err := serve(t, gitLab(), forge.GitLab, "/infra/ops/fleet.git").Merge(t.Context(), 8, newHead)
		if rights := new(forge.RightsError); !errors.As(err, &rights) || rights.Token {
			t.Errorf("Merge = %v", err)
		}
	})
}

// TestFaults checks the errors for the answers of a forge that is down, or refuses requests.
func TestFaults(t *testing.T) {
	t.Parallel()
	soon := func(err error) bool {
		limit := new(forge.RateLimitError)
		if !errors.As(err, &limit) {
			return false
		}
		wait := time.Until(limit.Reset)
		return wait > time.Minute && wait < 3*time.Minute
	}
	is := func(target any) func(error) bool { return func(err error) bool { return errors.As(err, target) } }
	for _, test := range []struct {
		name   string
		status int
		header map[string]string
		body   string
		want   func(error) bool
	}{
		{name: "retry", status: 429, header: map[string]string{"Retry-After": "120"}, want: soon},
		// The forge's clock is an hour ahead.
		{name: "primary", status: 403, header: map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": fmt.Sprint(time.Now().Add(time.Hour + 2*time.Minute).Unix()), "Date": time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}, want: soon},
		{name: "secondary", status: 403, header: map[string]string{"Retry-After": "120"}, body: `{"message":"You have exceeded a secondary rate limit"}`, want: soon},
		{name: "token", status: 401, body: `{"message":"Bad credentials"}`, want: func(err error) bool {
			rights := new(forge.RightsError)
			return errors.As(err, &rights) && rights.Token
		}},
		{name: "rights", status: 403, body: `{"message":"Resource not accessible by personal access token"}`, want: func(err error) bool {
			rights := new(forge.RightsError)
			return errors.As(err, &rights) && !rights.Token && strings.Contains(err.Error(), "not accessible")
		}},
		{name: "moved", status: 301, header: map[string]string{"Location": "https://evil.example/repositories/7"}, want: func(err error) bool {
			moved := new(forge.MovedError)
			return errors.As(err, &moved) && moved.To == "evil.example/repositories/7"
		}},
		{name: "gateway", status: 502, body: "<html>\x1b[2Jbad gateway</html>", want: func(err error) bool {
			return errors.As(err, new(*forge.UnavailableError)) && !strings.Contains(err.Error(), "html")
		}},
		{name: "maintenance", status: 503, want: is(new(*forge.UnavailableError))},
		{name: "control characters", status: 422, body: `{"message":"\u001b[2Ja\nb` + strings.Repeat("x", 5000) + `"}`, want: func(err error) bool {
			return errors.As(err, new(*forge.ConflictError)) && !strings.ContainsAny(err.Error(), "\x1b\n") && len(err.Error()) < 600
		}},
		{name: "not JSON", status: 200, body: "hello", want: is(new(*forge.UnavailableError))},
		{name: "endless", status: 200, body: "[" + strings.Repeat(" ", 17<<20) + "]", want: is(new(*forge.UnavailableError))},
	} {
		for kind, server := range map[forge.Kind]*contract{forge.GitHub: gitHub(), forge.GitLab: gitLab(), forge.Gitea: {}} {
			t.Run(test.name+"/"+string(kind), func(t *testing.T) {
				t.Parallel()
				requests := 0
				server.fault = func(w http.ResponseWriter, _ *http.Request) bool {
					requests++
					for name, value := range test.header {
						w.Header().Set(name, value)
					}
					w.WriteHeader(test.status)
					_, _ = w.Write([]byte(test.body))
					return true
				}
				_, err := serve(t, server, kind, "/ops/fleet.git").Open(t.Context())
				if err == nil || !test.want(err) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %T: %v", err, err)
				}
				if requests != 1 {
					t.Errorf("%d requests, want 1: the caller decides when to try again", requests)
				}
			})
		}
	}
}

// TestEndlessLists checks that a forge with too many pull requests, or one that says that
// there is always another page, ends in an error.
func TestEndlessLists(t *testing.T) {
	t.Parallel()
	for kind, server := range map[forge.Kind]*contract{forge.GitHub: gitHub(), forge.GitLab: gitLab(), forge.Gitea: {}} {
		for _, empty := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/empty=%t", kind, empty), func(t *testing.T) {
				t.Parallel()
				requests := 0
				server := &contract{fault: func(w http.ResponseWriter, _ *http.Request) bool {
					requests++
					w.Header().Set("Link", fmt.Sprintf(`<https://x.example/?page=%d>; rel="next"`, requests+1))
					w.Header().Set("X-Next-Page", fmt.Sprint(requests+1))
					w.Header().Set("X-Total-Count", "1000000")
					list := []any{}
					for i := range 50 {
						if !empty && kind == forge.GitLab {
							list = append(list, gitLabRequest(requests*50+i, nil))
						} else if !empty {
							list = append(list, gitHubPull(requests*50+i, nil))
						}
					}
					_ = json.NewEncoder(w).Encode(list)
					return true
				}, header: server.header, value: server.value}
				_, err := serve(t, server, kind, "/ops/fleet.git").Open(t.Context())
				if !errors.As(err, new(*forge.TooManyError)) || requests > 20 {
					t.Errorf("after %d requests: %v", requests, err)
				}
			})
		}
	}
}

// TestNew checks which repository, forge and token a configuration selects.
func TestNew(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config forge.Config
		// want is part of the error, or empty.
		want string
	}{
		{config: forge.Config{Remote: "https://github.com/ops/fleet.git", RemoteToken: "t"}},
		{config: forge.Config{Remote: "git@gitlab.com:infra/ops/fleet.git", Token: "t"}},
		{config: forge.Config{Remote: "ssh://git@codeberg.org:22/ops/fleet", Token: "t"}},
		{config: forge.Config{Remote: "https://git.example/gitea/ops/fleet.git", URL: "https://git.example/gitea", Kind: forge.Gitea, Token: "t"}},
		{config: forge.Config{Remote: "https://git.example/ops/fleet.git", Token: "t"}, want: "set fleet.git.forge.kind to github, gitlab or gitea"},
		{config: forge.Config{Remote: "https://git.example/ops/fleet.git", Token: "t", Kind: "bitbucket"}, want: "must be github, gitlab or gitea"},
		{config: forge.Config{Remote: "/srv/fleet.git", Token: "t"}, want: "set fleet.git.remote to its https or ssh URL"},
		{config: forge.Config{Remote: "https://github.com/fleet.git", Token: "t"}, want: "is not the path of a repository"},
		{config: forge.Config{Remote: "https://github.com/ops/team/fleet.git", Token: "t"}, want: "is not the path of a repository"},
		{config: forge.Config{Remote: "https://github.com/ops/../fleet", Token: "t"}, want: "is not the path of a repository"},
		{config: forge.Config{Remote: "https://github.com/ops/fleet.git"}, want: "set the environment variable NUMAFORM_FORGE_TOKEN"},
		// The password of the remote is not sent to another host.
		{config: forge.Config{Remote: "https://git.example/ops/fleet.git", URL: "https://api.example", Kind: forge.Gitea, RemoteToken: "t"}, want: "NUMAFORM_FORGE_TOKEN"},
		{config: forge.Config{Remote: "https://git.example/ops/fleet.git", URL: "http://git.example", Kind: forge.Gitea, Token: "t"}, want: "must not be sent in clear text"},
		{config: forge.Config{Remote: "https://git.example/ops/fleet.git", URL: "https://me:pw@git.example", Kind: forge.Gitea, Token: "t"}, want: "without a user"},
	} {
		_, err := forge.New(test.config)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v, want %q", test.config, err, test.want)
		}
	}
}
