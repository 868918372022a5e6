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

	"github.com/google/go-cmp/cmp"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// standby returns a request for a standby VM.
func standby(host topology.HostID) scaler.Request {
	r := on(host)
	r.Standby = true
	return r
}

// runs checks that a VM runs and starts with its host, or that it does neither.
func (w *world) runs(t *testing.T, vm fleet.VM, want bool) {
	t.Helper()
	guest, exists := w.sim.Guest(int(vm.VMID))
	if !exists || guest.Running != want || (guest.Config["onboot"] == "1") != want {
		t.Errorf("%s exists: %t, runs: %t, onboot %q; want it to run: %t", vm.Name, exists, guest.Running, guest.Config["onboot"], want)
	}
}

// starts returns how often a VM was started.
func (w *world) starts(vm fleet.VM) int {
	count := 0
	for _, call := range w.sim.Calls() {
		if call.Method == http.MethodPost && strings.HasSuffix(call.Path, fmt.Sprintf("/qemu/%d/status/start", vm.VMID)) {
			count++
		}
	}
	return count
}

// seedings records the VMs that were to be seeded.
type seedings struct {
	mu   sync.Mutex
	vms  []fleet.VM
	fail error
}

func (s *seedings) Seed(_ context.Context, vms []fleet.VM) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vms = append(s.vms, vms...)
	return nil, s.fail
}

func (*seedings) ShutDown(context.Context, []fleet.VM) ([]string, error) { return nil, nil }

// taken returns the VMs that were seeded since the last call, by name, and whether each
// is a standby VM.
func (s *seedings) taken() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]bool{}
	for _, vm := range s.vms {
		found[vm.Name] = vm.Standby
	}
	s.vms = nil
	return found
}

// TestWriterWakes creates standby VMs, which do not start, and wakes one of them: it
// starts, nothing is cloned, and its file changes by one line.
func TestWriterWakes(t *testing.T) {
	t.Parallel()
	seeds := &seedings{}
	w := newWorldWith(t, func(config *scaler.Config) { config.Guests = seeds })
	writer := w.run(t, nil)
	vms := ensure(t, writer, standby(first), standby(first), on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade)
	w.runs(t, vms[0], false)
	w.runs(t, vms[1], false)
	w.runs(t, vms[2], true)
	if pods, _ := scaler.Places(writer.VMs()); len(pods) != 3 {
		t.Errorf("%d VMs hold resources, want 3", len(pods))
	}
	want := map[string]bool{vms[0].Name: true, vms[1].Name: true, vms[2].Name: false}
	if diff := cmp.Diff(want, seeds.taken()); diff != "" {
		t.Errorf("seeds of new VMs (-want +got):\n%s", diff)
	}

	w.sim.ResetCalls()
	woken, err := writer.Wake(t.Context(), vms[0].Key)
	if err != nil || len(woken) != 1 || woken[0].Standby || woken[0].Key != vms[0].Key {
		t.Fatalf("woke %v, %v", woken, err)
	}
	writer.Begun(t.Context(), vms[0].Key)
	states := phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade)
	if states[0].VM.Standby || !states[1].VM.Standby {
		t.Errorf("standby: %t and %t, want false and true", states[0].VM.Standby, states[1].VM.Standby)
	}
	w.runs(t, vms[0], true)
	w.runs(t, vms[1], false)
	if w.called(http.MethodPost, "/clone") || w.starts(vms[0]) != 1 {
		t.Errorf("cloned: %t, started %d times", w.called(http.MethodPost, "/clone"), w.starts(vms[0]))
	}
	if diff := cmp.Diff(map[string]bool{vms[0].Name: false}, seeds.taken()); diff != "" {
		t.Errorf("seeds of woken VMs (-want +got):\n%s", diff)
	}
	w.underWay(t)
	if diff := cmp.Diff([]audit.Kind{audit.KindScaleUp, audit.KindWake}, w.kinds(t)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}

	for key, says := range map[fleet.Key]string{
		"unknown":  "no VM of the fleet has key",
		vms[0].Key: "is not a standby VM",
		vms[2].Key: "is not a standby VM",
	} {
		if _, err := writer.Wake(t.Context(), vms[1].Key, key); !as[*scaler.NotStandbyError](err) || !strings.Contains(err.Error(), says) {
			t.Errorf("waking %s: got %v", key, err)
		}
	}
	if states := writer.VMs(); !states[1].VM.Standby {
		t.Error("a refused request woke one of its VMs")
	}
	writer.Remove(vms[0].Key, vms[1].Key)
	phases(t, writer, scaler.PhaseMade)
	w.exist(t, int(vms[2].VMID))
}

