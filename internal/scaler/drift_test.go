package scaler_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// still returns a change without requests, of a fleet with these VMs.
func still(t *testing.T, snapshot *topology.Snapshot, vms ...fleet.VM) *scaler.Change {
	t.Helper()
	change, _, err := newScaler(t, nil, vms...).ProposeRepair(t.Context(), snapshot, nil)
	if err != nil {
		t.Fatal(err)
	}
	return change
}

// update returns a plan's update of an attribute of a VM, from its value in Proxmox to the
// value in its file.
func update(vm fleet.VM, attribute string, proxmox, file any) *tfjson.ResourceChange {
	change := create(vm)
	change.Change = &tfjson.Change{
		Actions: tfjson.Actions{tfjson.ActionUpdate},
		Before:  map[string]any{attribute: proxmox}, After: map[string]any{attribute: file},
	}
	return change
}

func TestDriftClasses(t *testing.T) {
	t.Parallel()
	one := vm(pve1, 2001)
	unmarked := guestOf(one)
	unmarked.ClusterID, unmarked.Key = "", ""
	restored := guestOf(one)
	restored.VMID = 150
	tainted := create(one)
	tainted.Change.Actions = tfjson.Actions{tfjson.ActionDelete, tfjson.ActionCreate}
	tainted.ActionReason = tfjson.ActionReasonReplaceBecauseTainted
	hidden, lost := snapshot(), snapshot()
	hidden.Regions[0].HidesGuests = true
	lost.Regions[0].Quorate = false
	planned := func(changes ...*tfjson.ResourceChange) *tfjson.Plan { return &tfjson.Plan{ResourceChanges: changes} }
	tests := []struct {
		name     string
		snapshot *topology.Snapshot
		plan     *tfjson.Plan
		class    scaler.DriftClass
		says     string
	}{
		{"as it is", snapshot(guestOf(one)), planned(keep(one)), scaler.DriftNone, ""},
		{"no plan", snapshot(guestOf(one)), nil, scaler.DriftUnknown, "cannot be compared"},
		{"no guest", snapshot(), planned(), scaler.DriftVanished, "numaform remove workers-2001"},
		{"hidden guests", hidden, planned(), scaler.DriftUnknown, "does not show all guests"},
		{"no quorum", lost, planned(), scaler.DriftUnknown, "does not show all guests"},
		{"host down", down(snapshot(guestOf(one))), nil, scaler.DriftUnknown, "lab/pve-1 cannot be read"},
		{"no marker", snapshot(unmarked), planned(), scaler.DriftForeign, "numaform/1 cluster=test key=" + string(one.Key)},
		{"stranger", snapshot(stranger(2001)), planned(), scaler.DriftForeign, "with another VMID"},
		{"restored elsewhere", snapshot(stranger(2001), restored), planned(), scaler.DriftForeign, "guest 150 (workers-2001) on lab/pve-1"},
		{"other cluster", snapshot(ofAnother(guestOf(one))), planned(), scaler.DriftForeign, "does not change that guest"},
		{"not in the state", snapshot(guestOf(one)), planned(create(one)), scaler.DriftOutside, "can only set its tags, pool, description and start at boot"},
		{"tainted", snapshot(guestOf(one)), planned(tainted), scaler.DriftOutside, "numaform apply"},
		{"renamed", snapshot(guestOf(one)), planned(update(one, "name", "web", one.Name)), scaler.DriftForeign, "qm set 2001 --name workers-2001"},
		{"stopped", snapshot(guestOf(one)), planned(update(one, "started", false, true)), scaler.DriftForeign, "qm start 2001"},
		{"not by the guard", snapshot(guestOf(one)), planned(update(one, "bios", "ovmf", "seabios")), scaler.DriftUnknown, "cannot be evaluated"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := still(t, tt.snapshot, one).Compare(pve1, tt.plan)[2001]
			if text := strings.Join(append(got.Notes, got.Advice), "\n"); got.Class != tt.class || !strings.Contains(text, tt.says) || got.Repairable {
				t.Errorf("got %+v, want %s with %q", got, tt.class, tt.says)
			}
			if got.Class != scaler.DriftNone && got.Advice == "" {
				t.Error("it does not say what to do")
			}
		})
	}
}

