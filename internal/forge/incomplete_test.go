package forge_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/forge"
)

// TestIncompleteAnswers reports answers with null instead of a list or of an entry, or without a
// field that decides, as an outage: otherwise numaform would miss a pull request, a request for
// changes, a failed check, or the user who closed a pull request.
func TestIncompleteAnswers(t *testing.T) {
	t.Parallel()
	open := func(ctx context.Context, client forge.Client) error { _, err := client.Open(ctx); return err }
	get := func(ctx context.Context, client forge.Client) error { _, err := client.Get(ctx, 7); return err }
	create := func(ctx context.Context, client forge.Client) error {
		_, err := client.Create(ctx, forge.NewPullRequest{Head: "numaform/lab/a", Title: "a"})
		return err
	}
	reviews := func(ctx context.Context, client forge.Client) error { _, err := client.Reviews(ctx, 7); return err }
	checks := func(ctx context.Context, client forge.Client) error {
		_, err := client.Checks(ctx, newHead)
		return err
	}
	const closed = `{"number":7,"iid":7,"state":"closed","base":{"ref":"main"},"target_branch":"main","closed_at":"2026-11-28T10:00:00Z"}`
	type test struct {
		kind forge.Kind
		call func(context.Context, forge.Client) error
		// answers are the incomplete answers of the requests whose path ends in at. with are the
		// answers of others.
		at      string
		answers []string
		with    map[string]string
	}
	tests := []test{
		{kind: forge.GitHub, call: reviews, at: "reviews", answers: []string{`null`, `[null]`, `[{"user":{"login":"ann"}}]`}},
		{kind: forge.Gitea, call: reviews, at: "reviews", answers: []string{`null`, `[null]`, `[{"user":{"login":"ann"}}]`}},
		{kind: forge.GitLab, call: reviews, at: "approvals", answers: []string{`null`, `{}`, `{"approved_by":[null]}`}},
		{kind: forge.GitLab, call: reviews, at: "reviewers", answers: []string{`null`, `[null]`, `[{"user":{"username":"ann"}}]`, `[{"state":"approved"}]`}},
		{kind: forge.GitLab, call: reviews, at: "versions", answers: []string{`null`, `[null]`, `[{"id":1}]`}},
		{kind: forge.GitHub, call: checks, at: "status", answers: []string{`null`, `{}`, `{"statuses":[null]}`}},
		{kind: forge.GitHub, call: checks, at: "check-runs", answers: []string{`null`, `{}`, `{"check_runs":[null]}`}},
		{kind: forge.Gitea, call: checks, at: "status", answers: []string{`null`, `{"statuses":[null]}`}},
		{kind: forge.GitLab, call: checks, at: "statuses", answers: []string{`null`, `[null]`, `[{"status":"success"}]`}},
		{kind: forge.GitHub, call: get, at: "issues/7", answers: []string{`null`, `{}`}, with: map[string]string{"pulls/7": closed}},
		{kind: forge.Gitea, call: get, at: "timeline", answers: []string{`null`}, with: map[string]string{"pulls/7": closed}},
	}
	for _, kind := range forge.Kinds() {
		at := map[bool]string{true: "merge_requests", false: "pulls"}[kind == forge.GitLab]
		for _, pull := range []string{
			`null`,
			`{"number":7,"iid":7,"state":"open"}`,
			`{"number":7,"iid":7,"state":"opened","base":null,"target_branch":null}`,
			`{"state":"opened","base":{"ref":"main"},"target_branch":"main"}`,
			`{"number":7,"iid":7,"base":{"ref":"main"},"target_branch":"main"}`,
		} {
			tests = append(tests, test{kind: kind, call: open, at: at, answers: []string{"[" + pull + "]"}},
				test{kind: kind, call: get, at: at + "/7", answers: []string{pull}},
				test{kind: kind, call: create, at: at, answers: []string{pull}})
		}
		tests = append(tests, test{kind: kind, call: open, at: at, answers: []string{`null`}})
	}
	for _, c := range tests {
		for _, answer := range c.answers {
			t.Run(string(c.kind)+" "+c.at+" "+answer, func(t *testing.T) {
				t.Parallel()
				whole := map[string]string{"approvals": `{"approved_by":[]}`, "status": `{"statuses":[]}`, "check-runs": `{"check_runs":[]}`}
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					text := "[]"
					for at, answer := range whole {
						if path.Base(r.URL.Path) == at {
							text = answer
						}
					}
					for at, answer := range c.with {
						if strings.HasSuffix(r.URL.Path, "/"+at) {
							text = answer
						}
					}
					if strings.HasSuffix(r.URL.Path, "/"+c.at) {
						text = answer
					}
					switch {
					case text == "null": // as Gitea answers while it stops
					case strings.Contains(text, "[]"), !strings.Contains(text, "["):
						w.Header().Set("X-Total-Count", "0")
					default:
						w.Header().Set("X-Total-Count", "1")
					}
					_, _ = w.Write([]byte(text))
				}))
				t.Cleanup(server.Close)
				client, err := forge.New(forge.Config{Remote: server.URL + "/ops/fleet.git", Base: "main", Kind: c.kind, URL: server.URL, Token: "secret"})
				if err != nil {
					t.Fatal(err)
				}
				if err := c.call(t.Context(), client); !errors.As(err, new(*forge.UnavailableError)) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}
