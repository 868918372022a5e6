package cluster_test

import (
	"context"
	"fmt"
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
)

// edit replaces a part of numaform.yaml.
func (w *world) edit(pattern, text string) {
	w.t.Helper()
	before, err := os.ReadFile(filepath.Join(w.dir, "numaform.yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("numaform.yaml", regexp.MustCompile(pattern).ReplaceAllLiteralString(string(before), text))
}

// contract is a contract server with the world's fleet.
type contract struct {
	*forgetest.Server
	w *world
}

// withContract stores the world's fleet in a repository of a contract server.
func (w *world) withContract(kind forge.Kind) *contract {
	w.t.Helper()
	repository := w.t.TempDir()
	if out, err := exec.Command("git", "init", "--quiet", "--bare", "--initial-branch=main", repository).CombinedOutput(); err != nil {
		w.t.Fatalf("git init: %v\n%s", err, out)
	}
	server := forgetest.Serve(w.t, kind, forgetest.New("main"), repository, "canary-of-forge")
	w.edit(`configmap: \{.*\}`, fmt.Sprintf("git: {remote: '%s', username: numaform, review: true, forge: {kind: %s, url: '%s', approvers: [ann], poll: 1s}}",
		server.Remote, kind, server.URL))
	w.env = []string{"NUMAFORM_GIT_TOKEN=canary-of-forge", "NUMAFORM_FORGE_TOKEN=canary-of-forge"}
	return &contract{Server: server, w: w}
}

// opened waits for an open pull request of numaform with none of the given heads.
func (c *contract) opened(limit time.Duration, not ...string) (found forge.PullRequest) {
	c.w.t.Helper()
	c.w.eventually(limit, func(ctx context.Context) string {
		open, err := c.Open(ctx)
		if err != nil {
			return err.Error()
		}
		for _, p := range open {
			if status, _ := c.Status(p.HeadSHA, "numaform/plan"); p.Author == c.User && !slices.Contains(not, p.HeadSHA) && strings.HasPrefix(status.Description, "digest ") {
				found = p
				return ""
			}
		}
		return fmt.Sprintf("no such pull request: %+v", open)
	})
	return found
}

// merge merges a pull request as a person.
func (c *contract) merge(p forge.PullRequest) {
	c.w.t.Helper()
	sha, err := c.Squash(p.Head, p.HeadSHA)
	if err != nil {
		c.w.t.Fatal(err)
	}
	c.Update(p.Number, func(p *forge.PullRequest) { p.State, p.MergeSHA, p.MergedBy = forge.Merged, sha, "ann" })
}

// TestPullRequestsAtContractServers reviews a fleet with the clients of GitHub and GitLab, at
// servers that accept what the forges' published descriptions contain, with git over http.
func TestPullRequestsAtContractServers(t *testing.T) {
	for _, kind := range []forge.Kind{forge.GitHub, forge.GitLab} {
		t.Run(string(kind), func(t *testing.T) { reviewAtContract(t, kind) })
	}
}

func reviewAtContract(t *testing.T, kind forge.Kind) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{})
	c := w.withContract(kind)
	w.start()
	w.classAndPool("workers", "", "")
	w.pods("web", 3, "1", "1Gi")
	plan := w.pending(v1alpha1.ScaleUp, 2*time.Minute)
	first := c.opened(time.Minute)
	if !strings.Contains(first.Body, plan.Spec.PlanHash) {
		t.Errorf("the text of the pull request lacks the digest %s:\n%s", plan.Spec.PlanHash, first.Body)
	}
	c.Review(first.Number, "ann", forge.Approved)
	w.untouched()
	c.merge(first)
	w.running("web", 3, 3*time.Minute)
	w.applied(plan.Name, "ann")

	// A new decision updates the pull request, and the approval becomes invalid.
	w.pods("more", 1, "6", "4Gi")
	second := c.opened(2*time.Minute, first.HeadSHA)
	c.Review(second.Number, "ann", forge.Approved)
	w.pods("extra", 6, "6", "4Gi")
	updated := c.opened(2*time.Minute, first.HeadSHA, second.HeadSHA)
	if updated.Number != second.Number {
		t.Errorf("the new decision has pull request %d, not %d", updated.Number, second.Number)
	}
	made := len(w.ours())
	c.merge(updated)
	again := c.opened(2*time.Minute, first.HeadSHA, second.HeadSHA, updated.HeadSHA)
	if again.Number == updated.Number || len(w.ours()) != made {
		t.Errorf("after a merge without approval: pull request %+v, %d VMs, want %d", again, len(w.ours()), made)
	}

	// Approved and merged, but the plan is different then: it is held.
	w.stop(syscall.SIGTERM)
	c.Review(again.Number, "ann", forge.Approved)
	c.merge(again)
	w.pods("late", 6, "6", "4Gi")
	w.start()
	held := c.opened(3*time.Minute, first.HeadSHA, second.HeadSHA, updated.HeadSHA, again.HeadSHA)
	if held.Number == again.Number || len(w.ours()) != made {
		t.Errorf("after a merge of another plan: pull request %+v, %d VMs, want %d", held, len(w.ours()), made)
	}

	// Closed by an approver: rejected.
	rejected := w.pending(v1alpha1.ScaleUp, time.Minute)
	c.Update(held.Number, func(p *forge.PullRequest) { p.State, p.ClosedBy = forge.Closed, "ann" })
	w.eventually(time.Minute, func(ctx context.Context) string {
		var found v1alpha1.ScalePlan
		if err := w.api.Get(ctx, client.ObjectKey{Name: rejected.Name}, &found); err != nil {
			return err.Error()
		}
		if found.Status.Phase != v1alpha1.ScalePlanRejected || len(w.ours()) != made {
			return fmt.Sprintf("plan %s is %s, %d VMs exist", found.Name, found.Status.Phase, len(w.ours()))
		}
		return ""
	})

	// A person's own pull request has numaform's plan before it is merged.
	clone := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		command := exec.Command("git", args...)
		command.Dir = clone
		command.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=ann", "GIT_AUTHOR_EMAIL=ann@example",
			"GIT_COMMITTER_NAME=ann", "GIT_COMMITTER_EMAIL=ann@example")
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("clone", "--quiet", strings.Replace(c.Remote, "://", "://numaform:canary-of-forge@", 1), ".")
	nodes := strings.Fields(git("ls-files", "*/node-workers-*"))
	if len(nodes) == 0 {
		t.Fatal("main has no node")
	}
	git("switch", "--quiet", "--create", "mine")
	git("rm", "--quiet", nodes[0])
	git("commit", "--quiet", "-m", "remove a node")
	git("push", "--quiet", "origin", "mine")
	head := git("rev-parse", "HEAD")
	c.OpenBy("ann", "mine", head, "remove a node", false)
	w.eventually(2*time.Minute, func(context.Context) string {
		status, _ := c.Status(head, "numaform/plan")
		if status.State != forge.Success || !strings.Contains(status.Description, "1 to delete") {
			return fmt.Sprintf("the status is %+v", status)
		}
		return ""
	})
}