// TestDriftOfDevices compares the PCI devices of VMs with their files, which no plan
// compares.
func TestDriftOfDevices(t *testing.T) {
	t.Parallel()
	gpu, part := fleet.PCIDevice{Mapping: "gpu", PCIe: true}, fleet.PCIDevice{Mapping: "vgpu", MDev: "half"}
	for _, tt := range []struct {
		name   string
		wanted []fleet.PCIDevice
		there  []topology.PassedDevice
		class  scaler.DriftClass
		file   string
	}{
		{"as wanted", []fleet.PCIDevice{gpu, part}, []topology.PassedDevice{{Mapping: "gpu"}, {Mapping: "vgpu", MDev: "half"}}, scaler.DriftNone, ""},
		{"the template's own", nil, []topology.PassedDevice{{Address: "01:00.0"}}, scaler.DriftNone, ""},
		{"taken off", []fleet.PCIDevice{gpu}, nil, scaler.DriftReplace, "mapping gpu"},
		{"one of two", []fleet.PCIDevice{gpu, gpu}, []topology.PassedDevice{{Mapping: "gpu"}}, scaler.DriftReplace, "mapping gpu"},
		{"another part", []fleet.PCIDevice{part}, []topology.PassedDevice{{Mapping: "vgpu", MDev: "all"}}, scaler.DriftReplace, "mapping vgpu"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			one := vm(pve1, 2001)
			one.PCIDevices = tt.wanted
			guest := guestOf(one)
			guest.PCIDevices = tt.there
			plan := &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{keep(one)}}
			got := still(t, snapshot(guest), one).Compare(pve1, plan)[2001]
			if got.Class != tt.class || got.Repairable || tt.file != "" && (len(got.Differences) != 1 || got.Differences[0].File != tt.file) {
				t.Errorf("got %+v, want %s of %q", got, tt.class, tt.file)
			}
		})
	}
}

// TestDriftOfDisks compares the slots of VMs with the data disks in their files, which no
// plan compares.
func TestDriftOfDisks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		there []string
		class scaler.DriftClass
		file  string
	}{
		{"as wanted", []string{"scsi0", "scsi1", "scsi2"}, scaler.DriftNone, ""},
		{"not told", nil, scaler.DriftNone, ""},
		{"one more", []string{"scsi0", "scsi1", "scsi2", "scsi3"}, scaler.DriftNone, ""},
		{"taken off", []string{"scsi0", "scsi2"}, scaler.DriftReplace, "scsi1 of 100 GiB on fast"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			one := vm(pve1, 2001)
			one.DataDisks = []fleet.DataDisk{{Interface: "scsi1", SizeGiB: 100, Storage: "fast"}, {Interface: "scsi2", SizeGiB: 1, Storage: "fast"}}
			guest := guestOf(one)
			guest.Disks = tt.there
			plan := &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{keep(one)}}
			got := still(t, snapshot(guest), one).Compare(pve1, plan)[2001]
			if got.Class != tt.class || got.Repairable || tt.file != "" && (len(got.Differences) != 1 || got.Differences[0].File != tt.file) {
				t.Errorf("got %+v, want %s of %q", got, tt.class, tt.file)
			}
		})
	}
}

// TestDriftBesideDevices checks VMs that lack a device and a disk: both are listed, unless
// the VM is stopped, is not in the state or was not planned.
func TestDriftBesideDevices(t *testing.T) {
	t.Parallel()
	one := vm(pve1, 2001)
	one.PCIDevices = []fleet.PCIDevice{{Mapping: "gpu"}}
	one.DataDisks = []fleet.DataDisk{{Interface: "scsi1", SizeGiB: 100, Storage: "fast"}}
	guest := guestOf(one)
	guest.Disks = []string{"scsi0"}
	for _, tt := range []struct {
		name  string
		plan  *tfjson.Plan
		class scaler.DriftClass
		want  []string
	}{
		{"device and disk", &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{keep(one)}}, scaler.DriftReplace, []string{"hostpci", "disk"}},
		{"stopped", &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{update(one, "started", false, true)}}, scaler.DriftForeign, []string{"started"}},
		{"not in the state", &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{create(one)}}, scaler.DriftOutside, nil},
		{"no plan", nil, scaler.DriftUnknown, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := still(t, snapshot(guest), one).Compare(pve1, tt.plan)[2001]
			var listed []string
			for _, difference := range got.Differences {
				listed = append(listed, difference.Attribute)
			}
			if diff := cmp.Diff(tt.want, listed); diff != "" || got.Class != tt.class {
				t.Errorf("%s, want %s; differences (-want +got):\n%s", got.Class, tt.class, diff)
			}
		})
	}
}

