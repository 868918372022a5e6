package placement_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/numaform/numaform/test/placement"
)

// TestOptimumIsBruteForce checks that BestPrefix finds the same optimum as trying every
// packing.
func TestOptimumIsBruteForce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &placement.Machine{}
		for range rapid.IntRange(1, 3).Draw(t, "nodes") {
			m.Nodes = append(m.Nodes, placement.Node{
				CPUs:      make([]int, rapid.IntRange(1, 8).Draw(t, "cpus")),
				MemoryMiB: rapid.Int64Range(gib, 16*gib).Draw(t, "memory"),
			})
		}
		var list []placement.VM
		for range rapid.IntRange(1, 7).Draw(t, "vms") {
			list = append(list, placement.VM{
				VCPUs: rapid.IntRange(1, 5).Draw(t, "vcpus"), MemoryMiB: gib * rapid.Int64Range(1, 6).Draw(t, "gib"),
			})
		}
		want := 0
		for n := range len(list) + 1 {
			if packs(m.Nodes, list[:n]) {
				want = n
			}
		}
		if got := placement.BestPrefix(m, list); got.Found != want || !got.Proved() {
			t.Fatalf("nodes %v, list %v: %+v, want %d", m.Nodes, list, got, want)
		}
	})
}

// packs reports whether the VMs can be packed. It tries every node for each VM.
func packs(nodes []placement.Node, list []placement.VM) bool {
	if len(list) == 0 {
		return true
	}
	vm := list[0]
	for n := range nodes {
		old := nodes[n]
		if len(old.CPUs) < vm.VCPUs || old.MemoryMiB < vm.MemoryMiB {
			continue
		}
		nodes[n] = placement.Node{CPUs: old.CPUs[vm.VCPUs:], MemoryMiB: old.MemoryMiB - vm.MemoryMiB}
		ok := packs(nodes, list[1:])
		nodes[n] = old
		if ok {
			return true
		}
	}
	return false
}
