package cloudprovider_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
)

// TestNodeRepair checks the controller of the feature gate NodeRepair: a Node that has not
// been ready for 15 minutes loses its NodeClaim, and with it the VM, but not if many Nodes
// are not ready.
func TestNodeRepair(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		status corev1.ConditionStatus
		silent time.Duration
		sick   int // number of the 3 Nodes
		gone   bool
	}{
		{"ready", corev1.ConditionTrue, time.Hour, 1, false},
		{"not ready for a while", corev1.ConditionFalse, 14 * time.Minute, 1, false},
		{"not ready", corev1.ConditionFalse, 16 * time.Minute, 1, true},
		{"silent", corev1.ConditionUnknown, 16 * time.Minute, 1, true},
		{"silent with most others", corev1.ConditionUnknown, time.Hour, 2, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			for i := range 3 {
				made := vm(pve1, fleet.VMID(2000+i))
				status := corev1.ConditionTrue
				if i < test.sick {
					status = test.status
				}
				w.fleet.states = append(w.fleet.states, state(made, scaler.PhaseMade))
				w.joined(t, made, corev1.NodeCondition{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Time{Time: w.clock.Now().Add(-test.silent)}})
			}
			first := w.fleet.states[0].VM
			node, claim := &corev1.Node{}, &karpv1.NodeClaim{}
			if err := w.client.Get(t.Context(), client.ObjectKey{Name: first.Name}, node); err != nil {
				t.Fatal(err)
			}
			repair := health.NewController(w.client, w.CloudProvider, w.clock, events.NewRecorder(record.NewFakeRecorder(9)))
			if _, err := repair.Reconcile(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			if err := w.client.Get(t.Context(), client.ObjectKey{Name: claimOf(first).Name}, claim); err != nil {
				t.Fatal(err)
			}
			if gone := claim.DeletionTimestamp != nil; gone != test.gone {
				t.Fatalf("the NodeClaim goes: %v, want %v", gone, test.gone)
			}
			if !test.gone {
				return
			}
			if claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] == "" {
				t.Error("its pods may hold the Node for ever")
			}
			if err := w.Delete(t.Context(), claim); err != nil || !slices.Equal(w.fleet.removed, []fleet.Key{first.Key}) {
				t.Errorf("removed are %v, %v", w.fleet.removed, err)
			}
		})
	}
}

// joined adds the NodeClaim and the Node of a VM.
func (w *world) joined(t *testing.T, made fleet.VM, ready corev1.NodeCondition) {
	t.Helper()
	claim := claimOf(made)
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	id := claim.Status.ProviderID
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: made.Name, Labels: claim.Labels}}
	node.Spec.ProviderID, node.Status.Conditions = id, []corev1.NodeCondition{ready}
	if err := w.client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := w.client.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	claim.Status.ProviderID = id
	if err := w.client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
}
