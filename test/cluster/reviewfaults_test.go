package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
