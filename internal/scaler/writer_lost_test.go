package scaler_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// choosy refuses to seed VMs whose claims no longer exist.
type choosy struct {
	guests
	unclaimed []fleet.Key
}

func (c *choosy) Seed(ctx context.Context, vms []fleet.VM) ([]string, error) {
	c.mu.Lock()
	refused := slices.ContainsFunc(vms, func(vm fleet.VM) bool { return slices.Contains(c.unclaimed, vm.Key) })
	c.mu.Unlock()
	if refused {
		return nil, errors.New("its claim is gone")
	}
	return c.guests.Seed(ctx, vms)
}

// TestWriterRemovesWhatIsHalfMade loses a host during a clone. The VM's removal is
// requested meanwhile: when the host is back, the VM is removed, although it can no
// longer be seeded.
func TestWriterRemovesWhatIsHalfMade(t *testing.T) {
	t.Parallel()
	asked := &choosy{}
	w := newWorldWith(t, func(config *scaler.Config) { config.Guests = asked })
	writer := w.run(t, nil)
	w.sim.SetDelays(pvesim.Delays{Clone: 2 * time.Second})
	vm := ensure(t, writer, on(first))[0]
	w.awaitGuest(t, int(vm.VMID))
	w.sim.SetHostOnline(string(first.Host), false)
	phases(t, writer, scaler.PhaseFailed)
	asked.mu.Lock()
	asked.unclaimed = append(asked.unclaimed, vm.Key)
	asked.mu.Unlock()
	writer.Remove(vm.Key)
	w.sim.SetHostOnline(string(first.Host), true)
	phases(t, writer)
	w.exist(t)
	w.underWay(t)
}

// awaitGuest waits until a guest with that VMID exists, even if only partially created.
func (w *world) awaitGuest(t *testing.T, vmid int) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		if _, exists := w.sim.Guest(vmid); exists {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("there is no guest %d", vmid)
		}
	}
}

// TestWriterGivesUpWhatSomebodyRemoved removes a created VM in Proxmox: it is not
// re-created, and its file is deleted.
func TestWriterGivesUpWhatSomebodyRemoved(t *testing.T) {
	t.Parallel()
	now := clocktesting.NewFakeClock(time.Now())
	w := newWorldWith(t, func(config *scaler.Config) { config.Clock = now })
	writer := w.run(t, nil)
	vms := ensure(t, writer, on(first), on(second))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	now.Step(time.Minute)
	w.sim.RemoveGuest(int(vms[0].VMID))
	states := phases(t, writer, scaler.PhaseMade)
	if states[0].VM.Key != vms[1].Key {
		t.Errorf("left is %+v, want the VM that nobody removed", states[0])
	}
	w.exist(t, int(vms[1].VMID))
	w.underWay(t)
}

// TestWriterTrustsAFreshVM removes a VM right after it was created: the snapshot may be
// older than the VM, so the VM is not given up, but re-created.
func TestWriterTrustsAFreshVM(t *testing.T) {
	t.Parallel()
	now := clocktesting.NewFakeClock(time.Now())
	w := newWorldWith(t, func(config *scaler.Config) { config.Clock = now })
	writer := w.run(t, nil)
	fresh := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	w.sim.RemoveGuest(int(fresh.VMID))
	ensure(t, writer, on(second))
	states := phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	if states[0].VM.Key != fresh.Key {
		t.Errorf("left is %+v, want the VM that was just created", states[0])
	}
	w.awaitGuest(t, int(fresh.VMID))
	w.underWay(t)
	w.exist(t, int(fresh.VMID), int(states[1].VM.VMID))
}

// TestWriterGivesUpWhatVanishedUnseen removes two VMs while no writer runs. The one that
// had become a Node is given up; the other is re-created.
func TestWriterGivesUpWhatVanishedUnseen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	earlier, stop := w.runUntil(t, nil)
	vms := ensure(t, earlier, on(first), on(second))
	phases(t, earlier, scaler.PhaseMade, scaler.PhaseMade)
	stop()
	for _, vm := range vms {
		w.sim.RemoveGuest(int(vm.VMID))
	}
	var mu sync.Mutex
	asked := 0
	later := w.run(t, func(config *scaler.WriterConfig) {
		config.Joined = func(_ context.Context, vm fleet.VM) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			if asked++; asked == 1 {
				return false, errors.New("the API server does not answer")
			}
			return vm.Key == vms[0].Key, nil
		}
	})
	states := phases(t, later, scaler.PhaseMade)
	if states[0].VM.Key != vms[1].Key {
		t.Errorf("left is %+v, want the VM that never joined", states[0])
	}
	w.exist(t, int(vms[1].VMID))
	w.underWay(t)
}

