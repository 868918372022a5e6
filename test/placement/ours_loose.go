package placement

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// NumaformAnyThreads is numaform's planner, and where that refuses, any free threads of
// the fewest NUMA nodes that have the CPUs and the memory in equal parts. It is not
// built, as it breaks what Dedicated promises; it shows what that promise costs.
func NumaformAnyThreads() Kind {
	return Kind{
		Name: "numaform, were halves of cores allowed",
		New: func(m *Machine) Placer {
			return &anyThreads{numaform: numaform{machine: m}, masks: masks(len(m.Nodes)), places: map[int]Guest{}}
		},
	}
}

type anyThreads struct {
	numaform
	masks  []uint
	places map[int]Guest
}

func (p *anyThreads) Place(vm VM) (Place, bool) {
	place, ok := p.numaform.Place(vm)
	if !ok {
		place, ok = p.threads(vm)
	}
	if ok {
		p.places[vm.ID] = Guest{vm, place}
	}
	return place, ok
}

func (p *anyThreads) Remove(vm VM) {
	p.numaform.Remove(vm)
	delete(p.places, vm.ID)
}

// threads takes any free threads, and tells the planner.
func (p *anyThreads) threads(vm VM) (Place, bool) {
	free := p.free()
	for _, mask := range p.masks {
		var nodes, cpus []int
		for n := range free.memory {
			if mask&(1<<n) != 0 {
				nodes = append(nodes, n)
				cpus = append(cpus, free.freeOn(n)...)
			}
		}
		each := (vm.MemoryMiB + int64(len(nodes)) - 1) / int64(len(nodes))
		if len(cpus) < vm.VCPUs || slices.ContainsFunc(nodes, func(n int) bool { return free.memory[n] < each }) {
			continue
		}
		cell := joint(vm, nodes, free.memory)
		cell.Parts = nil // equal ones
		place := Place{CPUs: cpus[:vm.VCPUs], Cells: []Cell{cell}}
		p.keep(vm, p.placement(place))
		return place, true
	}
	return Place{}, false
}

// free is what no VM has.
func (p *anyThreads) free() *stock {
	free := newStock(p.machine)
	for _, g := range p.places {
		for _, id := range g.CPUs {
			delete(free.free, id)
		}
		for i := range g.Cells {
			for at, n := range g.Cells[i].Nodes {
				free.memory[n] -= part(&g.Cells[i], at)
			}
		}
	}
	return free
}

// placement says it in the planner's words.
func (p *anyThreads) placement(place Place) fleet.Placement {
	var ids []int
	for _, n := range place.Cells[0].Nodes {
		ids = append(ids, p.machine.Nodes[n].ID)
	}
	return fleet.Placement{
		Host: p.machine.Host.ID(), CPUs: topology.CPUs(place.CPUs...), VCPUPins: place.CPUs,
		Cells: []topology.NUMACell{{
			GuestCPUs: topology.CPUs(place.Cells[0].GuestCPUs...), HostNodes: topology.CPUs(ids...),
			MemoryMiB: place.Cells[0].MemoryMiB, Policy: topology.NUMABind,
		}},
	}
}
