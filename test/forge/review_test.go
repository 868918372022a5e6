package forge_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/review"
	"github.com/numaform/numaform/internal/store"
)

// cluster has the ScalePlans, and records events.
type cluster struct {
	// mu guards the fields below.
	mu     sync.Mutex
	plans  []v1alpha1.ScalePlan
	events []string
}

func (c *cluster) Plans(context.Context) ([]v1alpha1.ScalePlan, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.plans), nil
}

func (c *cluster) Undecided(plan *v1alpha1.ScalePlan) bool {
	approved, _ := plan.Approval()
	rejected, _ := plan.Rejection()
	return plan.Status.Phase == v1alpha1.ScalePlanPending && approved == "" && rejected == ""
}

func (c *cluster) Pictures(string) map[string][]byte { return nil }

func (c *cluster) SetPullRequest(_ context.Context, name string, request *v1alpha1.ScalePlanPullRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.plans {
		if c.plans[i].Name == name {
			c.plans[i].Status.PullRequest = request
		}
	}
	return nil
}

func (c *cluster) Publish(published ...events.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, event := range published {
		c.events = append(c.events, event.Reason+": "+event.Message)
	}
}

// desk is a fleet's repository at the forge, whose changes are reviewed there. The only
// approver is ann.
type desk struct {
	*village
	*cluster

	t *testing.T
	// name is the repository of ops, and path its path in the API.
	name, path string
	client     forge.Client
	config     review.Config
	reviewer   *review.Reviewer
	clock      *clocktesting.FakePassiveClock
	// trusts are the values of trusted in the checks of pull requests.
	trusts []bool
}

func (v *village) desk(t *testing.T, name string) *desk {
	t.Helper()
	d := &desk{
		village: v, cluster: &cluster{}, t: t, name: name, path: "repos/ops/" + name, client: v.repository(t, name),
		clock: clocktesting.NewFakePassiveClock(time.Unix(1767225600, 0)),
	}
	d.config = review.Config{
		Plans: d.cluster, Repository: d.git(v.bot), Forge: d.client, Policy: review.Policy{Approvers: []string{"ann"}}, ClusterID: "lab", Branch: "main",
		Reference: func(number int) string { return fmt.Sprintf("refs/pull/%d/head", number) },
		Check: func(_ context.Context, now, after generator.Files, trusted bool) (bool, string, error) {
			d.trusts = append(d.trusts, trusted)
			return true, fmt.Sprintf("%d files become %d", len(now), len(after)), nil
		},
		Every: time.Minute, Clock: d.clock, Events: d.cluster,
	}
	d.reviewer = review.New(d.config)
	return d
}

// git returns a store with the bot's clone of the repository.
func (d *desk) git(token string) *store.Git {
	d.t.Helper()
	git, err := store.NewGit(store.GitConfig{
		Clone: d.t.TempDir(), Remote: d.URL + "/ops/" + d.name + ".git", Auth: store.GitAuth{Username: "bot", Token: token},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return git
}

// add adds a plan. digit distinguishes the hashes of plans.
func (d *desk) add(name, digit string) {
	d.plans = append(d.plans, v1alpha1.ScalePlan{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1767225600+int64(len(d.plans)), 0))},
		Spec: v1alpha1.ScalePlanSpec{
			Direction: v1alpha1.ScaleUp, NodePools: []string{"workers"}, RequestedBy: "provisioning", Summary: "1 to create on lab/pve-1",
			Why: "1 pod needs a new node", PlanHash: strings.Repeat(digit, 64), Diff: "# Host lab/pve-1\nthe plan " + digit + "\n",
			Hosts: []v1alpha1.ScalePlanHost{{Host: "lab/pve-1"}}, Verdict: v1alpha1.ScalePlanVerdict{Decision: v1alpha1.VerdictAllow},
		},
		Status: v1alpha1.ScalePlanStatus{Phase: v1alpha1.ScalePlanPending},
	})
}

