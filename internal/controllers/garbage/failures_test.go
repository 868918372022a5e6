package garbage_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// exact selects the offering of one VM.
func exact(vm fleet.VM) scheduling.OfferingSelector {
	return scheduling.OfferingSelector{NodePool: vm.Pool, InstanceType: vm.InstanceType, Host: vm.Host}
}

func TestFailedVMIsGivenUp(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.pool("workers", "class")
	w.claim(vm)
	w.wants(vm, scaler.PhaseFailed, errors.New("clone failed:\n  disk broke"))
	w.look("failures")
	w.wantFate(vm.Name, "deleting")
	w.wantRemoved() // Karpenter requests removal after it has drained the Node
	said := w.wantEvents("NodeClaim/workers-2000 VMFailed: ", "NodePool/workers VMFailed: ")
	if !strings.Contains(strings.Join(said, "\n"), "clone failed: disk broke") || !strings.Contains(strings.Join(said, "\n"), "lab/pve-1") {
		t.Errorf("says %q", said)
	}
	want := []unavailableOffering{{exact(vm), w.clock.Now().Add(time.Minute)}}
	if diff := cmp.Diff(want, w.unavailable.take()); diff != "" {
		t.Errorf("closed differs:\n%s", diff)
	}
	w.after(time.Minute)
	w.look("failures")
	w.wantEvents()
	if closed := w.unavailable.take(); len(closed) != 0 {
		t.Errorf("one failure closed twice: %v", closed)
	}
}

// TestFailedVMOfACopiedClaim checks that the NodeClaim of a failed VM is deleted, and not a copy
// of that NodeClaim.
func TestFailedVMOfACopiedClaim(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.pool("workers", "class")
	w.claim(vm)
	for _, name := range []string{"a-copy", "z-copy"} {
		w.claim(vm, func(c *karpv1.NodeClaim) { c.Name = name })
	}
	w.wants(vm, scaler.PhaseFailed, errors.New("clone failed"))
	w.look("failures")
	w.wantFate(vm.Name, "deleting")
	w.wantFate("a-copy", "there")
	w.wantFate("z-copy", "there")
	w.wantEvents("NodeClaim/workers-2000 VMFailed: ", "NodePool/workers VMFailed: ")
}

// TestVMThatSomebodyRemoved checks that a VM that was removed in Proxmox makes no offering
// unavailable.
func TestVMThatSomebodyRemoved(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.pool("workers", "class")
	w.claim(vm, registered)
	w.wants(vm, scaler.PhaseFailed, &scaler.VanishedError{VM: vm.Name, VMID: vm.VMID, Host: vm.Host})
	w.look("failures")
	w.wantFate(vm.Name, "deleting")
	w.wantEvents("NodeClaim/workers-2000 VMGone: vm workers-2000: guest 2000 no longer exists in Proxmox", "NodePool/workers VMGone: ")
	if closed := w.unavailable.take(); len(closed) != 0 {
		t.Errorf("closed %v", closed)
	}
}

