package planner

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// seat is the host CPUs of one part that form one cell, in vCPU order: siblings are
// adjacent.
type seat struct {
	part
	cpus []int // by position
	laid bool  // these vCPUs belong to the interleaved cell
}

// isOdd reports whether some CPUs of the seat do not form whole cores.
func (s *seat) isOdd() bool { return s.odd != none || len(s.shards) > 0 }

// materialize turns a plan into a placement. It changes nothing.
func (s *state) materialize(p *plan, w want) fleet.Placement {
	seats := s.seats(p, w)
	place := fleet.Placement{Host: s.id, Reason: s.reason(p, seats, w)}
	if w.policy.Pinned() {
		for _, seat := range seats {
			for _, cpu := range seat.cpus {
				place.VCPUPins = append(place.VCPUPins, s.ids[cpu])
			}
		}
		place.CPUs = topology.CPUs(place.VCPUPins...)
		place.L3 = s.caches(seats)
	}
	switch {
	case s.flat && w.backing == ordinary || p.unbound:
	default:
		place.Cells = s.cells(p, seats, w)
	}
	return place
}

// seats resolves a plan's parts to CPUs, in the order of NUMA nodes and the interleaved
// cell first. A part with an odd thread goes last, so that vCPUs 2i and 2i+1 are siblings
// in all other parts.
func (s *state) seats(p *plan, w want) []seat {
	var seats []seat
	for _, part := range p.parts {
		whole := seat{part: part, cpus: s.cpusOf(part, w.policy == fleet.PolicyIsolated)}
		seats = append(seats, s.split(whole, p, w)...)
	}
	slices.SortStableFunc(seats, func(a, b seat) int {
		return cmp.Or(cmp.Compare(b2i(a.isOdd()), b2i(b.isOdd())), cmp.Compare(b2i(b.laid), b2i(a.laid)), cmp.Compare(a.node, b.node))
	})
	return seats
}

// cpusOf lists the CPUs of a part: whole cores by L3, then the odd threads.
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
	for _, shard := range p.shards {
		cpus = append(cpus, s.freeThreads(shard.core)[:shard.threads]...)
	}
	if p.odd == none {
		return cpus
	}
	odd := p.odd
	if s.isWhole(odd) { // any core of its kind works: take the one next to the others
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

// caches lists the L3 caches of the seats, ascending, or nil if one is unknown or absent.
func (s *state) caches(seats []seat) []int {
	ids := s.lastLevels(seats)
	if slices.ContainsFunc(ids, func(id int) bool { return s.level2[id] }) {
		return nil
	}
	return ids
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

// split divides a seat between the interleaved cell and a cell of its own, in proportion to
// their memory and by whole cores.
func (s *state) split(whole seat, p *plan, w want) []seat {
	if !slices.Contains(p.laid, whole.node) {
		return []seat{whole}
	}
	laid, own := whole, whole
	laid.laid, laid.memory, own.memory = true, p.eachMiB, whole.memory-p.eachMiB
	if own.memory == 0 {
		return []seat{laid}
	}
	core := 1
	for _, k := range whole.picks {
		if w.policy != fleet.PolicyIsolated {
			core = max(core, s.groups[k.group].sizes[k.size])
		}
	}
	n := int(int64(whole.vcpus) * laid.memory / whole.memory)
	n = min(max(n-n%core, core), whole.vcpus-1)
	laid.vcpus, own.vcpus = n, whole.vcpus-n
	laid.cpus, own.cpus = whole.cpus[:n:n], whole.cpus[n:]
	laid.odd, laid.shards = none, nil // odd CPUs come last
	return []seat{laid, own}
}

// cells makes numa0, numa1, … of the seats: guest CPUs, and memory. Memory is bound if the
// node's is known, and preferred if it was assumed. Memory of several nodes is interleaved:
// bound pages would fill the nearest node first, whatever else was planned there.
func (s *state) cells(p *plan, seats []seat, w want) []topology.NUMACell {
	var cells []topology.NUMACell
	laid, first := none, 0
	for _, seat := range seats {
		guest := topology.CPUs(sequence(first + seat.vcpus)[first:]...)
		first += seat.vcpus
		if seat.laid && laid != none {
			cells[laid].GuestCPUs = cells[laid].GuestCPUs.Union(guest)
			continue
		}
		cell := topology.NUMACell{
			GuestCPUs: guest, HostNodes: s.nodeIDs(seat.node), MemoryMiB: seat.memory, Policy: topology.NUMABind,
		}
		switch {
		case seat.laid:
			laid = len(cells)
			cell.HostNodes, cell.MemoryMiB, cell.Policy = s.nodeIDs(p.laid...), p.laidMemory(w), topology.NUMAInterleave
		case s.nodes[seat.node].assumed && w.backing == ordinary:
			cell.Policy = topology.NUMAPreferred
		}
		cells = append(cells, cell)
	}
	return cells
}

// laidMemory returns the memory of the interleaved cell in MiB: everything that no cell of
// one node has.
func (p *plan) laidMemory(w want) int64 {
	if p.laid == nil {
		return 0
	}
	laid := w.memory
	for _, part := range p.parts {
		laid -= part.memory
		if slices.Contains(p.laid, part.node) {
			laid += p.eachMiB
		}
	}
	return laid
}

func (s *state) nodeIDs(nodes ...int) topology.CPUSet {
	var ids []int
	for _, n := range nodes {
		ids = append(ids, s.nodes[n].id)
	}
	return topology.CPUs(ids...)
}
