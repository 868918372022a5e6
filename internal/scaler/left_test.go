package scaler_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// departing is a Proxmox cluster without the first host once left is set.
type departing struct {
	*proxmox.Client
	left atomic.Bool
}

func (d *departing) Snapshot(ctx context.Context) (*topology.Snapshot, error) {
	snapshot, err := d.Client.Snapshot(ctx)
	if err == nil && d.left.Load() {
		snapshot.Hosts = slices.DeleteFunc(snapshot.Hosts, func(h topology.Host) bool { return h.ID() == first })
	}
	return snapshot, err
}

// Refresh returns the first host as a client does for a requested host that is not a member.
func (d *departing) Refresh(ctx context.Context, old *topology.Snapshot, hosts []topology.HostName, vmids ...fleet.VMID) (*topology.Snapshot, error) {
	snapshot, err := d.Client.Refresh(ctx, old, hosts, vmids...)
	if err == nil && d.left.Load() {
		if host := snapshot.Host(first); host != nil {
			*host = topology.Host{Region: first.Region, Name: first.Host, Absent: true, Problem: "is not in the cluster"}
		}
	}
	return snapshot, err
}

// newDepartingWorld returns a world whose first host can leave the Proxmox cluster.
func newDepartingWorld(t *testing.T) (*world, *departing) {
	t.Helper()
	cluster := &departing{}
	w := newWorldWith(t, func(config *scaler.Config) {
		cluster.Client = config.Regions[0].Live.(*proxmox.Client)
		config.Regions[0].Live = cluster
	})
	return w, cluster
}

// leave shuts the first host down and removes it from the cluster.
func (w *world) leave(cluster *departing) {
	w.sim.SetHostOnline(string(first.Host), false)
	cluster.left.Store(true)
}

// look returns a snapshot of the cluster.
func (d *departing) look(t *testing.T) *topology.Snapshot {
	t.Helper()
	snapshot, err := d.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// inState reports whether the state of the first host has a VM.
func (w *world) inState(t *testing.T, vm *fleet.VM) bool {
	t.Helper()
	content, err := os.ReadFile(scaler.StateFile(w.stateDir, first))
	if err != nil {
		t.Fatal(err)
	}
	call, _, _ := strings.Cut(strings.TrimPrefix(generator.Address(vm), "module."), ".")
	return strings.Contains(string(content), `"module.`+call+`"`)
}

// filed reports whether a VM has a file.
func (w *world) filed(t *testing.T, vm *fleet.VM) bool {
	t.Helper()
	files, _, err := w.store.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return files[generator.NodeFile(vm)] != nil
}

// ended returns the latest change, which must have succeeded without a plan.
func (w *world) ended(t *testing.T) *audit.Entry {
	t.Helper()
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) == 0 {
		t.Fatalf("history: %v, %v", history, err)
	}
	latest := &history[len(history)-1]
	if latest.Outcome == nil || len(latest.Outcome.Hosts) != 1 || latest.Outcome.Hosts[0].Error != "" {
		t.Errorf("the outcome is %+v", latest.Outcome)
	}
	return latest
}

