package garbage_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

func TestNeverJoined(t *testing.T) {
	stopped := func(g *topology.Guest) { g.Running = false }
	tests := []struct {
		name string
		set  func(w *world, vm fleet.VM)
		says string
	}{
		{"unknown", func(*world, fleet.VM) {}, "its VM is no longer in the fleet"},
		{"making", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMaking, nil) }, "still being created on lab/pve-1"},
		{"waiting", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseRemoving, errors.New("PDB default/db")) }, "PDB default/db"},
		{"vanished", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil) }, "no longer exists in Proxmox"},
		{"stopped", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil); w.runs(vm, stopped) }, "is not running"},
		{"silent", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil); w.runs(vm) }, "qm terminal 2000"},
		{"unreadable", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil); w.unread = errors.New("595") }, "595"},
		{"other id", func(w *world, vm fleet.VM) {
			w.wants(vm, scaler.PhaseMade, nil)
			w.runs(vm)
			vm.VMID = 7000
			w.node(vm)
		}, `has providerID "proxmox://lab/7000" instead of proxmox://lab/2000`},
		{"not taken", func(w *world, vm fleet.VM) { w.wants(vm, scaler.PhaseMade, nil); w.runs(vm); w.node(vm) }, "condition Registered"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			vm := newVM(2000)
			w.pool("workers", "class")
			w.pool("batch", "class")
			test.set(w, vm)
			w.claim(vm)
			w.look("joins")
			// The claim's creation time is from the API server's clock, not this test's.
			w.after(14 * time.Minute)
			w.look("joins")
			w.wantEvents()
			w.after(2 * time.Minute)
			w.look("joins")
			said := w.wantEvents("NodeClaim/workers-2000 NodeNeverJoined: ", "NodePool/workers NodeNeverJoined: ")
			if !strings.Contains(strings.Join(said, "\n"), test.says) {
				t.Errorf("says %q, want %s", said, test.says)
			}
			until := w.clock.Now().Add(time.Minute)
			want := []unavailableOffering{{scheduling.OfferingSelector{NodePool: "batch"}, until}, {scheduling.OfferingSelector{NodePool: "workers"}, until}}
			if diff := cmp.Diff(want, w.unavailable.take()); diff != "" {
				t.Errorf("closed differs:\n%s", diff)
			}
			w.after(time.Minute)
			w.look("joins")
			w.wantEvents()
			w.wantFate(vm.Name, "there") // Karpenter deletes it
		})
	}
}

// TestJoinedOrNotWaitedFor checks that claims that registered, were never launched or were
// deleted early are not reported.
func TestJoinedOrNotWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.claim(newVM(2000), registered)
	w.claim(newVM(2001), unlaunched)
	early := w.claim(newVM(2002))
	w.look("joins")
	if err := w.Delete(t.Context(), early); err != nil {
		t.Fatal(err)
	}
	w.after(20 * time.Minute)
	w.look("joins")
	w.wantEvents()
}

// TestNeverJoinedAndGone checks that a claim that Karpenter deleted between two passes is
// reported once.
func TestNeverJoinedAndGone(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	claim := w.claim(vm)
	w.look("joins")
	w.wipe(claim)
	w.after(16 * time.Minute)
	w.look("joins")
	w.wantEvents("NodeClaim/workers-2000 NodeNeverJoined: ")
	w.look("joins")
	w.wantEvents()
}

// TestNeverJoinedDuringAnOutage checks that a claim whose VM waits for the state backend
// does not make its class unavailable, whether or not the VM still exists at the timeout.
func TestNeverJoinedDuringAnOutage(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone %t", gone), func(t *testing.T) {
			w := newWorld(t)
			vm := newVM(2000)
			w.pool("workers", "class")
			w.wants(vm, scaler.PhaseReserved, fmt.Errorf("planning: %w", &state.CommandError{Backend: "kubernetes", Text: "connection refused"}))
			w.claim(vm)
			w.look("joins")
			if gone {
				w.writer.states = nil
			}
			w.after(16 * time.Minute)
			w.look("joins")
			w.wantEvents("NodeClaim/workers-2000 StateBackendUnreachable: ", "NodePool/workers StateBackendUnreachable: ")
			if closed := w.unavailable.take(); len(closed) > 0 {
				t.Errorf("closed %v", closed)
			}
		})
	}
}
