package scaler_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// TestApplyAsksAgainWhetherNodesAreDrained adds pods to a Node between the decision and
// the apply: its VM is not deleted until the Node is drained again.
func TestApplyAsksAgainWhetherNodesAreDrained(t *testing.T) {
	t.Parallel()
	var busy atomic.Bool
	asked := &guests{}
	w := newWorldWith(t, func(config *scaler.Config) {
		config.Guests = asked
		config.Drained = func(_ context.Context, node string) error {
			if busy.Load() {
				return errors.New(node + " runs pods")
			}
			return nil
		}
	})
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), on(first)), approveAll); err != nil {
		t.Fatal(err)
	}
	w.exist(t, 2000)

	change, err := w.ProposeRemoval(t.Context(), w.snapshot(t), []string{"workers-2000"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Apply(t.Context(), change, func(plans []scaler.RootPlan) (string, error) {
		if plans[0].Verdict.Decision != guard.Allow {
			t.Errorf("the plan is not allowed: %s", plans[0].Verdict)
		}
		busy.Store(true)
		return "", nil
	})
	var refused *scaler.NotDrainedError
	if !errors.As(err, &refused) || refused.VM != "workers-2000" || refused.Reason != "workers-2000 runs pods" {
		t.Errorf("got %v", err)
	}
	w.exist(t, 2000)
	if guest, _ := w.sim.Guest(2000); !guest.Running || len(asked.shut) > 0 {
		t.Errorf("it runs: %t, shut down: %v", guest.Running, asked.shut)
	}

	busy.Store(false)
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatal(err)
	}
	w.exist(t)
}

// TestApplyAsksAgainWhichVMItIs renames a VM in Proxmox between the decision and the apply
// of its removal: state and Proxmox identify different VMs, so no VM is removed.
func TestApplyAsksAgainWhichVMItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), on(first)), approveAll); err != nil {
		t.Fatal(err)
	}
	change, err := w.ProposeRemoval(t.Context(), w.snapshot(t), []string{"workers-2000"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Apply(t.Context(), change, func([]scaler.RootPlan) (string, error) {
		_, err := w.sim.Shell("qm set 2000 --name accounting")
		return "", err
	})
	var disagree *scaler.DisagreeError
	if !errors.As(err, &disagree) || disagree.Attribute != "name" || disagree.Live != "accounting" {
		t.Errorf("got %v, want the names compared", err)
	}
	w.exist(t, 2000)
	if guest, _ := w.sim.Guest(2000); !guest.Running {
		t.Error("it was shut down")
	}
}

// TestStillUpdatable checks VMs right before they change in place.
func TestStillUpdatable(t *testing.T) {
	t.Parallel()
	ours := vm(pve1, 2000)
	elsewhere := snapshot()
	elsewhere.Hosts[1].Online, elsewhere.Hosts[1].Problem = false, "is offline: start it"
	elsewhere.Hosts[1].Guests = []topology.Guest{{VMID: 2000, Name: ours.Name, Kind: topology.GuestVM}}
	for _, tt := range []struct {
		name string
		now  *topology.Snapshot
		want func(error) bool
	}{
		{"as it was", snapshot(guestOf(ours)), func(err error) bool { return err == nil }},
		{"gone", snapshot(), as[*scaler.VanishedError]},
		{"another guest", snapshot(stranger(2000)), as[*scaler.VanishedError]},
		{"of another cluster", snapshot(ofAnother(guestOf(ours))), as[*scaler.VanishedError]},
		{"marker lost", snapshot(unmarked(guestOf(ours))), as[*scaler.MarkerLostError]},
		{"moved to a host that cannot be read", elsewhere, as[*scaler.HostDownError]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			after := fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{ours}}
			targets := []guard.Target{{Address: generator.Address(&ours), Key: ours.Key, VMID: 2000}, {Address: "module.not-ours", VMID: 2009}}
			err := newScaler(t, nil).StillUpdatable(t.Context(), &scaler.Change{After: after, Snapshot: tt.now}, pve1, targets)
			if !tt.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// meddler is a gate that approves everything, and runs a function between the plan and the
// apply of an update in place.
type meddler struct{ meddle func() }

func (m meddler) Freeze(bool, bool) string { return "" }

func (m meddler) Asks(_ context.Context, plan *scaler.RootPlan) (bool, error) {
	if plan.InPlace {
		m.meddle()
	}
	return false, nil
}

func (m meddler) Approver(context.Context, *scaler.RootPlan) (*audit.Approval, error) {
	m.meddle()
	return &audit.Approval{By: "alice"}, nil
}

func (m meddler) Approved(context.Context, *scaler.RootPlan) (*audit.Approval, error) {
	return nil, nil
}

// TestChangesInPlaceLookAtTheVMAgain replaces a VM with another client's between the
// decision and the apply: nothing is written to it.
func TestChangesInPlaceLookAtTheVMAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var replace func()
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Gate = meddler{func() { replace() }} })
	vm := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	theirs := fleet.Marker{ClusterID: "other", Key: vm.Key}
	replace = sync.OnceFunc(func() {
		w.sim.ResetCalls()
		if err := w.sim.PutGuest(pvesim.Guest{VMID: int(vm.VMID), Host: "pve-1", Running: true, Config: map[string]string{
			"name": "accounting", "cores": "1", "memory": "512", "description": theirs.String(),
		}}); err != nil {
			t.Error(err)
		}
	})
	writer.Update(tagged(vm, "blue"))
	states := changed(t, writer, true)
	if !as[*scaler.VanishedError](states[0].ChangeErr) {
		t.Errorf("the change failed with %v", states[0].ChangeErr)
	}
	for _, call := range w.sim.Calls() {
		if call.Method != http.MethodGet && strings.Contains(call.Path, "/qemu/") {
			t.Errorf("it called %s %s", call.Method, call.Path)
		}
	}
}

