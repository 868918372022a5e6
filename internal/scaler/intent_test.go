package scaler_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// create and remove return a plan's changes of a VM.
func create(vm fleet.VM) *tfjson.ResourceChange {
	return &tfjson.ResourceChange{
		Address: generator.Address(&vm), Type: guard.ResourceType,
		Change: &tfjson.Change{Actions: tfjson.Actions{tfjson.ActionCreate}},
	}
}

func remove(vm fleet.VM) *tfjson.ResourceChange {
	change := create(vm)
	change.Change = &tfjson.Change{Actions: tfjson.Actions{tfjson.ActionDelete}, Before: map[string]any{
		"vm_id":       json.Number(vm.Name[len("workers-"):]),
		"description": "Asked: by a test\n" + fleet.Marker{ClusterID: clusterID, Key: vm.Key}.String(),
	}}
	return change
}

// keep returns a plan's entry for a VM that it does not change.
func keep(vm fleet.VM) *tfjson.ResourceChange {
	change := create(vm)
	change.Change.Actions = tfjson.Actions{tfjson.ActionNoop}
	change.Change.Before = remove(vm).Change.Before
	return change
}

// withNumber returns a change whose previous VMID is a float64, as encoding/json decodes
// numbers by default.
func withNumber(change *tfjson.ResourceChange, vmid fleet.VMID) *tfjson.ResourceChange {
	change.Change.Before.(map[string]any)["vm_id"] = float64(vmid)
	return change
}

func ofType(change *tfjson.ResourceChange, kind string) *tfjson.ResourceChange {
	change.Type = kind
	return change
}

// stopped returns the guest, but stopped.
func stopped(guest topology.Guest) topology.Guest {
	guest.Running = false
	return guest
}

// ofAnother returns the guest with another installation's marker.
func ofAnother(guest topology.Guest) topology.Guest {
	guest.ClusterID = "prod"
	return guest
}

// outcome is the scaler's decision on a host's plan, by VMID.
type outcome struct {
	Stale                  []string
	Create, Import, Delete []fleet.VMID
	Incomplete             bool
}

