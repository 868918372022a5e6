package scaler_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// wholeHostCauses make numaform plan the whole of the first host, for another reason than
// the change that it retries.
var wholeHostCauses = map[string]func(t *testing.T, w *world, other fleet.VM){
	"another VM is missing": func(_ *testing.T, w *world, other fleet.VM) { w.sim.RemoveGuest(int(other.VMID)) },
	"a guest with our marker has no file": func(t *testing.T, w *world, _ fleet.VM) {
		t.Helper()
		w.addStray(t, first)
	},
	"a retry was killed": func(t *testing.T, w *world, _ fleet.VM) {
		t.Helper()
		now := time.Now()
		work := filepath.Join(w.stateDir, "work", string(first.Region), string(first.Host))
		record, err := json.Marshal(map[string]any{"operation": "applying", "host": "other", "pid": 1, "began": now, "until": now, "dir": work})
		must(t, err, os.WriteFile(filepath.Join(work, ".terraform", "numaform", "run.json"), record, 0o600))
	},
}

// addStray adds a guest with our marker and an unknown key to a host, outside the VMIDs of the
// fleet.
func (w *world) addStray(t *testing.T, host topology.HostID) {
	t.Helper()
	marker := fleet.Marker{ClusterID: clusterID, Key: "ffeeddccbbaa99887766554433221100"}
	must(t, w.sim.PutGuest(pvesim.Guest{VMID: 3900, Host: string(host.Host), Running: true, Config: map[string]string{
		"name": "lost", "description": marker.String(),
	}}))
}

// TestRetriedWakesOfWholeHosts makes the start of a standby VM fail, which leaves it in the
// state as started. The retry plans the whole host, for another reason and without a
// refresh, and starts the VM nevertheless.
func TestRetriedWakesOfWholeHosts(t *testing.T) {
	t.Parallel()
	for name, cause := range wholeHostCauses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			failing, stop := w.runUntil(t, nil)
			vms := ensure(t, failing, standby(first), on(first))
			phases(t, failing, scaler.PhaseMade, scaler.PhaseMade)
			w.underWay(t)
			remove := w.sim.AddFault(pvesim.Fault{Method: http.MethodPost, Path: "/status/start$", Status: http.StatusInternalServerError, Reason: "no"})
			if _, err := failing.Wake(t.Context(), vms[0].Key); err != nil {
				t.Fatal(err)
			}
			phases(t, failing, scaler.PhaseFailed, scaler.PhaseMade)
			stop()
			remove()
			w.underWay(t, first)

			cause(t, w, vms[1])
			writer := w.run(t, nil)
			phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
			w.underWay(t)
			w.runs(t, vms[0], true)
			w.exist(t, int(vms[0].VMID), int(vms[1].VMID))
		})
	}
}

// forgetfulStore commits the first change for which forgets returns true, but returns an
// error, as if the response was lost.
type forgetfulStore struct {
	store.Store
	forgets atomic.Pointer[func(*audit.Change) bool]
}

func (s *forgetfulStore) Begin(ctx context.Context, base store.Revision, files generator.Files, change audit.Change) error {
	err := s.Store.Begin(ctx, base, files, change)
	if forgets := s.forgets.Load(); err == nil && forgets != nil && (*forgets)(&change) {
		s.forgets.Store(nil)
		return errors.New("the response was lost")
	}
	return err
}

// TestWithdrawnWakeWasRecorded withdraws a wake whose record was written, but whose response
// was lost: nothing starts the VM, which has no NodeClaim, and it is a standby VM again.
func TestWithdrawnWakeWasRecorded(t *testing.T) {
	t.Parallel()
	forgetful := &forgetfulStore{}
	w := newWorldWith(t, func(config *scaler.Config) {
		forgetful.Store = config.Store
		config.Store = forgetful
	})
	writer := w.run(t, nil)
	vm := ensure(t, writer, standby(first))[0]
	phases(t, writer, scaler.PhaseMade)
	w.underWay(t)
	withdraw := func(change *audit.Change) bool {
		writer.Remove(vm.Key)
		return change.Kind == audit.KindWake
	}
	forgetful.forgets.Store(&withdraw)
	if _, err := writer.Wake(t.Context(), vm.Key); err != nil {
		t.Fatal(err)
	}
	w.standbyAgain(t, writer, vm)
}