func (d *desk) plan(name string) *v1alpha1.ScalePlan {
	d.t.Helper()
	for i := range d.plans {
		if d.plans[i].Name == name {
			return &d.plans[i]
		}
	}
	d.t.Fatalf("no plan %s", name)
	return nil
}

func (d *desk) pass() {
	d.t.Helper()
	if err := d.reviewer.Pass(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
}

// fails runs two passes that must fail for a reason, which is then in an event.
func (d *desk) fails(want string) {
	d.t.Helper()
	before := len(d.events)
	for range 2 {
		err := d.reviewer.Pass(d.t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), d.bot) {
			d.t.Errorf("got %v, want %q", err, want)
		}
	}
	if after := d.events[before:]; len(after) != 1 || !strings.HasPrefix(after[0], "PullRequestFailed: ") || !strings.Contains(after[0], want) {
		d.t.Errorf("events %q, want one with %q", after, want)
	}
}

// at returns the pull request of a plan at the forge, which must have its number there.
func (d *desk) at(name string, number int64) forge.PullRequest {
	d.t.Helper()
	request := d.plan(name).Status.PullRequest
	if request == nil || request.Number != number {
		d.t.Fatalf("the pull request of %s is %+v, want #%d", name, request, number)
	}
	found, err := d.client.Get(d.t.Context(), int(number))
	if err != nil {
		d.t.Fatal(err)
	}
	return found
}

// opened adds a plan and returns its pull request.
func (d *desk) opened(name, digit string) forge.PullRequest {
	d.t.Helper()
	d.add(name, digit)
	d.pass()
	return d.at(name, d.plan(name).Status.PullRequest.Number)
}

func (d *desk) pending(name string) {
	d.t.Helper()
	if request := d.plan(name).Status.PullRequest; request == nil || request.Approved != "" || request.Rejected != "" {
		d.t.Errorf("plan %s is decided or has no pull request: %+v", name, request)
	}
}

func (d *desk) approved(name, by string) {
	d.t.Helper()
	if request := d.plan(name).Status.PullRequest; request == nil || request.Approved != d.plan(name).Spec.PlanHash || request.DecidedBy != by {
		d.t.Errorf("plan %s is not approved by %s: %+v", name, by, request)
	}
}

// change changes a pull request as a user.
func (d *desk) change(token string, number int, changes map[string]any) {
	d.t.Helper()
	d.call(d.t, token, http.MethodPatch, fmt.Sprintf("%s/pulls/%d", d.path, number), changes, nil)
}

// merge merges a pull request as ann, once the server has checked for conflicts.
func (d *desk) merge(number int, way string) {
	d.t.Helper()
	await(d.t, func() bool {
		err := d.Call(d.t.Context(), d.village.reviewer, http.MethodPost, fmt.Sprintf("%s/pulls/%d/merge", d.path, number), map[string]any{"Do": way}, nil)
		return err == nil
	})
	await(d.t, func() bool { // the answer can be earlier than the state
		now, err := d.client.Get(d.t.Context(), number)
		return err == nil && now.State == forge.Merged
	})
}

// replace replaces the content of a file on a branch as a user; an empty content deletes it.
// It returns the new commit.
func (d *desk) replace(token, branch, file, content string) string {
	d.t.Helper()
	var now struct{ Sha string }
	d.call(d.t, token, http.MethodGet, d.path+"/contents/"+file+"?ref="+branch, nil, &now)
	method, sent := http.MethodDelete, map[string]any{"sha": now.Sha, "branch": branch, "message": "change " + file}
	if content != "" {
		method, sent["content"] = http.MethodPut, base64.StdEncoding.EncodeToString([]byte(content))
	}
	var made struct{ Commit struct{ Sha string } }
	d.call(d.t, token, method, d.path+"/contents/"+file, sent, &made)
	return made.Commit.Sha
}

