package cluster_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/notify"
)

// late limits each wait of these tests, which is seconds long unless the machine is busy.
const late = 5 * time.Minute

// TestPullRequestsDecidedElsewhere closes the pull request of a plan that no pod needs any
// more, and makes a change once that two users approve at the same moment, one of them in the
// cluster.
func TestPullRequestsDecidedElsewhere(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{})
	v := w.withGitea()
	w.start()
	w.classAndPool("workers", "", "")

	w.pods("brief", 1, "2", "2Gi")
	superseded := w.pending(v1alpha1.ScaleUp, late)
	unneeded := w.opened(v, late)
	v.approve(unneeded)
	if err := w.api.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("default"), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.becomes(superseded, v1alpha1.ScalePlanSuperseded)
	w.closed(v, unneeded)
	if texts := v.comments(unneeded); len(texts) != 1 || !strings.Contains(texts[0], superseded.Name+" is Superseded: pods no longer need it") {
		t.Errorf("the pull request that is no longer needed has the comments %q", texts)
	}
	w.untouched()

	w.pods("twice", 1, "2", "2Gi")
	contested := w.pending(v1alpha1.ScaleUp, late)
	raced := w.opened(v, late, unneeded)
	bob := w.as("bob", "numaform-approver")
	v.approve(raced)
	var race sync.WaitGroup
	race.Go(func() { v.merge(raced, "squash") })
	race.Go(func() {
		if err := approve(bob, contested, "bob", contested.Spec.PlanHash); err != nil {
			t.Error(err)
		}
	})
	race.Wait()
	w.running("twice", 1, late)
	w.becomes(contested, v1alpha1.ScalePlanApplied)
	w.closed(v, raced)
	if made := w.everMade(); made != len(contested.Spec.VMs) {
		t.Errorf("%d VMs after two approvals of one plan with %d VMs", made, len(contested.Spec.VMs))
	}
	var plans v1alpha1.ScalePlanList
	if err := w.api.List(t.Context(), &plans); err != nil {
		t.Fatal(err)
	}
	for i := range plans.Items {
		if plan := &plans.Items[i]; plan.Name != contested.Name && plan.Name != superseded.Name {
			t.Errorf("plan %s is %s: %s", plan.Name, plan.Status.Phase, plan.Status.Result)
		}
	}
	if left := w.clone(v.remote())("ls-files", "proposals/*", "*/proposals/*"); left != "" {
		t.Errorf("main still has the proposals %s", left)
	}
}

