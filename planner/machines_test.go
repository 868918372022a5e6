package planner_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// eachMachine runs a test on every real machine, with its first core and 5 % of its memory
// reserved.
func eachMachine(t *testing.T, test func(t *testing.T, snap *topology.Snapshot)) {
	t.Helper()
	for _, name := range machines.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := host("pve-1", known(t, name))
			first := h.OnlineCPUs().List()[0]
			h.ReservedCPUs = topology.CPUs(first)
			for _, cpus := range siblings(&h) {
				if set := topology.CPUs(cpus...); set.Contains(first) {
					h.ReservedCPUs = set
				}
			}
			h.ReservedMemoryMiB = h.MemoryMiB / 20
			test(t, snapshot(h))
		})
	}
}

// TestFillMachines checks that as many equal VMs fit each machine as its free CPUs hold.
func TestFillMachines(t *testing.T) {
	t.Parallel()
	eachMachine(t, func(t *testing.T, snap *topology.Snapshot) {
		h := &snap.Hosts[0]
		free := h.OnlineCPUs().Difference(h.ReservedCPUs).Size()
		for _, vcpus := range []int{2, 4} {
			placed, _ := place(t, snap, nil, same(spec(fleet.PolicyDedicated, vcpus, 256), free/vcpus+1)...)
			if len(placed) != free/vcpus {
				t.Errorf("%d VMs with %d vCPUs on %d free CPUs, want %d", len(placed), vcpus, free, free/vcpus)
			}
		}
	})
}

// TestMixMachines checks the hard rules for a mix of all policies, placed twice on every
// machine.
func TestMixMachines(t *testing.T) {
	t.Parallel()
	eachMachine(t, func(t *testing.T, snap *topology.Snapshot) {
		var specs []fleet.Spec
		for _, policy := range []fleet.Policy{fleet.PolicyShared, fleet.PolicyNUMA, fleet.PolicyDedicated, fleet.PolicyIsolated} {
			for _, vcpus := range []int{1, 2, 3, 4, 8, 12} {
				specs = append(specs, spec(policy, vcpus, int64(vcpus)*512))
			}
		}
		placed, _ := place(t, snap, nil, specs...)
		if len(placed) == 0 {
			t.Error("nothing placed")
		}
		place(t, snap, asExisting(2000, specs, placed), specs...)
	})
}

// TestEmptyMachines checks that a VM alone on a machine gets as few NUMA nodes and L3
// caches as the machine allows.
func TestEmptyMachines(t *testing.T) {
	t.Parallel()
	tests := []struct {
		machine       string
		vcpus         int
		nodes, caches int // nodes 0: no cells
	}{
		{"epyc-7451-2s-8node", 6, 1, 1},
		{"epyc-7451-2s-8node", 8, 1, 2},
		{"epyc-7451-2s-8node", 16, 2, 3},
		{"epyc-7763-2s-nps1-assumed", 8, 1, 1},
		{"epyc-7763-2s-nps1-assumed", 72, 2, 9},
		{"hybrid-i7-1370p-6p8e", 12, 0, 1},
		{"kunpeng920-2s-4node", 64, 2, 2},
		{"laptop-i5-m560-2c4t", 2, 0, 1},
		{"nuc-i7-1165g7-4c8t", 4, 0, 1},
		{"opteron-6276-4s-8node", 8, 1, 1},
		{"ryzen-ai-hx370-2ccx", 8, 0, 1},
		{"xeon-4108-2s-smt", 16, 1, 1},
		{"xeon-6230-2s-snc2", 40, 2, 1}, // the nodes of one package share its L3
		{"xeon-e5-2680v3-offline-cpu0", 8, 0, 1},
		{"xeon-e7-4870-4s-pci", 20, 2, 2},
		{"xeon-x7460-16s-4node", 6, 1, 1},
		{"xeon-x7460-16s-4node", 24, 1, 4},
	}
	for _, tt := range tests {
		snap := snapshot(host("pve-1", known(t, tt.machine)))
		got := placeOne(t, snap, nil, spec(fleet.PolicyDedicated, tt.vcpus, 512))
		if len(got.Cells) != tt.nodes || len(got.L3) != tt.caches {
			t.Errorf("%s, %d vCPUs: %d cells, L3 %v, want %d and %d: %s",
				tt.machine, tt.vcpus, len(got.Cells), got.L3, tt.nodes, tt.caches, got.Reason)
		}
	}
}

