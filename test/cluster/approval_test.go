package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
)

// as returns a client of a user who has a ClusterRole of the chart, or no role if role is
// empty.
func (w *world) as(user, role string) client.Client {
	w.t.Helper()
	if role != "" {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}
		if err := w.api.Create(context.Background(), binding); err != nil {
			w.t.Fatal(err)
		}
	}
	config := rest.CopyConfig(w.plane.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	api, err := client.New(config, client.Options{Scheme: w.api.Scheme()})
	if err != nil {
		w.t.Fatal(err)
	}
	return api
}

// pending waits for a ScalePlan of a direction that is pending approval, and returns it.
func (w *world) pending(direction v1alpha1.ScaleDirection, limit time.Duration) *v1alpha1.ScalePlan {
	w.t.Helper()
	var found *v1alpha1.ScalePlan
	w.eventually(limit, func(ctx context.Context) string {
		var plans v1alpha1.ScalePlanList
		if err := w.api.List(ctx, &plans); err != nil {
			return err.Error()
		}
		found = nil
		text := "plans:"
		for i := range plans.Items {
			plan := &plans.Items[i]
			text += " " + plan.Name + "=" + string(plan.Status.Phase)
			if plan.Spec.Direction == direction && plan.Status.Phase == v1alpha1.ScalePlanPending {
				found = plan
			}
		}
		if found == nil {
			return "no plan is pending; " + text
		}
		return ""
	})
	return found
}

// approve approves a hash of a plan as the user.
func approve(api client.Client, plan *v1alpha1.ScalePlan, user, hash string) error {
	changed := plan.DeepCopy()
	changed.Spec.Approve, changed.Spec.ApprovedBy = hash, user
	return api.Patch(context.Background(), changed, client.MergeFrom(plan))
}

// TestManualApproval checks that nodes are neither created nor removed without the approval
// of an authorized user.
func TestManualApproval(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.start()
	w.classAndPool("workers", "", "")
	pool := &karpv1.NodePool{}
	if err := w.api.Get(context.Background(), client.ObjectKey{Name: "workers"}, pool); err != nil {
		t.Fatal(err)
	}
	before := pool.DeepCopy()
	pool.Annotations = map[string]string{v1alpha1.AnnotationScaleUp: "manual", v1alpha1.AnnotationScaleDown: "manual"}
	if err := w.api.Patch(context.Background(), pool, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	alice, mallory := w.as("alice", "numaform-approver"), w.as("mallory", "numaform-viewer")

	w.pods("web", 3, "1", "1Gi")
	plan := w.pending(v1alpha1.ScaleUp, time.Minute)
	w.untouched()
	w.reported(plan)
	hash := plan.Spec.PlanHash
	for _, attempt := range []struct {
		name, user, hash string
		api              client.Client
	}{
		{"half a hash", "alice", hash[:32], alice},
		{"another hash", "alice", strings.Repeat("0", 64), alice},
		{"without the verb", "mallory", hash, mallory},
		{"in another's name", "bob", hash, alice},
	} {
		if err := approve(attempt.api, plan, attempt.user, attempt.hash); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", attempt.name, err)
		}
	}
	w.untouched()
	if err := approve(alice, plan, "alice", hash); err != nil {
		t.Fatal(err)
	}
	w.running("web", 3, 2*time.Minute)
	made := len(w.ours())
	w.applied(plan.Name, "alice")
	w.annotated("alice")

	if err := w.api.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	down := w.pending(v1alpha1.ScaleDown, 2*time.Minute)
	w.noNodeIsTainted()
	if got := len(w.ours()); got != made {
		t.Errorf("%d VMs exist before the approval, want %d", got, made)
	}
	if err := approve(alice, down, "alice", down.Spec.PlanHash); err != nil {
		t.Fatal(err)
	}
	w.nothingIsLeft(3 * time.Minute)
	for _, message := range []string{"planned host", "evaluated plan", "began approved scaleplan", "began change", "began apply", "applied plan", "completed change"} {
		if !w.controller.log.contains(`"msg":"` + message + `"`) {
			t.Errorf("the log has no line %q", message)
		}
	}
	log := w.controller.log
	w.stop(syscall.SIGTERM)
	for line := range strings.Lines(log.text.String()) {
		if strings.Contains(line, `"level":"error"`) {
			t.Errorf("an error in the log of a normal start and stop: %s", line)
		}
		if strings.Contains(line, "savings: $") {
			t.Errorf("relative prices as money in the log: %s", line)
		}
	}
}