// TestPullRequestsThroughOutages reviews a change that the guard would hold while the token
// expires, the controller is killed, the forge is down, and the fleet's branch refuses
// numaform's pushes. Everyone sees why the change waits, and it is made once afterwards.
func TestPullRequestsThroughOutages(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{hosts: largeHosts(t)})
	v := w.withGitea()
	box := &inbox{}
	hook := httptest.NewServer(box)
	t.Cleanup(hook.Close)
	w.edit(`$`, fmt.Sprintf("policy: {limits: {per_change: {creates: 1}}}\nnotifications: {interval: 1s, targets: [{name: team, type: webhook, url: %q}]}\n", hook.URL))
	w.start()
	w.pool(poolConfig{name: "workers", budgets: "100%", class: ", bootDevice: {size: 40G}"})
	w.deployment("web", 2, "300m", alone("web"))
	plan := w.pending(v1alpha1.ScaleUp, late)
	up := w.opened(v, late)
	if !strings.Contains(up.Body, "2 creates in one change exceed the limit of 1") || !strings.Contains(up.Body, plan.Spec.PlanHash) {
		t.Errorf("the text lacks the guard's reason or the digest %s:\n%s", plan.Spec.PlanHash, up.Body)
	}

	const waits = "waits for the approval of 1 of ann"
	valid := w.env
	w.env = append(slices.Clone(valid), "NUMAFORM_FORGE_TOKEN="+strings.Repeat("0123", 10))
	w.restart()
	w.waits(plan, "create a new one and set NUMAFORM_FORGE_TOKEN")
	w.notified("ScalePlan", plan.Name, late, "create a new one and set NUMAFORM_FORGE_TOKEN")
	w.env = valid
	w.restart()
	w.waits(plan, waits)

	v.down()
	w.waits(plan, "the forge is not available")
	w.notified("ScalePlan", plan.Name, late, "the forge is not available")
	w.restart()
	v.up()
	w.waits(plan, waits)
	if now := w.opened(v, late); now.Number != up.Number || now.HeadSHA != up.HeadSHA {
		t.Errorf("after the outage, the pull request is %+v, not %+v", now, up)
	}

	v.call(v.ops, http.MethodPost, fleetRepository+"/branch_protections", map[string]any{"rule_name": "main", "enable_push": false}, nil)
	v.approve(up)
	v.merge(up, "squash")
	const fix = "if the remote protects branch main, allow numaform's user to push to it"
	refused := func(ctx context.Context) string {
		condition, err := w.scaleUpReady(ctx, "workers")
		if err != nil || !condition.IsFalse() || condition.Reason != v1alpha1.ReasonChangePostponed || !strings.Contains(condition.Message, fix) {
			return fmt.Sprintf("the condition is %+v, %v", condition, err)
		}
		return ""
	}
	w.eventually(late, refused)
	w.notified("NodePool", "workers", late, fix)
	w.eventually(late, func(context.Context) string {
		items := box.got(v1alpha1.ReasonChangePostponed, "")
		if !slices.ContainsFunc(items, func(item notify.Item) bool { return strings.Contains(item.Message, fix) }) {
			return fmt.Sprintf("the notifications are %+v", items)
		}
		return ""
	})
	v.down()
	w.holds(20*time.Second, func(context.Context) string {
		if made := w.everMade(); made > 0 {
			return fmt.Sprintf("%d VMs without a record of the change", made)
		}
		return ""
	})
	v.up()
	w.eventually(late, refused)
	v.call(v.ops, http.MethodDelete, fleetRepository+"/branch_protections/main", nil, nil)
	w.comesTo("web", 2, 2, late)
	w.applied(plan.Name, "ann")
	w.initialized(late)
	w.scalesUp("workers")
	if made := w.everMade(); made != 2 {
		t.Errorf("%d VMs were created, want 2", made)
	}
}

