package placement

import (
	"math"
	"slices"
)

// quality describes the quality of a VM's placement.
type quality struct {
	nodes  int  // NUMA nodes of its CPUs and of its memory
	caches int  // L3 caches of its CPUs
	alone  bool // no core is shared with another VM
}

// qualityOf evaluates one of the guests. A floating VM counts as running on as many NUMA
// nodes and L3 caches as it has vCPUs, because nothing keeps its vCPUs together.
func qualityOf(m *Machine, g *Guest, guests []Guest) quality {
	if g.CPUs == nil {
		return quality{nodes: min(g.VCPUs, len(m.Nodes)), caches: min(g.VCPUs, len(m.caches)), alone: false}
	}
	nodes, caches, cores := map[int]bool{}, map[int]bool{}, map[int]bool{}
	for _, id := range g.CPUs {
		cpu := m.CPU(id)
		nodes[cpu.Node], caches[cpu.L3], cores[cpu.Core] = true, true, true
	}
	memory := memoryNodes(m, guests)
	alone := true
	for i := range guests {
		if guests[i].ID == g.ID {
			for _, n := range memory[i] {
				nodes[n] = true
			}
			continue
		}
		alone = alone && !slices.ContainsFunc(guests[i].CPUs, func(id int) bool { return cores[m.CPU(id).Core] })
	}
	return quality{nodes: len(nodes), caches: len(caches), alone: alone}
}

// leastCaches returns the minimum number of L3 caches for a VM on the empty machine, within
// one NUMA node: no run has VMs larger than a node.
func leastCaches(m *Machine, vm VM) int {
	least := math.MaxInt
	for n := range m.Nodes {
		if vm.VCPUs > len(m.Nodes[n].CPUs) || vm.MemoryMiB > m.Nodes[n].MemoryMiB {
			continue
		}
		var sizes []int
		for _, cache := range m.caches {
			inNode := 0
			for _, id := range cache {
				if m.CPU(id).Node == n {
					inNode++
				}
			}
			sizes = append(sizes, inNode)
		}
		slices.SortFunc(sizes, func(a, b int) int { return b - a })
		left, used := vm.VCPUs, 0
		for left > 0 {
			left -= sizes[used]
			used++
		}
		least = min(least, used)
	}
	return least
}