// TestWriterWakesBeforeItRefills requests a wake and new VMs together: the wake is the
// first change, and a new VM of its host comes afterwards.
func TestWriterWakesBeforeItRefills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	paused := &atomic.Bool{}
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Paused = paused.Load })
	vm := ensure(t, writer, standby(first))[0]
	phases(t, writer, scaler.PhaseMade)
	paused.Store(true)
	if _, err := writer.Wake(t.Context(), vm.Key); err != nil {
		t.Fatal(err)
	}
	ensure(t, writer, standby(first))
	paused.Store(false)
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t)
	if diff := cmp.Diff([]audit.Kind{audit.KindScaleUp, audit.KindWake, audit.KindScaleUp}, w.kinds(t)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

// TestWriterWithdrawsAWake removes a woken VM before its wake begins: it is a standby VM
// again, and can be woken later.
func TestWriterWithdrawsAWake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	paused := &atomic.Bool{}
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Paused = paused.Load })
	vm := ensure(t, writer, standby(first))[0]
	phases(t, writer, scaler.PhaseMade)
	paused.Store(true)
	if _, err := writer.Wake(t.Context(), vm.Key); err != nil {
		t.Fatal(err)
	}
	writer.Remove(vm.Key)
	paused.Store(false)
	if states := phases(t, writer, scaler.PhaseMade); !states[0].VM.Standby {
		t.Error("it is not a standby VM any more")
	}
	w.runs(t, vm, false)
	if _, err := writer.Wake(t.Context(), vm.Key); err != nil {
		t.Fatal(err)
	}
	await(t, writer, func(states []scaler.VMState) bool {
		return states[0].Phase == scaler.PhaseMade && !states[0].VM.Standby
	})
	w.runs(t, vm, true)
}

// TestWriterRefusesAVMStartedByHand starts a standby VM by hand: it has no join data, so
// it is not woken, and no repair stops it.
func TestWriterRefusesAVMStartedByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writer := w.run(t, nil)
	vm := ensure(t, writer, standby(first))[0]
	phases(t, writer, scaler.PhaseMade)
	guest, _ := w.sim.Guest(int(vm.VMID))
	if err := w.sim.PutGuest(pvesim.Guest{VMID: guest.VMID, Host: guest.Host, Config: guest.Config, Running: true}); err != nil {
		t.Fatal(err)
	}
	_, err := writer.Wake(t.Context(), vm.Key)
	if hand := new(scaler.StartedByHandError); !errors.As(err, &hand) || hand.VMID != vm.VMID {
		t.Errorf("got %v", err)
	}
	if states := writer.VMs(); !states[0].VM.Standby || states[0].Phase != scaler.PhaseMade {
		t.Errorf("the VM is %+v", states[0])
	}
	// Other changes of its host do not stop it.
	ensure(t, writer, on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	if guest, _ := w.sim.Guest(int(vm.VMID)); !guest.Running {
		t.Error("it was stopped")
	}
}