// reported waits until three pods have an event that names the plan for which they wait,
// and their NodePool has a condition with the same reason.
func (w *world) reported(plan *v1alpha1.ScalePlan) {
	w.t.Helper()
	w.eventually(30*time.Second, func(ctx context.Context) string {
		var events corev1.EventList
		if err := w.api.List(ctx, &events, client.InNamespace("default")); err != nil {
			return err.Error()
		}
		seen := 0
		for i := range events.Items {
			event := &events.Items[i]
			if event.InvolvedObject.Kind == "Pod" && event.Reason == v1alpha1.ReasonPendingApproval && strings.Contains(event.Message, "numaform approve "+plan.Name) {
				seen++
			}
		}
		var pool karpv1.NodePool
		if err := w.api.Get(ctx, client.ObjectKey{Name: "workers"}, &pool); err != nil {
			return err.Error()
		}
		condition := pool.StatusConditions().Get(v1alpha1.ConditionScaleUpReady)
		if seen != 3 || condition == nil || condition.Reason != v1alpha1.ReasonPendingApproval {
			return fmt.Sprintf("%d events %s on pods, want 3; condition %+v", seen, v1alpha1.ReasonPendingApproval, condition)
		}
		return ""
	})
}

// annotated waits until all NodeClaims and Nodes have annotations with their change, its
// plan and its approver.
func (w *world) annotated(approver string) {
	w.t.Helper()
	w.eventually(30*time.Second, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		if err := w.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		for i := range claims.Items {
			var node corev1.Node
			if err := w.api.Get(ctx, client.ObjectKey{Name: claims.Items[i].Status.NodeName}, &node); err != nil {
				return err.Error()
			}
			for _, object := range []client.Object{&claims.Items[i], &node} {
				annotations := object.GetAnnotations()
				if annotations[v1alpha1.AnnotationChange] == "" || annotations[v1alpha1.AnnotationPlanSHA256] == "" || annotations[v1alpha1.AnnotationApprover] != approver {
					return fmt.Sprintf("%T %s has annotations %v", object, object.GetName(), annotations)
				}
			}
		}
		return ""
	})
}

// untouched checks that nothing was created.
func (w *world) untouched() {
	w.t.Helper()
	var claims karpv1.NodeClaimList
	if err := w.api.List(context.Background(), &claims); err != nil {
		w.t.Fatal(err)
	}
	if len(claims.Items) > 0 || len(w.ours()) > 0 {
		w.t.Errorf("%d nodeclaims and %d VMs before the approval", len(claims.Items), len(w.ours()))
	}
}

// noNodeIsTainted checks that no node was tainted for a drain.
func (w *world) noNodeIsTainted() {
	w.t.Helper()
	var nodes corev1.NodeList
	if err := w.api.List(context.Background(), &nodes); err != nil {
		w.t.Fatal(err)
	}
	for i := range nodes.Items {
		for _, taint := range nodes.Items[i].Spec.Taints {
			if taint.Key == karpv1.DisruptedTaintKey {
				w.t.Errorf("node %s is tainted before the approval", nodes.Items[i].Name)
			}
		}
	}
}

// applied waits until a plan is applied, and checks who approved it.
func (w *world) applied(name, approver string) {
	w.t.Helper()
	w.eventually(time.Minute, func(ctx context.Context) string {
		plan := &v1alpha1.ScalePlan{}
		if err := w.api.Get(ctx, client.ObjectKey{Name: name}, plan); err != nil {
			return err.Error()
		}
		if plan.Status.Phase != v1alpha1.ScalePlanApplied || plan.Status.Approver != approver {
			return string(plan.Status.Phase) + " by " + plan.Status.Approver + ": " + plan.Status.Result
		}
		return ""
	})
}