// TestWriterHostLeft requests the removal of a VM whose host is offline: it waits. As soon as the
// host has left the Proxmox cluster, the VM leaves the fleet, the files and the state. The
// standby VM of the host stays until its removal is requested, and the host is not planned
// meanwhile.
func TestWriterHostLeft(t *testing.T) {
	t.Parallel()
	w, cluster := newDepartingWorld(t)
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Snapshot = cluster.Snapshot })
	vms := ensure(t, writer, on(first), standby(first), on(second))
	node, waits, other := &vms[0], &vms[1], &vms[2]
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade)

	w.sim.SetHostOnline(string(first.Host), false)
	writer.Remove(node.Key)
	await(t, writer, func([]scaler.VMState) bool {
		state, exists := writer.VM(node.Key)
		down := &scaler.HostDownError{}
		return exists && errors.As(state.Err, &down) && !down.Left
	})
	if !w.filed(t, node) || !w.inState(t, node) {
		t.Error("a VM of an offline host was removed")
	}

	cluster.left.Store(true)
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t)
	if w.filed(t, node) || w.inState(t, node) {
		t.Error("the VM is still in the files or in the state")
	}
	if !w.filed(t, waits) || !w.inState(t, waits) {
		t.Error("the standby VM was removed without a request")
	}
	change := w.ended(t)
	if change.Change.Kind != audit.KindScaleDown || len(change.Change.Removed) != 1 || change.Change.Removed[0].Name != node.Name ||
		len(change.Outcome.Outside) != 1 || !strings.Contains(change.Outcome.Outside[0], "left the Proxmox cluster: removed "+node.Name+" from the fleet, and from the state: module."+node.Name) {
		t.Errorf("the record is %+v with outcome %+v", change.Change, change.Outcome)
	}

	// Nothing is planned on the host while nothing is requested there.
	calls := len(w.sim.Calls())
	w.rests(t)
	for _, call := range w.sim.Calls()[calls:] {
		if strings.Contains(call.Path, "/nodes/pve-1/qemu/") {
			t.Errorf("%s %s, although the host has left", call.Method, call.Path)
		}
	}
	if latest := w.ended(t); latest.Change.ID != change.Change.ID {
		t.Errorf("change %+v was recorded without a request", latest.Change)
	}

	writer.Remove(waits.Key)
	phases(t, writer, scaler.PhaseMade)
	w.underWay(t)
	if w.filed(t, waits) || w.inState(t, waits) || !w.filed(t, other) {
		t.Error("want the standby VM removed from files and state, and the VM of the other host kept")
	}
}

// rests waits for a few steps of the writer.
func (w *world) rests(t *testing.T) {
	t.Helper()
	ticker := time.NewTicker(4 * time.Second)
	defer ticker.Stop()
	<-ticker.C
}

// TestHostLeftWithOpenWork ends the unfinished removal and the unfinished creation of VMs whose
// host leaves the Proxmox cluster. The VM to be created keeps its file until its removal is
// requested, and numaform reports it.
func TestHostLeftWithOpenWork(t *testing.T) {
	t.Parallel()
	w, cluster := newDepartingWorld(t)
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, cluster.look(t), on(first)), approveAll); err != nil {
		t.Fatal(err)
	}
	create := propose(t, w.Scaler, cluster.look(t), on(first))
	w.sim.SetHostOnline(string(first.Host), false)
	create.Snapshot = cluster.look(t)
	if _, err := w.Apply(t.Context(), create, approveAll); !as[*scaler.HostDownError](err) {
		t.Fatalf("the creation on an offline host: %v", err)
	}
	removal, err := w.ProposeRemoval(t.Context(), cluster.look(t), []string{"workers-2000"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Apply(t.Context(), removal, approveAll); !as[*scaler.HostDownError](err) {
		t.Fatalf("the removal on an offline host: %v", err)
	}
	removed, made := &removal.Removed[0], &create.Added[0]
	w.underWay(t, first)

	w.leave(cluster)
	if results, err := w.Apply(t.Context(), propose(t, w.Scaler, cluster.look(t)), approveAll); err != nil {
		t.Fatalf("results %v, %v", results, err)
	}
	w.underWay(t)
	if w.inState(t, removed) || !w.filed(t, made) {
		t.Error("want the removed VM out of the state, and the file of the other VM kept")
	}
	if change := w.ended(t); change.Change.Kind != audit.KindRecovery || !strings.Contains(strings.Join(change.Outcome.Outside, " "), "removed workers-2000 from the fleet") {
		t.Errorf("the record is %+v with outcome %+v", change.Change, change.Outcome)
	}

	next := propose(t, w.Scaler, cluster.look(t))
	if next.Unfinished() {
		t.Error("the host still has unfinished work")
	}
	if warnings := strings.Join(next.Warnings(), "\n"); !strings.Contains(warnings, "host "+first.String()+" left the Proxmox cluster, but the fleet still contains 1 VM of it") {
		t.Errorf("warnings: %q", warnings)
	}
	var left *scaler.HostDownError
	if _, err := w.Apply(t.Context(), next, approveAll); !errors.As(err, &left) || !left.Left {
		t.Errorf("an apply without a request: %v, want how to remove the VM", err)
	}
	if drift, err := w.Drift(t.Context(), cluster.look(t)); err != nil || len(drift) != 1 || !errors.As(drift[0].Err, &left) || !left.Left || drift[0].VMs[0].Class != scaler.DriftVanished {
		t.Errorf("drift: %+v, %v", drift, err)
	}

	if removal, err = w.ProposeRemoval(t.Context(), cluster.look(t), []string{made.Name}); err != nil {
		t.Fatal(err)
	}
	if plans, err := w.Plan(t.Context(), removal); err != nil || len(plans) != 1 || plans[0].Err != nil || plans[0].Changes() || !strings.Contains(plans[0].Plan.Text, made.Name) {
		t.Errorf("plans %+v, %v", plans, err)
	}
	if _, err := w.Apply(t.Context(), removal, approveAll); err != nil {
		t.Fatal(err)
	}
	if w.filed(t, made) {
		t.Error("the VM still has a file")
	}
	w.underWay(t)
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, cluster.look(t)), approveAll); err != nil {
		t.Errorf("an apply when the host has no VMs left: %v", err)
	}
	if drift, err := w.Drift(t.Context(), cluster.look(t)); err != nil || len(drift) != 0 {
		t.Errorf("drift: %+v, %v", drift, err)
	}
}

