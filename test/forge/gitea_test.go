// Package forge_test tests the client of a forge, and the fleet's store, against a Gitea
// server.
package forge_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/prtext"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// village is a Gitea server with users: the owner of repositories, numaform's bot, a
// reviewer, and a stranger.
type village struct {
	*testenv.Forge
	owner, bot, reviewer, stranger string
}

func newVillage(t *testing.T) *village {
	v := &village{Forge: testenv.Gitea(t)}
	for name, token := range map[string]*string{"ops": &v.owner, "bot": &v.bot, "ann": &v.reviewer, "mallory": &v.stranger} {
		var err error
		if *token, err = v.User(t.Context(), name, name == "ops"); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// call makes a request to the API that must succeed.
func (v *village) call(t *testing.T, token, method, path string, sent, received any) {
	t.Helper()
	if err := v.Call(t.Context(), token, method, path, sent, received); err != nil {
		t.Fatal(err)
	}
}

// repository creates a repository of ops, to which the bot and ann can write, and returns
// numaform's client.
func (v *village) repository(t *testing.T, name string) forge.Client {
	t.Helper()
	v.call(t, v.owner, http.MethodPost, "user/repos", map[string]any{"name": name, "auto_init": true, "default_branch": "main"}, nil)
	for _, user := range []string{"bot", "ann"} {
		v.call(t, v.owner, http.MethodPut, "repos/ops/"+name+"/collaborators/"+user, map[string]any{"permission": "write"}, nil)
	}
	return v.open(t, "ops/"+name, v.bot)
}

// open returns a client of a repository.
func (v *village) open(t *testing.T, path, token string) forge.Client {
	t.Helper()
	client, err := forge.New(forge.Config{Remote: v.URL + "/" + path + ".git", Base: "main", Kind: forge.Gitea, URL: v.URL, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// commit adds a file to a branch, which it creates from main if it is new, and returns the
// commit.
func (v *village) commit(t *testing.T, token, repository, branch, file, content string) string {
	t.Helper()
	sent := map[string]any{"content": base64.StdEncoding.EncodeToString([]byte(content)), "message": "add " + file}
	if err := v.Call(t.Context(), token, http.MethodGet, "repos/"+repository+"/branches/"+branch, nil, nil); err != nil {
		sent["new_branch"] = branch
	} else {
		sent["branch"] = branch
	}
	var made struct {
		Commit struct{ SHA string }
	}
	v.call(t, token, http.MethodPost, "repos/"+repository+"/contents/"+file, sent, &made)
	return made.Commit.SHA
}

// propose commits a file to a branch and opens its pull request as the bot.
func (v *village) propose(t *testing.T, client forge.Client, repository, branch string) forge.PullRequest {
	t.Helper()
	v.commit(t, v.bot, repository, branch, strings.ReplaceAll(branch, "/", "-")+".tf", "one")
	opened, err := client.Create(t.Context(), forge.NewPullRequest{Head: branch, Title: "Scale " + branch, Body: "one VM"})
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// approve approves the current head of a pull request as ann.
func (v *village) approve(t *testing.T, repository string, number int, sha string) {
	t.Helper()
	v.call(t, v.reviewer, http.MethodPost, fmt.Sprintf("repos/%s/pulls/%d/reviews", repository, number),
		map[string]any{"event": "APPROVED", "commit_id": sha}, nil)
}

func wantAs[T error](t *testing.T, err error) (found T) {
	t.Helper()
	if !errors.As(err, &found) {
		t.Fatalf("got %T: %v, want a %T", err, err, found)
	}
	t.Log(err)
	return found
}

func wantError[T error](t *testing.T, err error) {
	t.Helper()
	_ = wantAs[T](t, err)
}

// TestGitea runs each operation of the client against a Gitea server, as numaform's bot, and
// the faults that such a server can show.
func TestGitea(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *village)
	}{
		{"approved", testGiteaApproved},
		{"store", testGiteaStore},
		{"lists", testGiteaLists},
		{"conflict", testGiteaConflict},
		{"protected", testGiteaProtected},
		{"fork", testGiteaFork},
		{"rights", testGiteaRights},
		{"renamed", testGiteaRenamed},
		{"comments", testGiteaComments},
		{"text", testGiteaText},
		{"picture", testGiteaPicture},
		{"down", testGiteaDown}, // the last one, because it stops the server
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, v) })
	}
}

// testGiteaApproved takes a pull request from its opening to its merge: an approval belongs
// to the head that was reviewed, and is not one of a new head.
func testGiteaApproved(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "approved")
	first := v.commit(t, v.bot, "ops/approved", "numaform/a", "a.tf", "one")
	opened, err := client.Create(ctx, forge.NewPullRequest{
		Head: "numaform/a", Title: "Scale up: 1 VM", Body: "one VM", Labels: []string{"numaform", "scale-up"}, Reviewers: []string{"ann"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if opened.Head != "numaform/a" || opened.HeadSHA != first || opened.Base != "main" || opened.Author != "bot" || opened.State != forge.Open ||
		opened.Fork || opened.Body != "one VM" || !strings.HasPrefix(opened.URL, v.URL) {
		t.Errorf("opened %+v", opened)
	}
	var seen struct {
		Labels    []struct{ Name string }
		Reviewers []struct{ Login string } `json:"requested_reviewers"`
	}
	v.call(t, v.owner, http.MethodGet, fmt.Sprintf("repos/ops/approved/pulls/%d", opened.Number), nil, &seen)
	if len(seen.Labels) != 2 || len(seen.Reviewers) != 1 || seen.Reviewers[0].Login != "ann" {
		t.Errorf("labels and reviewers: %+v", seen)
	}
	_, err = client.Create(ctx, forge.NewPullRequest{Head: "numaform/a", Title: "again"})
	wantError[*forge.ConflictError](t, err)

	if err := client.Edit(ctx, opened.Number, "Scale up: 2 VMs", "two VMs"); err != nil {
		t.Fatal(err)
	}
	if err := client.SetStatus(ctx, first, forge.Status{Context: "numaform/plan", State: forge.Pending, Description: strings.Repeat("é", 200), URL: "https://example.com/"}); err != nil {
		t.Fatal(err)
	}
	if err := client.SetStatus(ctx, first, forge.Status{Context: "numaform/plan", State: forge.Success, Description: "sha256:1234"}); err != nil {
		t.Fatal(err)
	}
	if checks, err := client.Checks(ctx, first); err != nil || len(checks) != 1 || checks[0] != (forge.Check{Name: "numaform/plan", State: forge.Success}) {
		t.Errorf("Checks = %v, %v", checks, err)
	}

	v.approve(t, "ops/approved", opened.Number, first)
	second := v.commit(t, v.bot, "ops/approved", "numaform/a", "b.tf", "two")
	awaitHead(t, client, opened.Number, second)
	reviews, err := client.Reviews(ctx, opened.Number)
	if err != nil || len(reviews) != 1 || reviews[0].User != "ann" || reviews[0].State != forge.Approved || reviews[0].SHA != first || reviews[0].At.IsZero() {
		t.Errorf("after a push, Reviews = %+v, %v: want one of %s", reviews, err, first)
	}
	_, err = client.Merge(ctx, opened.Number, first)
	if moved := wantAs[*forge.HeadError](t, err); moved.Have != second || moved.Want != first {
		t.Errorf("%+v", moved)
	}
	v.approve(t, "ops/approved", opened.Number, second)
	if reviews, err := client.Reviews(ctx, opened.Number); err != nil || len(reviews) != 1 || reviews[0].SHA != second {
		t.Errorf("Reviews = %+v, %v: want one of %s", reviews, err, second)
	}
	merged := mergeWhenChecked(t, client, opened.Number, second)
	var branch struct {
		Commit struct{ ID string }
	}
	v.call(t, v.owner, http.MethodGet, "repos/ops/approved/branches/main", nil, &branch)
	if merged == "" || branch.Commit.ID != merged {
		t.Errorf("merged as %q, main is at %q", merged, branch.Commit.ID)
	}
	found, err := client.Get(ctx, opened.Number)
	if err != nil || found.State != forge.Merged || found.MergeSHA != merged || found.MergedBy != "bot" || found.Title != "Scale up: 2 VMs" {
		t.Errorf("Get = %+v, %v", found, err)
	}
	_, err = client.Merge(ctx, opened.Number, second)
	wantError[*forge.ConflictError](t, err)
}

// awaitHead waits until the server has processed a push, which it does in a queue.
func awaitHead(t *testing.T, client forge.Client, number int, sha string) {
	t.Helper()
	await(t, func() bool {
		pull, err := client.Get(t.Context(), number)
		return err == nil && pull.HeadSHA == sha
	})
}

// mergeWhenChecked merges a pull request. The server refuses this until it has checked for
// conflicts, which it does in a queue.
func mergeWhenChecked(t *testing.T, client forge.Client, number int, sha string) (merged string) {
	t.Helper()
	await(t, func() bool {
		var err error
		merged, err = client.Merge(t.Context(), number, sha)
		if err != nil && !strings.Contains(err.Error(), "try again later") {
			t.Fatal(err)
		}
		return err == nil
	})
	return merged
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("waited five minutes")
		}
	}
}

// testGiteaStore pushes a proposal with the fleet's git store over http, opens its pull
// request, and reads the fleet after the merge.
func testGiteaStore(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "fleet")
	config := store.GitConfig{Clone: t.TempDir(), Remote: v.URL + "/ops/fleet.git", Auth: store.GitAuth{Username: "bot", Token: v.bot}}
	git, err := store.NewGit(config)
	if err != nil {
		t.Fatal(err)
	}
	_, base, err := git.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	config.Review = true
	if git, err = store.NewGit(config); err != nil {
		t.Fatal(err)
	}
	files, err := generator.Render(fleet.Fleet{
		ClusterID: "prod", Backend: fleet.Backend{Type: "local"}, Regions: []fleet.Region{{Name: "r", Endpoint: "https://pve-1.example:8006/"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 21, 13, 45, 1, 0, time.UTC)
	host := topology.HostID{Region: "r", Host: "pve-1"}
	err = git.Begin(ctx, base, files, audit.Change{
		Format: audit.FormatVersion, ID: "20261121T134501Z-00000001", Time: at, ClusterID: "prod", Kind: audit.KindScaleUp, Actor: "ann@laptop", Why: "2 pods are pending",
		Hosts: []audit.HostPlan{{Host: host, PlanSHA256: strings.Repeat("ab", 32), Verdict: guard.Verdict{Decision: guard.Allow}}},
	})
	proposed := wantAs[*store.ProposedError](t, err)
	opened, err := client.Create(ctx, forge.NewPullRequest{Head: proposed.Branch, Title: "Scale up", Body: "text"})
	if err != nil {
		t.Fatal(err)
	}
	if opened.HeadSHA != proposed.Commit {
		t.Errorf("the head is %s, want %s", opened.HeadSHA, proposed.Commit)
	}
	mergeWhenChecked(t, client, opened.Number, opened.HeadSHA)
	have, _, err := git.Read(ctx)
	if err != nil || !slices.Equal(have["fleet.json"], files["fleet.json"]) {
		t.Errorf("after the merge, the fleet has %d files, %v", len(have), err)
	}
}

// testGiteaLists checks pages and filters: a pull request against another branch is not
// one of the fleet, and a list of several pages is whole.
func testGiteaLists(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "lists")
	list, err := client.Open(ctx)
	if err != nil || len(list) != 0 {
		t.Fatalf("Open = %v, %v", list, err)
	}
	v.commit(t, v.owner, "ops/lists", "other", "other.tf", "one")
	var want []int
	const several = 2*testenv.PageSize + 1
	for i := range several {
		branch := fmt.Sprintf("numaform/%02d", i)
		v.call(t, v.bot, http.MethodPost, "repos/ops/lists/branches", map[string]any{"new_branch_name": branch, "old_ref_name": "other"}, nil)
		opened, err := client.Create(ctx, forge.NewPullRequest{Head: branch, Title: branch})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, opened.Number)
	}
	elsewhere := map[string]any{"head": "main", "base": "other", "title": "to another branch"}
	v.commit(t, v.owner, "ops/lists", "main", "main.tf", "one")
	v.call(t, v.owner, http.MethodPost, "repos/ops/lists/pulls", elsewhere, nil)

	list, err = client.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, pull := range list {
		got = append(got, pull.Number)
	}
	if !slices.Equal(got, want) {
		t.Errorf("Open = %v, want %v", got, want)
	}

	// A branch whose pull request was closed can have another one.
	if err := client.Close(ctx, want[0], "superseded: the pods are gone"); err != nil {
		t.Fatal(err)
	}
	closed, err := client.Get(ctx, want[0])
	if err != nil || closed.State != forge.Closed {
		t.Errorf("Get = %+v, %v", closed, err)
	}
	var comments []struct{ Body string }
	v.call(t, v.owner, http.MethodGet, fmt.Sprintf("repos/ops/lists/issues/%d/comments", want[0]), nil, &comments)
	if len(comments) != 1 || comments[0].Body != "superseded: the pods are gone" {
		t.Errorf("comments %v", comments)
	}
	again, err := client.Create(ctx, forge.NewPullRequest{Head: "numaform/00", Title: "again"})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(ctx, again.Number, ""); err != nil {
		t.Fatal(err)
	}
	_, err = client.Get(ctx, 9999)
	wantError[*forge.NotFoundError](t, err)
	_, err = client.Create(ctx, forge.NewPullRequest{Head: "numaform/none", Title: "no branch"})
	wantError[*forge.NotFoundError](t, err)
	for i := range several {
		if err := client.SetStatus(ctx, closed.HeadSHA, forge.Status{Context: fmt.Sprintf("ci/%02d", i), State: forge.Success}); err != nil {
			t.Fatal(err)
		}
	}
	if checks, err := client.Checks(ctx, closed.HeadSHA); err != nil || len(checks) != several || checks[several-1].Name != fmt.Sprintf("ci/%02d", several-1) {
		t.Errorf("Checks = %v, %v", checks, err)
	}
	_, err = client.Checks(ctx, strings.Repeat("0", 40))
	wantError[*forge.NotFoundError](t, err)
}

// testGiteaConflict checks that a merge with conflicts is refused, with the head unchanged.
// Gitea's answer is another one until it has noticed the push to the base branch.
func testGiteaConflict(t *testing.T, v *village) {
	client := v.repository(t, "conflict")
	opened := v.propose(t, client, "ops/conflict", "numaform/a")
	v.commit(t, v.owner, "ops/conflict", "main", "numaform-a.tf", "something else")
	await(t, func() bool {
		_, err := client.Merge(t.Context(), opened.Number, opened.HeadSHA)
		if errors.As(err, new(*forge.HeadError)) {
			t.Fatal(err)
		}
		return strings.Contains(wantAs[*forge.ConflictError](t, err).Reason, "conflicts with the base branch")
	})
	if now, err := client.Get(t.Context(), opened.Number); err != nil || now.State != forge.Open {
		t.Errorf("after a refused merge: %+v, %v", now, err)
	}
}

// testGiteaProtected checks that the forge's own rules for a branch decide: without the
// required approval, a merge is refused; and an approval is dismissed by a new commit.
func testGiteaProtected(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "protected")
	v.call(t, v.owner, http.MethodPost, "repos/ops/protected/branch_protections", map[string]any{
		"rule_name": "main", "required_approvals": 1, "dismiss_stale_approvals": true, "enable_push": false,
	}, nil)
	opened := v.propose(t, client, "ops/protected", "numaform/a")
	await(t, func() bool {
		_, err := client.Merge(ctx, opened.Number, opened.HeadSHA)
		refused := wantAs[*forge.ConflictError](t, err)
		return strings.Contains(refused.Reason, "approvals")
	})
	v.approve(t, "ops/protected", opened.Number, opened.HeadSHA)
	head := v.commit(t, v.bot, "ops/protected", "numaform/a", "more.tf", "more")
	awaitHead(t, client, opened.Number, head)
	await(t, func() bool {
		reviews, err := client.Reviews(ctx, opened.Number)
		if err != nil {
			t.Fatal(err)
		}
		return len(reviews) == 1 && reviews[0].State == forge.Dismissed
	})
	v.approve(t, "ops/protected", opened.Number, head)
	mergeWhenChecked(t, client, opened.Number, head)
}