// TestWriterForgetsWhatIsGivenUpWhilePlanned removes a VM while the gate is asked about its
// creation: the VM is neither recorded nor created.
func TestWriterForgetsWhatIsGivenUpWhilePlanned(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(config *scaler.Config) { config.Rules.Limits.PerChange.Creates = 0 })
	var giveUp func()
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Gate = meddler{func() { giveUp() }} })
	giveUp = sync.OnceFunc(func() {
		writer.Remove(writer.VMs()[0].VM.Key)
	})
	given := ensure(t, writer, on(first))[0]
	phases(t, writer)
	made := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	w.exist(t, int(made.VMID))
	history, err := w.History(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range history {
		if slices.ContainsFunc(entry.Change.Added, func(vm fleet.VM) bool { return vm.Key == given.Key }) {
			t.Errorf("change %s makes %s, which was given up", entry.Change.ID, given.Name)
		}
	}
}

// TestWriterRemovesOnlyWhatItAskedAbout requests the removal of a VM while the writer
// checks whether the Node of another VM is drained. It checks that the writer removes no
// VM whose Node it has not checked.
func TestWriterRemovesOnlyWhatItAskedAbout(t *testing.T) {
	t.Parallel()
	free, busy := vm(pve1, 2000), vm(pve2, 2001)
	var writer *scaler.Writer
	var asked []string
	s := newScaler(t, func(config *scaler.Config) {
		config.Drained = func(_ context.Context, node string) error {
			asked = append(asked, node)
			if node == busy.Name {
				return errors.New(node + " runs pods")
			}
			writer.Remove(busy.Key)
			return nil
		}
	}, free, busy)
	now := snapshot(guestOf(free))
	now.Hosts[1].Guests = []topology.Guest{guestOf(busy)}
	writer = scaler.NewWriter(s, scaler.WriterConfig{
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return now, nil }, Gather: time.Nanosecond,
	})
	if got := writer.Next(t); len(got) > 0 {
		t.Fatalf("removes %v before anybody asked", ids(got))
	}
	writer.Remove(free.Key)
	for range 2 {
		if diff := cmp.Diff([]fleet.VMID{2000}, ids(writer.Next(t))); diff != "" {
			t.Errorf("removed (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{free.Name, free.Name, busy.Name}, asked); diff != "" {
		t.Errorf("asked about (-want +got):\n%s", diff)
	}
	if states := writer.VMs(); states[1].Err == nil || states[1].Err.Error() != busy.Name+" runs pods" {
		t.Errorf("%s waits for %v", busy.Name, states[1].Err)
	}
}

// TestWriterHoldsTheLockWhileItApplies checks that the writer holds the store's lock while
// a clone is in progress, even if the writer takes further steps meanwhile, and releases
// the lock afterwards.
func TestWriterHoldsTheLockWhileItApplies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cloning, goOn := make(chan struct{}), make(chan struct{})
	w.sim.AddFault(pvesim.Fault{Method: http.MethodPost, Path: "/clone$", Times: 1, Hit: func(ctx context.Context, _ pvesim.Call) {
		close(cloning)
		select {
		case <-goOn:
		case <-ctx.Done():
		}
	}})
	looks := make(chan string)
	ended := make(chan struct{})
	writer, stop := w.runUntil(t, func(config *scaler.WriterConfig) {
		config.Poll = 20 * time.Millisecond
		config.Snapshot = func(ctx context.Context) (*topology.Snapshot, error) {
			select {
			case looks <- "":
			case <-ended:
			}
			return w.client.Snapshot(ctx)
		}
	})
	defer stop()
	defer close(ended)
	go func() {
		// Until the clone hangs, the writer runs freely.
		for {
			select {
			case <-looks:
			case <-cloning:
				return
			}
		}
	}()
	vm := ensure(t, writer, on(first))[0]
	<-cloning
	// Between two checks the writer has had the chance to release the lock.
	for range 3 {
		receive(t, looks)
	}
	other := store.NewDirectory(w.Store().Path())
	if unlock, err := other.Lock(t.Context()); !errors.Is(err, store.ErrLocked) {
		t.Errorf("another process may take the lock (%v) while %s is made", err, vm.Name)
		_ = unlock
	}
	close(goOn)
	for made := false; !made; {
		receive(t, looks)
		made = writer.VMs()[0].Phase == scaler.PhaseMade && !writer.Busy()
	}
	for range 3 {
		receive(t, looks)
	}
	unlock, err := other.Lock(t.Context())
	if err != nil {
		t.Fatalf("nothing is applied, and the lock is not given back: %v", err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

// TestRecordTimes checks the time and ID of a record if the clock, in another time zone, is
// ahead of, equal to or behind the time of the last record.
func TestRecordTimes(t *testing.T) {
	t.Parallel()
	last := time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)
	for name, tt := range map[string]struct {
		now, want time.Time
	}{
		"ahead":  {last.Add(time.Second), last.Add(time.Second)},
		"same":   {last, last.Add(time.Microsecond)},
		"behind": {last.Add(-time.Hour), last.Add(time.Microsecond)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := clocktesting.NewFakeClock(last)
			s := newScaler(t, func(config *scaler.Config) { config.Clock = clock })
			s.Begin(t, pve2)
			clock.SetTime(tt.now.In(time.FixedZone("elsewhere", 5*3600)))
			record := s.Record(propose(t, s, snapshot(), request(pve1)), nil)
			if diff := cmp.Diff(tt.want.Format(time.RFC3339Nano), record.Time.Format(time.RFC3339Nano)); diff != "" {
				t.Errorf("time (-want +got):\n%s", diff)
			}
			if prefix := tt.want.Format("20060102T150405Z-") + tt.want.Format(".000000")[1:]; !strings.HasPrefix(record.ID, prefix) {
				t.Errorf("id %s, want %s…", record.ID, prefix)
			}
		})
	}
}

// TestOutcomeTimes checks recorded and observed durations, with a clock that advances only
// while a host is planned and applied, and while the user decides. The outcome's duration
// begins with the approval.
func TestOutcomeTimes(t *testing.T) {
	t.Parallel()
	const planning, deciding, applying = 11 * time.Second, 40 * time.Second, 7 * time.Second
	start := time.Now().Truncate(time.Second).In(time.FixedZone("elsewhere", -3600))
	clock := clocktesting.NewFakeClock(start)
	observed := &stopwatch{}
	w := newWorldWith(t, func(config *scaler.Config) {
		config.Clock, config.Observe = clock, observed
		config.Progress = func(_ topology.HostID, message string) {
			switch {
			case message == "planning":
				clock.Step(planning)
			case strings.HasPrefix(message, "applying: "):
				clock.Step(applying)
			}
		}
	})
	results, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), on(first)), func([]scaler.RootPlan) (string, error) {
		clock.Step(deciding)
		return "", nil
	})
	if err != nil || len(results) != 1 || results[0].Duration != applying {
		t.Fatalf("results %v, %v", results, err)
	}
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 1 {
		t.Fatalf("history %v, %v", history, err)
	}
	if got, want := history[0].Change.Time, start.Add(planning+deciding); !got.Equal(want) || got.Location() != time.UTC {
		t.Errorf("begun at %s, want %s in UTC", got, want)
	}
	want := &audit.Outcome{
		Format: audit.FormatVersion, ID: history[0].Change.ID, Time: start.Add(planning + deciding + applying).UTC(), Duration: applying,
		Hosts: []audit.Ended{{Host: first, Duration: applying}},
	}
	if diff := cmp.Diff(want, history[0].Outcome, cmpopts.IgnoreFields(audit.Outcome{}, "MAC", "Digest", "Logged")); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(stopwatch{plan: planning, apply: applying}, *observed, cmp.AllowUnexported(stopwatch{})); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}
}

// stopwatch records the durations of one host's plan and apply.
type stopwatch struct{ plan, apply time.Duration }

func (s *stopwatch) PlanDone(_ topology.HostID, took time.Duration, _ error)  { s.plan = took }
func (s *stopwatch) ApplyDone(_ topology.HostID, took time.Duration, _ error) { s.apply = took }
func (*stopwatch) GuardDone(time.Duration, guard.Decision)                    {}
func (*stopwatch) Queued(int)                                                 {}
func (*stopwatch) QueueDone(topology.HostID, time.Duration)                   {}
func (*stopwatch) VMFailed(topology.HostID)                                   {}