// TestWriterRemovesWhatTheStateLacks loses the state of a host, as if a backend returned to an
// older version, and then removes a VM: it is imported first.
func TestWriterRemovesWhatTheStateLacks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	earlier, stop := w.runUntil(t, nil)
	vms := ensure(t, earlier, on(first), on(first))
	phases(t, earlier, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t)
	stop()
	if err := os.RemoveAll(w.stateDir); err != nil {
		t.Fatal(err)
	}
	writer := w.run(t, nil)
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	writer.Remove(vms[0].Key)
	phases(t, writer, scaler.PhaseMade)
	w.underWay(t)
	w.exist(t, int(vms[1].VMID))
}

// lackingState returns a world with two VMs of a host. The state lacks the second VM, as if a
// backend returned to an older version, and this VM is stopped, so that its import would start it
// and needs approval. progress is called for each message.
func lackingState(t *testing.T, progress func(w *world, message string)) (w *world, healthy, lost fleet.VM) {
	t.Helper()
	w = newWorldWith(t, func(config *scaler.Config) {
		config.Progress = func(_ topology.HostID, message string) { progress(w, message) }
	})
	earlier, stop := w.runUntil(t, nil)
	healthy = ensure(t, earlier, on(first))[0]
	phases(t, earlier, scaler.PhaseMade)
	w.underWay(t)
	path := filepath.Join(w.stateDir, "states", string(first.Region), string(first.Host), "terraform.tfstate")
	older, err := os.ReadFile(path)
	must(t, err)
	lost = ensure(t, earlier, on(first))[0]
	phases(t, earlier, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t)
	stop()
	must(t, os.WriteFile(path, older, 0o600))
	guest, _ := w.sim.Guest(int(lost.VMID))
	must(t, w.sim.PutGuest(pvesim.Guest{VMID: guest.VMID, Host: guest.Host, Config: guest.Config}))
	w.sim.ResetCalls()
	return w, healthy, lost
}

// stuckImport returns a world of lackingState with a writer that has tried in vain to import the
// second VM, to remove it.
func stuckImport(t *testing.T) (w *world, writer *scaler.Writer, healthy, lost fleet.VM) {
	t.Helper()
	var tried atomic.Bool
	w, healthy, lost = lackingState(t, func(_ *world, message string) {
		if strings.HasPrefix(message, "recovering 1 VM") {
			tried.Store(true)
		}
	})
	writer = w.run(t, nil)
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	writer.Remove(lost.Key)
	await(t, writer, func([]scaler.VMState) bool { return tried.Load() })
	return w, writer, healthy, lost
}

// TestOtherVMsDoNotWaitForAnImport cannot import a VM to be removed that the state lacks: the
// host nevertheless gets a new VM, and another VM is removed.
func TestOtherVMsDoNotWaitForAnImport(t *testing.T) {
	t.Parallel()
	w, writer, healthy, lost := stuckImport(t)
	fresh := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade, scaler.PhaseRemoving, scaler.PhaseMade)
	writer.Remove(healthy.Key)
	phases(t, writer, scaler.PhaseRemoving, scaler.PhaseMade)
	w.exist(t, int(lost.VMID), int(fresh.VMID))
	w.underWay(t)
	await(t, writer, func(states []scaler.VMState) bool { return as[*scaler.PendingApprovalError](states[0].Err) })
}

// TestRemovalsTogetherWithAnImport requests the removal of two VMs together, and a new VM. The
// state lacks one of the VMs: the other one is removed, and the new VM is created.
func TestRemovalsTogetherWithAnImport(t *testing.T) {
	t.Parallel()
	w, healthy, lost := lackingState(t, func(*world, string) {})
	writer := w.run(t, nil)
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	writer.Remove(healthy.Key, lost.Key)
	fresh := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseRemoving, scaler.PhaseMade)
	w.exist(t, int(lost.VMID), int(fresh.VMID))
	w.underWay(t)
}

// TestWriterDoesNotCreateWhatItRemoves destroys a VM to be removed by hand, before its import or
// while the import waits: it is removed from the fleet, and not created again.
func TestWriterDoesNotCreateWhatItRemoves(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprintf("before %t", before), func(t *testing.T) {
			t.Parallel()
			var w *world
			var writer *scaler.Writer
			var healthy, lost fleet.VM
			if before {
				var plans atomic.Int32
				w, healthy, lost = lackingState(t, func(w *world, message string) {
					// The second plan after the request is the import's.
					if message == scaler.ProgressPlanning && plans.Add(1) == 0 {
						w.sim.RemoveGuest(2001)
					}
				})
				writer = w.run(t, nil)
				phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
				plans.Store(-2)
				writer.Remove(lost.Key)
			} else {
				w, writer, healthy, lost = stuckImport(t)
				w.sim.RemoveGuest(int(lost.VMID))
			}
			phases(t, writer, scaler.PhaseMade)
			w.exist(t, int(healthy.VMID))
			w.underWay(t)
			if w.called(http.MethodPost, "/clone") {
				t.Error("a VM was cloned")
			}
		})
	}
}