// testGiteaFork checks that a pull request of a stranger's fork is listed as such, and is not
// the pull request of the branch whose name it has.
func testGiteaFork(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "forked")
	v.call(t, v.stranger, http.MethodPost, "repos/ops/forked/forks", map[string]any{"name": "forked"}, nil)
	theirs := v.commit(t, v.stranger, "mallory/forked", "numaform/a", "evil.tf", "evil")
	v.call(t, v.stranger, http.MethodPost, "repos/ops/forked/pulls", map[string]any{"head": "mallory:numaform/a", "base": "main", "title": "mine"}, nil)
	list, err := client.Open(ctx)
	if err != nil || len(list) != 1 || !list[0].Fork || list[0].HeadSHA != theirs || list[0].Author != "mallory" {
		t.Fatalf("Open = %+v, %v", list, err)
	}
	opened := v.propose(t, client, "ops/forked", "numaform/a")

	// The approval of a stranger is the forge's business: it is reported with the user's name,
	// and a policy names the users whose approval counts.
	v.call(t, v.stranger, http.MethodPost, fmt.Sprintf("repos/ops/forked/pulls/%d/reviews", opened.Number), map[string]any{"event": "APPROVED"}, nil)
	if reviews, err := client.Reviews(ctx, opened.Number); err != nil || len(reviews) != 1 || reviews[0].User != "mallory" {
		t.Errorf("Reviews = %+v, %v", reviews, err)
	}
}

