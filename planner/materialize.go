package planner

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// seat holds the host CPUs of one part that form one cell, in vCPU order: siblings are
// adjacent.
type seat struct {
	part
	cpus []int // by position
	// interleaved is set if these vCPUs belong to the interleaved cell.
	interleaved bool
}

// materialize turns a plan into a placement. It does not change the state.
func (s *state) materialize(p *plan, w request) fleet.Placement {
	seats := s.seats(p, w)
	place := fleet.Placement{Host: s.id, Reason: s.reason(p, seats, w)}
	if w.policy.Pinned() {
		for _, seat := range seats {
			for _, cpu := range seat.cpus {
				place.VCPUPins = append(place.VCPUPins, s.ids[cpu])
			}
		}
		place.CPUs = topology.CPUs(place.VCPUPins...)
		place.L3 = s.lastLevels(seats)
		if slices.ContainsFunc(place.L3, func(id int) bool { return s.level2[id] }) {
			place.L3 = nil
		}
	}
	if !p.unbound && (!s.flat || w.backing != ordinary) {
		place.Cells = s.cells(p, seats, w)
	}
	return place
}

// seats resolves a plan's parts to CPUs. The seats of the interleaved cell come first, then
// the others by NUMA node. A part with an odd thread goes last, so that in all other parts
// of a Dedicated VM on cores of two threads, vCPUs 2i and 2i+1 are siblings.
func (s *state) seats(p *plan, w request) []seat {
	var seats []seat
	for _, part := range p.parts {
		whole := seat{part: part, cpus: s.cpusOf(part, w.policy == fleet.PolicyIsolated)}
		if !slices.Contains(p.interleaved, whole.node) {
			seats = append(seats, whole)
			continue
		}

		// The CPUs are divided between the interleaved cell and a cell on this node alone,
		// in proportion to the memory and by whole cores.
		shared, own := whole, whole
		shared.interleaved, shared.memory, own.memory = true, p.eachMiB, whole.memory-p.eachMiB
		if own.memory == 0 {
			seats = append(seats, shared)
			continue
		}
		core := 1
		for _, k := range whole.picks {
			if w.policy != fleet.PolicyIsolated {
				core = max(core, s.groups[k.group].sizes[k.size])
			}
		}
		n := int(int64(whole.vcpus) * shared.memory / whole.memory)
		n = min(max(n-n%core, core), whole.vcpus-1)
		shared.vcpus, own.vcpus = n, whole.vcpus-n
		shared.cpus, own.cpus = whole.cpus[:n:n], whole.cpus[n:]
		shared.odd, shared.partial = none, nil // odd CPUs come last, so they belong to own
		seats = append(seats, shared, own)
	}
	odd := func(s *seat) int { return b2i(s.odd != none || len(s.partial) > 0) }
	slices.SortStableFunc(seats, func(a, b seat) int {
		return cmp.Or(cmp.Compare(odd(&a), odd(&b)), cmp.Compare(b2i(b.interleaved), b2i(a.interleaved)), cmp.Compare(a.node, b.node))
	})
	return seats
}

// cpusOf lists the CPUs of a part: whole cores by L3, then threads of partially allocated
// cores, then the odd threads. If oneThread is set, it lists only the first thread of each
// whole core.
func (s *state) cpusOf(p part, oneThread bool) []int {
	picks := slices.Clone(p.picks)
	slices.SortStableFunc(picks, func(a, b pick) int {
		return cmp.Or(cmp.Compare(s.groups[a.group].l3, s.groups[b.group].l3), cmp.Compare(a.group, b.group))
	})
	var cpus []int
	used := map[int]bool{p.odd: p.odd != none && !s.isWhole(p.odd)}
	for _, k := range picks {
		for range k.count {
			c := s.nextWhole(k.group, k.size, used)
			if oneThread {
				cpus = append(cpus, s.cores[c].cpus[0])
			} else {
				cpus = append(cpus, s.cores[c].cpus...)
			}
		}
	}
	for _, t := range p.partial {
		cpus = append(cpus, s.freeThreads(t.core)[:t.threads]...)
	}
	if p.odd == none {
		return cpus
	}
	odd := p.odd
	if s.isWhole(odd) { // any core of its size works: take the next one
		odd = s.nextWhole(s.cores[odd].group, s.cores[odd].size, used)
	}
	return append(cpus, s.freeThreads(odd)[:p.oddThreads]...)
}

// nextWhole returns the first unused whole core of a group and size, and marks it as used.
func (s *state) nextWhole(group, size int, used map[int]bool) int {
	for _, c := range s.groups[group].cores {
		if s.cores[c].size == size && s.isWhole(c) && !used[c] {
			used[c] = true
			return c
		}
	}
	panic("planner: a plan takes more whole cores than its host has")
}

// freeThreads lists the threads of a core that are not taken.
func (s *state) freeThreads(c int) []int {
	var threads []int
	for _, cpu := range s.cores[c].cpus {
		if !s.taken[cpu] {
			threads = append(threads, cpu)
		}
	}
	return threads
}

// lastLevels lists the last-level caches of the seats, ascending, or nil if one is unknown.
func (s *state) lastLevels(seats []seat) []int {
	var ids []int
	for _, seat := range seats {
		for _, cpu := range seat.cpus {
			ids = append(ids, s.groups[s.cores[s.coreOf[cpu]].group].l3)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) == 0 || ids[0] == topology.Unknown {
		return nil
	}
	return ids
}

// cells builds the cells numa0, numa1, … from the seats. A cell's policy is bind, or
// preferred for ordinary memory of a node whose amount of memory is assumed. A cell over
// several nodes is interleaved: with bind, Linux would fill the nearest node first,
// including memory planned for other VMs.
func (s *state) cells(p *plan, seats []seat, w request) []topology.NUMACell {
	var cells []topology.NUMACell
	shared, first := none, 0
	for _, seat := range seats {
		guest := topology.CPUs(sequence(first + seat.vcpus)[first:]...)
		first += seat.vcpus
		if seat.interleaved && shared != none {
			cells[shared].GuestCPUs = cells[shared].GuestCPUs.Union(guest)
			continue
		}
		cell := topology.NUMACell{
			GuestCPUs: guest, HostNodes: s.nodeIDs(seat.node), MemoryMiB: seat.memory, Policy: topology.NUMABind,
		}
		switch {
		case seat.interleaved:
			shared = len(cells)
			cell.HostNodes, cell.MemoryMiB, cell.Policy = s.nodeIDs(p.interleaved...), p.interleavedMemory(w), topology.NUMAInterleave
		case s.nodes[seat.node].assumed && w.backing == ordinary:
			cell.Policy = topology.NUMAPreferred
		}
		cells = append(cells, cell)
	}
	return cells
}

// interleavedMemory returns the memory of the interleaved cell in MiB: all memory that is
// in no cell of a single node. It is 0 for a plan without such a cell.
func (p *plan) interleavedMemory(w request) int64 {
	if p.interleaved == nil {
		return 0
	}
	memory := w.memory
	for _, part := range p.parts {
		memory -= part.memory
		if slices.Contains(p.interleaved, part.node) {
			memory += p.eachMiB
		}
	}
	return memory
}

func (s *state) nodeIDs(nodes ...int) topology.CPUSet {
	var ids []int
	for _, n := range nodes {
		ids = append(ids, s.nodes[n].id)
	}
	return topology.CPUs(ids...)
}
