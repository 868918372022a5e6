package cluster_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/testenv"
)

// village is a real forge with the fleet's repository, ops/fleet: numaform pushes as bot, and
// ann reviews.
type village struct {
	*testenv.Forge
	t        *testing.T
	ops, ann string
}

// pull is a pull request of Gitea.
type pull struct {
	Number int64
	State  string
	Merged bool
	Title  string
	Body   string
	Head   struct{ Ref, Sha string }
}

const fleetRepository = "repos/ops/fleet"

// withForge stores the world's fleet in a repository of a new forge, and reviews all changes
// there.
func (w *world) withForge(settings string) *village {
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
	path := filepath.Join(w.dir, "numaform.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	git := fmt.Sprintf("git: {remote: '%[1]s/ops/fleet.git', username: bot, review: true, forge: {kind: gitea, url: '%[1]s', approvers: [ann], poll: 1s%[2]s}}", v.URL, settings)
	w.write("numaform.yaml", regexp.MustCompile(`configmap: \{.*\}`).ReplaceAllLiteralString(string(text), git))
	w.env = []string{"NUMAFORM_GIT_TOKEN=" + bot, "NUMAFORM_FORGE_TOKEN=" + bot}
	return v
}

func (v *village) call(token, method, path string, sent, received any) {
	v.t.Helper()
	if err := v.Call(v.t.Context(), token, method, path, sent, received); err != nil {
		v.t.Fatal(err)
	}
}

// opened waits for an open pull request of numaform that differs from the given heads and
// has numaform's status.
func (w *world) opened(v *village, limit time.Duration, not ...string) pull {
	w.t.Helper()
	var found pull
	w.eventually(limit, func(ctx context.Context) string {
		var open []pull
		if err := v.Call(ctx, v.ops, http.MethodGet, fleetRepository+"/pulls?state=open", nil, &open); err != nil {
			return err.Error()
		}
		for _, p := range open {
			if strings.HasPrefix(p.Head.Ref, "numaform/"+clusterID+"/") && !slices.Contains(not, p.Head.Sha) {
				found = p
				if state, text := v.status(ctx, p.Head.Sha); state != "success" || !strings.Contains(text, "digest ") {
					return "the status is " + state + ": " + text
				}
				return ""
			}
		}
		return fmt.Sprintf("no such pull request: %+v", open)
	})
	return found
}

// status returns numaform's status of a commit.
func (v *village) status(ctx context.Context, sha string) (state, text string) {
	var list []struct{ Context, Status, Description string }
	if err := v.Call(ctx, v.ops, http.MethodGet, fleetRepository+"/commits/"+sha+"/statuses", nil, &list); err != nil {
		return "unknown", err.Error()
	}
	for _, s := range list {
		if s.Context == "numaform/plan" {
			return s.Status, s.Description
		}
	}
	return "none", ""
}

func (v *village) approve(p pull) {
	v.t.Helper()
	v.call(v.ann, http.MethodPost, fmt.Sprintf("%s/pulls/%d/reviews", fleetRepository, p.Number), map[string]any{"event": "APPROVED", "commit_id": p.Head.Sha}, nil)
}

// merge merges a pull request as ann, as soon as the forge has checked that it can.
func (w *world) merge(v *village, p pull, way string) {
	w.t.Helper()
	w.eventually(30*time.Second, func(ctx context.Context) string {
		err := v.Call(ctx, v.ann, http.MethodPost, fmt.Sprintf("%s/pulls/%d/merge", fleetRepository, p.Number), map[string]any{"Do": way}, nil)
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

// files returns the paths of the files on main.
func (v *village) files(ctx context.Context) ([]string, error) {
	var paths []string
	for page := 1; ; page++ {
		var tree struct {
			Tree      []struct{ Path, Type string }
			Truncated bool
		}
		if err := v.Call(ctx, v.ops, http.MethodGet, fmt.Sprintf("%s/git/trees/main?recursive=true&page=%d", fleetRepository, page), nil, &tree); err != nil {
			return nil, err
		}
		for _, entry := range tree.Tree {
			if entry.Type == "blob" {
				paths = append(paths, entry.Path)
			}
		}
		if !tree.Truncated || len(tree.Tree) == 0 {
			return paths, nil
		}
	}
}

// TestPullRequests reviews all changes of a fleet at a real forge: a change is applied only
// after its approval and its merge, and only as it was approved.
func TestPullRequests(t *testing.T) {
	w := newWorld(t, worldConfig{})
	v := w.withForge("")
	w.start()
	w.classAndPool("workers", "", "")

	// Opened, approved and merged: exactly this plan is applied.
	w.pods("web", 3, "1", "1Gi")
	plan := w.pending(v1alpha1.ScaleUp, 2*time.Minute)
	first := w.opened(v, time.Minute)
	if !strings.Contains(first.Body, plan.Spec.PlanHash) {
		t.Errorf("the text of the pull request lacks the digest %s:\n%s", plan.Spec.PlanHash, first.Body)
	}
	v.approve(first)
	w.untouched()
	w.merge(v, first, "squash")
	w.running("web", 3, 3*time.Minute)
	w.applied(plan.Name, "ann")
	var node string
	w.eventually(time.Minute, func(ctx context.Context) string {
		paths, err := v.files(ctx)
		if err != nil {
			return err.Error()
		}
		if at := slices.IndexFunc(paths, func(p string) bool { return strings.Contains(p, "/node-workers-") }); at >= 0 {
			node = paths[at]
		}
		left := slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, "proposals/") })
		if node == "" || left {
			return fmt.Sprintf("main has %q", paths)
		}
		return ""
	})

	// A person's own pull request has numaform's plan before it is merged.
	var file struct{ Sha, Content string }
	v.call(v.ann, http.MethodGet, fleetRepository+"/contents/"+node, nil, &file)
	if _, err := base64.StdEncoding.DecodeString(file.Content); err != nil {
		t.Fatal(err)
	}
	v.call(v.ann, http.MethodDelete, fleetRepository+"/contents/"+node, map[string]any{"sha": file.Sha, "message": "remove a node", "new_branch": "mine"}, nil)
	var own pull
	v.call(v.ann, http.MethodPost, fleetRepository+"/pulls", map[string]any{"head": "mine", "base": "main", "title": "remove a node"}, &own)
	w.eventually(2*time.Minute, func(ctx context.Context) string {
		state, text := v.status(ctx, own.Head.Sha)
		if state != "success" || !strings.Contains(text, "1 to delete") {
			return "the status is " + state + ": " + text
		}
		return ""
	})
	v.call(v.ann, http.MethodPatch, fmt.Sprintf("%s/pulls/%d", fleetRepository, own.Number), map[string]any{"state": "closed"}, nil)

	// A new decision updates the pull request in place, and the approval becomes invalid.
	w.pods("more", 1, "6", "4Gi")
	second := w.opened(v, 2*time.Minute, first.Head.Sha)
	v.approve(second)
	w.pods("extra", 6, "6", "4Gi")
	updated := w.opened(v, 2*time.Minute, first.Head.Sha, second.Head.Sha)
	if updated.Number != second.Number {
		t.Errorf("the new decision has pull request %d, not %d", updated.Number, second.Number)
	}

	// Merged without an approval of its head, and while numaform is down: nothing is
	// applied, and the pull request is opened again.
	made := len(w.ours())
	w.stop(syscall.SIGTERM)
	w.merge(v, updated, "merge")
	w.start()
	again := w.opened(v, 2*time.Minute, first.Head.Sha, second.Head.Sha, updated.Head.Sha)
	if again.Number == updated.Number || len(w.ours()) != made {
		t.Errorf("after a merge without approval: pull request %+v, %d VMs, want %d", again, len(w.ours()), made)
	}

	// Approved and merged, but the plan is different then: it is held.
	v.approve(again)
	w.stop(syscall.SIGTERM)
	w.merge(v, again, "rebase")
	w.pods("late", 6, "6", "4Gi")
	w.start()
	held := w.opened(v, 3*time.Minute, first.Head.Sha, second.Head.Sha, updated.Head.Sha, again.Head.Sha)
	if held.Number == again.Number || len(w.ours()) != made {
		t.Errorf("after a merge of another plan: pull request %+v, %d VMs, want %d", held, len(w.ours()), made)
	}

	// Closed: rejected.
	rejected := w.pending(v1alpha1.ScaleUp, time.Minute)
	v.call(v.ann, http.MethodPatch, fmt.Sprintf("%s/pulls/%d", fleetRepository, held.Number), map[string]any{"state": "closed"}, nil)
	w.eventually(time.Minute, func(ctx context.Context) string {
		var plans v1alpha1.ScalePlanList
		if err := w.api.List(ctx, &plans); err != nil {
			return err.Error()
		}
		for i := range plans.Items {
			if p := &plans.Items[i]; p.Name == rejected.Name && p.Status.Phase == v1alpha1.ScalePlanRejected {
				return ""
			}
		}
		return "plan " + rejected.Name + " is not rejected"
	})
	if len(w.ours()) != made {
		t.Errorf("%d VMs after the rejection, want %d", len(w.ours()), made)
	}
}