// standbyAgain waits until VMs are standby VMs that nothing has started, also according to
// their files, and no work is unfinished. It then wakes them: all VMs of the fleet are nodes.
func (w *world) standbyAgain(t *testing.T, writer *scaler.Writer, vms ...fleet.VM) {
	t.Helper()
	rests := func(states []scaler.VMState) bool {
		for _, vm := range vms {
			at := slices.IndexFunc(states, func(state scaler.VMState) bool { return state.VM.Key == vm.Key })
			if at < 0 {
				t.Fatalf("%s was removed", vm.Name)
			}
			if state := states[at]; !state.VM.Standby || state.Phase != scaler.PhaseMade || state.Err != nil {
				return false
			}
		}
		return true
	}
	await(t, writer, rests)
	w.underWay(t)
	files, _, err := w.Fleet(t.Context())
	must(t, err)
	for _, vm := range vms {
		filed := slices.ContainsFunc(files.VMs, func(other fleet.VM) bool { return other.Key == vm.Key && other.Standby })
		if n := w.starts(vm); n > 0 || !filed {
			t.Errorf("%s was started %d times; its file declares standby: %t", vm.Name, n, filed)
		}
		w.runs(t, vm, false)
	}
	for _, vm := range vms {
		if _, err := writer.Wake(t.Context(), vm.Key); err != nil {
			t.Fatal(err)
		}
	}
	await(t, writer, func(states []scaler.VMState) bool {
		return !slices.ContainsFunc(states, func(state scaler.VMState) bool { return state.Phase != scaler.PhaseMade || state.VM.Standby })
	})
	w.underWay(t)
	for _, vm := range vms {
		w.runs(t, vm, true)
	}
}

// unclaimed is an error about the seed of one VM.
type unclaimed struct{ key fleet.Key }

func (*unclaimed) Error() string { return "it has no NodeClaim" }

func (r *unclaimed) Concerns(key fleet.Key) bool { return key == r.key }

// seeder calls seed for the seeds of VMs that are not standby VMs, until it is nil.
type seeder struct {
	guests
	seed func(ctx context.Context, vms []fleet.VM) error
}

func (s *seeder) Seed(ctx context.Context, vms []fleet.VM) ([]string, error) {
	s.mu.Lock()
	seed := s.seed
	s.mu.Unlock()
	if seed == nil || vms[0].Standby {
		return nil, nil
	}
	return nil, seed(ctx, vms)
}

func (s *seeder) set(seed func(ctx context.Context, vms []fleet.VM) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seed = seed
}