// TestWriterRecoversAWake ends the writer at each step of a wake. The next writer completes
// the wake if it was recorded. Another standby VM of the host stays stopped.
func TestWriterRecoversAWake(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"before its configuration is read":  {Method: http.MethodGet, Path: "/qemu/[0-9]+/config$"},
		"before its configuration changes":  {Method: http.MethodPut, Path: "/qemu/[0-9]+/config$"},
		"after its configuration changed":   {Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", After: true},
		"before it is started":              {Method: http.MethodPost, Path: "/status/start$"},
		"after it is started":               {Method: http.MethodPost, Path: "/status/start$", After: true},
		"while the start's task is awaited": {Method: http.MethodGet, Path: "/tasks/[^/]+/status$"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			dying, stop := w.runUntil(t, nil)
			vms := ensure(t, dying, standby(first), standby(first))
			phases(t, dying, scaler.PhaseMade, scaler.PhaseMade)
			w.underWay(t)
			w.sim.ResetCalls()

			hit := make(chan struct{}, 8)
			fault.Disconnect = true
			fault.Hit = func(context.Context, pvesim.Call) {
				select {
				case hit <- struct{}{}:
				default:
				}
			}
			remove := w.sim.AddFault(fault)
			if _, err := dying.Wake(t.Context(), vms[0].Key); err != nil {
				t.Fatal(err)
			}
			await(t, dying, func(states []scaler.VMState) bool {
				return len(hit) > 0 || states[0].Phase == scaler.PhaseFailed || states[0].Phase == scaler.PhaseMade
			})
			stop()
			remove()
			begun := slices.Contains(w.kinds(t), audit.KindWake)
			made := w.run(t, nil)
			states := await(t, made, func(states []scaler.VMState) bool {
				return len(states) == 2 && states[0].Phase == scaler.PhaseMade && states[1].Phase == scaler.PhaseMade
			})
			if states[0].VM.Standby == begun || !states[1].VM.Standby {
				t.Errorf("standby: %t and %t after a wake that had begun: %t", states[0].VM.Standby, states[1].VM.Standby, begun)
			}
			w.runs(t, vms[0], begun)
			w.runs(t, vms[1], false)
			if n := w.starts(vms[0]); n > 2 { // a call that the fault prevented is repeated
				t.Errorf("called start %d times", n)
			}
			w.exist(t, int(vms[0].VMID), int(vms[1].VMID))
			w.underWay(t)
		})
	}
}

// TestWriterWakesNoMovedVM wakes two standby VMs after another client moved one of them: no
// plan can start that one, so it fails, and the other one is woken. The withdrawn VM is a
// standby VM again.
func TestWriterWakesNoMovedVM(t *testing.T) {
	t.Parallel()
	moves, stays := vm(pve1, 2000), vm(pve1, 2001)
	moves.Standby, stays.Standby = true, true
	there := snapshot(stopped(guestOf(moves)), stopped(guestOf(stays)))
	writer := scaler.NewWriter(newScaler(t, nil, moves, stays), scaler.WriterConfig{
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return there, nil },
	})
	writer.NextBatch(t)
	if _, err := writer.Wake(t.Context(), moves.Key, stays.Key); err != nil {
		t.Fatal(err)
	}
	there = snapshot(stopped(guestOf(stays)))
	there.Hosts[1].Guests = []topology.Guest{stopped(guestOf(moves))}
	if woken := writer.NextBatch(t).Wakes(); len(woken) != 1 || woken[0] != stays.Key {
		t.Errorf("wakes %v, want only %s", woken, stays.Name)
	}
	state, _ := writer.VM(moves.Key)
	if moved := new(scaler.MovedError); state.Phase != scaler.PhaseFailed || !errors.As(state.Err, &moved) || moved.VM != moves.Name || moved.Now != pve2 {
		t.Errorf("phase %s, error %v: want that %s is now on %s", state.Phase, state.Err, moves.Name, pve2)
	}
	writer.Remove(moves.Key)
	if state, _ := writer.VM(moves.Key); !state.VM.Standby || state.Phase != scaler.PhaseMade {
		t.Errorf("after its removal, it is %+v", state)
	}
}

// hostWaits records on which hosts a wake would wait, at each step of a change.
type hostWaits struct {
	writer atomic.Pointer[scaler.Writer]
	mu     sync.Mutex
	seen   map[string]string
}

func (h *hostWaits) note(step string) {
	writer := h.writer.Load()
	if writer == nil {
		return
	}
	busy, removing := writer.BusyHosts()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[step] = fmt.Sprintf("busy %v, removing %v", busy, removing)
}

