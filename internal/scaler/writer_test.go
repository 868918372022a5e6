package scaler_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// The hosts of testenv.
var (
	first  = topology.HostID{Region: testenv.Region, Host: "pve-1"} //nolint:gochecknoglobals // a constant
	second = topology.HostID{Region: testenv.Region, Host: "pve-2"} //nolint:gochecknoglobals // a constant
)

// on returns a request for a VM on a host of testenv.
func on(host topology.HostID) scaler.Request {
	r := request(host)
	r.Spec.Template = testenv.Template
	return r
}

// run runs a writer of the world until the test ends.
func (w *world) run(t *testing.T, change func(*scaler.WriterConfig)) *scaler.Writer {
	t.Helper()
	writer, stop := w.runUntil(t, change)
	t.Cleanup(stop)
	return writer
}

// runUntil runs a writer of the world until it is stopped.
func (w *world) runUntil(t *testing.T, change func(*scaler.WriterConfig)) (writer *scaler.Writer, stop func()) {
	t.Helper()
	config := scaler.WriterConfig{
		Snapshot: func(ctx context.Context) (*topology.Snapshot, error) { return w.client.Snapshot(ctx) },
		Poll:     time.Second,
	}
	if change != nil {
		change(&config)
	}
	writer = scaler.NewWriter(w.Scaler, config)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := writer.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return writer, func() {
		cancel()
		running.Wait()
	}
}

// phases waits until the VMs of the writer are in exactly these phases, in order, and
// returns them.
func phases(t *testing.T, writer *scaler.Writer, want ...scaler.Phase) []scaler.VMState {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		states := writer.VMs()
		var got []scaler.Phase
		for _, state := range states {
			got = append(got, state.Phase)
		}
		if slices.Equal(got, want) {
			return states
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("phases are %v, want %v: %+v", got, want, states)
		}
	}
}

func ensure(t *testing.T, writer *scaler.Writer, requests ...scaler.Request) []fleet.VM {
	t.Helper()
	vms, err := writer.Ensure(t.Context(), requests)
	if err != nil {
		t.Fatal(err)
	}
	return vms
}

func TestWriterMakesAndRemoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writer := w.run(t, nil)
	named := on(first)
	named.Key = "00112233445566778899aabbccddeeff"
	vms := ensure(t, writer, on(second), on(first), named)
	ended, end := context.WithCancel(t.Context())
	end()
	writer.Begun(ended, vms[0].Key)
	writer.Begun(t.Context(), vms[0].Key, vms[1].Key, named.Key, "unknown")
	for _, state := range writer.VMs() {
		if state.Phase == scaler.PhaseReserved {
			t.Errorf("%s is not begun", state.VM.Name)
		}
	}
	if again := ensure(t, writer, named); again[0].Key != named.Key || again[0].VMID != vms[2].VMID {
		t.Errorf("asked twice: %+v", again)
	}
	if pods, rest := scaler.Places(writer.VMs()); len(pods) != 3 || len(rest) != 0 {
		t.Errorf("%v take pods and %v do not right after Ensure, want 3 that do", ids(pods), ids(rest))
	}
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade)
	w.exist(t, int(vms[0].VMID), int(vms[1].VMID), int(vms[2].VMID))
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 1 || len(history[0].Change.Hosts) != 2 {
		t.Fatalf("history %+v (%v), want one change of two hosts", history, err)
	}

	writer.Remove(vms[0].Key, vms[2].Key, "unknown")
	phases(t, writer, scaler.PhaseMade)
	w.exist(t, int(vms[1].VMID))
	w.underWay(t)
}