// TestFailedWakesLoseNoVM makes a wake of three VMs fail before it starts any of them. None
// is removed, although the NodeClaims of the failed VMs are.
func TestFailedWakesLoseNoVM(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		// fail returns the error of the attempt to seed the VMs.
		fail func(vms []fleet.VM) error
		// wantFailed are the indexes of the VMs that fail. The others are woken by a retry.
		wantFailed []int
	}{
		{"the upload fails", func([]fleet.VM) error { return errors.New("the upload timed out") }, []int{0, 1, 2}},
		{"one has no claim", func(vms []fleet.VM) error { return &unclaimed{vms[1].Key} }, []int{1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			seeds := &seeder{}
			w := newWorldWith(t, func(config *scaler.Config) { config.Guests = seeds })
			writer := w.run(t, nil)
			vms := ensure(t, writer, standby(first), standby(first), standby(first))
			phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade)
			w.underWay(t)
			var failed []fleet.VM
			for _, i := range tt.wantFailed {
				failed = append(failed, vms[i])
			}
			is := func(list []fleet.VM, key fleet.Key) bool {
				return slices.ContainsFunc(list, func(vm fleet.VM) bool { return vm.Key == key })
			}
			seeds.set(func(_ context.Context, seeded []fleet.VM) error {
				if is(seeded, failed[0].Key) {
					return tt.fail(vms)
				}
				return nil
			})
			if _, err := writer.Wake(t.Context(), vms[0].Key, vms[1].Key, vms[2].Key); err != nil {
				t.Fatal(err)
			}
			states := await(t, writer, func(states []scaler.VMState) bool {
				return slices.ContainsFunc(states, func(state scaler.VMState) bool { return state.Phase == scaler.PhaseFailed })
			})
			for _, state := range states {
				if want := is(failed, state.VM.Key); want != (state.Phase == scaler.PhaseFailed) || state.Err == nil {
					t.Errorf("%s is %s (%v), want it to have failed: %t", state.VM.Name, state.Phase, state.Err, want)
				}
				if state.Phase == scaler.PhaseFailed {
					writer.Remove(state.VM.Key) // as Karpenter does when the claim is deleted
				}
			}
			await(t, writer, func(states []scaler.VMState) bool {
				return !slices.ContainsFunc(states, func(state scaler.VMState) bool { return state.Phase != scaler.PhaseMade })
			})
			for _, vm := range vms {
				w.runs(t, vm, !is(failed, vm.Key))
			}
			seeds.set(nil)
			w.standbyAgain(t, writer, failed...)
			w.exist(t, int(vms[0].VMID), int(vms[1].VMID), int(vms[2].VMID))
			for _, vm := range vms {
				if n := w.starts(vm); n != 1 {
					t.Errorf("%s was started %d times", vm.Name, n)
				}
			}
		})
	}
}

// TestFailedWakeOfARemovedClaim deletes the NodeClaim of a VM while it is woken: the wake
// fails before it starts the VM, which is a standby VM again.
func TestFailedWakeOfARemovedClaim(t *testing.T) {
	t.Parallel()
	seeds := &seeder{}
	w := newWorldWith(t, func(config *scaler.Config) { config.Guests = seeds })
	writer := w.run(t, nil)
	vm := ensure(t, writer, standby(first))[0]
	phases(t, writer, scaler.PhaseMade)
	w.underWay(t)
	seeds.set(func(context.Context, []fleet.VM) error {
		seeds.set(nil)
		writer.Remove(vm.Key)
		return &unclaimed{vm.Key}
	})
	if _, err := writer.Wake(t.Context(), vm.Key); err != nil {
		t.Fatal(err)
	}
	w.standbyAgain(t, writer, vm)
}

// TestRestWasRecorded makes the upload of a seed fail, and loses the response of the change
// that makes the VM a standby VM again.
func TestRestWasRecorded(t *testing.T) {
	t.Parallel()
	forgetful, seeds := &forgetfulStore{}, &seeder{}
	w := newWorldWith(t, func(config *scaler.Config) {
		forgetful.Store = config.Store
		config.Store, config.Guests = forgetful, seeds
	})
	writer := w.run(t, nil)
	vm := ensure(t, writer, standby(first))[0]
	phases(t, writer, scaler.PhaseMade)
	w.underWay(t)
	seeds.set(func(context.Context, []fleet.VM) error {
		seeds.set(nil)
		return errors.New("the upload timed out")
	})
	rests := func(change *audit.Change) bool { return len(change.Rested) > 0 }
	forgetful.forgets.Store(&rests)
	if _, err := writer.Wake(t.Context(), vm.Key); err != nil {
		t.Fatal(err)
	}
	w.standbyAgain(t, writer, vm)
	if forgetful.forgets.Load() != nil {
		t.Error("no response was lost")
	}
}

