package nodepool_test

import (
	"cmp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/controllers/nodepool"
	"github.com/numaform/numaform/internal/scheduling"
)

// TestScaleUpReady checks the condition of a NodePool and its event for several reasons,
// that the condition does not affect Ready, and that it becomes true again.
func TestScaleUpReady(t *testing.T) {
	t.Parallel()
	wait := func(reason, message string) scheduling.Wait {
		return scheduling.Wait{NodePool: "general", Reason: reason, Message: message}
	}
	for _, test := range []struct {
		name          string
		used, limit   string
		label         string
		waits         []scheduling.Wait
		reason, event string
		message       string
	}{
		{name: "nothing waits", used: "3", reason: v1alpha1.ConditionScaleUpReady},
		{name: "disabled", used: "0", limit: "0", reason: v1alpha1.ConditionScaleUpReady},
		{"limit", "4", "", "", nil, v1alpha1.ReasonLimitReached, corev1.EventTypeWarning, "spec.limits.cpu is 4, and its nodes have 4: raise the limit, or remove nodes"},
		{
			name: "mistyped label", used: "1", label: "numaform.dev/placment",
			reason: v1alpha1.ReasonLabelInvalid, event: corev1.EventTypeWarning,
			message: "no nodes are created for this NodePool: its spec.template contains the label numaform.dev/placment, which numaform does not set: did you mean numaform.dev/placement?",
		},
		{
			"approval", "1", "", "",
			[]scheduling.Wait{wait(v1alpha1.ReasonPendingApproval, "waits for approval of plan x")},
			v1alpha1.ReasonPendingApproval, corev1.EventTypeNormal, "waits for approval of plan x",
		},
		{
			"backend and approval", "1", "", "",
			[]scheduling.Wait{
				wait(v1alpha1.ReasonPendingApproval, "waits for approval of plan x"),
				wait(v1alpha1.ReasonStateBackendUnreachable, "waits: backend"), wait(v1alpha1.ReasonStateBackendUnreachable, "waits: backend"),
			},
			v1alpha1.ReasonStateBackendUnreachable, corev1.EventTypeWarning, "waits for approval of plan x; waits: backend",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pool := &karpv1.NodePool{}
			pool.Name = "general"
			pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "numaform.dev", Kind: "ProxmoxNodeClass", Name: "c"}
			pool.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse(cmp.Or(test.limit, "4"))}
			if test.label != "" {
				pool.Spec.Template.Labels = map[string]string{test.label: "Dedicated"}
			}
			pool.Status.Resources = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(test.used)}
			pool.StatusConditions().SetTrue(karpv1.ConditionTypeValidationSucceeded)
			pool.StatusConditions().SetTrue(karpv1.ConditionTypeNodeClassReady)
			api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(pool).WithStatusSubresource(pool).Build()
			r := &recorder{}
			waits := test.waits
			known := true
			controller := nodepool.New(nodepool.Config{Client: api, Recorder: r, Clock: clock.RealClock{}, Known: func() bool { return known }, FixedSize: func(*karpv1.NodePool) string { return "" }, Waits: func(pool string) []scheduling.Wait {
				if pool != "general" {
					t.Errorf("asked about %s", pool)
				}
				return waits
			}})
			look := func() *karpv1.NodePool {
				t.Helper()
				found := &karpv1.NodePool{}
				if err := api.Get(t.Context(), client.ObjectKey{Name: "general"}, found); err != nil {
					t.Fatal(err)
				}
				result, err := controller.Reconcile(t.Context(), found)
				if err != nil || result.RequeueAfter == 0 {
					t.Fatalf("again in %s, %v", result.RequeueAfter, err)
				}
				if err := api.Get(t.Context(), client.ObjectKey{Name: "general"}, found); err != nil {
					t.Fatal(err)
				}
				return found
			}
			found := look()
			got := found.StatusConditions().Get(v1alpha1.ConditionScaleUpReady)
			if got.IsTrue() != (test.event == "") || got.Reason != test.reason || !strings.HasPrefix(got.Message, test.message) {
				t.Errorf("condition %+v, want %s: %s", got, test.reason, test.message)
			}
			if !found.StatusConditions().IsTrue("Ready") {
				t.Errorf("not Ready: %v", found.Status.Conditions)
			}
			if test.event == "" && len(r.kept) > 0 || test.event != "" && (len(r.kept) != 1 || r.kept[0].Type != test.event || r.kept[0].Reason != test.reason) {
				t.Errorf("events %+v, want one %s %s", r.kept, test.event, test.reason)
			}
			waits, found.Status.Resources = nil, nil
			status := found.Status
			found.Spec.Template.Labels = nil
			if err := api.Update(t.Context(), found); err != nil {
				t.Fatal(err)
			}
			found.Status = status
			if err := api.Status().Update(t.Context(), found); err != nil {
				t.Fatal(err)
			}
			known = false
			if again := look().StatusConditions().Get(v1alpha1.ConditionScaleUpReady); again.Reason != got.Reason {
				t.Errorf("condition %+v before anything is known, want %+v", again, got)
			}
			known = true
			if got := look().StatusConditions().Get(v1alpha1.ConditionScaleUpReady); !got.IsTrue() || got.Message != "" {
				t.Errorf("condition %+v once nothing waits", got)
			}
		})
	}
}
