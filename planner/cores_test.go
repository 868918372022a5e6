package planner_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// TestCachesOfDiscardedCores checks that the L3 cache of cores that choose discards does
// not count as used. On node 0, whole cores do not add up if they are taken cache by cache:
// L3 cache 0 has 3 of the 4 vCPUs, but all other cores have 2 threads. choose then discards
// the cores of L3 cache 0, so node 1 must prefer L3 cache 1, which the VM uses, to L3 cache
// 0.
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