// TestNextWriterKeepsUnstartedVMs ends a writer while it seeds a VM to wake. The VM's
// NodeClaim vanishes, so that the next writer cannot complete the wake, and the VM is a
// standby VM again.
func TestNextWriterKeepsUnstartedVMs(t *testing.T) {
	t.Parallel()
	seeds := &seeder{}
	w := newWorldWith(t, func(config *scaler.Config) { config.Guests = seeds })
	dying, stop := w.runUntil(t, nil)
	vm := ensure(t, dying, standby(first))[0]
	phases(t, dying, scaler.PhaseMade)
	w.underWay(t)
	reached := make(chan struct{})
	seeds.set(func(ctx context.Context, _ []fleet.VM) error {
		close(reached)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if _, err := dying.Wake(t.Context(), vm.Key); err != nil {
		t.Fatal(err)
	}
	<-reached
	stop()
	w.underWay(t, first)

	seeds.set(func(context.Context, []fleet.VM) error {
		seeds.set(nil)
		return &unclaimed{vm.Key}
	})
	writer := w.run(t, nil)
	phases(t, writer, scaler.PhaseFailed)
	writer.Remove(vm.Key)
	w.standbyAgain(t, writer, vm)
}

// TestFailedStartRemovesTheVM makes the start of a standby VM fail: it may have run, so it
// does not become a standby VM again, and is removed with its NodeClaim.
func TestFailedStartRemovesTheVM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writer := w.run(t, nil)
	vm := ensure(t, writer, standby(first))[0]
	phases(t, writer, scaler.PhaseMade)
	w.underWay(t)
	w.sim.AddFault(pvesim.Fault{Method: http.MethodPost, Path: "/status/start$", Status: http.StatusInternalServerError, Reason: "no"})
	if _, err := writer.Wake(t.Context(), vm.Key); err != nil {
		t.Fatal(err)
	}
	phases(t, writer, scaler.PhaseFailed)
	writer.Remove(vm.Key)
	phases(t, writer)
	w.exist(t)
	w.underWay(t)
}

// TestRestedAfterAnEngineFailed makes a wake fail in the engine, which leaves the VM in the
// state as started, and its retry before the engine runs. The VM is a standby VM again, and
// its host can be planned completely.
func TestRestedAfterAnEngineFailed(t *testing.T) {
	t.Parallel()
	var wakes atomic.Int32
	seeds := &seeder{seed: func(context.Context, []fleet.VM) error {
		if wakes.Add(1) == 2 {
			return errors.New("the storage is full")
		}
		return nil
	}}
	w := newWorldWith(t, func(config *scaler.Config) { config.Guests = seeds })
	writer := w.run(t, nil)
	vms := ensure(t, writer, standby(first), on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t)
	wakes.Store(0) // without the seed of the node
	w.sim.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", Times: 1, Status: http.StatusInternalServerError, Reason: "no"})
	if _, err := writer.Wake(t.Context(), vms[0].Key); err != nil {
		t.Fatal(err)
	}
	await(t, writer, func([]scaler.VMState) bool { return wakes.Load() >= 2 })
	w.standbyAgain(t, writer, vms[0])
}

// TestRenamedVMPreventsNoOtherWake renames one of two standby VMs after the request to wake both:
// only that one fails, and it is a standby VM again.
func TestRenamedVMPreventsNoOtherWake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	paused := &atomic.Bool{}
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Paused = paused.Load })
	vms := ensure(t, writer, standby(first), standby(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t)

	paused.Store(true)
	if _, err := writer.Wake(t.Context(), vms[0].Key, vms[1].Key); err != nil {
		t.Fatal(err)
	}
	if _, err := w.sim.Shell(fmt.Sprintf("qm set %d --name accounting", vms[0].VMID)); err != nil {
		t.Fatal(err)
	}
	paused.Store(false)
	await(t, writer, func(states []scaler.VMState) bool {
		return states[0].VM.Standby && states[0].Phase == scaler.PhaseMade && states[1].Phase == scaler.PhaseMade && !states[1].VM.Standby
	})
	w.runs(t, vms[0], false)
	w.runs(t, vms[1], true)
	w.underWay(t)
}