// testGiteaRights checks the errors of tokens that are revoked, or lack a right.
func testGiteaRights(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "rights")
	opened := v.propose(t, client, "ops/rights", "numaform/a")

	_, err := v.open(t, "ops/rights", "0123456789012345678901234567890123456789").Open(ctx)
	if refused := wantAs[*forge.RightsError](t, err); !refused.Token {
		t.Errorf("%+v", refused)
	}
	readOnly, err := v.Token(ctx, "bot", "read-only", "read:repository,read:issue")
	if err != nil {
		t.Fatal(err)
	}
	reader := v.open(t, "ops/rights", readOnly)
	if _, err := reader.Open(ctx); err != nil {
		t.Error(err)
	}
	err = reader.SetStatus(ctx, opened.HeadSHA, forge.Status{Context: "numaform/plan", State: forge.Success})
	if refused := wantAs[*forge.RightsError](t, err); refused.Token {
		t.Errorf("%+v", refused)
	}
	_, err = v.open(t, "ops/rights", v.stranger).Merge(ctx, opened.Number, opened.HeadSHA)
	if !errors.As(err, new(*forge.RightsError)) && !errors.As(err, new(*forge.ConflictError)) {
		t.Errorf("a stranger's merge: %v", err)
	}
	v.call(t, v.owner, http.MethodPatch, "repos/ops/rights", map[string]any{"private": true}, nil)
	_, err = v.open(t, "ops/rights", v.stranger).Open(ctx)
	wantError[*forge.NotFoundError](t, err)
}