// TestIntent covers cases that TestTruth does not: several VMs, and unusual plans.
func TestIntent(t *testing.T) {
	t.Parallel()
	a, b, elsewhere := vm(pve1, 2000), vm(pve1, 2001), vm(pve2, 2002)
	for _, tt := range []struct {
		name string
		// vms are in the files after the change.
		vms, added, removed, journaled []fleet.VM
		guests                         []topology.Guest
		plan                           []*tfjson.ResourceChange
		want                           outcome
		wantErr                        func(error) bool
	}{
		{
			name: "added", vms: []fleet.VM{a, elsewhere}, added: []fleet.VM{a, elsewhere}, plan: []*tfjson.ResourceChange{create(a)},
			want: outcome{Create: []fleet.VMID{2000}},
		},
		{
			name: "wanted since an earlier run", vms: []fleet.VM{a, b}, added: []fleet.VM{b}, plan: []*tfjson.ResourceChange{create(a), create(b)},
			want: outcome{Create: []fleet.VMID{2000, 2001}},
		},
		{
			name: "added and not in the plan", vms: []fleet.VM{a}, added: []fleet.VM{a},
			want: outcome{Create: []fleet.VMID{2000}},
		},
		{name: "in no file", plan: []*tfjson.ResourceChange{create(a)}},
		{
			name: "exists, the state lost it", vms: []fleet.VM{a, b}, guests: []topology.Guest{guestOf(a)},
			plan: []*tfjson.ResourceChange{create(a), create(b)},
			want: outcome{Import: []fleet.VMID{2000}, Create: []fleet.VMID{2001}},
		},
		{
			name: "a stranger has its number", vms: []fleet.VM{a}, guests: []topology.Guest{stranger(2000)},
			plan: []*tfjson.ResourceChange{create(a)}, wantErr: as[*scaler.VMIDTakenError],
		},
		{
			name: "another numaform has its number", vms: []fleet.VM{a}, guests: []topology.Guest{ofAnother(guestOf(a))},
			plan: []*tfjson.ResourceChange{create(a)}, wantErr: as[*scaler.VMIDTakenError],
		},
		{
			name: "removed by a run that died before the files", vms: []fleet.VM{a}, journaled: []fleet.VM{a},
			guests: []topology.Guest{guestOf(a)}, plan: []*tfjson.ResourceChange{keep(a)},
		},
		{
			name: "as a plain number", guests: []topology.Guest{stranger(2000)}, plan: []*tfjson.ResourceChange{withNumber(remove(a), 2000)},
			want: outcome{Stale: []string{generator.Address(&a)}},
		},
		{name: "another kind of resource", guests: []topology.Guest{stranger(2000)}, plan: []*tfjson.ResourceChange{ofType(remove(a), "x")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newScaler(t, nil)
			change := &scaler.Change{
				After: fleet.Fleet{ClusterID: clusterID, VMs: tt.vms}, Added: tt.added, Removed: tt.removed, Snapshot: snapshot(tt.guests...),
			}
			change.Begun(pve1, tt.journaled...)
			got, err := decide(t, s, change, &tfjson.Plan{ResourceChanges: tt.plan})
			if tt.wantErr != nil {
				if !tt.wantErr(err) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

// decide returns what the scaler would do with a plan of pve-1.
func decide(t *testing.T, s *scaler.Scaler, change *scaler.Change, plan *tfjson.Plan) (outcome, error) {
	t.Helper()
	w, err := s.Look(t.Context(), change, pve1)
	if err != nil {
		t.Fatal(err)
	}
	if stale := w.Stale(plan); len(stale) > 0 {
		return outcome{Stale: stale}, nil
	}
	imports, err := w.Imports(plan)
	if err != nil {
		return outcome{}, err
	}
	w.TakenOut(plan)
	intent := w.Intent(plan, imports)
	if intent.ClusterID != clusterID {
		t.Errorf("cluster id %q", intent.ClusterID)
	}
	got := outcome{Create: targets(t, intent.Create), Import: targets(t, intent.Import), Delete: targets(t, intent.Delete)}
	for _, target := range intent.Import {
		got.Incomplete = got.Incomplete || target.Incomplete
	}
	return got, nil
}

func targets(t *testing.T, list []guard.Target) []fleet.VMID {
	t.Helper()
	var found []fleet.VMID
	for _, target := range list {
		want := vm(pve1, target.VMID)
		if target.Address != generator.Address(&want) || target.Key != want.Key || target.Host != "pve-1" {
			t.Errorf("target %+v", target)
		}
		found = append(found, target.VMID)
	}
	return found
}

// TestGuestsOnAHostThatIsDown moves a VM by hand to pve-1, which then goes down: the
// guest's owner is unknown, so the guest is not changed.
func TestGuestsOnAHostThatIsDown(t *testing.T) {
	t.Parallel()
	moved := vm(pve2, 2000)
	change := &scaler.Change{
		After: fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{moved}}, Removed: []fleet.VM{moved}, Snapshot: down(snapshot(guestOf(moved))),
	}
	w, err := newScaler(t, nil).Look(t.Context(), change, pve2)
	if err != nil {
		t.Fatal(err)
	}
	if stale := w.Stale(&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{remove(moved)}}); len(stale) > 0 {
		t.Errorf("it forgets %v", stale)
	}
	if _, err := w.Imports(&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{create(moved)}}); !as[*scaler.HostDownError](err) {
		t.Errorf("import: %v", err)
	}
	target := guard.Target{Address: generator.Address(&moved), VMID: 2000, Key: moved.Key, Host: "pve-2"}
	if err := w.StillFree(guard.Intent{Delete: []guard.Target{target}}); !as[*scaler.HostDownError](err) {
		t.Errorf("delete: %v", err)
	}
}

// TestTakenByACopy plans a VM whose VMID belongs to another guest, while a clone with its
// marker has another VMID: the fix is to remove the marker, because the VM keeps its VMID as
// long as a guest has its key.
func TestTakenByACopy(t *testing.T) {
	t.Parallel()
	a := vm(pve1, 2000)
	clone := guestOf(a)
	clone.VMID = 150
	for name, tt := range map[string]struct {
		guests []topology.Guest
		want   string
	}{
		"no copy": {[]topology.Guest{stranger(2000)}, "is not changed; plan again to give the VM another VMID"},
		"a copy":  {[]topology.Guest{stranger(2000), clone}, "this VM's key is in the description of guest 150 on lab/pve-1: remove the marker line there"},
	} {
		change := &scaler.Change{After: fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{a}}, Snapshot: snapshot(tt.guests...)}
		v, err := newScaler(t, nil).Look(t.Context(), change, pve1)
		if err != nil {
			t.Fatal(err)
		}
		_, err = v.Imports(&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{create(a)}})
		if !as[*scaler.VMIDTakenError](err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestUnknownWhetherANodeExists checks that a VM is not deleted while it is unknown
// whether its Node exists, because the cluster does not respond.
func TestUnknownWhetherANodeExists(t *testing.T) {
	t.Parallel()
	a := vm(pve1, 2000)
	s := newScaler(t, func(c *scaler.Config) {
		c.Drained = func(context.Context, string) error { return nil }
		c.NodeExists = func(context.Context, string) (bool, error) { return false, errors.New("connection refused") }
	})
	change := &scaler.Change{After: fleet.Fleet{ClusterID: clusterID}, Removed: []fleet.VM{a}, Snapshot: snapshot(guestOf(a))}
	v, err := s.Look(t.Context(), change, pve1)
	if err != nil {
		t.Fatal(err)
	}
	s.CheckNodes(t.Context(), v)
	target := v.Intent(&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{remove(a)}}, nil).Delete[0]
	if target.Drained || target.Gone || !strings.Contains(target.Blocked, "connection refused") {
		t.Errorf("%+v, want it blocked by the error", target)
	}
}

func TestStillFree(t *testing.T) {
	t.Parallel()
	a := vm(pve1, 2000)
	target := []guard.Target{{Address: generator.Address(&a), VMID: 2000, Key: a.Key, Host: "pve-1"}}
	for _, tt := range []struct {
		name    string
		guests  []topology.Guest
		intent  guard.Intent
		wantErr func(error) bool
	}{
		{"create, free", nil, guard.Intent{Create: target}, nil},
		{"create, a stranger came", []topology.Guest{stranger(2000)}, guard.Intent{Create: target}, as[*scaler.VMIDTakenError]},
		{"create, it is there already", []topology.Guest{guestOf(a)}, guard.Intent{Create: target}, as[*scaler.VMIDTakenError]},
		{"delete, ours", []topology.Guest{guestOf(a)}, guard.Intent{Delete: target}, nil},
		{"delete, gone", nil, guard.Intent{Delete: target}, nil},
		{"delete, a stranger came", []topology.Guest{stranger(2000)}, guard.Intent{Delete: target}, as[*scaler.GuestGoneError]},
		{"delete, another numaform's", []topology.Guest{ofAnother(guestOf(a))}, guard.Intent{Delete: target}, as[*scaler.GuestGoneError]},
		{"import, ours", []topology.Guest{guestOf(a)}, guard.Intent{Import: target}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			change := &scaler.Change{After: fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{a}}, Snapshot: snapshot(tt.guests...)}
			w, err := newScaler(t, nil).Look(t.Context(), change, pve1)
			if err != nil {
				t.Fatal(err)
			}
			err = w.StillFree(tt.intent)
			if (tt.wantErr == nil && err != nil) || (tt.wantErr != nil && !tt.wantErr(err)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestLookAtAHostThatIsDown(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil)
	for name, change := range map[string]*scaler.Change{
		"offline": {Snapshot: down(snapshot())},
		"unknown": {Snapshot: &topology.Snapshot{}},
	} {
		if _, err := s.Look(t.Context(), change, pve1); !as[*scaler.HostDownError](err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// unmarked returns the guest with an overwritten description.
func unmarked(guest topology.Guest) topology.Guest {
	guest.ClusterID, guest.Key = "", ""
	return guest
}

func TestAbsenceMustBeProven(t *testing.T) {
	t.Parallel()
	a := vm(pve1, 2000)
	for name, change := range map[string]func(*topology.Snapshot){
		"guests are hidden": func(s *topology.Snapshot) { s.Regions[0].HidesGuests = true },
		"unknown region":    func(s *topology.Snapshot) { s.Regions = nil },
	} {
		seen := snapshot()
		change(seen)
		w, err := newScaler(t, nil).Look(t.Context(), &scaler.Change{
			After: fleet.Fleet{ClusterID: clusterID}, Removed: []fleet.VM{a}, Snapshot: seen,
		}, pve1)
		if err != nil {
			continue // it refuses to check
		}
		if stale := w.Stale(&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{remove(a)}}); len(stale) > 0 {
			t.Errorf("%s: %v count as gone", name, stale)
		}
	}
}

func TestNoQuorumNoWrite(t *testing.T) {
	t.Parallel()
	seen := snapshot()
	seen.Regions[0].Quorate = false
	_, err := newScaler(t, nil).Look(t.Context(), &scaler.Change{After: fleet.Fleet{ClusterID: clusterID}, Snapshot: seen}, pve1)
	if !as[*scaler.HostDownError](err) || !strings.Contains(err.Error(), "quorum") {
		t.Errorf("error %v, want one about the quorum", err)
	}
}

// TestCPUsTakenMeanwhile checks that a new VM conflicts with another guest that is pinned to
// its CPUs, also if that is a clone of an earlier VM with its key.
func TestCPUsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	a := vm(pve1, 2000)
	a.CPUs = topology.CPUs(4, 5)
	clone := guestOf(a)
	clone.VMID = 300
	for _, other := range []topology.Guest{stranger(300), clone} {
		other.Pins = topology.CPUs(5, 6)
		w, err := newScaler(t, nil).Look(t.Context(), &scaler.Change{
			After: fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{a}}, Added: []fleet.VM{a}, Snapshot: snapshot(other),
		}, pve1)
		if err != nil {
			t.Fatal(err)
		}
		intent := w.Intent(&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{create(a)}}, nil)
		if err := w.Conflict(intent); !as[*scaler.ConflictError](err) || !as[*scaler.CPUsTakenError](err) {
			t.Errorf("error %v, want CPUs 5 to be taken by %s", err, other.Name)
		}
	}
}

// TestMemoryTakenMeanwhile checks which guests on the host of a new VM conflict with it
// because of their memory.
func TestMemoryTakenMeanwhile(t *testing.T) {
	t.Parallel()
	a := vm(pve1, 2000)
	a.Cells = []topology.NUMACell{{GuestCPUs: topology.CPUs(0, 1), HostNodes: topology.CPUs(1), MemoryMiB: 1024, Policy: topology.NUMABind}}
	other := func(memory int64, cells ...topology.NUMACell) topology.Guest {
		guest := stranger(300)
		guest.MemoryMiB, guest.NUMA = memory, cells
		return guest
	}
	bound := func(memory int64, policy topology.NUMAPolicy, nodes ...int) topology.NUMACell {
		return topology.NUMACell{HostNodes: topology.CPUs(nodes...), MemoryMiB: memory, Policy: policy}
	}
	stopped, elsewhere := other(9000), other(9000)
	stopped.Running = false
	shared := func(id fleet.VMID, ratio float64) fleet.VM {
		tolerant := vm(pve1, id)
		tolerant.Policy, tolerant.MemoryOvercommit = fleet.PolicyShared, ratio
		return tolerant
	}
	paged, standby := vm(pve1, 2001), vm(pve1, 2001)
	paged.HugePages, standby.Standby = fleet.HugePages1Gi, true
	for _, tt := range []struct {
		name  string
		guest topology.Guest
		move  bool
		vms   []fleet.VM // the new VM first; nil means a
		host  func(*topology.Host)
		want  string
	}{
		{name: "all of it", guest: other(8192)},
		{name: "more than it has", guest: other(8193), want: "the guests of lab/pve-1 use 8193 MiB, but the host has 8192 MiB"},
		{name: "of a guest that is stopped", guest: stopped},
		{name: "of a guest on another host", guest: elsewhere, move: true},
		{name: "all of its NUMA node", guest: other(4096, bound(4096, topology.NUMABind, 1))},
		{
			name: "more than its NUMA node has", guest: other(4097, bound(4097, topology.NUMABind, 1)),
			want: "4097 MiB are bound to NUMA node 1 of lab/pve-1, which has 4096 MiB",
		},
		{name: "of another NUMA node", guest: other(4097, bound(4097, topology.NUMABind, 0))},
		{name: "of two NUMA nodes", guest: other(4097, bound(4097, topology.NUMABind, 0, 1))},
		{name: "preferred from its NUMA node", guest: other(4097, bound(4097, topology.NUMAPreferred, 1))},
		{name: "all that it tolerates", guest: other(12288), vms: []fleet.VM{shared(2000, 1.5)}},
		{
			name: "more than it tolerates", guest: other(12289), vms: []fleet.VM{shared(2000, 1.5)},
			want: "the guests of lab/pve-1 use 12289 MiB, but the host has 8192 MiB, and its VMs tolerate 12288 MiB",
		},
		{
			name: "more than another VM tolerates", guest: other(9832), vms: []fleet.VM{shared(2000, 1.5), shared(2001, 1.2)},
			want: "the guests of lab/pve-1 use 9832 MiB, but the host has 8192 MiB, and its VMs tolerate 9831 MiB",
		},
		{
			name: "beside a VM that does not tolerate it", guest: other(8193), vms: []fleet.VM{shared(2000, 1.5), shared(2001, 0)},
			want: "the guests of lab/pve-1 use 8193 MiB, but the host has 8192 MiB: ",
		},
		{name: "beside a VM in huge pages", guest: other(12288), vms: []fleet.VM{shared(2000, 1.5), paged}},
		{name: "beside a standby VM", guest: other(12288), vms: []fleet.VM{shared(2000, 1.5), standby}},
		{
			name: "more than it tolerates without reserved memory and huge pages", guest: other(10241), vms: []fleet.VM{shared(2000, 1.5)},
			host: func(h *topology.Host) {
				h.ReservedMemoryMiB = 2048
				h.NUMANodes[1].HugePages = map[int]int64{2048: 1024}
			},
			want: "the guests of lab/pve-1 use 10241 MiB, but the host has 8192 MiB, and its VMs tolerate 10240 MiB",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			seen := snapshot(tt.guest)
			if tt.move {
				seen.Hosts[0].Guests, seen.Hosts[1].Guests = nil, seen.Hosts[0].Guests
			}
			seen.Hosts[0].MemoryMiB = 8192
			seen.Hosts[0].NUMANodes = []topology.NUMANode{{ID: 0, MemoryMiB: 4096}, {ID: 1, MemoryMiB: 4096}}
			if tt.host != nil {
				tt.host(&seen.Hosts[0])
			}
			vms := tt.vms
			if vms == nil {
				vms = []fleet.VM{a}
			}
			added := vms[0]
			w, err := newScaler(t, nil).Look(t.Context(), &scaler.Change{
				After: fleet.Fleet{ClusterID: clusterID, VMs: vms}, Added: []fleet.VM{added}, Snapshot: seen,
			}, pve1)
			if err != nil {
				t.Fatal(err)
			}
			err = w.Conflict(w.Intent(&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{create(added)}}, nil))
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v, want no conflict", err)
			case tt.want != "" && (!as[*scaler.ConflictError](err) || !strings.Contains(err.Error(), "vm "+added.Name+": "+tt.want)):
				t.Errorf("got %v, want a conflict: %s", err, tt.want)
			}
		})
	}
}

// TestMarkerOfAVMWithoutAFile checks a pinned VM that only the state contains and whose
// guest lost its marker: the error contains the complete line to add.
func TestMarkerOfAVMWithoutAFile(t *testing.T) {
	t.Parallel()
	a := vm(pve1, 2000)
	a.VCPUPins, a.Emulator, a.PinWith = []int{4, 5}, fleet.EmulatorShared, fleet.PinWithHostAgent
	line := fleet.Marker{ClusterID: clusterID, Key: a.Key, Pins: a.VCPUPins, Emulator: a.Emulator}.String()
	gone := remove(a)
	before := gone.Change.Before.(map[string]any)
	before["name"], before["description"] = a.Name, line
	guest := guestOf(a)
	guest.ClusterID, guest.Key = "", ""
	w, err := newScaler(t, nil).Look(t.Context(), &scaler.Change{After: fleet.Fleet{ClusterID: clusterID}, Snapshot: snapshot(guest)}, pve1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Compare(&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{gone}})
	var lost *scaler.MarkerLostError
	if !errors.As(err, &lost) || lost.Marker != line {
		t.Errorf("got %v, want to add %q", err, line)
	}
}
