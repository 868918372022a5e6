package placement

import (
	"maps"
	"slices"
)

// stock contains the resources of a machine that a baseline considers free.
type stock struct {
	machine *Machine
	free    map[int]bool // CPU ids
	memory  []int64      // by NUMA node
	total   int64        // memory of the host
	taken   map[int]holding
}

// holding contains the resources of one VM.
type holding struct {
	cpus   []int
	memory []int64 // by NUMA node
	total  int64
}

// newStock returns the stock of an empty machine.
func newStock(m *Machine) *stock {
	s := &stock{machine: m, free: map[int]bool{}, taken: map[int]holding{}}
	for _, n := range m.Nodes {
		s.memory = append(s.memory, n.MemoryMiB)
		s.total += n.MemoryMiB
		for _, id := range n.CPUs {
			s.free[id] = true
		}
	}
	return s
}

// freeOn returns the free CPUs of a NUMA node, ascending.
func (s *stock) freeOn(node int) []int {
	var ids []int
	for _, id := range s.machine.Nodes[node].CPUs {
		if s.free[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// all returns the free CPUs, ascending.
func (s *stock) all() []int { return slices.Sorted(maps.Keys(s.free)) }

// take takes a VM's resources from the stock. memory is the amount that the VM binds on
// each NUMA node, or nil.
func (s *stock) take(vm VM, cpus []int, memory []int64) {
	for _, id := range cpus {
		delete(s.free, id)
	}
	for n := range memory {
		s.memory[n] -= memory[n]
	}
	s.total -= vm.MemoryMiB
	s.taken[vm.ID] = holding{cpus, memory, vm.MemoryMiB}
}

// Remove frees the VM's resources.
func (s *stock) Remove(vm VM) {
	h := s.taken[vm.ID]
	for _, id := range h.cpus {
		s.free[id] = true
	}
	for n := range h.memory {
		s.memory[n] += h.memory[n]
	}
	s.total += h.total
	delete(s.taken, vm.ID)
}

// bound takes CPUs, and memory from the given NUMA nodes one after the other. It returns
// the resulting cells: one for each node or, if a node gives memory but no CPU, or a CPU
// but no memory, one over all nodes.
func (s *stock) bound(vm VM, cpus, nodes []int) Place {
	memory := make([]int64, len(s.memory))
	left := vm.MemoryMiB
	for _, n := range nodes {
		memory[n] = min(left, s.memory[n])
		left -= memory[n]
	}
	s.take(vm, cpus, memory)
	guests := make([][]int, len(s.memory))
	for v, id := range cpus {
		n := s.machine.CPU(id).Node
		guests[n] = append(guests[n], v)
	}
	place := Place{CPUs: cpus}
	for n := range memory {
		if (len(guests[n]) == 0) != (memory[n] == 0) {
			place.Cells = []Cell{joint(vm, nodes, memory)}
			return place
		}
		if memory[n] > 0 {
			place.Cells = append(place.Cells, Cell{GuestCPUs: guests[n], Nodes: []int{n}, MemoryMiB: memory[n]})
		}
	}
	return place
}

// joint returns one cell over several NUMA nodes.
func joint(vm VM, nodes []int, memory []int64) Cell {
	c := Cell{Nodes: nodes, MemoryMiB: vm.MemoryMiB}
	for v := range vm.VCPUs {
		c.GuestCPUs = append(c.GuestCPUs, v)
	}
	for _, n := range nodes {
		c.Parts = append(c.Parts, memory[n])
	}
	return c
}
