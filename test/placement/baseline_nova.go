package placement

import (
	"cmp"
	"slices"
)

// Nova follows OpenStack Nova's documentation of hw:cpu_policy=dedicated with one guest
// NUMA node, which is the default of a flavor, and the thread policy "prefer". It tries
// NUMA nodes by free CPUs, then by free memory: fewest first to pack, most first to spread.
// With one host and no PCI devices, the scheduler's filters and weighers have no effect.
func Nova(spread bool) Kind {
	name := "Nova, pack"
	if spread {
		name = "Nova, spread"
	}
	return Kind{Name: name, New: func(m *Machine) Placer { return &nova{newStock(m), spread} }}
}

type nova struct {
	*stock
	spread bool
}

func (p *nova) Place(vm VM) (Place, bool) {
	order := make([]int, len(p.memory))
	for n := range order {
		order[n] = n
	}
	slices.SortStableFunc(order, func(a, b int) int {
		c := cmp.Or(cmp.Compare(len(p.freeOn(a)), len(p.freeOn(b))), cmp.Compare(p.memory[a], p.memory[b]))
		if p.spread {
			return -c
		}
		return c
	})
	for _, n := range order {
		if len(p.freeOn(n)) >= vm.VCPUs && p.memory[n] >= vm.MemoryMiB {
			return p.bound(vm, p.siblingsFirst(n, vm.VCPUs), []int{n}), true
		}
	}
	return Place{}, false
}

// siblingsFirst picks CPUs of a node. It uses as many threads per core as possible: if too
// few cores have that many free threads, it tries fewer threads per core, and finally any
// CPUs.
func (p *nova) siblingsFirst(node, need int) []int {
	var cores [][]int
	at := map[int]int{}
	most := 0
	free := p.freeOn(node)
	for _, id := range free {
		core := p.machine.CPU(id).Core
		if _, ok := at[core]; !ok {
			at[core] = len(cores)
			cores = append(cores, nil)
		}
		cores[at[core]] = append(cores[at[core]], id)
		most = max(most, len(cores[at[core]]))
	}
	for threads := most; threads > 0; threads-- {
		var usable []int
		for _, c := range cores {
			if len(c) >= threads {
				usable = append(usable, c[:threads]...)
			}
		}
		if len(usable) >= need {
			return usable[:need]
		}
	}
	return free[:need]
}
