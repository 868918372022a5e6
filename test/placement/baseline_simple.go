package placement

import "slices"

// Unpinned is the default of Proxmox: VMs and their memory float over the host. Unlike
// Proxmox, it refuses VMs when all CPUs or memory are in use.
func Unpinned() Kind {
	return Kind{Name: "unpinned", New: func(m *Machine) Placer {
		cpus, _ := m.Usable()
		return &unpinned{stock: newStock(m), cpus: cpus}
	}}
}

type unpinned struct {
	*stock
	cpus int
}

func (p *unpinned) Place(vm VM) (Place, bool) {
	if vm.VCPUs > p.cpus || vm.MemoryMiB > p.total {
		return Place{}, false
	}
	p.cpus -= vm.VCPUs
	p.take(vm, nil, nil)
	return Place{}, true
}

func (p *unpinned) Remove(vm VM) {
	p.cpus += vm.VCPUs
	p.stock.Remove(vm)
}

// Sequential simulates scripts of administrators: it sets the affinity to the lowest free
// CPU IDs, and does not bind memory. It does not reproduce a particular script.
func Sequential() Kind {
	return Kind{Name: "sequential affinity", New: func(m *Machine) Placer { return &sequential{newStock(m)} }}
}

type sequential struct{ *stock }

func (p *sequential) Place(vm VM) (Place, bool) {
	free := p.all()
	if vm.VCPUs > len(free) || vm.MemoryMiB > p.total {
		return Place{}, false
	}
	cpus := free[:vm.VCPUs]
	p.take(vm, cpus, nil)
	return Place{CPUs: cpus}, true
}

// MostFreeMemory places a VM on the NUMA node with the most free memory among the nodes on
// which it fits. If it fits on no node, it gets several nodes, in the order of their free
// memory. It does not reproduce a particular program: schedulers that consider memory first
// choose hosts in this order.
func MostFreeMemory() Kind {
	return Kind{Name: "most free memory", New: func(m *Machine) Placer { return &mostFree{newStock(m)} }}
}

type mostFree struct{ *stock }

func (p *mostFree) Place(vm VM) (Place, bool) {
	order := make([]int, len(p.memory))
	for n := range order {
		order[n] = n
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(p.memory[b] - p.memory[a]) })
	for _, n := range order {
		if free := p.freeOn(n); len(free) >= vm.VCPUs && p.memory[n] >= vm.MemoryMiB {
			return p.bound(vm, free[:vm.VCPUs], []int{n}), true
		}
	}
	var cpus []int
	var memory int64
	for i, n := range order {
		cpus = append(cpus, p.freeOn(n)...)
		memory += p.memory[n]
		if len(cpus) >= vm.VCPUs && memory >= vm.MemoryMiB {
			return p.bound(vm, cpus[:vm.VCPUs], order[:i+1]), true
		}
	}
	return Place{}, false
}
