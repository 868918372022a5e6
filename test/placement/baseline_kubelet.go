package placement

import (
	"cmp"
	"math/bits"
	"slices"
)

// Kubelet is the kubelet's static CPU manager and memory manager with the topology
// manager's policy best-effort: it uses the narrowest set of NUMA nodes with enough CPUs
// and memory, and the lowest of equally narrow sets. With alignCaches, it prefers to align
// CPUs by uncore cache. Three differences from the kubelet: both managers use the same set
// (the kubelet merges their hints, and can choose CPUs outside the memory's nodes), memory
// is bound when the VM is placed, and a NUMA node can serve both single-node and
// multi-node VMs (the memory manager separates these and refuses more).
func Kubelet(alignCaches bool) Kind {
	name := "kubelet static + best-effort"
	if alignCaches {
		name = "kubelet + prefer-uncore-cache"
	}
	return Kind{Name: name, New: func(m *Machine) Placer {
		return &kubelet{stock: newStock(m), layout: trueLayout(m), align: alignCaches, masks: masks(len(m.Nodes))}
	}}
}

type kubelet struct {
	*stock
	layout *layout
	align  bool
	masks  []uint
}

// masks returns all sets of NUMA nodes, the narrowest first, then by their bits.
func masks(nodes int) []uint {
	var all []uint
	for mask := uint(1); mask < 1<<nodes; mask++ {
		all = append(all, mask)
	}
	slices.SortStableFunc(all, func(a, b uint) int { return cmp.Compare(bits.OnesCount(a), bits.OnesCount(b)) })
	return all
}

func (p *kubelet) Place(vm VM) (Place, bool) {
	for _, mask := range p.masks {
		var nodes, free []int
		var memory int64
		for n := range p.memory {
			if mask&(1<<n) != 0 {
				nodes = append(nodes, n)
				free = append(free, p.freeOn(n)...)
				memory += p.memory[n]
			}
		}
		if len(free) < vm.VCPUs || memory < vm.MemoryMiB {
			continue
		}
		cpus, ok := p.layout.allocate(free, vm.VCPUs, p.align)
		if !ok {
			return Place{}, false
		}
		return p.bound(vm, cpus, nodes), true
	}
	return Place{}, false
}
