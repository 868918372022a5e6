package garbage_test

import (
	"errors"
	"testing"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/garbage"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

func TestClaimWithoutVM(t *testing.T) {
	tests := []struct {
		name   string
		change func(*karpv1.NodeClaim)
		// set prepares the state of the claim's VM.
		set  func(w *world, vm fleet.VM)
		goes bool
	}{
		{name: "nothing", goes: true},
		{name: "never launched", change: unlaunched, goes: true},
		{name: "deleted by hand", set: func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil) }, goes: true},
		{name: "another guest has the number", goes: true, set: func(w *world, vm fleet.VM) {
			w.runs(vm, func(g *topology.Guest) { g.Key = "0123" })
		}},
		{name: "deleted by hand, but not its clone", goes: true, set: func(w *world, vm fleet.VM) {
			w.wants(vm, scaler.PhaseMade, nil)
			w.runs(vm, func(g *topology.Guest) { g.VMID = 150 })
		}},
		{name: "never woken", goes: true, set: func(w *world, vm fleet.VM) {
			w.runs(vm)
			vm.Standby = true
			w.wants(vm, scaler.PhaseMade, nil)
		}},
		{name: "in Proxmox", set: func(w *world, vm fleet.VM) { w.runs(vm) }},
		{name: "in Proxmox, its marker unread", set: func(w *world, vm fleet.VM) {
			w.runs(vm, func(g *topology.Guest) { g.Key, g.ClusterID = "", "" })
		}},
		{name: "reserved", set: func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseReserved, nil) }},
		{name: "being made", set: func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMaking, nil) }},
		{name: "reserved, never launched", change: unlaunched, set: func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseReserved, nil) }},
		{name: "made, never launched", change: unlaunched, set: func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil) }},
		{name: "no vm yet", change: without(v1alpha1.AnnotationKey)},
		{name: "another host is off", set: func(w *world, _ fleet.VM) { w.snapshot.Hosts[1].Online = false }, goes: true},
		{name: "in Proxmox, on a host that is off", set: func(w *world, vm fleet.VM) {
			w.runs(vm, func(g *topology.Guest) { g.Key, g.ClusterID = "", "" })
			w.snapshot.Hosts[0].Online = false
		}},
		{name: "deleted by hand, and a host is off", set: func(w *world, vm fleet.VM) {
			w.wants(vm, scaler.PhaseMade, nil)
			w.snapshot.Hosts[1].Online = false
		}},
		{name: "deleted by hand, and a configured host does not exist", goes: true, set: func(w *world, vm fleet.VM) {
			w.wants(vm, scaler.PhaseMade, nil)
			w.snapshot.Hosts[1].Online, w.snapshot.Hosts[1].Absent = false, true
		}},
		{name: "guests are hidden", set: func(w *world, _ fleet.VM) { w.snapshot.Regions[0].HidesGuests = true }},
		{name: "no quorum", set: func(w *world, _ fleet.VM) { w.snapshot.Regions[0].Quorate = false }},
		{name: "region unknown", set: func(w *world, _ fleet.VM) { w.snapshot = &topology.Snapshot{} }},
		{name: "paused", set: func(w *world, _ fleet.VM) { w.paused = true }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			vm := newVM(2000)
			if test.change == nil {
				test.change = func(*karpv1.NodeClaim) {}
			}
			if test.set != nil {
				test.set(w, vm)
			}
			w.claim(vm, test.change)
			w.look("nodeclaims")
			w.after(59 * time.Second)
			w.look("nodeclaims")
			w.wantFate(vm.Name, "there")
			w.after(time.Second)
			w.look("nodeclaims")
			if !test.goes {
				w.after(time.Hour)
				w.look("nodeclaims")
				w.wantFate(vm.Name, "there")
				return
			}
			w.wantFate(vm.Name, "deleting")
			w.wantEvents("NodeClaim/workers-2000 VMGone: ")
		})
	}
}

// TestClaimWhilePaused checks that the event of a claim without a VM does not say that the
// claim is deleted while numaform is paused.
func TestClaimWhilePaused(t *testing.T) {
	w := newWorld(t)
	w.paused = true
	vm := newVM(2000)
	w.claim(vm)
	w.look("nodeclaims")
	w.after(time.Minute)
	w.look("nodeclaims")
	w.wantFate(vm.Name, "there")
	w.wantEvents("NodeClaim/workers-2000 VMGone: NodeClaim workers-2000: its VM is neither in the fleet nor in Proxmox, so no Node will join: " +
		"numaform is paused; after numaform resume, the NodeClaim is deleted")
}

// TestClaimThatAnEarlierRunLeft checks that the claim of an earlier process is deleted
// sooner, because its pods wait.
func TestClaimThatAnEarlierRunLeft(t *testing.T) {
	w := newWorld(t)
	w.after(time.Minute)
	vm := newVM(2000)
	w.claim(vm)
	w.after(time.Minute) // this process starts
	w.look("nodeclaims")
	w.wantFate(vm.Name, "there")
	w.after(10 * time.Second)
	w.look("nodeclaims")
	w.wantFate(vm.Name, "deleting")
}

// TestClaimWithoutNode checks that a registered claim is deleted only if its Node has been
// missing for nodeGrace. Karpenter handles such claims while the Node exists.
func TestClaimWithoutNode(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.claim(vm, registered)
	node := w.node(vm)
	w.wants(vm, scaler.PhaseMade, nil)
	w.look("nodeclaims")
	w.after(time.Hour)
	w.look("nodeclaims")
	w.wantFate(vm.Name, "there")
	w.wipe(node)
	w.look("nodeclaims")
	w.after(4 * time.Minute)
	w.look("nodeclaims")
	w.wantFate(vm.Name, "there")
	w.after(time.Minute)
	w.look("nodeclaims")
	w.wantFate(vm.Name, "deleting")
	w.wantEvents("NodeClaim/workers-2000 NodeGone: ")
}

// TestSilentProxmoxEndsNoClaim checks that no VM counts as deleted while Proxmox does not
// respond.
func TestSilentProxmoxEndsNoClaim(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.claim(vm)
	w.unread = errors.New("timeout")
	for range 2 {
		if err := w.tryLook("nodeclaims"); err == nil {
			t.Error("looked without Proxmox")
		}
		w.after(time.Hour)
	}
	w.wantFate(vm.Name, "there")
}

// TestLargeFleetsAreReadLessOften checks that the passes of a large fleet have longer intervals,
// except the pass that handles failures.
func TestLargeFleetsAreReadLessOften(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 5000 {
		w.writer.states = append(w.writer.states, scaler.VMState{VM: newVM(fleet.VMID(2000 + i)), Phase: scaler.PhaseMade})
	}
	w.writer.states[0].Phase, w.writer.states[0].Err = scaler.PhaseFailed, errors.New("no space left")
	want := map[string]time.Duration{
		"garbage.nodeclaims": 25 * time.Second, "garbage.reservations": 25 * time.Second, "garbage.joins": 25 * time.Second,
		"garbage.nodes": 30 * time.Second, "garbage.orphans": 30 * time.Second, "garbage.failures": 2 * time.Second,
	}
	for _, c := range w.collector.Controllers() {
		c, ok := c.(*garbage.Controller)
		if !ok {
			t.Fatalf("another controller: %T", c)
		}
		if result, err := c.Reconcile(t.Context()); err != nil || result.RequeueAfter != want[c.Name()] {
			t.Errorf("%s looks again after %s (%v), want %s", c.Name(), result.RequeueAfter, err, want[c.Name()])
		}
	}
}