// TestNearestNodes checks that a VM on two NUMA nodes gets the two nearest ones.
func TestNearestNodes(t *testing.T) {
	t.Parallel()
	for name, vcpus := range map[string]int{"kunpeng920-2s-4node": 48, "xeon-6230-2s-snc2": 30, "opteron-6276-4s-8node": 12} {
		snap := snapshot(host("pve-1", known(t, name)))
		h := &snap.Hosts[0]
		got := placeOne(t, snap, nil, spec(fleet.PolicyDedicated, vcpus, gib))
		if len(got.Cells) != 2 {
			t.Fatalf("%s: %d cells", name, len(got.Cells))
		}
		a, b := got.Cells[0].HostNodes.List()[0], got.Cells[1].HostNodes.List()[0]
		for _, n := range h.NUMANodes {
			for other, d := range n.Distances {
				if other != n.ID && d < nodeByID(h, a).Distances[b] {
					t.Errorf("%s: nodes %d and %d at distance %d, but %d and %d at %d",
						name, a, b, nodeByID(h, a).Distances[b], n.ID, other, d)
				}
			}
		}
	}
}

// TestConstructedMachines checks the CPUs and reasons of VMs placed one by one on machines
// with several kinds of cores or caches.
func TestConstructedMachines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		machine string
		vcpus   []int
		want    []string // CPUs, and the start of the reason
	}{
		{"core-ultra-6p8e2lp", []int{4, 4, 2, 4, 2}, []string{
			"0-3 the only NUMA node, L3 0: 4 whole cores; leaves 12 CPUs, 30.5 GiB",
			"6-9 the only NUMA node, L3 0: 4 whole cores; leaves 8 CPUs, 30 GiB; efficiency cores",
			"4-5 the only NUMA node, L3 0: 2 whole cores; leaves 6 CPUs, 29.5 GiB",
			"10-13 the only NUMA node, L3 0: 4 whole cores; leaves 2 CPUs, 29 GiB; efficiency cores",
			"14-15 the only NUMA node, L2 1: 2 whole cores; leaves 0 CPUs, 28.5 GiB; low-power cores",
		}},
		{"core-ultra-6p8e2lp", []int{15}, []string{
			"0-14 the only NUMA node, L3 0, L2 1: 15 whole cores; leaves 1 CPU, 30.5 GiB; mixes kinds of core",
		}},
		{"rk3588-4big4little", []int{2, 4, 2}, []string{
			"4-5 the only NUMA node, L3 0: 2 whole cores; leaves 6 CPUs, 15 GiB",
			"0-3 the only NUMA node, L3 0: 4 whole cores; leaves 2 CPUs, 14.5 GiB; efficiency cores",
			"6-7 the only NUMA node, L3 0: 2 whole cores; leaves 0 CPUs, 14 GiB",
		}},
		{"bcm2711-no-l3", []int{2}, []string{"0-1 the only NUMA node, L2 0: 2 whole cores; leaves 2 CPUs, 7.1 GiB"}},
	} {
		p := planner.New(snapshot(host("pve-1", known(t, "constructed/"+tt.machine))), nil)
		var got []string
		for _, vcpus := range tt.vcpus {
			placed, unplaced := p.Place([]fleet.Spec{spec(fleet.PolicyDedicated, vcpus, 512)})
			for _, u := range unplaced {
				got = append(got, u.Reason)
			}
			for _, one := range placed {
				got = append(got, one.CPUs.String()+" "+one.Reason)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s, %v vCPUs (-want +got):\n%s", tt.machine, tt.vcpus, diff)
		}
	}
}