// TestPullRequestsOfRemovals reviews the removal of an empty node, and the replacement of a node
// after a change of its ProxmoxNodeClass. At the end, a stranger opens pull requests from a fork.
func TestPullRequestsOfRemovals(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{hosts: largeHosts(t)})
	v := w.withGitea()
	w.start()
	w.pool(poolConfig{name: "workers", budgets: "100%", class: ", bootDevice: {size: 40G}"})
	// Otherwise, a node whose pod fits on another one is a second candidate for a removal.
	w.patch(&karpv1.NodePool{}, "workers", `{"spec":{"disruption":{"consolidationPolicy":"WhenEmpty"}}}`)
	w.deployment("web", 2, "300m", alone("web"))
	_, up := w.proposed(v, v1alpha1.ScaleUp, "2 to create")
	v.approve(up)
	v.merge(up, "squash")
	w.comesTo("web", 2, 2, late)
	w.initialized(late)

	before := w.vmids()
	w.patch(&appsv1.Deployment{}, "web", `{"spec":{"replicas":1}}`)
	plan, down := w.proposed(v, v1alpha1.ScaleDown, "1 to delete")
	v.approve(down)
	w.waits(plan, "approved by ann: waits for a person who merges it")
	w.remains(10*time.Second, w.same(before))
	w.noNodeIsTainted()
	v.merge(down, "merge")
	w.comesTo("web", 1, 1, late)
	w.applied(plan.Name, "ann")

	before = w.vmids()
	w.patch(&v1alpha1.ProxmoxNodeClass{}, "workers", `{"spec":{"bootDevice":{"size":"48G"}}}`)
	plan, replacement := w.proposed(v, v1alpha1.ScaleDown, "1 to create, 1 to delete")
	w.remains(10*time.Second, w.same(before))
	w.noNodeIsTainted()
	v.approve(replacement)
	v.merge(replacement, "rebase")
	w.eventually(late, func(context.Context) string {
		now := w.vmids()
		for name := range before {
			if _, exists := now[name]; exists || len(now) != 1 {
				return fmt.Sprintf("the VMs are %v", now)
			}
		}
		return ""
	})
	w.applied(plan.Name, "ann")
	if made := w.everMade(); made != 3 {
		t.Errorf("%d VMs were created, want 3", made)
	}

	// The files of a fork are only compared: no engine runs on them.
	git := w.clone(v.remote())
	w.eventually(late, func(context.Context) string {
		git("pull", "--quiet")
		return git("ls-files", "proposals/*", "*/proposals/*")
	})
	mallory, err := v.User(t.Context(), "mallory", false)
	if err != nil {
		t.Fatal(err)
	}
	v.call(mallory, http.MethodPost, fleetRepository+"/forks", map[string]any{"name": "fleet"}, nil)
	fork := strings.Replace(v.URL, "://", "://mallory:"+mallory+"@", 1) + "/mallory/fleet.git"
	head := w.removesNode(fork, "theirs")
	evil := map[string]any{"content": base64.StdEncoding.EncodeToString([]byte("data \"external\" \"evil\" {}\n")), "new_branch": "evil", "message": "evil"}
	var made struct{ Commit struct{ SHA string } }
	v.call(mallory, http.MethodPost, "repos/mallory/fleet/contents/homelab/pve-1/evil.tf", evil, &made)
	runs := w.engineRuns("plan")
	for _, c := range []struct {
		branch, head, want string
		state              forge.CheckState
	}{
		{"theirs", head, "from a fork, so without a plan: 1 to remove", forge.Success},
		{"evil", made.Commit.SHA, "homelab/pve-1/evil.tf is not part of a fleet", forge.Failure},
	} {
		v.call(mallory, http.MethodPost, fleetRepository+"/pulls", map[string]any{"head": "mallory:" + c.branch, "base": "main", "title": "harmless"}, nil)
		w.eventually(late, func(ctx context.Context) string {
			status := v.status(ctx, c.head)
			if status.State != c.state || !strings.Contains(status.Description, c.want) {
				return fmt.Sprintf("the status of %s is %+v", c.branch, status)
			}
			return ""
		})
	}
	if now := w.engineRuns("plan"); !maps.Equal(now, runs) {
		t.Errorf("the engine planned %v before, and %v after the pull requests of the fork", runs, now)
	}
}