// TestMovedVMClosesNothing checks that a standby VM that cannot be woken because another
// client moved it makes no offering unavailable: its host is as good as before. If the plan
// of a host fails because another VM of the host was moved, the next plan fails as well.
func TestMovedVMClosesNothing(t *testing.T) {
	for moved, want := range map[string][]scheduling.OfferingSelector{"workers-2000": nil, "workers-2001": {{Host: pve1()}}} {
		t.Run(moved, func(t *testing.T) {
			w := newWorld(t)
			vm := newVM(2000)
			w.pool("workers", "class")
			w.claim(vm)
			now := topology.HostID{Region: "lab", Host: "pve-2"}
			w.wants(vm, scaler.PhaseFailed, &scaler.PlanError{Host: pve1(), Err: &scaler.MovedError{VM: moved, Host: pve1(), Now: now}})
			w.look("failures")
			w.wantFate(vm.Name, "deleting")
			var got []scheduling.OfferingSelector
			for _, closed := range w.unavailable.take() {
				got = append(got, closed.OfferingSelector)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("closed (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFailedVMOfUnlaunchedClaim checks that numaform removes the failed VM of a claim that
// was never launched, because Karpenter does not.
func TestFailedVMOfUnlaunchedClaim(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.claim(vm, unlaunched)
	w.wants(vm, scaler.PhaseFailed, errors.New("broken"))
	w.look("failures")
	w.wantFate(vm.Name, "deleting")
	w.wantRemoved(vm.Key)
}

func TestFailedVMWithoutClaim(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.wants(vm, scaler.PhaseFailed, errors.New("broken"))
	w.look("failures")
	w.after(59 * time.Second)
	w.look("failures")
	w.wantRemoved()
	w.after(time.Second)
	w.look("failures")
	w.wantRemoved(vm.Key)
}

// TestFailedVMWithNodeStays checks that a failed VM with a Node is not removed: an apply
// may fail after its VM has joined.
func TestFailedVMWithNodeStays(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.node(vm)
	w.wants(vm, scaler.PhaseFailed, errors.New("saving the state failed"))
	w.look("failures")
	w.after(time.Hour)
	w.look("failures")
	w.wantRemoved()
}

// TestHeldVMClosesNothing checks that a VM that is pending approval makes no offering
// unavailable: the offering must still be available after the approval.
func TestHeldVMClosesNothing(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.pool("workers", "class")
	w.claim(vm)
	w.wants(vm, scaler.PhasePendingApproval, &scaler.PendingApprovalError{Host: pve1()})
	w.look("failures")
	w.wantFate(vm.Name, "deleting")
	w.wantEvents("NodeClaim/workers-2000 VMHeld: ", "NodePool/workers VMHeld: ")
	if closed := w.unavailable.take(); len(closed) != 0 {
		t.Errorf("closed %v", closed)
	}
}

// TestCanceledVMIsKept checks that a VM whose change was canceled keeps its claim: the next
// leader completes the change.
func TestCanceledVMIsKept(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.claim(vm)
	w.wants(vm, scaler.PhaseFailed, fmt.Errorf("applying: %w", context.Canceled))
	w.look("failures")
	w.after(time.Hour)
	w.look("failures")
	w.wantFate(vm.Name, "there")
	w.wantEvents()
}

func TestPausedOnlyTells(t *testing.T) {
	w := newWorld(t)
	w.paused = true
	failed, lost := newVM(2000), newVM(2001)
	w.claim(failed)
	w.wants(failed, scaler.PhaseFailed, errors.New("broken"))
	w.wants(lost, scaler.PhaseMade, nil)
	for range 2 {
		w.look("failures")
		w.look("reservations")
		w.after(time.Hour)
	}
	w.wantFate(failed.Name, "there")
	w.wantRemoved()
	w.wantEvents("NodeClaim/workers-2000 VMFailed: ")
}

// TestRemovalThatWaits checks that a VM whose removal is blocked is reported once, although
// the reason contains a changing time.
func TestRemovalThatWaits(t *testing.T) {
	w := newWorld(t, dropEqual)
	vm := newVM(2000)
	w.pool("workers", "class")
	w.claim(vm)
	w.wants(vm, scaler.PhaseRemoving, nil)
	w.look("failures")
	w.wantEvents()
	w.writer.states[0].Err = errors.New("locked for 1s")
	w.look("failures")
	w.wantEvents("NodeClaim/workers-2000 VMRemovalWaits: removal of VM workers-2000 on lab/pve-1 is blocked: locked for 1s", "NodePool/workers VMRemovalWaits: ")
	for i := range 5 {
		w.writer.states[0].Err = fmt.Errorf("locked for %ds", i+2)
		w.look("failures")
	}
	w.wantEvents()
	w.wantFate(vm.Name, "there")
	w.wantRemoved()
}

func TestOffersByFailure(t *testing.T) {
	vm := newVM(2000)
	ofClass := []scheduling.OfferingSelector{{NodePool: "batch", Host: pve1()}, {NodePool: "workers", Host: pve1()}}
	tests := []struct {
		name string
		err  error
		want []scheduling.OfferingSelector
	}{
		{"anything", errors.New("the VM did not start"), []scheduling.OfferingSelector{exact(vm)}},
		{"host down", fmt.Errorf("x: %w", &scaler.HostDownError{Host: pve1()}), []scheduling.OfferingSelector{{Host: pve1()}}},
		{"host lost", fmt.Errorf("%w: canceled", &scaler.HostLostError{Host: pve1()}), []scheduling.OfferingSelector{{Host: pve1()}}},
		{"locked", &state.LockedError{LockInfo: state.LockInfo{ID: "1"}}, []scheduling.OfferingSelector{{Host: pve1()}}},
		{"engine", &state.CommandError{Text: "exit 1"}, []scheduling.OfferingSelector{exact(vm)}},
		{"affinity", &scaler.RootOnlyError{VM: vm.Name}, ofClass},
		{"storage full", &state.CommandError{
			Operation: "applying", Text: `VM clone: task "UPID:x" failed to complete with exit code: unable to create image: No space left on device`,
		}, ofClass},
		{"disk of this machine full", errors.New("write plan.json: no space left on device"), []scheduling.OfferingSelector{exact(vm)}},
		{"number taken", &scaler.VMIDTakenError{VM: vm.Name}, nil},
		{"cpus taken", &scaler.CPUsTakenError{VM: vm.Name}, nil},
		{"started by hand", fmt.Errorf("waking: %w", &scaler.StartedByHandError{VM: vm.Name, Key: vm.Key}), nil},
		{"renamed", &scaler.DisagreeError{VM: vm.Name, Key: vm.Key}, nil},
		{"another VM renamed", &scaler.DisagreeError{Key: "other"}, []scheduling.OfferingSelector{exact(vm)}},
		{"another VM started by hand", &scaler.StartedByHandError{Key: "other"}, []scheduling.OfferingSelector{exact(vm)}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.pool("workers", "class")
			w.pool("batch", "class")
			w.pool("other", "another-class")
			w.wants(vm, scaler.PhaseFailed, test.err)
			w.look("failures")
			var got []scheduling.OfferingSelector
			for _, closed := range w.unavailable.take() {
				got = append(got, closed.OfferingSelector)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("closed differs:\n%s", diff)
			}
		})
	}
}

// TestClosingGrows checks that offerings are unavailable for longer after each further
// failure of a class, that simultaneous failures count once, and that other classes are not
// affected.
func TestClosingGrows(t *testing.T) {
	w := newWorld(t)
	vmid := fleet.VMID(2000)
	fail := func(class string) time.Duration {
		t.Helper()
		vm := newVM(vmid)
		vm.NodeClass = class
		vmid++
		w.writer.states = nil
		w.wants(vm, scaler.PhaseFailed, errors.New("broken"))
		w.look("failures")
		closed := w.unavailable.take()
		if len(closed) != 1 {
			t.Fatalf("closed %v", closed)
		}
		return closed[0].Until.Sub(w.clock.Now())
	}
	want := []time.Duration{1, 2, 4, 8, 16, 30, 30}
	for i, minutes := range want {
		if got := fail("class"); got != minutes*time.Minute {
			t.Errorf("failure %d closed for %v, want %v minutes", i, got, int(minutes))
		}
		if got := fail("class"); got != minutes*time.Minute {
			t.Errorf("another failure at the same time closed for %v, want %v minutes", got, int(minutes))
		}
		w.after(minutes * time.Minute)
	}
	if got := fail("other"); got != time.Minute {
		t.Errorf("another class was closed for %v", got)
	}
	w.after(2 * time.Hour)
	if got := fail("class"); got != time.Minute {
		t.Errorf("after two good hours it was closed for %v", got)
	}
}

// TestOutageIsNoFailure checks that a VM that waits for the state backend keeps its claim and
// makes no offering unavailable, and that an event on the claim reports the outage.
func TestOutageIsNoFailure(t *testing.T) {
	w := newWorld(t)
	vm := newVM(2000)
	w.pool("workers", "class")
	w.claim(vm)
	for _, phase := range []scaler.Phase{scaler.PhaseReserved, scaler.PhaseMaking} {
		w.writer.states = nil
		w.wants(vm, phase, &state.CommandError{Backend: "kubernetes", Text: "connection refused"})
		w.look("failures")
		w.wantFate(vm.Name, "there")
		w.wantRemoved()
		w.wantEvents("NodeClaim/workers-2000 StateBackendUnreachable: waits: the kubernetes state backend has been unreachable since ")
		if closed := w.unavailable.take(); len(closed) != 0 {
			t.Errorf("closed %v", closed)
		}
	}
}

// TestManyFailuresAreOneEventOfTheirPool checks that each NodeClaim gets its own event, and
// that their NodePool gets one event for all, although the messages contain names and
// times.
func TestManyFailuresAreOneEventOfTheirPool(t *testing.T) {
	w := newWorld(t, dropEqual)
	w.pool("workers", "class")
	var joining, failing []string
	for i := range fleet.VMID(4) {
		vm := newVM(2000 + i)
		w.claim(vm)
		w.wants(vm, scaler.PhaseMade, nil)
		joining = append(joining, fmt.Sprintf("NodeClaim/%s NodeNeverJoined: ", vm.Name))
		failing = append(failing, fmt.Sprintf("NodeClaim/%s VMFailed: ", vm.Name))
	}
	w.look("joins")
	w.after(16 * time.Minute)
	w.look("joins")
	w.wantEvents(slices.Insert(joining, 1, "NodePool/workers NodeNeverJoined: ")...)

	for i := range w.writer.states {
		w.after(time.Minute)
		w.writer.states[i].Phase, w.writer.states[i].Err = scaler.PhaseFailed, errors.New("broken")
		w.look("failures")
	}
	w.wantEvents(slices.Insert(failing, 1, "NodePool/workers VMFailed: ")...)
}
