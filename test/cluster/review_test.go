package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/forge/forgetest"
	"github.com/numaform/numaform/internal/testenv"
)

// desk is a forge with the world's fleet, where numaform proposes and ann reviews.
type desk interface { //nolint:interfacebloat // what a reviewer does at a forge
	// Open returns the open pull requests.
	Open(ctx context.Context) ([]forge.PullRequest, error)
	// status returns numaform's status of a commit.
	status(ctx context.Context, sha string) forge.Status
	// approve, merge and reject are what ann does. way is how Gitea merges.
	approve(p forge.PullRequest)
	merge(p forge.PullRequest, way string)
	reject(p forge.PullRequest)
	// propose opens ann's own pull request of a branch.
	propose(branch, head, title string)
	// remote returns the URL with which ann pushes.
	remote() string
}

// reviewed stores the world's fleet in a repository at a forge, which numaform uses as user
// with the token, and reviews all changes there. A busy machine can delay the renewal of the
// leader's Lease for minutes, and there is no other controller, so the leader may be late.
func (w *world) reviewed(kind forge.Kind, url, remote, user, token string) {
	w.t.Helper()
	w.edit(`configmap: \{.*\}`, fmt.Sprintf("git: {remote: '%s', username: %s, review: true, forge: {kind: %s, url: '%s', approvers: [ann], poll: 1s}}",
		remote, user, kind, url))
	w.edit(`$`, "intervals: {lease: 5m}\n")
	w.env = []string{"NUMAFORM_GIT_TOKEN=" + token, "NUMAFORM_FORGE_TOKEN=" + token}
}