// TestPullRequestsOfStrangers lets users close, edit, force-push, retarget and block the pull
// request of a plan. Nothing is applied until exactly the plan is approved and merged.
func TestPullRequestsOfStrangers(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{})
	v := w.withGitea()
	w.start()
	w.classAndPool("workers", "", "")
	w.pods("web", 1, "2", "2Gi")
	plan := w.pending(v1alpha1.ScaleUp, late)
	first := w.opened(v, late)
	v.change(v.ops, first, map[string]any{"state": "closed"}) // ops is no approver
	second := w.reopened(v, first, "was closed by ops, which rejects nothing")

	// The approval of another content counts neither for that content nor for the restored one.
	git := w.clone(v.remote())
	git("switch", "--quiet", second.Head)
	file := git("ls-files", "proposals/*.diff")
	git("rm", "--quiet", file)
	git("commit", "--quiet", "--amend", "-m", "numaform: propose "+plan.Name, "--allow-empty")
	git("push", "--quiet", "--force", "origin", second.Head)
	theirs := second
	theirs.HeadSHA = git("rev-parse", "HEAD")
	v.approve(theirs)
	v.change(v.ops, second, map[string]any{"title": "harmless", "body": "nothing to see"})
	restored := w.opened(v, late, theirs)
	if restored.Number != second.Number {
		t.Errorf("the restored pull request is %+v, not %+v", restored, second)
	}
	w.waits(plan, "an earlier approval was for another commit")
	w.eventually(late, func(ctx context.Context) string {
		now, err := v.Get(ctx, second.Number)
		if err != nil || now.Title == "harmless" || !strings.Contains(now.Body, plan.Spec.PlanHash) {
			return fmt.Sprintf("the text is %q, %q, %v", now.Title, now.Body, err)
		}
		return ""
	})

	// Approved, but with another target.
	v.approve(restored)
	v.call(v.ops, http.MethodPost, fleetRepository+"/branches", map[string]any{"new_branch_name": "release", "old_ref_name": "main"}, nil)
	v.change(v.ops, restored, map[string]any{"base": "release"})
	third := w.reopened(v, restored, plan.Spec.PlanHash)
	if texts := v.comments(restored); len(texts) != 1 || !strings.Contains(texts[0], "its target is release, not main") {
		t.Errorf("the pull request with another target has the comments %q", texts)
	}
	w.untouched()

	// A file in the way is reported while numaform may not push, and then removed.
	v.approve(third)
	w.waits(plan, "approved by ann")
	rule := map[string]any{"rule_name": "main", "enable_push": true, "enable_push_whitelist": true, "push_whitelist_usernames": []string{"ann"}}
	v.call(v.ops, http.MethodPost, fleetRepository+"/branch_protections", rule, nil)
	blocking := map[string]any{"content": base64.StdEncoding.EncodeToString([]byte("in the way\n")), "branch": "main", "message": "block"}
	v.call(v.ann, http.MethodPost, fleetRepository+"/contents/"+file, blocking, nil)
	w.waits(plan, "removing files that conflict with the proposal "+plan.Name+" from branch main")
	w.waits(plan, "allow numaform's user to push to it")
	if err := v.tryMerge(t.Context(), third, "squash"); err == nil {
		t.Error("a pull request with conflicts was merged")
	}
	w.untouched()
	v.call(v.ops, http.MethodDelete, fleetRepository+"/branch_protections/main", nil, nil)
	w.waits(plan, "approved by ann")
	if now, err := v.Get(t.Context(), third.Number); err != nil || now.HeadSHA != third.HeadSHA {
		t.Errorf("the unblocked pull request is %+v, %v, not %+v", now, err, third)
	}
	// Gitea can lose the check for conflicts of a push while it still checks the one before.
	// Another push starts it again.
	pushed := 0
	w.eventually(late, func(ctx context.Context) string {
		err := v.tryMerge(ctx, third, "squash")
		if err == nil {
			return ""
		}
		if pushed++; pushed%50 == 0 {
			more := map[string]any{"content": "YWdhaW4K", "branch": "main", "message": "check again"}
			v.call(v.ann, http.MethodPost, fmt.Sprintf("%s/contents/README.%d", fleetRepository, pushed), more, nil)
		}
		return err.Error()
	})
	w.running("web", 1, late)
	w.applied(plan.Name, "ann")
	if made := w.everMade(); made != len(plan.Spec.VMs) {
		t.Errorf("%d VMs were created, want the %d of the plan", made, len(plan.Spec.VMs))
	}
}

// waits waits until the pull request of a plan waits for a reason.
func (w *world) waits(plan *v1alpha1.ScalePlan, reason string) {
	w.t.Helper()
	w.eventually(late, func(ctx context.Context) string {
		var found v1alpha1.ScalePlan
		if err := w.api.Get(ctx, client.ObjectKey{Name: plan.Name}, &found); err != nil {
			return err.Error()
		}
		if request := found.Status.PullRequest; request == nil || !strings.Contains(request.Waits, reason) {
			return fmt.Sprintf("the pull request is %+v", request)
		}
		return ""
	})
}

