package placement

import (
	"maps"
	"slices"
)

// KPP is the static node policy of karpenter-provider-proxmox v0.12. It takes CPUs from all
// NUMA nodes that each have the VM's whole memory free, with the kubelet's allocation and
// aligned uncore caches, and binds the VM's whole memory on each node of these CPUs. With
// guess, it derives the topology from the name of the CPU model; otherwise it uses the real
// topology. Two differences from the original: it reserves a share of each node's memory
// for the host, not only of the total, and it immediately removes a VM that cannot start.
func KPP(guess bool) Kind {
	if guess {
		return Kind{Name: "karpenter-provider-proxmox, own guess", New: newGuessingKPP}
	}
	return Kind{Name: "karpenter-provider-proxmox, true topology", New: func(m *Machine) Placer {
		p := newKPP(m, trueLayout(m))
		for n := range m.Nodes {
			p.memory[n] = m.Nodes[n].MemoryMiB
		}
		p.position = func(node int) int { return node }
		return p
	}}
}

// newGuessingKPP divides the memory evenly among the guessed NUMA nodes, and uses their
// numbers as the IDs of the host's NUMA nodes.
func newGuessingKPP(m *Machine) Placer {
	l := guessLayout(m)
	p := newKPP(m, l)
	if l == nil {
		return p
	}
	for n := range l.nodes {
		p.memory[n] = p.total / int64(l.nodes)
	}
	p.position = func(node int) int {
		return slices.IndexFunc(m.Nodes, func(real Node) bool { return real.ID == node })
	}
	return p
}

type kpp struct {
	layout *layout
	// Free CPUs by ID, and free memory by NUMA node and of the host.
	free   map[int]bool
	memory map[int]int64
	total  int64
	taken  map[int]kppHolding
	// position translates NUMA nodes of the layout to nodes of the machine.
	position func(node int) int
}

// kppHolding contains the resources of a VM: its CPUs, and the nodes on each of which its
// whole memory is bound.
type kppHolding struct{ cpus, nodes []int }

// newKPP returns the placer for a layout. Without a layout, which is nil if it could not be
// guessed, the placer accepts no VMs.
func newKPP(m *Machine, l *layout) *kpp {
	_, total := m.Usable()
	p := &kpp{layout: l, free: map[int]bool{}, memory: map[int]int64{}, total: total, taken: map[int]kppHolding{}}
	if l == nil {
		return p
	}
	for id := range l.cpus {
		if !m.Host.ReservedCPUs.Contains(id) {
			p.free[id] = true
		}
	}
	return p
}

func (p *kpp) Place(vm VM) (Place, bool) {
	if p.layout == nil || vm.MemoryMiB > p.total {
		return Place{}, false
	}
	var free []int
	for id := range p.free {
		if p.memory[p.layout.cpus[id].node] >= vm.MemoryMiB {
			free = append(free, id)
		}
	}
	slices.Sort(free)
	cpus, ok := p.layout.allocate(free, vm.VCPUs, true)
	if !ok {
		return Place{}, false
	}
	byNode := map[int][]int{}
	for _, id := range cpus {
		delete(p.free, id)
		n := p.layout.cpus[id].node
		byNode[n] = append(byNode[n], id)
	}
	nodes := slices.Sorted(maps.Keys(byNode))
	var place Place
	for _, n := range nodes {
		cell := Cell{Nodes: []int{p.position(n)}, MemoryMiB: vm.MemoryMiB}
		for _, id := range byNode[n] {
			cell.GuestCPUs = append(cell.GuestCPUs, len(place.CPUs))
			place.CPUs = append(place.CPUs, id)
		}
		place.Cells = append(place.Cells, cell)
		p.memory[n] -= vm.MemoryMiB
	}
	p.total -= vm.MemoryMiB
	p.taken[vm.ID] = kppHolding{cpus, nodes}
	return place, true
}

// Remove frees the VM's CPUs, even if they are also assigned to another VM.
func (p *kpp) Remove(vm VM) {
	h := p.taken[vm.ID]
	for _, id := range h.cpus {
		p.free[id] = true
	}
	for _, n := range h.nodes {
		p.memory[n] += vm.MemoryMiB
	}
	p.total += vm.MemoryMiB
	delete(p.taken, vm.ID)
}