// TestDriftGone checks the class of a VM that Proxmox lists but a refresh does not find.
func TestDriftGone(t *testing.T) {
	t.Parallel()
	one := vm(pve1, 2001)
	plan := &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{keep(one)}, ResourceDrift: []*tfjson.ResourceChange{remove(one)}}
	if got := still(t, snapshot(guestOf(one)), one).Compare(pve1, plan)[2001]; got.Class != scaler.DriftOutside {
		t.Errorf("got %+v", got)
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	change := &tfjson.Change{
		Before: map[string]any{
			"cpu":         []any{map[string]any{"cores": json.Number("2"), "flags": nil}},
			"numa":        []any{map[string]any{"device": "numa0"}, map[string]any{"device": "numa1"}},
			"description": "numaform/1 cluster=test key=00000000000000000000000000000001 pins=1,2\nhunter2",
			"tags":        []any{"b"}, "on_boot": false, "machine": "", "mac": "AA", "cipassword": "x", "apiToken": "x", "note": "old",
			"long": strings.Repeat("x", 100),
		},
		After: map[string]any{
			"cpu":         []any{map[string]any{"cores": json.Number("4"), "flags": []any{}}},
			"numa":        []any{map[string]any{"device": "numa0"}},
			"description": "numaform/1 cluster=test key=00000000000000000000000000000001 pins=1,3",
			"tags":        []any{"a", "b"}, "on_boot": true, "machine": nil, "cipassword": "y", "apiToken": "y", "note": "new", "long": "",
		},
		AfterUnknown:    map[string]any{"mac": true, "tags": []any{false, false}, "cpu": []any{map[string]any{}}},
		BeforeSensitive: map[string]any{"tags": []any{false}, "note": true},
		AfterSensitive:  false,
	}
	want := []scaler.DriftDifference{
		{Attribute: "apiToken", File: "(not shown)", Proxmox: "(not shown)"},
		{Attribute: "cipassword", File: "(not shown)", Proxmox: "(not shown)"},
		{Attribute: "cpu.cores", File: "4", Proxmox: "2"},
		{Attribute: "description", File: "pins 1,3", Proxmox: "pins 1,2"},
		{Attribute: "long", File: "nothing", Proxmox: `"` + strings.Repeat("x", 59) + "…"},
		{Attribute: "note", File: "(not shown)", Proxmox: "(not shown)"},
		{Attribute: "numa.device", File: `"numa0"`, Proxmox: "nothing"},
		{Attribute: "numa[0].device", File: "nothing", Proxmox: `"numa0"`},
		{Attribute: "numa[1].device", File: "nothing", Proxmox: `"numa1"`},
		{Attribute: "on_boot", File: "true", Proxmox: "false"},
		{Attribute: "tags", File: `["a","b"]`, Proxmox: `["b"]`},
	}
	if diff := cmp.Diff(want, scaler.Differences(change)); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

// movedTo moves a guest of pve-1 to pve-2 and returns the snapshot.
func movedTo(s *topology.Snapshot, vmid fleet.VMID) *topology.Snapshot {
	from, to := &s.Hosts[0], &s.Hosts[1]
	i := slices.IndexFunc(from.Guests, func(g topology.Guest) bool { return g.VMID == int(vmid) })
	to.Guests = append(to.Guests, from.Guests[i])
	from.Guests = slices.Delete(slices.Clone(from.Guests), i, i+1)
	return s
}

// pinned returns a VM that is pinned to CPUs and takes its memory from NUMA node 1.
func pinned(id fleet.VMID, host topology.HostID, cpus ...int) fleet.VM {
	one := vm(host, id)
	one.Policy, one.PinWith = fleet.PolicyDedicated, fleet.PinWithHostAgent
	one.VCPUs, one.CPUs, one.VCPUPins = len(cpus), topology.CPUs(cpus...), cpus
	one.Cells = []topology.NUMACell{{GuestCPUs: topology.CPUs(0, 1), HostNodes: topology.CPUs(1), MemoryMiB: 4096, Policy: topology.NUMABind}}
	return one
}

func TestDriftMoved(t *testing.T) {
	t.Parallel()
	one, coming := pinned(2001, pve1, 6, 7), pinned(2002, pve2, 7, 8)
	guest := guestOf(one)
	guest.Pins = one.CPUs
	there := stranger(300)
	there.Pins = topology.CPUs(5, 6)
	s := movedTo(snapshot(guest), 2001)
	host := &s.Hosts[1]
	host.Guests = append(host.Guests, there)
	for id := range 7 {
		host.CPUs = append(host.CPUs, topology.CPU{ID: id, Online: true})
	}
	host.NUMANodes = []topology.NUMANode{{ID: 0, MemoryMiB: 1024}}
	host.ReservedCPUs = topology.CPUs(6)
	compare := func() scaler.VMDrift {
		return still(t, s, one, coming).Compare(pve1, &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{keep(one)}})[2001]
	}
	got := compare()
	want := []string{
		"its Node's label topology.kubernetes.io/zone is still pve-1",
		"its CPUs 6-7 were chosen on pve-1 and are different CPUs on pve-2",
		"pve-2 has no CPUs 7",
		"CPUs 6 are reserved for pve-2 itself",
		"CPUs 6 are pinned by guest 300 (accounting) there too",
		"CPUs 7 are reserved for workers-2002, which does not exist yet",
		"its memory is bound to NUMA nodes 1, which are different on pve-2",
		"pve-2 has no NUMA nodes 1: the VM cannot start there again",
	}
	if diff := cmp.Diff(want, got.Notes); diff != "" || got.Class != scaler.DriftMoved || got.Host != pve2 {
		t.Errorf("%s on %s, notes (-want +got):\n%s", got.Class, got.Host, diff)
	}
	host.NUMANodes = append(host.NUMANodes, topology.NUMANode{ID: 1, MemoryMiB: 1024})
	if diff := cmp.Diff(want[:len(want)-1], compare().Notes); diff != "" {
		t.Errorf("with the NUMA node, notes (-want +got):\n%s", diff)
	}
}