// TestWriterGoesOnBesideASlowHost holds a clone on one host: the other host takes changes
// meanwhile, and a request for the first host waits and is not lost.
func TestWriterGoesOnBesideASlowHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reached, release := make(chan struct{}), make(chan struct{})
	w.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/clone$", Times: 1, Hit: func(ctx context.Context, _ pvesim.Call) {
		close(reached)
		select {
		case <-release:
		case <-ctx.Done():
		}
	}})
	writer := w.run(t, nil)
	slow := ensure(t, writer, on(first))[0]
	<-reached

	quick := ensure(t, writer, on(second))[0]
	waits := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMaking, scaler.PhaseMade, scaler.PhaseReserved)
	close(release)
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade)
	w.exist(t, int(slow.VMID), int(quick.VMID), int(waits.VMID))
	w.underWay(t)
	await(t, writer, func([]scaler.VMState) bool { return !writer.Busy() }) // the last outcome is written
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 3 {
		t.Errorf("%d changes (%v), want 3: nothing was taken for a crash's", len(history), err)
	}
	for _, entry := range history {
		if entry.Change.Kind != audit.KindScaleUp || entry.Outcome == nil {
			t.Errorf("change %s is %s, outcome %v", entry.Change.ID, entry.Change.Kind, entry.Outcome)
		}
	}
}

func TestWriterTellsOfFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sim.SetHostOnline("pve-1", false)
	var placed atomic.Bool
	writer := w.run(t, func(config *scaler.WriterConfig) {
		// The snapshot for the placement was taken before the host went offline.
		before, now := snapshotOf(t, w), config.Snapshot
		config.Snapshot = func(ctx context.Context) (*topology.Snapshot, error) {
			if placed.Load() {
				return now(ctx)
			}
			return before, nil
		}
	})
	vms := ensure(t, writer, on(first), on(second))
	states := phases(t, writer, scaler.PhaseFailed, scaler.PhaseMade)
	var down *scaler.HostDownError
	if !errors.As(states[0].Err, &down) {
		t.Errorf("failed with %v", states[0].Err)
	}
	w.exist(t, int(vms[1].VMID))
	// The failed VM has a file, so it still uses resources of its host.
	if pods, rest := scaler.Places(writer.VMs()); len(pods) != 1 || len(rest) != 1 {
		t.Errorf("%v take pods and %v do not, want one of each", ids(pods), ids(rest))
	}
	w.sim.SetHostOnline("pve-1", true)
	placed.Store(true) // in an old snapshot, the other VM would seem deleted after a while
	writer.Remove(vms[0].Key)
	phases(t, writer, scaler.PhaseMade)
}

// snapshotOf returns a snapshot with all hosts up.
func snapshotOf(t *testing.T, w *world) *topology.Snapshot {
	t.Helper()
	w.sim.SetHostOnline("pve-1", true)
	defer w.sim.SetHostOnline("pve-1", false)
	return w.snapshot(t)
}

// gate approves each plan in the name of by, or none if by is empty.
type gate struct {
	// mu guards the fields below.
	mu    sync.Mutex
	by    string
	asked int
	// manual is set if updates in place wait until by is set.
	manual bool
	// frozen are the directions that a freeze window blocks.
	frozen struct{ up, down bool }
}

func (g *gate) Freeze(up, down bool) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen.up && up || g.frozen.down && down {
		return `freeze window "release" until 2026-12-01T00:00:00Z`
	}
	return ""
}

func (g *gate) Asks(_ context.Context, plan *scaler.RootPlan) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.manual && plan.InPlace, nil
}

func (g *gate) Approver(context.Context, *scaler.RootPlan) (*audit.Approval, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	if g.by == "" {
		return nil, nil
	}
	return &audit.Approval{By: g.by}, nil
}

func (g *gate) Approved(context.Context, *scaler.RootPlan) (*audit.Approval, error) { return nil, nil }

