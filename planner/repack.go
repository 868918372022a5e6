package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
)

// Limits for repacking one host: its number of new VMs, the number of search steps, and the
// number of repair tries it counts as.
const (
	repackNodes = 8
	repackVMs   = 12
	repackSteps = 20_000
	repackTries = 50
)

// repack packs the new VMs of small hosts again if one of them has a poor place: it
// searches all assignments of VMs to NUMA nodes for the one that splits the fewest.
func (b *batch) repack() {
	if len(b.specs) < 2 {
		return
	}
	on := make([][]int, len(b.Planner.hosts))
	for _, i := range b.order {
		if b.placed[i] != nil {
			host := b.at[b.placed[i].Host]
			on[host] = append(on[host], i)
		}
	}
	for host, specs := range on {
		if len(specs) < 2 || len(specs) > repackVMs || b.tries < repackTries {
			continue
		}
		if s := b.Planner.hosts[host]; !s.flat && len(s.nodes) <= repackNodes && b.repackable(specs) {
			b.tries -= repackTries
			b.repackHost(host, specs)
		}
	}
}

// repackable reports whether all specs pin, and one of them has a poor place.
func (b *batch) repackable(specs []int) bool {
	poor := false
	for _, i := range specs {
		if !b.wants[i].policy.Pinned() {
			return false
		}
		poor = poor || b.isPoor(i)
	}
	return poor
}

// repackHost takes all new VMs off a host and places them again in the best packing, or
// changes nothing.
func (b *batch) repackHost(host int, specs []int) {
	before, saved := b.scoreOf(specs...), b.save(specs...)
	for _, i := range specs {
		b.takeOut(i)
	}

	wants := make([]want, len(specs))
	for at, i := range specs {
		wants[at] = b.wants[i]
	}
	nodes := b.Planner.hosts[host].pack(wants)
	if nodes != nil && b.putBack(host, specs, nodes) {
		if after := b.scoreOf(specs...); after.less(before) {
			return
		}
	}
	b.restore(saved)
}

// putBack places the specs on their NUMA nodes, then the specs without a node.
func (b *batch) putBack(host int, specs, nodes []int) bool {
	for _, cut := range []bool{false, true} {
		for at, i := range specs {
			if (nodes[at] == none) != cut {
				continue
			}
			s, w := b.Planner.hosts[host], b.wants[i]
			p, ok := s.evaluate(w)
			if !cut {
				p, ok = s.evaluateOn(w, nodes[at])
			}
			if !ok {
				return false
			}
			b.commit(i, host, &p)
		}
	}
	return true
}

// packing is the search for the best packing of some VMs into NUMA nodes, by CPUs and
// memory.
type packing struct {
	vms, free []load
	at, best  []int
	cut       int // number of VMs without a node in the best packing so far
	steps     int
}

// load is an amount of CPUs and memory.
type load struct {
	cpus   int
	memory [backings]int64
}

// holds reports whether a node with this much left can take a VM.
func (l load) holds(vm load) bool {
	for b := range l.memory {
		if l.memory[b] < vm.memory[b] {
			return false
		}
	}
	return l.cpus >= vm.cpus
}

// less returns what is left after placing a VM.
func (l load) less(vm load) load {
	l.cpus -= vm.cpus
	for b := range l.memory {
		l.memory[b] -= vm.memory[b]
	}
	return l
}

// pack assigns each want a NUMA node, or none if it must be split. It returns nil if it
// found no packing that splits fewer than all.
func (s *state) pack(wants []want) []int {
	p := packing{at: make([]int, len(wants)), cut: len(wants), steps: repackSteps}
	for i := range s.nodes {
		var n load
		for b := range backings {
			if s.nodes[i].bindable[b] {
				n.cpus, n.memory[b] = s.nodeFree[i], s.nodeMemFree(i, b)
			}
		}
		p.free = append(p.free, n)
	}
	for _, w := range wants {
		vm := load{cpus: w.vcpus}
		vm.memory[w.backing] = w.memory
		if w.policy == fleet.PolicyIsolated {
			vm.cpus *= s.widestCore()
		}
		p.vms = append(p.vms, vm)
	}
	p.search(0, 0)
	return p.best
}

// widestCore returns the largest number of threads per core on the host.
func (s *state) widestCore() int {
	widest := 1
	for i := range s.groups {
		for _, size := range s.groups[i].sizes {
			widest = max(widest, size)
		}
	}
	return widest
}

// search places the VMs from the i-th on; cut of the earlier ones have no node. Nodes with
// equal remainders are tried once.
func (p *packing) search(i, cut int) {
	if p.steps--; p.steps < 0 || cut+p.surplus(i) >= p.cut {
		return
	}
	if i == len(p.vms) {
		p.cut, p.best = cut, append([]int(nil), p.at...)
		return
	}
	vm := p.vms[i]
	for n, free := range p.free {
		if !free.holds(vm) || slices.Contains(p.free[:n], free) {
			continue
		}
		p.at[i] = n
		p.free[n] = free.less(vm)
		p.search(i+1, cut)
		p.free[n] = free
	}
	p.at[i] = none
	p.search(i+1, cut+1)
}

// surplus returns a lower bound on the VMs from the i-th on without a node, by CPUs alone.
func (p *packing) surplus(i int) int {
	left := 0
	for _, n := range p.free {
		left -= n.cpus
	}
	largest := 1
	for _, vm := range p.vms[i:] {
		left += vm.cpus
		largest = max(largest, vm.cpus)
	}
	return (max(0, left) + largest - 1) / largest
}
