package placement

import "slices"

// memoryNodes returns the NUMA nodes with each guest's memory. Memory bound by cells is on
// the nodes of the cells. The memory of a pinned VM without cells comes from the nodes of
// its CPUs as long as they have free memory, because Linux allocates memory close to the
// CPU that first touches it, and then from the nodes with the most free memory. The guests
// are assumed to arrive in order. For floating VMs, the nodes are unknown and the result is
// empty.
func memoryNodes(m *Machine, guests []Guest) [][]int {
	free := make([]int64, len(m.Nodes))
	for n := range m.Nodes {
		free[n] = m.Nodes[n].MemoryMiB
	}
	nodes := make([][]int, len(guests))
	for i := range guests {
		for c := range guests[i].Cells {
			cell := &guests[i].Cells[c]
			for at, n := range cell.Nodes {
				if amount := part(cell, at); n >= 0 && amount > 0 {
					free[n] -= amount
					nodes[i] = append(nodes[i], n)
				}
			}
		}
	}
	for i := range guests {
		if guests[i].CPUs != nil && guests[i].Cells == nil {
			nodes[i] = firstTouch(m, &guests[i], free)
		}
	}
	return nodes
}

// firstTouch takes a guest's memory from free, and returns its nodes.
func firstTouch(m *Machine, g *Guest, free []int64) []int {
	order := make([]int, len(free))
	near := make([]bool, len(free))
	for n := range order {
		order[n] = n
	}
	for _, id := range g.CPUs {
		near[m.CPU(id).Node] = true
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if near[a] != near[b] {
			if near[a] {
				return -1
			}
			return 1
		}
		return int(free[b] - free[a])
	})
	var nodes []int
	left := g.MemoryMiB
	for _, n := range order {
		if take := min(left, free[n]); take > 0 {
			free[n] -= take
			left -= take
			nodes = append(nodes, n)
		}
	}
	return nodes
}