// edit replaces a part of numaform.yaml.
func (w *world) edit(pattern, text string) {
	w.t.Helper()
	before, err := os.ReadFile(filepath.Join(w.dir, "numaform.yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("numaform.yaml", regexp.MustCompile(pattern).ReplaceAllLiteralString(string(before), text))
}

// contract is a contract server of GitHub or GitLab, with git over http.
type contract struct {
	*forgetest.Server
	t *testing.T
}

const contractToken = "canary-of-forge"

func (w *world) withContract(kind forge.Kind) *contract {
	w.t.Helper()
	repository := w.t.TempDir()
	if out, err := exec.Command("git", "init", "--quiet", "--bare", "--initial-branch=main", repository).CombinedOutput(); err != nil {
		w.t.Fatalf("git init: %v\n%s", err, out)
	}
	server := forgetest.Serve(w.t, kind, forgetest.New("main"), repository, contractToken)
	w.reviewed(kind, server.URL, server.Remote, "numaform", contractToken)
	return &contract{Server: server, t: w.t}
}

func (c *contract) status(_ context.Context, sha string) forge.Status {
	status, _ := c.Status(sha, "numaform/plan")
	return status
}

func (c *contract) approve(p forge.PullRequest)        { c.Review(p.Number, "ann", forge.Approved) }
func (c *contract) propose(branch, head, title string) { c.OpenBy("ann", branch, head, title, false) }

func (c *contract) merge(p forge.PullRequest, _ string) {
	sha, err := c.Squash(p.Head, p.HeadSHA)
	if err != nil {
		c.t.Error(err)
		return
	}
	c.Update(p.Number, func(p *forge.PullRequest) { p.State, p.MergeSHA, p.MergedBy = forge.Merged, sha, "ann" })
}

func (c *contract) reject(p forge.PullRequest) {
	c.Update(p.Number, func(p *forge.PullRequest) { p.State, p.ClosedBy = forge.Closed, "ann" })
}

func (c *contract) remote() string {
	return strings.Replace(c.Remote, "://", "://numaform:"+contractToken+"@", 1)
}

// village is a real forge with the fleet's repository, ops/fleet, where numaform is bot.
type village struct {
	*testenv.Forge
	forge.Client // ann's
	t            *testing.T
	ops, ann     string
}

const fleetRepository = "repos/ops/fleet"

func (w *world) withGitea() *village {
	w.t.Helper()
	v := &village{Forge: testenv.Gitea(w.t), t: w.t}
	bot := ""
	for name, token := range map[string]*string{"ops": &v.ops, "bot": &bot, "ann": &v.ann} {
		var err error
		if *token, err = v.User(w.t.Context(), name, name == "ops"); err != nil {
			w.t.Fatal(err)
		}
	}
	v.call(v.ops, http.MethodPost, "user/repos", map[string]any{"name": "fleet", "auto_init": true, "default_branch": "main"}, nil)
	for _, user := range []string{"bot", "ann"} {
		v.call(v.ops, http.MethodPut, fleetRepository+"/collaborators/"+user, map[string]any{"permission": "write"}, nil)
	}
	remote := v.URL + "/ops/fleet.git"
	var err error
	if v.Client, err = forge.New(forge.Config{Remote: remote, Base: "main", Kind: forge.Gitea, URL: v.URL, Token: v.ann}); err != nil {
		w.t.Fatal(err)
	}
	w.reviewed(forge.Gitea, v.URL, remote, "bot", bot)
	return v
}

func (v *village) call(token, method, path string, sent, received any) {
	v.t.Helper()
	if err := v.Call(v.t.Context(), token, method, path, sent, received); err != nil {
		v.t.Error(err)
	}
}

func (v *village) status(ctx context.Context, sha string) forge.Status {
	var list []struct{ Context, Status, Description string }
	if err := v.Call(ctx, v.ops, http.MethodGet, fleetRepository+"/commits/"+sha+"/statuses", nil, &list); err != nil {
		return forge.Status{Description: err.Error()}
	}
	for _, s := range list {
		if s.Context == "numaform/plan" {
			state := map[string]forge.CheckState{"success": forge.Success, "failure": forge.Failure}[s.Status]
			return forge.Status{Context: s.Context, State: state, Description: s.Description}
		}
	}
	return forge.Status{}
}

func (v *village) approve(p forge.PullRequest) {
	v.t.Helper()
	v.call(v.ann, http.MethodPost, fmt.Sprintf("%s/pulls/%d/reviews", fleetRepository, p.Number), map[string]any{"event": "APPROVED", "commit_id": p.HeadSHA}, nil)
}

// merge merges a pull request as soon as the forge has checked that it can.
func (v *village) merge(p forge.PullRequest, way string) {
	v.t.Helper()
	var err error
	for range 60 {
		if err = v.tryMerge(v.t.Context(), p, way); err == nil {
			return
		}
		select {
		case <-v.t.Context().Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	v.t.Error(err)
}

// tryMerge merges a pull request, unless the forge refuses it. Gitea does so while it checks for
// conflicts and, with the same answer, after it has found one.
func (v *village) tryMerge(ctx context.Context, p forge.PullRequest, way string) error {
	return v.Call(ctx, v.ann, http.MethodPost, fmt.Sprintf("%s/pulls/%d/merge", fleetRepository, p.Number), map[string]any{"Do": way}, nil)
}

func (v *village) reject(p forge.PullRequest) {
	v.t.Helper()
	if err := v.Client.Close(v.t.Context(), p.Number, ""); err != nil {
		v.t.Error(err)
	}
}

func (v *village) propose(branch, _, title string) {
	v.t.Helper()
	v.call(v.ann, http.MethodPost, fleetRepository+"/pulls", map[string]any{"head": branch, "base": "main", "title": title}, nil)
}

func (v *village) remote() string {
	return strings.Replace(v.URL, "://", "://ann:"+v.ann+"@", 1) + "/ops/fleet.git"
}

// opened waits for an open pull request of numaform that has its status and none of the
// given heads.
func (w *world) opened(d desk, limit time.Duration, not ...forge.PullRequest) (found forge.PullRequest) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		open, err := d.Open(ctx)
		if err != nil {
			return err.Error()
		}
		for _, p := range open {
			known := slices.ContainsFunc(not, func(other forge.PullRequest) bool { return other.HeadSHA == p.HeadSHA })
			if known || !strings.HasPrefix(p.Head, "numaform/"+clusterID+"/") {
				continue
			}
			found = p
			if status := d.status(ctx, p.HeadSHA); status.State != forge.Success || !strings.HasPrefix(status.Description, "digest ") {
				return fmt.Sprintf("the status is %+v", status)
			}
			return ""
		}
		return fmt.Sprintf("no such pull request: %+v", open)
	})
	return found
}

// becomes waits until a plan has a phase.
func (w *world) becomes(plan *v1alpha1.ScalePlan, phase v1alpha1.ScalePlanPhase) {
	w.t.Helper()
	w.eventually(4*time.Minute, func(ctx context.Context) string {
		var found v1alpha1.ScalePlan
		if err := w.api.Get(ctx, client.ObjectKey{Name: plan.Name}, &found); err != nil {
			return err.Error()
		}
		if found.Status.Phase != phase {
			return fmt.Sprintf("plan %s is %s: %s", found.Name, found.Status.Phase, found.Status.Result)
		}
		return ""
	})
}

// clone clones the fleet's repository as ann, and returns a function that runs git in it.
func (w *world) clone(remote string) (git func(args ...string) string) {
	w.t.Helper()
	dir := w.t.TempDir()
	git = func(args ...string) string {
		w.t.Helper()
		command := exec.Command("git", args...)
		command.Dir = dir
		command.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=ann", "GIT_AUTHOR_EMAIL=ann@example",
			"GIT_COMMITTER_NAME=ann", "GIT_COMMITTER_EMAIL=ann@example")
		out, err := command.CombinedOutput()
		if err != nil {
			w.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("clone", "--quiet", remote, ".")
	return git
}

// removesNode pushes a branch that removes the file of a node, and returns its head.
func (w *world) removesNode(remote, branch string) (head string) {
	w.t.Helper()
	git := w.clone(remote)
	nodes := strings.Fields(git("ls-files", "*/node-workers-*"))
	if len(nodes) == 0 {
		w.t.Fatal("main has no node")
	}
	w.eventually(time.Minute, func(context.Context) string {
		git("pull", "--quiet")
		if left := git("ls-files", "proposals/*", "*/proposals/*"); left != "" {
			return "main still has the proposals " + left
		}
		return ""
	})
	git("switch", "--quiet", "--create", branch)
	git("rm", "--quiet", nodes[0])
	git("commit", "--quiet", "-m", "remove a node")
	git("push", "--quiet", "origin", branch)
	return git("rev-parse", "HEAD")
}

// TestPullRequests reviews all changes of a fleet with a running controller: at a real Gitea,
// and with the clients of GitHub and GitLab at servers that accept what the published
// descriptions of these forges contain, with git over http. A change is applied only after
// its approval and its merge, and only as it was approved.
func TestPullRequests(t *testing.T) {
	t.Run("gitea", func(t *testing.T) {
		w := newWorld(t, worldConfig{})
		w.reviews(w.withGitea())
	})
	for _, kind := range []forge.Kind{forge.GitHub, forge.GitLab} {
		t.Run(string(kind), func(t *testing.T) {
			enginetest.Nightly(t)
			w := newWorld(t, worldConfig{})
			w.reviews(w.withContract(kind))
		})
	}
}

func (w *world) reviews(d desk) {
	t := w.t
	w.start()
	w.classAndPool("workers", "", "")

	// Opened, approved and merged: exactly this plan is applied.
	w.pods("web", 3, "1", "1Gi")
	plan := w.pending(v1alpha1.ScaleUp, 2*time.Minute)
	first := w.opened(d, time.Minute)
	if !strings.Contains(first.Body, plan.Spec.PlanHash) {
		t.Errorf("the text of the pull request lacks the digest %s:\n%s", plan.Spec.PlanHash, first.Body)
	}
	d.approve(first)
	w.untouched()
	d.merge(first, "squash")
	w.running("web", 3, 3*time.Minute)
	w.applied(plan.Name, "ann")
	made := len(w.ours())
	if made != len(plan.Spec.VMs) {
		t.Errorf("%d VMs, want the %d of the plan", made, len(plan.Spec.VMs))
	}

	// A person's own pull request has numaform's plan before it is merged.
	own := w.removesNode(d.remote(), "mine")
	d.propose("mine", own, "remove a node")
	w.eventually(2*time.Minute, func(ctx context.Context) string {
		status := d.status(ctx, own)
		if status.State != forge.Success || !strings.Contains(status.Description, "1 to delete") {
			return fmt.Sprintf("the status is %+v", status)
		}
		return ""
	})

	// A new decision updates the pull request in place, and the approval becomes invalid.
	w.pods("more", 1, "6", "4Gi")
	second := w.opened(d, 2*time.Minute, first)
	d.approve(second)
	w.pods("extra", 6, "6", "4Gi")
	updated := w.opened(d, 2*time.Minute, first, second)
	if updated.Number != second.Number {
		t.Errorf("the new decision has pull request %d, not %d", updated.Number, second.Number)
	}

	// Merged without an approval of its head, and while numaform is down: nothing is
	// applied, and the pull request is opened again.
	w.stop(syscall.SIGTERM)
	d.merge(updated, "merge")
	w.start()
	again := w.opened(d, 2*time.Minute, first, second, updated)
	if again.Number == updated.Number || len(w.ours()) != made {
		t.Errorf("after a merge without approval: pull request %+v, %d VMs, want %d", again, len(w.ours()), made)
	}

	// Approved and merged, but the plan is different then: it is held.
	d.approve(again)
	w.stop(syscall.SIGTERM)
	d.merge(again, "rebase")
	w.pods("late", 6, "6", "4Gi")
	w.start()
	held := w.opened(d, 3*time.Minute, first, second, updated, again)
	if held.Number == again.Number || len(w.ours()) != made {
		t.Errorf("after a merge of another plan: pull request %+v, %d VMs, want %d", held, len(w.ours()), made)
	}

	// Closed by an approver: rejected.
	rejected := w.pending(v1alpha1.ScaleUp, time.Minute)
	d.reject(held)
	w.becomes(rejected, v1alpha1.ScalePlanRejected)
	if len(w.ours()) != made {
		t.Errorf("%d VMs after the rejection, want %d", len(w.ours()), made)
	}
}
