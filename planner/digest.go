package planner

import (
	"math"
	"slices"
)

// digest is what floor reads of a host, close together in memory.
type digest struct {
	// online counts CPUs: none where the host takes no VM.
	online int
	// pins is how many of them may be pinned if no foreign guest floats.
	pins   int
	flat   bool
	resort int64
	memory [backings]int64 // free, of the host
	// largest and second are the most free CPUs of its NUMA nodes.
	largest, second int
	slots           [backings][]slot
}

// slot is a NUMA node that memory of some kind may be bound to.
type slot struct {
	memory, size int64
	free, usable int // CPUs
	homed        int
	// whole counts what whole cores have, fast those that are not of the slower kind,
	// and cache is the most that those of one L3 have.
	whole, fast, cache room
	// odd is the most threads that a broken core may have, and loose those of one that
	// only the host's reservation broke.
	odd, loose int
	// least and most are how many threads the cores have.
	least, most int
	// worth is what whole is for usual VMs.
	worth int64
}

// room is a number of CPUs and of the cores that they are of.
type room struct{ cpus, cores int }

func (r room) plus(o room) room { return room{r.cpus + o.cpus, r.cores + o.cores} }

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
		online: s.online, pins: s.pinRoom(math.Inf(1)), memory: s.left, flat: s.flat, resort: s.index.resort,
		slots: d.slots,
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
			sum.worth = roomFor(sum.whole.cpus, sum.memory)
			s.digest.slots[b] = append(s.digest.slots[b], sum)
		}
	}
}

// slotOf sums up one node, its memory aside.
func (s *state) slotOf(i int) slot {
	n := &s.nodes[i]
	sum := slot{
		free: s.nodeFree[i], usable: n.usable, homed: s.homed[i], least: n.threads.least, most: n.threads.most,
	}
	var cache room
	for at, g := range n.groups {
		group := &s.groups[g]
		whole := s.wholeOf(g)
		if at == 0 || s.groups[n.groups[at-1]].l3 != group.l3 {
			cache = room{} // groups of one L3 stand side by side
		}
		cache = cache.plus(whole)
		sum.cache = room{max(sum.cache.cpus, cache.cpus), max(sum.cache.cores, cache.cores)}
		sum.whole = sum.whole.plus(whole)
		if !isEfficient(group) {
			sum.fast = sum.fast.plus(whole)
		}
	}
	sum.odd = max(0, min(sum.free-sum.whole.cpus, sum.most-1))
	for _, c := range n.chipped {
		if !s.byVM[c] {
			sum.loose = max(sum.loose, s.free[c])
		}
	}
	return sum
}

// wholeOf counts the whole cores of a group.
func (s *state) wholeOf(g int) room {
	var r room
	for size, count := range s.whole[g] {
		r = r.plus(room{count * s.groups[g].sizes[size], count})
	}
	return r
}