// files returns the files of a directory on a branch.
func (d *desk) files(branch, dir string) []string {
	d.t.Helper()
	var list []struct{ Name string }
	if err := d.Call(d.t.Context(), d.owner, http.MethodGet, d.path+"/contents/"+dir+"?ref="+branch, nil, &list); err != nil {
		return nil
	}
	var names []string
	for _, file := range list {
		names = append(names, file.Name)
	}
	return names
}

// status returns numaform's status of a commit.
func (d *desk) status(sha string) (state, text string) {
	d.t.Helper()
	var list []struct{ Context, Status, Description string }
	d.call(d.t, d.owner, http.MethodGet, d.path+"/commits/"+sha+"/statuses", nil, &list)
	for _, s := range list {
		if s.Context == "numaform/plan" {
			return s.Status, s.Description
		}
	}
	return "none", ""
}

// TestReviewsAtGitea runs the reviewer of ScalePlans against a Gitea server, with the faults,
// the attacks and the accidents that such a forge can show.
func TestReviewsAtGitea(t *testing.T) {
	t.Parallel()
	enginetest.Nightly(t)
	v := newVillage(t)
	for _, test := range []struct {
		name string
		run  func(*desk)
	}{
		{"race", testReviewRace},
		{"superseded", testReviewSuperseded},
		{"strangers", testReviewStrangers},
		{"reverted", testReviewReverted},
		{"different", testReviewDifferent},
		{"auto", testReviewAuto},
		{"closed", testReviewClosed},
		{"protected", testReviewProtected},
		{"fork", testReviewFork},
		{"rights", testReviewRights},
		{"renamed", testReviewRenamed},
		{"comments", testReviewComments},
		{"down", testReviewDown}, // the last one, because it stops the server
	} {
		t.Run(test.name, func(t *testing.T) { test.run(v.desk(t, "review-"+test.name)) })
	}
}

// testReviewRace runs two controllers at the same time: there is one pull request, and one
// decision. Both may report that the other one was faster.
func testReviewRace(d *desk) {
	second := d.config
	second.Repository = d.git(d.bot)
	other := review.New(second)
	d.add("workers-up-1", "1")
	both := func() {
		var group sync.WaitGroup
		for _, reviewer := range []*review.Reviewer{d.reviewer, other} {
			group.Go(func() {
				if err := reviewer.Pass(d.t.Context()); err != nil {
					d.t.Log(err)
				}
			})
		}
		group.Wait()
	}
	for range 3 {
		both()
	}
	open, err := d.client.Open(d.t.Context())
	if err != nil || len(open) != 1 {
		d.t.Fatalf("open pull requests %+v, %v", open, err)
	}
	d.pass()
	first := d.at("workers-up-1", int64(open[0].Number))
	if known := d.plan("workers-up-1").Status.PullRequest; first.HeadSHA != known.Head {
		d.t.Errorf("the head is %s, recorded is %s", first.HeadSHA, known.Head)
	}
	d.approve(d.t, "ops/"+d.name, first.Number, first.HeadSHA)
	d.merge(first.Number, "squash")
	for range 2 {
		both()
	}
	d.approved("workers-up-1", "ann")
	if open, err := d.client.Open(d.t.Context()); err != nil || len(open) != 0 {
		d.t.Errorf("after the merge, open pull requests %+v, %v", open, err)
	}
}