// taken returns what was recorded since the last call.
func (h *hostWaits) taken() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	h.seen = map[string]string{}
	return seen
}

func (h *hostWaits) Seed(context.Context, []fleet.VM) ([]string, error) {
	h.note("seed")
	return nil, nil
}

func (h *hostWaits) ShutDown(context.Context, []fleet.VM) ([]string, error) {
	h.note("shut down")
	return nil, nil
}

// TestBusyHosts checks on which hosts a wake would wait while VMs are created, woken and
// removed: not on a host that only starts standby VMs.
func TestBusyHosts(t *testing.T) {
	t.Parallel()
	waits := &hostWaits{seen: map[string]string{}}
	w := newWorldWith(t, func(config *scaler.Config) {
		config.Guests = waits
		config.Progress = func(_ topology.HostID, message string) {
			if message == "planning" {
				waits.note("plan")
			}
		}
	})
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Gather = time.Millisecond })
	waits.writer.Store(writer)
	check := func(what string, want map[string]string) {
		t.Helper()
		w.underWay(t)
		if diff := cmp.Diff(want, waits.taken()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if busy, removing := writer.BusyHosts(); len(busy)+len(removing) > 0 {
			t.Errorf("after %s, busy %v, removing %v", what, busy, removing)
		}
	}
	vms := ensure(t, writer, standby(first), on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	busy := fmt.Sprintf("busy [%s], removing []", first)
	check("a creation", map[string]string{"plan": busy, "seed": busy})

	if _, err := writer.Wake(t.Context(), vms[0].Key); err != nil {
		t.Fatal(err)
	}
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	const none = "busy [], removing []"
	check("a wake", map[string]string{"plan": none, "seed": none})

	writer.Remove(vms[1].Key)
	phases(t, writer, scaler.PhaseMade)
	removing := fmt.Sprintf("busy [], removing [%s]", first)
	check("a removal", map[string]string{"plan": removing, "shut down": removing})
}

// TestFailedHostsAreBusy checks that a wake would wait on a host whose last change failed,
// until the next attempt.
func TestFailedHostsAreBusy(t *testing.T) {
	t.Parallel()
	writer, made, now := resting(t, guestOf)
	writer.Remove(made.Key)
	now.Step(time.Second)
	batch := writer.NextBatch(t)
	writer.Start(batch)
	writer.Finish(t.Context(), batch, pve1, errors.New("the host went down"))
	if busy, removing := writer.BusyHosts(); !slices.Equal(busy, []topology.HostID{pve1}) || len(removing) > 0 {
		t.Errorf("after a failure, busy %v, removing %v, want %s busy", busy, removing, pve1)
	}
	now.Step(time.Hour)
	if busy, removing := writer.BusyHosts(); len(busy)+len(removing) > 0 {
		t.Errorf("an hour later, busy %v, removing %v", busy, removing)
	}
}

// TestRecordedVMsWereWoken checks that the history returns a woken VM as no longer on
// standby, so that an adoption after the loss of its file does not make it a standby VM,
// unless its wake was given up.
func TestRecordedVMsWereWoken(t *testing.T) {
	t.Parallel()
	woken, waits := vm(pve1, 2000), vm(pve1, 2001)
	woken.Standby, waits.Standby = true, true
	started := woken
	started.Standby = false
	recorded := scaler.RecordedVMs([]audit.Entry{
		{Change: audit.Change{Added: []fleet.VM{woken, waits}}},
		{Change: audit.Change{Woken: []fleet.VM{started, waits}}},
		{Change: audit.Change{Rested: []fleet.VM{waits}}},
	})
	if recorded[woken.Key].Standby || !recorded[waits.Key].Standby {
		t.Errorf("standby: %t and %t, want false and true", recorded[woken.Key].Standby, recorded[waits.Key].Standby)
	}
}

// TestFinishedStandbyVMsStay makes an apply on a host fail: of its new standby VMs, the
// one that exists is made, and those that are being cloned or do not exist have failed.
func TestFinishedStandbyVMsStay(t *testing.T) {
	t.Parallel()
	there := &live{snapshot: snapshot()}
	s := newScaler(t, func(c *scaler.Config) { c.Regions[0].Live = there })
	writer := scaler.NewWriter(s, scaler.WriterConfig{Snapshot: func(context.Context) (*topology.Snapshot, error) { return snapshot(), nil }})
	writer.NextBatch(t)
	asked := request(pve1)
	asked.Standby = true
	vms := ensure(t, writer, asked, asked, asked, request(pve1))
	batch := writer.NextBatch(t)
	writer.Start(batch)
	cloning := stopped(guestOf(vms[1]))
	cloning.Lock = "clone"
	there.snapshot = snapshot(stopped(guestOf(vms[0])), cloning, stopped(guestOf(vms[3])))
	writer.Finish(t.Context(), batch, pve1, errors.New("a clone failed"))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseFailed, scaler.PhaseFailed, scaler.PhaseFailed)
}

