package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
)

// Limits for repacking one host: its number of NUMA nodes, its number of new VMs, and the
// number of search steps. Repacking one host counts as repackTries repair tries.
const (
	repackNodes = 8
	repackVMs   = 12
	repackSteps = 20_000
	repackTries = 50
)

// repack places the new VMs of each small host again if all of them are pinned and at least
// one is poorly placed: within repackSteps steps, it searches for the assignment of VMs to
// NUMA nodes in which the fewest VMs span nodes.
func (b *batch) repack() {
	if len(b.specs) < 2 {
		return
	}
	on := make([][]int, len(b.Planner.hosts))
	for _, i := range b.order {
		if b.placed[i].place != nil {
			on[b.hostOf(i)] = append(on[b.hostOf(i)], i)
		}
	}
	for host, specs := range on {
		s := b.Planner.hosts[host]
		if len(specs) < 2 || len(specs) > repackVMs || b.tries < repackTries || s.flat || len(s.nodes) > repackNodes {
			continue
		}
		poor := false
		for _, i := range specs {
			if !b.requests[i].policy.Pinned() {
				poor = false
				break
			}
			poor = poor || b.isPoor(i)
		}
		if poor {
			b.tries -= repackTries
			b.repackHost(host, specs)
		}
	}
}

// repackHost removes all new VMs from a host and places them again in the best packing:
// first the VMs that get one NUMA node, then the remaining ones. It changes nothing if
// the result is not better.
func (b *batch) repackHost(host int, specs []int) {
	before, restore := b.scoreOf(specs...), b.saved(specs...)
	requests := make([]request, len(specs))
	for at, i := range specs {
		b.unplace(i)
		requests[at] = b.requests[i]
	}

	nodes := b.Planner.hosts[host].pack(requests)
	for _, spans := range []bool{false, true} {
		for at, node := range nodes {
			if (node == none) != spans {
				continue
			}
			s := b.Planner.hosts[host]
			p, ok := s.evaluate(requests[at])
			if !spans {
				p, ok = s.evaluateOn(requests[at], node)
			}
			if !ok {
				restore()
				return
			}
			b.commit(specs[at], host, &p)
		}
	}
	if after := b.scoreOf(specs...); !after.less(before) {
		restore()
	}
}

// packing is the search for the best packing of some VMs into NUMA nodes, by CPUs and
// memory.
type packing struct {
	vms, free []load
	at, best  []int
	// spanning is the number of VMs without a node in the best packing so far.
	spanning int
	steps    int
}

// load is an amount of CPUs and memory.
type load struct {
	cpus   int
	memory [backings]int64
}

// pack assigns a NUMA node to each requested VM, or none to a VM that must span several. It
// returns nil if it found only packings in which all VMs span nodes.
func (s *state) pack(requests []request) []int {
	p := packing{at: make([]int, len(requests)), spanning: len(requests), steps: repackSteps}
	for i := range s.nodes {
		var n load
		for b := range backings {
			if s.nodes[i].bindable[b] {
				n.cpus, n.memory[b] = s.nodeFree[i], s.nodeMemFree(i, b)
			}
		}
		p.free = append(p.free, n)
	}
	widest := 1
	for i := range s.groups {
		for _, size := range s.groups[i].sizes {
			widest = max(widest, size)
		}
	}
	for _, w := range requests {
		vm := load{cpus: w.vcpus}
		vm.memory[w.backing] = w.memory
		if w.policy == fleet.PolicyIsolated {
			vm.cpus *= widest
		}
		p.vms = append(p.vms, vm)
	}
	p.search(0, 0)
	return p.best
}

// search places the VMs from the i-th on; spanning is the number of earlier VMs without a
// node. It tries only one of several nodes with equal free capacity.
func (p *packing) search(i, spanning int) {
	// Compute a lower bound on the number of VMs that find no node, from their CPUs alone.
	surplus, largest := 0, 1
	for _, n := range p.free {
		surplus -= n.cpus
	}
	for _, vm := range p.vms[i:] {
		surplus += vm.cpus
		largest = max(largest, vm.cpus)
	}
	least := spanning + (max(0, surplus)+largest-1)/largest
	if p.steps--; p.steps < 0 || least >= p.spanning {
		return
	}
	if i == len(p.vms) {
		p.spanning, p.best = spanning, slices.Clone(p.at)
		return
	}

	for n, free := range p.free {
		left := free
		left.cpus -= p.vms[i].cpus
		fits := left.cpus >= 0
		for b := range left.memory {
			left.memory[b] -= p.vms[i].memory[b]
			fits = fits && left.memory[b] >= 0
		}
		if !fits || slices.Contains(p.free[:n], free) {
			continue
		}

		p.at[i] = n
		p.free[n] = left
		p.search(i+1, spanning)
		p.free[n] = free
	}
	p.at[i] = none
	p.search(i+1, spanning+1)
}