// testReviewSuperseded continues a pull request with the plan that replaces the first one,
// and closes it with the reason when no plan is needed any more.
func testReviewSuperseded(d *desk) {
	first := d.opened("workers-up-1", "1")
	d.approve(d.t, "ops/"+d.name, first.Number, first.HeadSHA)
	now := metav1.NewTime(d.clock.Now())
	d.plan("workers-up-1").Status = v1alpha1.ScalePlanStatus{
		Phase: v1alpha1.ScalePlanSuperseded, FinishedAt: &now, PullRequest: d.plan("workers-up-1").Status.PullRequest,
	}
	d.add("workers-up-2", "2")
	d.pass()
	updated := d.at("workers-up-2", int64(first.Number))
	if updated.HeadSHA == first.HeadSHA || !strings.Contains(updated.Body, strings.Repeat("2", 64)) {
		d.t.Errorf("the pull request was not updated: %+v", updated)
	}
	awaitHead(d.t, d.client, first.Number, d.plan("workers-up-2").Status.PullRequest.Head)
	d.pass()
	if waits := d.plan("workers-up-2").Status.PullRequest.Waits; !strings.Contains(waits, "another commit") {
		d.t.Errorf("it waits: %q", waits)
	}

	status := &d.plan("workers-up-2").Status
	status.Phase, status.Result = v1alpha1.ScalePlanSuperseded, "pods no longer need it"
	d.pass()
	closed, err := d.client.Get(d.t.Context(), first.Number)
	if err != nil || closed.State != forge.Closed || closed.ClosedBy != "bot" {
		d.t.Errorf("the pull request is %+v, %v", closed, err)
	}
	var comments []struct{ Body string }
	d.call(d.t, d.owner, http.MethodGet, fmt.Sprintf("%s/issues/%d/comments", d.path, first.Number), nil, &comments)
	if len(comments) != 1 || !strings.Contains(comments[0].Body, "pods no longer need it") {
		d.t.Errorf("comments %+v", comments)
	}
	if err := d.Call(d.t.Context(), d.owner, http.MethodGet, d.path+"/branches/"+updated.Head, nil, nil); err == nil {
		d.t.Errorf("the branch %s still exists", updated.Head)
	}
}

// testReviewStrangers restores a branch and a text that another user changed, ignores the
// approval of the other commit, and opens another pull request if the target was changed.
func testReviewStrangers(d *desk) {
	first := d.opened("workers-up-1", "1")
	theirs := d.replace(d.village.reviewer, first.Head, "proposals/workers-up-1.diff", "something else\n")
	awaitHead(d.t, d.client, first.Number, theirs)
	d.approve(d.t, "ops/"+d.name, first.Number, theirs)
	d.change(d.owner, first.Number, map[string]any{"title": "harmless", "body": "nothing to see"})
	d.pass()
	d.pending("workers-up-1")
	head := d.plan("workers-up-1").Status.PullRequest.Head
	awaitHead(d.t, d.client, first.Number, head)
	if now := d.at("workers-up-1", int64(first.Number)); now.Title == "harmless" || !strings.Contains(now.Body, strings.Repeat("1", 64)) {
		d.t.Errorf("the text is %q, %q", now.Title, now.Body)
	}
	d.merge(first.Number, "squash")
	d.pass()
	d.pending("workers-up-1") // ann approved another commit
	second := d.at("workers-up-1", int64(first.Number)+1)
	if !strings.Contains(second.Body, "was merged, but nothing was applied") || len(d.files("main", "proposals")) != 0 {
		d.t.Errorf("the second pull request is %+v; main has %q", second, d.files("main", "proposals"))
	}

	d.call(d.t, d.owner, http.MethodPost, d.path+"/branches", map[string]any{"new_branch_name": "release", "old_ref_name": "main"}, nil)
	d.approve(d.t, "ops/"+d.name, second.Number, second.HeadSHA)
	d.change(d.owner, second.Number, map[string]any{"base": "release"})
	d.pass()
	d.pass()
	d.pending("workers-up-1")
	if closed, err := d.client.Get(d.t.Context(), second.Number); err != nil || closed.State != forge.Closed {
		d.t.Errorf("the retargeted pull request is %+v, %v", closed, err)
	}
	third := d.at("workers-up-1", int64(second.Number)+1)
	if third.State != forge.Open || third.Base != "main" {
		d.t.Errorf("the third pull request is %+v", third)
	}
	// Its change was merged and removed before, and a rebase must merge it again.
	d.approve(d.t, "ops/"+d.name, third.Number, d.plan("workers-up-1").Status.PullRequest.Head)
	d.merge(third.Number, "rebase")
	d.pass()
	d.approved("workers-up-1", "ann")
}