// TestWriterRefusesToWakeWhatRunsMeanwhile starts a standby VM by hand between the
// request to wake it and the apply: it does not count as woken, and no retry gives it a
// seed, because it has booted without one. Nothing stops it, not even the deletion of its
// NodeClaim or a restart: it is a standby VM again. Once it is stopped, it can be woken.
func TestWriterRefusesToWakeWhatRunsMeanwhile(t *testing.T) {
	t.Parallel()
	seeds := &seedings{}
	w := newWorldWith(t, func(config *scaler.Config) { config.Guests = seeds })
	paused := &atomic.Bool{}
	writer, stop := w.runUntil(t, func(config *scaler.WriterConfig) { config.Paused = paused.Load })
	vm := ensure(t, writer, standby(first))[0]
	phases(t, writer, scaler.PhaseMade)
	w.underWay(t)
	seeds.taken()

	paused.Store(true)
	if _, err := writer.Wake(t.Context(), vm.Key); err != nil {
		t.Fatal(err)
	}
	guest, _ := w.sim.Guest(int(vm.VMID))
	guestRuns := func(runs bool) {
		if err := w.sim.PutGuest(pvesim.Guest{VMID: guest.VMID, Host: guest.Host, Config: guest.Config, Running: runs}); err != nil {
			t.Fatal(err)
		}
	}
	guestRuns(true)
	paused.Store(false)
	if states := phases(t, writer, scaler.PhaseFailed); !as[*scaler.StartedByHandError](states[0].Err) {
		t.Errorf("it failed with %v", states[0].Err)
	}
	writer.Remove(vm.Key)
	if states := phases(t, writer, scaler.PhaseMade); !states[0].VM.Standby || len(seeds.taken()) > 0 {
		t.Errorf("it is %+v", states[0])
	}
	w.underWay(t)
	stop()
	next := w.run(t, nil)
	if states := phases(t, next, scaler.PhaseMade); !states[0].VM.Standby {
		t.Error("after a restart, it counts as a node")
	}
	if guest, exists := w.sim.Guest(int(vm.VMID)); !exists || !guest.Running || guest.Config["onboot"] == "1" {
		t.Errorf("it exists: %t, runs: %t, onboot %q", exists, guest.Running, guest.Config["onboot"])
	}

	guestRuns(false)
	await(t, next, func([]scaler.VMState) bool {
		_, err := next.Wake(t.Context(), vm.Key)
		return err == nil
	})
	await(t, next, func(states []scaler.VMState) bool {
		return states[0].Phase == scaler.PhaseMade && !states[0].VM.Standby
	})
	w.runs(t, vm, true)
}

// TestNodesNeverBecomeStandby reads files that declare running VMs as standby: a VM that
// had joined, or was woken, is an ordinary VM; a VM that a person started is not.
func TestNodesNeverBecomeStandby(t *testing.T) {
	t.Parallel()
	node, started, waits := vm(pve1, 2000), vm(pve1, 2001), vm(pve1, 2002)
	node.Standby, started.Standby, waits.Standby = true, true, true
	s := newScaler(t, nil, node, started, waits)
	writer := scaler.NewWriter(s, scaler.WriterConfig{
		Snapshot: func(context.Context) (*topology.Snapshot, error) {
			return snapshot(guestOf(node), guestOf(started), stopped(guestOf(waits))), nil
		},
		Joined: func(_ context.Context, vm fleet.VM) (bool, error) { return vm.Key == node.Key, nil },
	})
	writer.NextBatch(t)
	for i, state := range phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade) {
		if want := i > 0; state.VM.Standby != want {
			t.Errorf("%s: standby %t, want %t", state.VM.Name, state.VM.Standby, want)
		}
	}
}

