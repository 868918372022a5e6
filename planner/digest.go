package planner

import (
	"math"
	"slices"
)

// digest is what floor reads of a host, close together in memory.
type digest struct {
	// online counts CPUs: none where the host takes no VM.
	online int
	// pins is how many of them may be pinned if no foreign guest floats; agentPins is how
	// many a VM that the host agent pins may have at most.
	pins      int
	agentPins int
	resort    int64
	// alone is true if no foreign guest floats.
	alone, flat bool
	lends       bool            // memory of nodes without CPUs
	memory      [backings]int64 // free, of the host
	slots       [backings][]slot
	// largest and second are the most free CPUs of its NUMA nodes.
	largest, second int
}

// slot is a NUMA node that memory of some kind may be bound to. It is as large as a line
// of the processor's cache.
type slot struct {
	memory, size int64
	free, usable int32 // CPUs
	homed        int32
	// worth is what the whole cores are for usual VMs.
	worth uint32
	rooms [units]room
	// odd is the most threads that a broken core may have, and loose those of one that
	// only the host's reservation broke.
	odd, loose int16
	// least and most are how many threads the cores have.
	least, most int16
}

// What a VM needs is counted in CPUs, or in whole cores if it is isolated.
const (
	inCPUs = iota
	inCores
	units
)

// room counts what whole cores have, fast those that are not of the slower kind, and
// cache is the most that those of one L3 have.
type room struct{ whole, fast, cache int32 }

// readLimits notes what bounds the cost of any plan on the host.
func (x *index) readLimits() {
	for i := range x.nodes {
		x.readThreads(&x.nodes[i])
		for j, d := range x.distance[i] {
			if i != j && (x.nearest == 0 || d < x.nearest) {
				x.nearest = d
			}
		}
	}
	x.resort = resortUnknown
	for i := range x.groups {
		if x.groups[i].known {
			x.resort = 0
		}
	}
}

// readThreads looks at the cores of one node.
func (x *index) readThreads(n *node) {
	for _, g := range n.groups {
		for _, c := range x.groups[g].cores {
			size := len(x.cores[c].cpus)
			if n.threads.most == 0 {
				n.threads.least = size
			}
			n.threads.least, n.threads.most = min(n.threads.least, size), max(n.threads.most, size)
			if slices.ContainsFunc(x.cores[c].cpus, func(cpu int) bool { return x.reserved[cpu] }) {
				n.chipped = append(n.chipped, c)
			}
		}
	}
}

// sumUp brings the digest up to date.
func (s *state) sumUp() {
	d := &s.digest
	*d = digest{
		online: s.online, pins: s.pinRoom(math.Inf(1)), resort: s.index.resort,
		alone: s.foreign == 0, flat: s.flat, lends: s.lends, memory: s.left, slots: d.slots,
	}
	if s.problem != "" {
		d.online = 0
	}
	for b := range d.slots {
		d.slots[b] = d.slots[b][:0]
	}
	for i, free := range s.nodeFree {
		d.largest, d.second = max(d.largest, free), max(d.second, min(d.largest, free))
		s.addSlots(i)
	}
	for _, slots := range d.slots {
		for i := range slots {
			d.agentPins = max(d.agentPins, s.agentRoom()+int(slots[i].odd))
		}
	}
}

// addSlots adds a node to the digest, once for each kind of memory that it has.
func (s *state) addSlots(i int) {
	n := &s.nodes[i]
	if n.bindable == [backings]bool{} {
		return
	}
	sum := s.slotOf(i)
	for b := range backings {
		if n.bindable[b] {
			sum.memory, sum.size = s.nodeMemFree(i, b), n.memory[b]
			sum.worth = few[uint32](roomFor(int(sum.rooms[inCPUs].whole), sum.memory))
			s.digest.slots[b] = append(s.digest.slots[b], sum)
		}
	}
}

// slotOf sums up one node, its memory aside.
func (s *state) slotOf(i int) slot {
	n := &s.nodes[i]
	sum := slot{
		free: few[int32](s.nodeFree[i]), usable: few[int32](n.usable), homed: few[int32](s.homed[i]),
		least: few[int16](n.threads.least), most: few[int16](n.threads.most),
	}
	var cache [units]int32
	for at, g := range n.groups {
		group := &s.groups[g]
		if at == 0 || s.groups[n.groups[at-1]].l3 != group.l3 {
			cache = [units]int32{} // groups of one L3 stand side by side
		}
		for unit, whole := range s.wholeOf(g) {
			cache[unit] += whole
			sum.rooms[unit].add(whole, cache[unit], slowness(group) == 0)
		}
	}
	sum.odd = max(0, min(few[int16](s.nodeFree[i]-int(sum.rooms[inCPUs].whole)), sum.most-1))
	for _, c := range n.chipped {
		if !s.byVM[c] {
			sum.loose = max(sum.loose, few[int16](s.free[c]))
		}
	}
	return sum
}

// add counts the whole cores of a group, and of its L3 so far.
func (r *room) add(whole, cache int32, fast bool) {
	r.whole += whole
	r.cache = max(r.cache, cache)
	if fast {
		r.fast += whole
	}
}

// few keeps a number in few bytes: no host has as many CPUs as they could count.
func few[N int16 | int32 | uint32, M int | int64](n M) N {
	return N(n)
}

// wholeOf counts the whole cores of a group.
func (s *state) wholeOf(g int) [units]int32 {
	var r [units]int32
	for size, count := range s.whole[g] {
		r[inCPUs] += few[int32](count * s.groups[g].sizes[size])
		r[inCores] += few[int32](count)
	}
	return r
}