// testReviewReverted approves nothing after a merge that was reverted before numaform saw it.
func testReviewReverted(d *desk) {
	first := d.opened("workers-up-1", "1")
	d.approve(d.t, "ops/"+d.name, first.Number, first.HeadSHA)
	d.merge(first.Number, "merge")
	d.replace(d.village.reviewer, "main", "proposals/workers-up-1.diff", "")
	d.pass()
	d.pending("workers-up-1")
	if again := d.at("workers-up-1", int64(first.Number)+1); !strings.Contains(again.Body, "the merge was reverted") {
		d.t.Errorf("the pull request is %+v", again)
	}
}

// testReviewDifferent holds a plan that is different after the merge.
func testReviewDifferent(d *desk) {
	first := d.opened("workers-up-1", "1")
	d.approve(d.t, "ops/"+d.name, first.Number, first.HeadSHA)
	d.merge(first.Number, "rebase")
	d.pass()
	d.approved("workers-up-1", "ann")
	d.plan("workers-up-1").Status.Phase = v1alpha1.ScalePlanSuperseded
	second := d.opened("workers-up-2", "2")
	d.pending("workers-up-2")
	if second.Number == first.Number || !strings.Contains(second.Body, "the plan is different now") || len(d.files("main", "proposals")) != 0 {
		d.t.Errorf("the pull request is %+v; main has %q", second, d.files("main", "proposals"))
	}
}

// testReviewAuto merges an approved pull request itself, and none with a failed check.
func testReviewAuto(d *desk) {
	d.config.Policy.Merge = true
	d.reviewer = review.New(d.config)
	first := d.opened("workers-up-1", "1")
	d.call(d.t, d.owner, http.MethodPost, d.path+"/statuses/"+first.HeadSHA, map[string]any{"state": "failure", "context": "lint"}, nil)
	d.approve(d.t, "ops/"+d.name, first.Number, first.HeadSHA)
	d.pass()
	d.pending("workers-up-1")
	if waits := d.plan("workers-up-1").Status.PullRequest.Waits; !strings.Contains(waits, "the check lint, which is failure") {
		d.t.Errorf("it waits: %q", waits)
	}
	d.call(d.t, d.owner, http.MethodPost, d.path+"/statuses/"+first.HeadSHA, map[string]any{"state": "success", "context": "lint"}, nil)
	await(d.t, func() bool {
		err := d.reviewer.Pass(d.t.Context())
		if err != nil && !strings.Contains(err.Error(), "try again later") {
			d.t.Fatal(err)
		}
		return err == nil && d.plan("workers-up-1").Status.PullRequest.Approved != ""
	})
	d.approved("workers-up-1", "ann")
}

// testReviewClosed rejects what an approver closes, and opens another pull request for what
// another user closes.
func testReviewClosed(d *desk) {
	first := d.opened("workers-up-1", "1")
	d.change(d.owner, first.Number, map[string]any{"state": "closed"})
	for i := range 10 { // after the closing, which must still be found
		d.call(d.t, d.stranger, http.MethodPost, fmt.Sprintf("%s/issues/%d/comments", d.path, first.Number), map[string]any{"body": fmt.Sprint("reject ", i)}, nil)
	}
	d.pass()
	d.pending("workers-up-1")
	second := d.at("workers-up-1", int64(first.Number)+1)
	if !strings.Contains(second.Body, "closed by ops") {
		d.t.Errorf("the pull request is %+v", second)
	}
	d.change(d.village.reviewer, second.Number, map[string]any{"state": "closed"})
	d.pass()
	if request := d.plan("workers-up-1").Status.PullRequest; request.Rejected == "" || request.DecidedBy != "ann" {
		d.t.Errorf("not rejected by ann: %+v", request)
	}
}