func TestWriterHoldsWhatNeedsAPerson(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(config *scaler.Config) { config.Rules.Limits.PerChange.Creates = 0 })
	door := &gate{}
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Gate = door })
	held := ensure(t, writer, on(first))[0]
	states := phases(t, writer, scaler.PhasePendingApproval)
	var why *scaler.PendingApprovalError
	if !errors.As(states[0].Err, &why) || why.Verdict.Decision != guard.NeedsApproval {
		t.Errorf("held for %v", states[0].Err)
	}
	w.exist(t)
	writer.Remove(held.Key)
	phases(t, writer)

	door.mu.Lock()
	door.by = "alice"
	door.mu.Unlock()
	ensure(t, writer, on(first))
	phases(t, writer, scaler.PhaseMade)
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 1 || history[0].Change.Hosts[0].Approver != "alice" {
		t.Errorf("history %+v (%v)", history, err)
	}
}

// guests records the names of the VMs that get a seed and that are shut down.
type guests struct {
	// mu guards the fields below.
	mu           sync.Mutex
	seeded, shut []string
}

func (g *guests) Seed(_ context.Context, vms []fleet.VM) ([]string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var written []string
	for _, vm := range vms {
		g.seeded = append(g.seeded, vm.Name)
		written = append(written, "seeded "+vm.Name)
	}
	return written, nil
}

func (g *guests) ShutDown(_ context.Context, vms []fleet.VM) ([]string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, vm := range vms {
		g.shut = append(g.shut, vm.Name)
	}
	return nil, nil
}

func TestWriterPreparesGuests(t *testing.T) {
	t.Parallel()
	asked := &guests{}
	w := newWorldWith(t, func(config *scaler.Config) { config.Guests = asked })
	writer := w.run(t, nil)
	vm := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	writer.Remove(vm.Key)
	phases(t, writer)
	asked.mu.Lock()
	defer asked.mu.Unlock()
	if diff := cmp.Diff([][]string{{vm.Name}, {vm.Name}}, [][]string{asked.seeded, asked.shut}); diff != "" {
		t.Errorf("seeded and shut down (-want +got):\n%s", diff)
	}
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 2 || !slices.Contains(history[0].Outcome.Outside, "seeded "+vm.Name) {
		t.Errorf("history %+v (%v)", history, err)
	}
}

// TestWriterTakesOver starts a second writer after the first one stopped in the middle of
// a change. It checks that the VMs of the change are created once, and that their VMIDs
// are not assigned again.
func TestWriterTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dying, stop := w.runUntil(t, nil)
	kept := ensure(t, dying, on(first))[0]
	phases(t, dying, scaler.PhaseMade)

	w.sim.SetDelays(pvesim.Delays{Clone: 2 * time.Second})
	cut := ensure(t, dying, on(second))[0]
	phases(t, dying, scaler.PhaseMade, scaler.PhaseMaking)
	stop()

	after := w.run(t, nil)
	states := phases(t, after, scaler.PhaseMade, scaler.PhaseMade)
	if states[0].VM.Key != kept.Key || states[1].VM.Key != cut.Key {
		t.Errorf("states %+v", states)
	}
	w.exist(t, int(kept.VMID), int(cut.VMID))
	if next := ensure(t, after, on(second))[0]; next.VMID <= cut.VMID {
		t.Errorf("number %d was given out after %d", next.VMID, cut.VMID)
	}
	phases(t, after, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade)
}

func TestWriterWaitsWhileNodesAreInUse(t *testing.T) {
	t.Parallel()
	var drained sync.Map
	w := newWorldWith(t, func(config *scaler.Config) {
		config.Drained = func(_ context.Context, node string) error {
			if _, ok := drained.Load(node); !ok {
				return errors.New(node + " runs pods")
			}
			return nil
		}
	})
	writer := w.run(t, nil)
	vm := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	writer.Remove(vm.Key)
	states := phases(t, writer, scaler.PhaseRemoving)
	for range 200 {
		if states = writer.VMs(); states[0].Err != nil {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	if states[0].Err == nil || !strings.Contains(states[0].Err.Error(), "runs pods") {
		t.Errorf("waits for %v", states[0].Err)
	}
	w.exist(t, int(vm.VMID))
	drained.Store(vm.Name, true)
	phases(t, writer)
	w.exist(t)
}
