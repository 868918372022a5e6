package garbage_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/controllers/garbage"
	"github.com/numaform/numaform/internal/scaler"
)

func TestVMWithoutClaimIsReleased(t *testing.T) {
	for _, phase := range []scaler.Phase{scaler.PhaseReserved, scaler.PhaseMaking, scaler.PhaseMade} {
		t.Run(string(phase), func(t *testing.T) {
			w := newWorld(t)
			vm, claimed := newVM(2000), newVM(2001)
			w.wants(vm, phase, nil)
			w.wants(claimed, phase, nil)
			w.claim(claimed)
			standby := newVM(2002)
			standby.Standby = true
			w.wants(standby, phase, nil)
			w.look("reservations")
			w.after(59 * time.Second)
			w.look("reservations")
			w.wantRemoved()
			w.after(time.Second)
			w.look("reservations")
			w.wantRemoved(vm.Key)
		})
	}
}

// TestCopiedClaimKeepsNoVM checks that the copy of a NodeClaim does not count as the NodeClaim
// of its VM.
func TestCopiedClaimKeepsNoVM(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.wants(vm, scaler.PhaseMade, nil)
	w.claim(vm, func(c *karpv1.NodeClaim) { c.Name = "copy" })
	w.look("reservations")
	w.after(time.Minute)
	w.look("reservations")
	w.wantRemoved(vm.Key)
}

// TestGraceBeginsAnew checks that the grace period restarts after a claim has reappeared.
func TestGraceBeginsAnew(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.wants(vm, scaler.PhaseMade, nil)
	w.look("reservations")
	w.after(50 * time.Second)
	claim := w.claim(vm)
	w.look("reservations")
	w.wipe(claim)
	w.after(50 * time.Second)
	w.look("reservations")
	w.wantRemoved()
	w.after(time.Minute)
	w.look("reservations")
	w.wantRemoved(vm.Key)
}

// TestOtherPhasesAreNotReleased checks that VMs being removed and VMs pending approval are
// not released.
func TestOtherPhasesAreNotReleased(t *testing.T) {
	w := newWorld(t)
	w.wants(newVM(2000), scaler.PhaseRemoving, nil)
	w.wants(newVM(2001), scaler.PhasePendingApproval, nil)
	w.look("reservations")
	w.after(time.Hour)
	w.look("reservations")
	w.wantRemoved()
}

// TestStaleCacheReleasesNothing checks that no VM is removed because of an outdated cache:
// the API server is read first.
func TestStaleCacheReleasesNothing(t *testing.T) {
	vm := newVM(2000)
	for name, there := range map[string]func(w *world){
		"claim": func(w *world) { w.claim(vm) },
		"node":  func(w *world) { w.node(vm) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *garbage.Config) { c.Client = blind(t, c.Client) })
			w.wants(vm, scaler.PhaseMade, nil)
			there(w)
			w.look("reservations")
			w.after(time.Hour)
			w.look("reservations")
			w.wantRemoved()
		})
	}
}

// blind returns a client whose lists are empty.
func blind(t *testing.T, c client.Client) client.Client {
	t.Helper()
	whole, ok := c.(client.WithWatch)
	if !ok {
		var err error
		if whole, err = client.NewWithWatch(plane.Cluster(t).Config, client.Options{Scheme: c.Scheme()}); err != nil {
			t.Fatal(err)
		}
	}
	return interceptor.NewClient(whole, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil },
	})
}

// TestNodeWithoutClaimIsAdopted checks that a Node that lost its NodeClaim gets a new one,
// and that its VM is not removed.
func TestNodeWithoutClaimIsAdopted(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.pool("workers", "class")
	w.node(vm)
	w.wants(vm, scaler.PhaseMade, nil)
	w.look("reservations")
	w.after(time.Minute)
	w.look("reservations")
	w.wantRemoved()
	w.wantEvents("Node/workers-2000 NodeClaimRestored: ")
	var claims karpv1.NodeClaimList
	if err := w.List(t.Context(), &claims); err != nil || len(claims.Items) != 1 {
		t.Fatalf("%d claims, %v", len(claims.Items), err)
	}
	claim := &claims.Items[0]
	t.Cleanup(func() { w.wipe(claim) })
	if claim.Annotations[v1alpha1.AnnotationVM] != vm.Name || claim.Annotations[v1alpha1.AnnotationKey] != string(vm.Key) ||
		claim.Labels[karpv1.NodePoolLabelKey] != "workers" || claim.Spec.NodeClassRef.Name != "class" {
		t.Errorf("claim is %+v", claim)
	}
	w.after(time.Hour)
	w.look("reservations")
	w.wantEvents()
}

func TestNodeWithoutClaimAndPool(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.node(vm)
	w.wants(vm, scaler.PhaseMade, nil)
	w.look("reservations")
	w.after(time.Minute)
	w.look("reservations")
	w.wantRemoved()
	if said := w.wantEvents("Node/workers-2000 NodePoolGone: "); !strings.Contains(strings.Join(said, "\n"), "numaform remove workers-2000") {
		t.Errorf("says %q", said)
	}
}

// TestNodeThatGoesTakesItsVM checks that the VM of a Node that is being drained is removed
// only when the Node no longer exists.
func TestNodeThatGoesTakesItsVM(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.pool("workers", "class")
	node := w.node(vm, karpv1.TerminationFinalizer)
	if err := w.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	w.wants(vm, scaler.PhaseMade, nil)
	w.look("reservations")
	w.after(time.Hour)
	w.look("reservations")
	w.wantRemoved()
	w.wantEvents()
	w.wipe(node)
	w.look("reservations")
	w.wantRemoved(vm.Key)
}

// TestNothingBeforeTheFleetIsRead checks that no controller acts before the fleet has been
// read, because everything looks like garbage until then.
func TestNothingBeforeTheFleetIsRead(t *testing.T) {
	w := newWorld(t)
	w.writer.synced = false
	vm := newVM(2000)
	w.claim(vm, unlaunched)
	w.runs(newVM(2001))
	for range 2 {
		for _, name := range []string{"failures", "reservations", "nodeclaims", "joins", "orphans"} {
			w.look(name)
		}
		w.after(time.Hour)
	}
	w.wantFate(vm.Name, "there")
	w.wantEvents()
}
