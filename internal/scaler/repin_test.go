package scaler_test

import (
	"errors"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// described returns an update of a VM's description from its pins in Proxmox to the pins in
// its file.
func described(vm fleet.VM, was ...int) *tfjson.ResourceChange {
	from := fleet.Marker{ClusterID: clusterID, Key: vm.Key, Pins: was}
	is := fleet.Marker{ClusterID: clusterID, Key: vm.Key, Pins: vm.VCPUPins, Emulator: vm.Emulator}
	return update(vm, "description", from.String(), is.String()+"\nAsked: by a test")
}

// TestRepin checks which plans may change the host agent's pins of a running VM, and which
// pins are refused because the host does not have or cannot assign the CPUs.
func TestRepin(t *testing.T) {
	t.Parallel()
	one := pinned(2001, pve1, 6, 38)
	one.Cells[0].HostNodes = topology.CPUs(0)
	for _, test := range []struct {
		name   string
		change func(vm *fleet.VM, s *topology.Snapshot)
		plan   func(vm fleet.VM) *tfjson.ResourceChange
		says   string
		err    string
	}{
		{name: "other CPUs", says: "workers-2001: pins 4,36 → 6,38"},
		{
			name: "another place of the emulator", change: func(vm *fleet.VM, _ *topology.Snapshot) { vm.Emulator = fleet.EmulatorShared },
			plan: func(vm fleet.VM) *tfjson.ResourceChange { return described(vm, 6, 38) }, says: "workers-2001: pins 6,38 → 6,38, emulator shared",
		},
		{name: "pins that somebody took out by hand", plan: func(vm fleet.VM) *tfjson.ResourceChange { return described(vm) }, says: "workers-2001: no pins → 6,38"},
		{name: "nothing else", plan: func(vm fleet.VM) *tfjson.ResourceChange { return update(vm, "tags", []any{"a"}, []any{"b"}) }},
		{name: "of another VM", change: func(_ *fleet.VM, s *topology.Snapshot) { s.Hosts[0].Guests[0].Key = strings.Repeat("f", 32) }},
		{name: "by affinity", change: func(vm *fleet.VM, _ *topology.Snapshot) { vm.PinWith = fleet.PinWithAffinity }},
		{
			name: "off its memory", change: func(vm *fleet.VM, _ *topology.Snapshot) { vm.VCPUPins, vm.CPUs = []int{6, 8}, topology.CPUs(6, 8) },
			err: "vm workers-2001: its file pins it to CPUs 6,8 of host lab/pve-1, but vCPU 1 has its memory on NUMA node 0, and CPU 8 is on NUMA node 1: declare other CPUs",
		},
		{name: "offline", change: func(_ *fleet.VM, s *topology.Snapshot) { s.Hosts[0].CPUs[2].Online = false }, err: "CPU 38 does not exist or is offline"},
		{name: "absent", change: func(vm *fleet.VM, _ *topology.Snapshot) { vm.VCPUPins, vm.CPUs = []int{6, 99}, topology.CPUs(6, 99) }, err: "CPU 99 does not exist or is offline"},
		{name: "reserved", change: func(_ *fleet.VM, s *topology.Snapshot) { s.Hosts[0].ReservedCPUs = topology.CPUs(6) }, err: "CPU 6 is reserved for the host"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			vm, s := one, snapshot(guestOf(one))
			s.Hosts[0].CPUs = []topology.CPU{{ID: 6, Online: true}, {ID: 8, Online: true, NUMANode: 1}, {ID: 38, Online: true}}
			if test.change != nil {
				test.change(&vm, s)
			}
			resource := described(vm, 4, 36)
			if test.plan != nil {
				resource = test.plan(vm)
			}
			plan := &scaler.RootPlan{Host: pve1}
			updated, err := newScaler(t, nil).Repin(t.Context(), &scaler.Change{
				After: fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{vm}}, Snapshot: s,
			}, pve1, plan, &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{resource}})
			var refused *scaler.PinsError
			if test.err != "" {
				if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, r := range plan.Repinned {
				said = append(said, r.String())
			}
			if got := strings.Join(said, "; "); got != test.says || (len(updated) == 1) != (test.says != "") {
				t.Errorf("it says %q and updates %v, want %q", got, updated, test.says)
			}
		})
	}
}