// proposed waits for a pending plan with a summary that begins with the text, and for its pull
// request with the digest in its text and its status.
func (w *world) proposed(v *village, direction v1alpha1.ScaleDirection, summary string) (plan *v1alpha1.ScalePlan, request forge.PullRequest) {
	w.t.Helper()
	w.eventually(late, func(ctx context.Context) string {
		var plans v1alpha1.ScalePlanList
		if err := w.api.List(ctx, &plans); err != nil {
			return err.Error()
		}
		text := "the plans are"
		for i := range plans.Items {
			plan = &plans.Items[i]
			known := plan.Status.PullRequest
			text += fmt.Sprintf(" %s (%s, %s, %+v)", plan.Name, plan.Spec.Summary, plan.Status.Phase, known)
			if plan.Spec.Direction != direction || plan.Status.Phase != v1alpha1.ScalePlanPending || !strings.HasPrefix(plan.Spec.Summary, summary+" on ") || known == nil {
				continue
			}
			var err error
			request, err = v.Get(ctx, int(known.Number))
			if err != nil {
				return err.Error()
			}
			status := v.status(ctx, known.Head)
			if request.State != forge.Open || request.HeadSHA != known.Head || !strings.Contains(request.Body, plan.Spec.PlanHash) ||
				status.State != forge.Success || !strings.Contains(status.Description, plan.Spec.PlanHash) {
				return fmt.Sprintf("the pull request of %s is %+v, with the status %+v", plan.Name, request, status)
			}
			return ""
		}
		return text
	})
	return plan, request
}

// reopened waits for the only open pull request to be another one, whose text has a note.
func (w *world) reopened(v *village, before forge.PullRequest, note string) (after forge.PullRequest) {
	w.t.Helper()
	w.eventually(late, func(ctx context.Context) string {
		open, err := v.Open(ctx)
		if err != nil || len(open) != 1 || open[0].Number == before.Number || !strings.Contains(open[0].Body, note) {
			return fmt.Sprintf("open are %+v, %v", open, err)
		}
		after = open[0]
		return ""
	})
	return after
}

// closed waits until a pull request is not open any more.
func (w *world) closed(v *village, p forge.PullRequest) {
	w.t.Helper()
	w.eventually(late, func(ctx context.Context) string {
		if now, err := v.Get(ctx, p.Number); err != nil || now.State == forge.Open {
			return fmt.Sprintf("pull request %+v, %v", now, err)
		}
		return ""
	})
}

// restart kills the controller and starts another one, which takes over at once: the test
// removes the leader's Lease instead of waiting until it expires.
func (w *world) restart() {
	w.t.Helper()
	w.stop(syscall.SIGKILL)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "numaform-controller"}}
	if err := client.IgnoreNotFound(w.api.Delete(context.Background(), lease)); err != nil {
		w.t.Fatal(err)
	}
	w.start()
}

// down stops the forge, and up starts it again.
func (v *village) down() {
	v.t.Helper()
	if err := v.Stop(); err != nil {
		v.t.Fatal(err)
	}
}

func (v *village) up() {
	v.t.Helper()
	if err := v.Resume(); err != nil {
		v.t.Fatal(err)
	}
}

// change changes a pull request as the user of a token.
func (v *village) change(token string, p forge.PullRequest, changes map[string]any) {
	v.t.Helper()
	v.call(token, http.MethodPatch, fmt.Sprintf("%s/pulls/%d", fleetRepository, p.Number), changes, nil)
}

// comments returns the texts of the comments on a pull request.
func (v *village) comments(p forge.PullRequest) (texts []string) {
	v.t.Helper()
	var list []struct{ Body string }
	v.call(v.ops, http.MethodGet, fmt.Sprintf("%s/issues/%d/comments", fleetRepository, p.Number), nil, &list)
	for _, comment := range list {
		texts = append(texts, comment.Body)
	}
	return texts
}