// testReviewProtected loses nothing while the forge refuses numaform's own pushes, of the
// proposal's branch and then of the fleet's branch.
func testReviewProtected(d *desk) {
	d.pass()
	protect := func(rule string) (lift func()) {
		d.call(d.t, d.owner, http.MethodPost, d.path+"/branch_protections", map[string]any{"rule_name": rule, "enable_push": false}, nil)
		return func() {
			d.call(d.t, d.owner, http.MethodDelete, d.path+"/branch_protections/"+strings.ReplaceAll(rule, "/", "%2F"), nil, nil)
		}
	}
	lift := protect("numaform/**")
	d.add("workers-up-1", "1")
	d.fails("pushing the proposal workers-up-1 to branch numaform/lab/workers-up-1")
	lift()
	d.pass()
	first := d.at("workers-up-1", d.plan("workers-up-1").Status.PullRequest.Number)
	d.approve(d.t, "ops/"+d.name, first.Number, first.HeadSHA)
	d.merge(first.Number, "squash")
	lift = protect("main")
	d.pass()
	d.approved("workers-up-1", "ann")
	d.plan("workers-up-1").Status.Phase = v1alpha1.ScalePlanApplied
	d.fails("removing finished proposals")
	lift()
	d.pass()
	if left := d.files("main", "proposals"); len(left) != 0 || !d.plan("workers-up-1").Status.PullRequest.Closed {
		d.t.Errorf("main has %q, the pull request is %+v", left, d.plan("workers-up-1").Status.PullRequest)
	}
}

// testReviewFork sets the status of a stranger's pull request from a fork, whose files are
// only data, and of a person's branch whose name begins like numaform's.
func testReviewFork(d *desk) {
	files, err := generator.Render(fleet.Fleet{ClusterID: "lab", Backend: fleet.Backend{Type: "local"}})
	if err != nil {
		d.t.Fatal(err)
	}
	for name, content := range files {
		d.commit(d.t, d.owner, "ops/"+d.name, "main", name, string(content))
	}
	d.call(d.t, d.stranger, http.MethodPost, d.path+"/forks", map[string]any{"name": d.name}, nil)
	var file struct{ Sha string }
	d.call(d.t, d.stranger, http.MethodGet, "repos/mallory/"+d.name+"/contents/fleet.json", nil, &file)
	d.call(d.t, d.stranger, http.MethodDelete, "repos/mallory/"+d.name+"/contents/fleet.json",
		map[string]any{"sha": file.Sha, "branch": "main", "new_branch": "numaform/lab/workers-up-1", "message": "remove the fleet"}, nil)
	d.call(d.t, d.stranger, http.MethodPost, d.path+"/pulls", map[string]any{"head": "mallory:numaform/lab/workers-up-1", "base": "main", "title": "mine"}, nil)
	d.call(d.t, d.owner, http.MethodPost, d.path+"/branches", map[string]any{"new_branch_name": "numaform/other/mine", "old_ref_name": "main"}, nil)
	mine := d.replace(d.village.reviewer, "numaform/other/mine", "fleet.json", string(files["fleet.json"])+"\n")
	d.call(d.t, d.village.reviewer, http.MethodPost, d.path+"/pulls", map[string]any{"head": "numaform/other/mine", "base": "main", "title": "mine"}, nil)
	await(d.t, func() bool {
		if err := d.reviewer.Pass(d.t.Context()); err != nil {
			d.t.Fatal(err)
		}
		state, text := d.status(mine)
		return state != "none" && strings.Contains(text, "files become")
	})
	open, err := d.client.Open(d.t.Context())
	if err != nil || len(open) != 2 || !open[0].Fork || open[1].Fork {
		d.t.Fatalf("open pull requests %+v, %v", open, err)
	}
	if state, text := d.status(open[0].HeadSHA); state == "none" || text == "" {
		d.t.Errorf("the status of the fork is %s: %s", state, text)
	}
	if !slices.Contains(d.trusts, false) || !slices.Contains(d.trusts, true) {
		d.t.Errorf("checked with trust %v", d.trusts)
	}
	d.add("workers-up-1", "1")
	d.pass()
	if own := d.at("workers-up-1", int64(open[1].Number)+1); own.Fork || own.Author != "bot" {
		d.t.Errorf("the pull request of the plan is %+v", own)
	}
}