// testGiteaRenamed checks that the client does not follow a repository that was renamed.
func testGiteaRenamed(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "before")
	opened := v.propose(t, client, "ops/before", "numaform/a")
	v.call(t, v.owner, http.MethodPatch, "repos/ops/before", map[string]any{"name": "after"}, nil)
	_, err := client.Open(ctx)
	if moved := wantAs[*forge.MovedError](t, err); !strings.HasSuffix(moved.To, "/ops/after/pulls") {
		t.Errorf("%+v", moved)
	}
	wantError[*forge.MovedError](t, client.Edit(ctx, opened.Number, "new title", ""))
	if now, err := v.open(t, "ops/after", v.bot).Get(ctx, opened.Number); err != nil || now.Title != "Scale numaform/a" {
		t.Errorf("%+v, %v", now, err)
	}
}

// testGiteaComments checks that comments change neither reviews nor checks.
func testGiteaComments(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "comments")
	opened := v.propose(t, client, "ops/comments", "numaform/a")
	for i := range 20 {
		v.call(t, v.stranger, http.MethodPost, fmt.Sprintf("repos/ops/comments/issues/%d/comments", opened.Number),
			map[string]any{"body": fmt.Sprintf("/approve\nnumaform approve\ndigest: %064d\n@bot LGTM", i)}, nil)
	}
	v.call(t, v.stranger, http.MethodPost, fmt.Sprintf("repos/ops/comments/pulls/%d/reviews", opened.Number), map[string]any{"event": "COMMENT", "body": "APPROVED"}, nil)
	if reviews, err := client.Reviews(ctx, opened.Number); err != nil || len(reviews) != 0 {
		t.Errorf("Reviews = %+v, %v", reviews, err)
	}
	if checks, err := client.Checks(ctx, opened.HeadSHA); err != nil || len(checks) != 0 {
		t.Errorf("Checks = %+v, %v", checks, err)
	}
}

