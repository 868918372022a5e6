package planner_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// TestCachesOfDiscardedCores places a VM on two NUMA nodes that share L3 caches. On node 0,
// whole cores that are taken L3 cache by L3 cache do not add up: 3 vCPUs of L3 cache 0
// leave 1, but the other cores have 2 threads. The cores of L3 cache 0 are discarded, so
// node 1 must prefer L3 cache 1, which the VM uses, to L3 cache 0.
func TestCachesOfDiscardedCores(t *testing.T) {
	t.Parallel()
	var m topology.Machine
	core := 0
	add := func(node, l3, threads int) {
		for range threads {
			m.CPUs = append(m.CPUs, topology.CPU{ID: len(m.CPUs), Online: true, NUMANode: node, Core: core, L3: l3})
		}
		core++
	}
	for range 3 {
		add(0, 0, 1)
	}
	add(0, 1, 2)
	add(0, 2, 2)
	for _, l3 := range []int{0, 0, 1, 1} {
		add(1, l3, 2)
	}
	m.NUMANodes = []topology.NUMANode{{ID: 0, MemoryMiB: 4 * gib}, {ID: 1, MemoryMiB: 4 * gib}}
	m.MemoryMiB = 8 * gib

	wholeCores := spec(fleet.PolicyDedicated, 8, 8*gib)
	wholeCores.WholeCores = true
	placed := placeOne(t, snapshot(host("pve-1", m)), nil, wholeCores)
	if diff := cmp.Diff([]int{1, 2}, placed.L3); diff != "" {
		t.Errorf("L3 caches of %v (-want +got):\n%s", placed.VCPUPins, diff)
	}
}