// TestElsewhere checks whether the removal of a moved VM needs its old host.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	one, two := vm(pve1, 2001), vm(pve1, 2002)
	both := func() *topology.Snapshot { return movedTo(down(snapshot(guestOf(one), guestOf(two))), 2001) }
	known := func(s *topology.Snapshot) *topology.Snapshot {
		s.Hosts[1].Guests[0].ClusterID, s.Hosts[1].Guests[0].Key = clusterID, string(one.Key)
		return s
	}
	dead := known(both())
	dead.Hosts[1].Online = false
	for _, tt := range []struct {
		name     string
		snapshot *topology.Snapshot
		remove   []string
		want     bool
	}{
		{"moved", known(both()), []string{one.Name}, true},
		{"not provably ours", both(), []string{one.Name}, false},
		{"still there", known(both()), []string{two.Name}, false},
		{"one of two", known(both()), []string{one.Name, two.Name}, false},
		{"to a host that is down too", dead, []string{one.Name}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			change, err := newScaler(t, nil, one, two).ProposeRemoval(t.Context(), tt.snapshot, tt.remove)
			if err != nil {
				t.Fatal(err)
			}
			if got := change.OnlyMovedAway(pve1); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// TestElsewhereAfterAFailure checks whether the retry of a removal that failed needs the old host
// of a moved VM: the VM has no file any more.
func TestElsewhereAfterAFailure(t *testing.T) {
	t.Parallel()
	one, two := vm(pve1, 2001), vm(pve1, 2002)
	moved := func(stays ...topology.Guest) *topology.Snapshot {
		s := movedTo(down(snapshot(append(stays, guestOf(one))...)), 2001)
		s.Hosts[1].Guests[0].ClusterID, s.Hosts[1].Guests[0].Key = clusterID, string(one.Key)
		return s
	}
	hidden := moved()
	hidden.Regions[0].HidesGuests = true
	for _, tt := range []struct {
		name     string
		snapshot *topology.Snapshot
		open     []fleet.VM
		want     bool
	}{
		{"moved", moved(), []fleet.VM{one}, true},
		{"one of two, and the other is deleted", moved(), []fleet.VM{one, two}, true},
		{"one of two, and the other may be hidden", hidden, []fleet.VM{one, two}, false},
		{"one of two", moved(guestOf(two)), []fleet.VM{one, two}, false},
		{"still there", moved(guestOf(two)), []fleet.VM{two}, false},
		{"all deleted", moved(), []fleet.VM{two}, false},
		{"no removal", moved(), nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			change := (&scaler.Change{After: fleet.Fleet{ClusterID: clusterID}, Snapshot: tt.snapshot}).Begun(pve1, tt.open...)
			if got := change.OnlyMovedAway(pve1); got != tt.want {
				t.Errorf("got %t", got)
			}
			if got := slices.Contains(change.HostsOf(pve1), pve2.Host); got != slices.ContainsFunc(tt.open, func(vm fleet.VM) bool { return vm.Key == one.Key }) {
				t.Errorf("hosts to read: %v", change.HostsOf(pve1))
			}
		})
	}
}

// TestFollow checks which state entries of a moved VM are outdated, and which hosts are
// read before it is removed.
func TestFollow(t *testing.T) {
	t.Parallel()
	one := vm(pve1, 2001)
	one.SecurityGroups, one.Networks = []string{"web"}, []fleet.Network{{Bridge: "vmbr0", Firewall: true}}
	s := newScaler(t, nil, one, vm(pve1, 2002))
	change, err := s.ProposeRemoval(t.Context(), movedTo(snapshot(guestOf(one), guestOf(vm(pve1, 2002))), 2001), []string{one.Name})
	if err != nil {
		t.Fatal(err)
	}
	if got := change.HostsOf(pve1); !slices.Equal(got, []topology.HostName{"pve-1", "pve-2"}) {
		t.Errorf("hosts to read: %v", got)
	}
	w, err := s.Look(t.Context(), change, pve1)
	if err != nil {
		t.Fatal(err)
	}
	addresses := generator.Addresses(&one)
	stale := []state.Resource{{Address: addresses[0], Host: "pve-1"}, {Address: addresses[1]}, {Address: generator.Address(ptr(vm(pve1, 2002))), Host: "pve-1"}}
	targets, groups := w.Outdated(stale...)
	if !slices.Equal(targets, generator.Calls(&one)[:1]) || !slices.Equal(groups, addresses[1:]) {
		t.Errorf("behind: %v, groups %v", targets, groups)
	}
	if targets, groups := w.Outdated(state.Resource{Address: addresses[0], Host: "pve-2"}); len(targets)+len(groups) > 0 {
		t.Errorf("a state that knows is behind: %v, %v", targets, groups)
	}
}

func ptr[T any](value T) *T { return &value }

// TestLeaveOut checks which VMs are planned again after an engine error: all except the
// VMs that the error names.
func TestLeaveOut(t *testing.T) {
	t.Parallel()
	one, two := vm(pve1, 2001), vm(pve1, 2002)
	change := still(t, movedTo(snapshot(guestOf(one), guestOf(two)), 2002), one, two)
	left, named := change.LeaveOut(pve1, &state.CommandError{Text: "Error: no such disk\n\n  with " + generator.Address(&one) + ",\n"})
	if _, kept := left[generator.Address(&two)]; !named || !kept || len(left) != 1 {
		t.Errorf("named %t, left %v", named, left)
	}
	if left, named := change.LeaveOut(pve1, &state.CommandError{Text: "Error: no backend"}); named || len(left) != 2 {
		t.Errorf("named %t, left %v", named, left)
	}
	two.SecurityGroups, two.Networks = []string{"web"}, []fleet.Network{{Bridge: "vmbr0", Firewall: true}}
	change = still(t, movedTo(snapshot(guestOf(one), guestOf(two)), 2002), one, two)
	if got, want := change.Compared(pve1), []string{generator.Calls(&one)[0], generator.Calls(&two)[0]}; !slices.Equal(got, want) {
		t.Errorf("compares %v, want %v", got, want)
	}
}

// TestProposeRepair checks that a repair contains only VMs with repairable drift that are
// in the fleet, and changes no file.
func TestProposeRepair(t *testing.T) {
	t.Parallel()
	one, two, gone := vm(pve1, 2001), vm(pve1, 2002), vm(pve2, 2003)
	s := newScaler(t, nil, one, two)
	drift := []scaler.RootDrift{
		{Host: pve1, VMs: []scaler.VMDrift{
			{VM: one, Class: scaler.DriftRepairable, Repairable: true}, {VM: two, Class: scaler.DriftReplace},
		}},
		{Host: pve2, VMs: []scaler.VMDrift{{VM: gone, Class: scaler.DriftRepairable, Repairable: true}}},
	}
	change, held, err := s.ProposeRepair(t.Context(), snapshot(guestOf(one), guestOf(two)), drift)
	if err != nil || held != nil {
		t.Fatal(err, held)
	}
	if got := ids(change.Repaired); !slices.Equal(got, []fleet.VMID{2001}) || change.Empty() || len(change.Differences()) > 0 {
		t.Errorf("repairs %v, empty %t, files %v", got, change.Empty(), change.Differences())
	}
	if hosts := change.Hosts(); !slices.Equal(hosts, []topology.HostID{pve1}) {
		t.Errorf("touches %v", hosts)
	}
	for name, guests := range map[string][]topology.Guest{"gone": nil, "stranger": {stranger(2001)}} {
		change.Snapshot = snapshot(guests...)
		w, err := s.Look(t.Context(), change, pve1)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Repairable(one); err == nil {
			t.Errorf("%s: the VM would be repaired", name)
		}
	}
	if drift[0].Clean() || !(&scaler.RootDrift{VMs: []scaler.VMDrift{{Class: scaler.DriftNone}}}).Clean() {
		t.Error("a host is not as clean as its VMs")
	}
}

// TestProposeRepairUnfinished skips a host where a removal has begun, and repairs the
// other host.
func TestProposeRepairUnfinished(t *testing.T) {
	t.Parallel()
	one, two, leaving, other := vm(pve1, 2001), vm(pve1, 2002), vm(pve1, 2003), vm(pve2, 2004)
	s := newScaler(t, nil, one, two, other)
	s.Begin(t, pve1, leaving)
	now := snapshot(guestOf(one), guestOf(two), guestOf(leaving))
	now.Hosts[1].Guests = []topology.Guest{guestOf(other)}
	broken := func(vm fleet.VM) scaler.VMDrift {
		return scaler.VMDrift{VM: vm, Class: scaler.DriftRepairable, Repairable: true}
	}
	drift := []scaler.RootDrift{
		{Host: pve1, VMs: []scaler.VMDrift{broken(one), broken(two)}}, {Host: pve2, VMs: []scaler.VMDrift{broken(other)}},
	}
	change, held, err := s.ProposeRepair(t.Context(), now, drift)
	if err != nil {
		t.Fatal(err)
	}
	if got := ids(change.Repaired); !slices.Equal(got, []fleet.VMID{2004}) || strings.Contains(change.Why, one.Name) || !change.IsNarrow() {
		t.Errorf("repairs %v, narrow %t: %s", got, change.IsNarrow(), change.Why)
	}
	if !as[*scaler.UnfinishedError](held) || strings.Count(held.Error(), "host lab/pve-1: ") != 1 || !strings.Contains(held.Error(), "`numaform apply` first") {
		t.Errorf("held back: %v", held)
	}
	if open := s.Record(change, nil).Open; len(open) != 1 || len(open[0].Removed) != 1 || open[0].Removed[0].Key != leaving.Key {
		t.Errorf("under way after the repair: %+v", open)
	}
	for host, refused := range map[topology.HostID]bool{pve1: true, pve2: false} {
		w, err := s.Look(t.Context(), change, host)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Repairable(); (err != nil) != refused {
			t.Errorf("%s: a plan of its repair is refused: %v, want %t", host, err, refused)
		}
	}
}