// testReviewRights reports a token without rights and one that expired, and continues with a
// new one.
func testReviewRights(d *desk) {
	first := d.opened("workers-up-1", "1")
	d.approve(d.t, "ops/"+d.name, first.Number, first.HeadSHA)
	d.merge(first.Number, "squash")
	works := d.config
	use := func(token string) {
		d.config.Forge, d.config.Repository = d.open(d.t, "ops/"+d.name, token), d.git(token)
		d.reviewer = review.New(d.config)
	}
	use(strings.Repeat("0123", 10))
	d.fails("create a new one and set NUMAFORM_FORGE_TOKEN")
	d.pending("workers-up-1")

	readOnly, err := d.Token(d.t.Context(), "bot", "read-only", "read:repository")
	if err != nil {
		d.t.Fatal(err)
	}
	use(readOnly)
	d.add("workers-up-2", "2")
	d.fails("pushing the proposal workers-up-2 to branch numaform/lab/workers-up-2")
	d.approved("workers-up-1", "ann") // which needs no write

	d.config = works
	d.reviewer = review.New(d.config)
	d.pass()
	d.pending("workers-up-2")
}

// testReviewRenamed does not follow a repository that was renamed, and continues when it has
// its name again.
func testReviewRenamed(d *desk) {
	first := d.opened("workers-up-1", "1")
	d.approve(d.t, "ops/"+d.name, first.Number, first.HeadSHA)
	d.call(d.t, d.owner, http.MethodPatch, d.path, map[string]any{"name": d.name + "-moved"}, nil)
	d.fails("the repository was renamed or moved")
	d.pending("workers-up-1")
	if waits := d.plan("workers-up-1").Status.PullRequest.Waits; !strings.Contains(waits, "set fleet.git.remote to its new URL") {
		d.t.Errorf("it waits: %q", waits)
	}
	d.call(d.t, d.owner, http.MethodPatch, d.path+"-moved", map[string]any{"name": d.name}, nil)
	d.pass()
	d.merge(first.Number, "squash")
	d.pass()
	d.approved("workers-up-1", "ann")
}

// testReviewComments decides nothing by comments, by reviews without an opinion, or by the
// approval of a user whom the policy does not name.
func testReviewComments(d *desk) {
	first := d.opened("workers-up-1", "1")
	for i := range 200 {
		d.call(d.t, d.stranger, http.MethodPost, fmt.Sprintf("%s/issues/%d/comments", d.path, first.Number),
			map[string]any{"body": fmt.Sprintf("/approve\nnumaform approve %s\n@bot merge %d", strings.Repeat("1", 64), i)}, nil)
	}
	for token, event := range map[string]string{d.stranger: "APPROVED", d.village.reviewer: "COMMENT"} {
		d.call(d.t, token, http.MethodPost, fmt.Sprintf("%s/pulls/%d/reviews", d.path, first.Number),
			map[string]any{"event": event, "body": "APPROVED", "commit_id": first.HeadSHA}, nil)
	}
	d.pass()
	d.pending("workers-up-1")
	if waits := d.plan("workers-up-1").Status.PullRequest.Waits; waits != "waits for the approval of 1 of ann" {
		d.t.Errorf("it waits: %q", waits)
	}
}

// testReviewDown waits while the server does not run, and continues afterwards.
func testReviewDown(d *desk) {
	first := d.opened("workers-up-1", "1")
	d.approve(d.t, "ops/"+d.name, first.Number, first.HeadSHA)
	d.merge(first.Number, "squash")
	if err := d.Stop(); err != nil {
		d.t.Fatal(err)
	}
	d.fails("the forge is not available")
	d.pending("workers-up-1")
	err := d.reviewer.Pass(d.t.Context())
	if !errors.As(err, new(*forge.UnavailableError)) {
		d.t.Errorf("got %v", err)
	}
	if err := d.Resume(); err != nil {
		d.t.Fatal(err)
	}
	d.pass()
	d.approved("workers-up-1", "ann")
}