// TestWakesDespiteAnEditedFile removes standby = true from a standby VM's file by hand: the
// VM is still a standby VM, and a wake starts it.
func TestWakesDespiteAnEditedFile(t *testing.T) {
	t.Parallel()
	waits := vm(pve1, 2000)
	waits.Standby = true
	var config scaler.Config
	s := newScaler(t, func(c *scaler.Config) { config = *c }, waits)
	writer := scaler.NewWriter(s, scaler.WriterConfig{
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return snapshot(stopped(guestOf(waits))), nil },
	})
	writer.NextBatch(t)
	edited := waits
	edited.Standby = false
	writeFleet(t, config, edited)
	writer.NextBatch(t)
	if states := writer.VMs(); !states[0].VM.Standby {
		t.Error("it is not a standby VM any more")
	}
	if _, err := writer.Wake(t.Context(), waits.Key); err != nil {
		t.Fatal(err)
	}
	if woken := writer.NextBatch(t).Wakes(); len(woken) != 1 {
		t.Errorf("wakes %v, want the VM", woken)
	}
}

// TestStandbyVMsHaveLostNoNode removes standby VMs: only one that runs counts as a Node
// that may have been lost.
func TestStandbyVMsHaveLostNoNode(t *testing.T) {
	t.Parallel()
	waits, runs, node := vm(pve1, 2000), vm(pve1, 2001), vm(pve1, 2002)
	waits.Standby, runs.Standby = true, true
	s := newScaler(t, func(c *scaler.Config) {
		c.Drained = allDrained
		c.NodeExists = func(context.Context, string) (bool, error) { return false, nil }
	})
	change := &scaler.Change{
		After: fleet.Fleet{ClusterID: clusterID}, Removed: []fleet.VM{waits, runs, node},
		Snapshot: snapshot(stopped(guestOf(waits)), guestOf(runs), guestOf(node)),
	}
	v, err := s.Look(t.Context(), change, pve1)
	if err != nil {
		t.Fatal(err)
	}
	s.CheckNodes(t.Context(), v)
	plan := &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{remove(waits), remove(runs), remove(node)}}
	gone := map[fleet.VMID]bool{}
	for _, target := range v.Intent(plan, nil).Delete {
		gone[target.VMID] = target.Gone
	}
	if diff := cmp.Diff(map[fleet.VMID]bool{2000: false, 2001: true, 2002: true}, gone); diff != "" {
		t.Errorf("gone (-want +got):\n%s", diff)
	}
}

// TestStartsNoVMThatLeaves plans a host with two interrupted wakes: the VM whose removal
// was requested meanwhile is not started.
func TestStartsNoVMThatLeaves(t *testing.T) {
	t.Parallel()
	stays, leaves := vm(pve1, 2000), vm(pve1, 2001)
	change := (&scaler.Change{
		After:    fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{stays, leaves}},
		Snapshot: snapshot(stopped(guestOf(stays)), stopped(guestOf(leaves))),
	}).Waking(pve1, stays, leaves).Leaving(leaves)
	v, err := newScaler(t, nil).Look(t.Context(), change, pve1)
	if err != nil {
		t.Fatal(err)
	}
	plan := &tfjson.Plan{}
	for _, vm := range []fleet.VM{stays, leaves} {
		changed := keep(vm)
		changed.Change.Actions = tfjson.Actions{tfjson.ActionUpdate}
		plan.ResourceChanges = append(plan.ResourceChanges, changed)
	}
	if woken := targets(t, v.Intent(plan, nil).Wake); !slices.Equal(woken, []fleet.VMID{2000}) {
		t.Errorf("starts %v, want 2000", woken)
	}
}