// TestHostLeftNotDrained keeps a VM whose Node is not drained, although its host has left.
func TestHostLeftNotDrained(t *testing.T) {
	t.Parallel()
	w, cluster := newDepartingWorld(t)
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, cluster.look(t), on(first)), approveAll); err != nil {
		t.Fatal(err)
	}
	w.leave(cluster)
	w.config.Drained = func(context.Context, string) error { return errors.New("it runs a pod") }
	blocked := scaler.New(w.config)
	removal, err := blocked.ProposeRemoval(t.Context(), cluster.look(t), []string{"workers-2000"})
	if err != nil {
		t.Fatal(err)
	}
	plans, err := blocked.Plan(t.Context(), removal)
	if err != nil || len(plans) != 1 || !strings.Contains(plans[0].Verdict.String(), "it runs a pod") {
		t.Errorf("plans %+v, %v", plans, err)
	}
	if _, err := blocked.Apply(t.Context(), removal, approveAll); !as[*scaler.DeniedError](err) {
		t.Errorf("got %v, want that the guard denies it", err)
	}
	if vm := &removal.Removed[0]; !w.inState(t, vm) {
		t.Error("the VM was removed from the state")
	}
}

// TestHostMustHaveLeft removes a VM of a host that may come back, or a VM that may exist: the
// host is down, and nothing is forgotten.
func TestHostMustHaveLeft(t *testing.T) {
	t.Parallel()
	made := vm(pve1, 2000)
	without := func(s *topology.Snapshot) { s.Hosts = s.Hosts[1:] }
	named := func(s *topology.Snapshot) {
		s.Hosts[0] = topology.Host{Region: pve1.Region, Name: pve1.Host, Absent: true, Problem: "is not in the cluster"}
	}
	elsewhere := func(guest topology.Guest) func(*topology.Snapshot) {
		return func(s *topology.Snapshot) {
			without(s)
			s.Hosts[0].Guests = []topology.Guest{guest}
		}
	}
	unmarked := guestOf(made)
	unmarked.Key, unmarked.ClusterID = "", ""
	for name, test := range map[string]struct {
		change func(*topology.Snapshot)
		left   bool
		// moved is set if the VM is removed from another host.
		moved bool
	}{
		"it left":                               {change: without, left: true},
		"only the configuration names it":       {change: named, left: true},
		"another owner's guest has the VMID":    {change: elsewhere(stranger(2000)), left: true},
		"it is offline":                         {change: func(s *topology.Snapshot) { down(s) }},
		"no quorum":                             {change: func(s *topology.Snapshot) { without(s); s.Regions[0].Quorate = false }},
		"a member lists only itself":            {change: func(s *topology.Snapshot) { without(s); s.Regions[0].Clustered = false }},
		"guests are hidden":                     {change: func(s *topology.Snapshot) { without(s); s.Regions[0].HidesGuests = true }},
		"its region was not read":               {change: func(s *topology.Snapshot) { s.Hosts, s.Regions = nil, nil }},
		"the VM runs on another host":           {change: elsewhere(guestOf(made)), moved: true},
		"a guest without marker may be the VM":  {change: elsewhere(unmarked)},
		"the cluster still lists its guests":    {change: func(s *topology.Snapshot) { named(s); s.Hosts[0].Guests = []topology.Guest{{VMID: 2000}} }},
		"the cluster lists another guest of it": {change: func(s *topology.Snapshot) { named(s); s.Hosts[0].Guests = []topology.Guest{{VMID: 100}} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScaler(t, nil, made)
			now := snapshot(guestOf(made))
			test.change(now)
			change, err := s.ProposeRemoval(t.Context(), now, []string{made.Name})
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Look(t.Context(), change, pve1)
			if usable := test.left || test.moved; usable != (err == nil) || !usable && !as[*scaler.HostDownError](err) {
				t.Errorf("got %v, want an error: %t", err, !usable)
			}
			if left := s.Forgets(t.Context(), change, pve1); left != test.left {
				t.Errorf("the VM is forgotten: %t, want %t", left, test.left)
			}
		})
	}
	t.Run("another VM is created", func(t *testing.T) {
		t.Parallel()
		s := newScaler(t, nil, made)
		change, err := s.ProposeRemoval(t.Context(), snapshot(guestOf(made)), []string{made.Name})
		if err != nil {
			t.Fatal(err)
		}
		change.Added = append(change.Added, vm(pve1, 2001))
		change.Snapshot = snapshot()
		without(change.Snapshot)
		var down *scaler.HostDownError
		if _, err := s.Look(t.Context(), change, pve1); !errors.As(err, &down) || !down.Left {
			t.Errorf("got %v", err)
		}
	})
}