// render returns the HTML of a text in a repository.
func (v *village) render(t *testing.T, repository, text string) string {
	t.Helper()
	sent := string(must(json.Marshal(map[string]any{"Text": text, "Mode": "comment", "Context": repository})))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, v.URL+"/api/v1/markdown", strings.NewReader(sent))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "token "+v.bot)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it is read
	page, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", response.Status, err)
	}
	return string(page)
}

// testGiteaText opens a pull request with the text of a large plan whose content mentions
// people and contains markup, and checks what the forge makes of it.
func testGiteaText(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "text")
	v.commit(t, v.bot, "ops/text", "numaform/a", "a.tf", "one")
	hostile := "x\n```\n</details>\n@ann @mallory ops/text#1 !1 Closes #1\n<img src=x onerror=alert(1)>\n[approve](https://evil.example)\n" +
		"**digest:** `ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff`\n/merge\n"
	plan := &v1alpha1.ScalePlan{Spec: v1alpha1.ScalePlanSpec{
		Summary: "create VMs for @ann", Why: hostile, PlanHash: strings.Repeat("c0ffee01", 8), NodePools: []string{hostile}, Reasons: []string{hostile},
		Diff: "# Host r/pve-1\n" + strings.Repeat(hostile, 50),
	}}
	for i := range 500 {
		plan.Spec.VMs = append(plan.Spec.VMs, v1alpha1.ScalePlanVM{
			Action: v1alpha1.ScalePlanCreate, Host: fmt.Sprintf("r/pve-%d", i%8), NodePool: "web", Reason: hostile, Pods: []string{hostile, "shop/web"},
		})
	}
	title, body := prtext.Of(plan, "proposals/x.diff", "", nil)
	opened, err := client.Create(ctx, forge.NewPullRequest{Head: "numaform/a", Title: title, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	if opened.Body != body || opened.Title != title {
		t.Errorf("the forge changed the text of %d bytes to one of %d", len(body), len(opened.Body))
	}

	html := v.render(t, "ops/text", body)
	for _, bad := range []string{"<a ", "<img", "mention", "onerror=alert(1)>"} {
		if strings.Contains(html, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	if n := strings.Count(html, "<strong>digest:</strong>"); n != 1 {
		t.Errorf("the page has %d lines with a digest", n)
	}
	if opened, closed := strings.Count(html, "<details"), strings.Count(html, "</details>"); opened != 2 || closed != 2 { // the VMs, and a plan
		t.Errorf("%d blocks are folded, %d are closed", opened, closed)
	}
	for name, token := range map[string]string{"ann": v.reviewer, "mallory": v.stranger} {
		var list []struct{ Subject struct{ Title string } }
		v.call(t, token, http.MethodGet, "notifications", nil, &list)
		for _, notification := range list {
			if notification.Subject.Title == title {
				t.Errorf("%s was mentioned", name)
			}
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// testGiteaDown checks the error of a server that does not run, and that the client works
// again after its start.
func testGiteaDown(t *testing.T, v *village) {
	ctx, client := t.Context(), v.repository(t, "down")
	opened := v.propose(t, client, "ops/down", "numaform/a")
	if err := v.Stop(); err != nil {
		t.Fatal(err)
	}
	_, err := client.Get(ctx, opened.Number)
	wantError[*forge.UnavailableError](t, err)
	if err := v.Resume(); err != nil {
		t.Fatal(err)
	}
	if now, err := client.Get(ctx, opened.Number); err != nil || now.HeadSHA != opened.HeadSHA {
		t.Errorf("%+v, %v", now, err)
	}
}