// TestStandbyVMsAreNotHalfMade checks stopped VMs on a host with interrupted work: a
// standby VM is complete, unless the interrupted change was creating it.
func TestStandbyVMsAreNotHalfMade(t *testing.T) {
	t.Parallel()
	complete, making, node := vm(pve1, 2000), vm(pve1, 2001), vm(pve1, 2002)
	complete.Standby, making.Standby = true, true
	vms := []fleet.VM{complete, making, node}
	change := &scaler.Change{
		After:    fleet.Fleet{ClusterID: clusterID, VMs: vms},
		Snapshot: snapshot(stopped(guestOf(complete)), stopped(guestOf(making)), stopped(guestOf(node))),
	}
	v, err := newScaler(t, nil).Look(t.Context(), change.Begun(pve1).Making(pve1, making), pve1)
	if err != nil {
		t.Fatal(err)
	}
	update, imported := &tfjson.Plan{}, &tfjson.Plan{}
	for _, vm := range vms {
		changed := keep(vm)
		changed.Change.Actions = tfjson.Actions{tfjson.ActionUpdate}
		update.ResourceChanges = append(update.ResourceChanges, changed)
		imported.ResourceChanges = append(imported.ResourceChanges, create(vm))
	}
	if diff := cmp.Diff([]string{generator.Address(&making), generator.Address(&node)}, v.Stale(update)); diff != "" {
		t.Errorf("stale entries (-want +got):\n%s", diff)
	}
	incomplete := map[fleet.VMID]bool{}
	for _, target := range v.Intent(imported, vms).Import {
		incomplete[target.VMID] = target.Incomplete
	}
	if diff := cmp.Diff(map[fleet.VMID]bool{2000: false, 2001: true, 2002: true}, incomplete); diff != "" {
		t.Errorf("incomplete (-want +got):\n%s", diff)
	}
}

// TestUndoRefusesAWake checks that a wake cannot be reverted: the VM has started.
func TestUndoRefusesAWake(t *testing.T) {
	t.Parallel()
	woken := vm(pve1, 2000)
	s := newScaler(t, nil, woken)
	wake := audit.Change{ID: "the-wake", Kind: audit.KindWake, Woken: []fleet.VM{woken}}
	_, err := s.ProposeUndo(t.Context(), snapshot(guestOf(woken)), &wake, nil)
	if !as[*scaler.UndoError](err) || !strings.Contains(err.Error(), "undoing the-wake: its VMs have started") || !strings.Contains(err.Error(), "remove their nodes instead") {
		t.Errorf("got %v", err)
	}
}

// TestWokenVMsOutliveARevert reverts the commit of a wake: the file declares standby
// again, but the VM, which has no Node yet, remains an ordinary VM, even for the next
// writer.
func TestWokenVMsOutliveARevert(t *testing.T) {
	t.Parallel()
	var config scaler.Config
	w := newWorldWith(t, func(c *scaler.Config) { config = *c })
	writer, stop := w.runUntil(t, nil)
	vms := ensure(t, writer, standby(first))
	phases(t, writer, scaler.PhaseMade)
	file := filepath.Join(config.Dir, string(first.Region), string(first.Host), "node-"+vms[0].Name+".tf")
	asStandby, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Wake(t.Context(), vms[0].Key); err != nil {
		t.Fatal(err)
	}
	phases(t, writer, scaler.PhaseMade)
	w.underWay(t)
	stop()

	if err := os.WriteFile(file, asStandby, 0o600); err != nil {
		t.Fatal(err)
	}
	w.sim.ResetCalls()
	again := w.run(t, nil)
	if states := phases(t, again, scaler.PhaseMade); states[0].VM.Standby {
		t.Error("a reverted commit made a standby VM of a node")
	}
	// The next change of the host plans with the VM as it is.
	ensure(t, again, on(first))
	phases(t, again, scaler.PhaseMade, scaler.PhaseMade)
	w.runs(t, vms[0], true)
	if n := w.starts(vms[0]); n != 0 {
		t.Errorf("started %d times more", n)
	}
}