// TestHostLeftRemovesMovedVMsApart removes two VMs whose host has left, of which one is on another
// host now: one is forgotten, and the next change removes the other one by a plan.
func TestHostLeftRemovesMovedVMsApart(t *testing.T) {
	t.Parallel()
	now := clocktesting.NewFakeClock(time.Now())
	lost, moved := vm(pve1, 2000), vm(pve1, 2001)
	s := newScaler(t, func(c *scaler.Config) { c.Clock = now }, lost, moved)
	there := snapshot(guestOf(lost), guestOf(moved))
	writer := scaler.NewWriter(s, scaler.WriterConfig{Snapshot: func(context.Context) (*topology.Snapshot, error) { return there, nil }})
	writer.NextBatch(t)
	there.Hosts = there.Hosts[1:]
	there.Hosts[0].Guests = []topology.Guest{guestOf(moved)}
	writer.Remove(lost.Key, moved.Key)
	now.Step(time.Second)
	for _, want := range []fleet.Key{lost.Key, moved.Key} {
		batch := writer.NextBatch(t)
		if _, removes, _ := batch.Keys(); !slices.Equal(removes, []fleet.Key{want}) {
			t.Errorf("the change removes %v, want %s", removes, want)
		}
		writer.Start(batch)
	}
}

// TestHostLeftMakesNoVM ends the removal of a VM whose host has left: another VM of the host,
// which was not created yet, does not count as created.
func TestHostLeftMakesNoVM(t *testing.T) {
	t.Parallel()
	now := clocktesting.NewFakeClock(time.Now())
	lost, making := vm(pve1, 2000), vm(pve1, 2001)
	s := newScaler(t, func(c *scaler.Config) { c.Clock = now }, lost, making)
	there := snapshot()
	there.Hosts = there.Hosts[1:]
	writer := scaler.NewWriter(s, scaler.WriterConfig{Snapshot: func(context.Context) (*topology.Snapshot, error) { return there, nil }})
	writer.NextBatch(t)
	writer.Remove(lost.Key)
	now.Step(time.Second)
	batch := writer.NextBatch(t)
	writer.Start(batch)
	writer.FinishWith(t.Context(), batch, scaler.Result{Host: pve1}.OfHostThatLeft())
	if _, exists := writer.VM(lost.Key); exists {
		t.Error("the removed VM is still in the fleet")
	}
	if state, _ := writer.VM(making.Key); state.Phase != scaler.PhaseMaking || state.Made {
		t.Errorf("the other VM is %s, made: %t", state.Phase, state.Made)
	}
}
