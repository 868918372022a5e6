package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
)

// digest is all that floor reads of a host, close together in memory.
type digest struct {
	closed bool
	flat   bool
	online int
	memory [backings]int64 // free, of the host
	slots  [backings][]slot
	// largest and second are the most free CPUs of its NUMA nodes.
	largest, second int
}

// slot is a NUMA node that memory of some kind may be bound to.
type slot struct {
	free, usable int // CPUs
	memory, size int64
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

// of is what the policy can use of the room.
func (r room) of(p fleet.Policy) int {
	if p == fleet.PolicyIsolated {
		return r.cores
	}
	return r.cpus
}

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
	*d = digest{closed: s.problem != "", flat: s.flat, online: s.online, memory: s.left, slots: d.slots}
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

// floor sets c to a cost that no plan for the want on this host undercuts, or tells
// that there is none. It looks at each NUMA node alone and at no core, and is what
// evaluate will return for most hosts; where it is less, the host is evaluated
// without need. A part of the cost that it does not know is 0.
func (s *state) floor(c *cost, w *want) bool {
	switch {
	case !s.hasRoom(w):
		return false
	case !w.policy.Pinned() && !w.binds(s.digest.flat):
		*c = s.shared(*w).cost
	case !s.floorOnOne(c, w) && !s.floorOver(c, w):
		return false
	}
	c[costSpread] = s.crowd(w.group)
	return true
}

// hasRoom tells whether the host as a whole has room for the want.
func (s *state) hasRoom(w *want) bool {
	d := &s.digest
	if d.closed || w.vcpus > d.online || w.memory > d.memory[w.backing] {
		return false
	}
	if w.policy.Pinned() {
		return w.vcpus <= s.pinRoom(w.ratio)
	}
	return s.floating+w.vcpus <= s.floatRoom(w.ratio, s.allFree)
}

// floorOnOne is the floor of a want that one NUMA node can hold, if there is one.
func (s *state) floorOnOne(c *cost, w *want) bool {
	var other cost
	found := false
	for i := range s.digest.slots[w.backing] {
		n := &s.digest.slots[w.backing][i]
		if n.memory < w.memory || s.most(n, w) < w.vcpus {
			continue
		}
		if !found {
			s.floorOn(c, n, w, nil)
			found = true
			continue
		}
		if s.floorOn(&other, n, w, c); other.less(c) {
			*c = other
		}
	}
	return found
}

// most is how many vCPUs of the want the node holds at most.
func (s *state) most(n *slot, w *want) int {
	if !w.policy.Pinned() {
		return s.floatRoom(w.ratio, n.free)
	}
	return n.whole.of(w.policy) + n.oddFor(w)
}

// oddFor is how many threads of a broken core the want can have at most.
func (n *slot) oddFor(w *want) int {
	if w.policy != fleet.PolicyDedicated {
		return 0
	}
	return n.odd
}

// floorOn is the floor of a want that has room on one NUMA node. It leaves off where
// it is no less than a cost that is known.
func (s *state) floorOn(c *cost, n *slot, w *want, known *cost) {
	*c = cost{costNodes: 1, costCrowd: int64(len(s.claims))}
	var left, slotted, taken int // at most, for slots, of them at least
	worth := n.worth
	if w.policy.Pinned() {
		least, most := w.vcpus, w.vcpus // CPUs taken
		if w.policy == fleet.PolicyIsolated {
			least, most = w.vcpus*n.least, w.vcpus*n.most
		}
		if s.floorCores(c, n, w); known != nil && !c.less(known) {
			return
		}
		left = n.free - most
		slotted, taken = n.whole.cpus, n.wholeTaken(w, least)
		c[costLargest] = int64(s.digest.loss(n.free, least))
	} else {
		slotted, taken = s.floatRoom(w.ratio, n.free)-n.homed, w.vcpus
		left = slotted - taken
		worth = roomFor(slotted, n.memory)
		c[costOverload] = int64(max(0, -left))
	}
	c[costSlots] = worth - roomFor(slotted-taken, n.memory-w.memory)
	c.setLeft(share(int64(left), int64(n.usable)), share(n.memory-w.memory, n.size))
}

// floorCores sets the parts that depend on which cores of a node are taken. Two
// kinds of core, or a core shared with another guest, would weigh more than all
// of them: costResort.
func (s *state) floorCores(c *cost, n *slot, w *want) {
	odd := n.oddFor(w)
	c[costResort] = s.resort
	c[costCaches] = 1
	if cache := n.cache.of(w.policy); cache > 0 {
		c[costCaches] = int64(max(1, (w.vcpus-odd+cache-1)/cache))
	}
	if n.fast.of(w.policy)+odd < w.vcpus {
		c[costEfficiency] = int64(w.vcpus)
	}
	if n.breaks(w) {
		c[costBroken] = 1
	}
}

// breaks reports whether the want surely breaks a core of the node.
func (n *slot) breaks(w *want) bool {
	return w.policy == fleet.PolicyDedicated && n.least == n.most && w.vcpus%n.most > n.loose
}

// wholeTaken is how many CPUs of whole cores a want takes at least that takes so
// many in all.
func (n *slot) wholeTaken(w *want, cpus int) int {
	if n.breaks(w) {
		return cpus + n.most - cpus%n.most // nobody else gets the core's other threads whole
	}
	return max(0, cpus-n.oddFor(w))
}

// loss is by how much the largest free node shrinks if one that has so many free
// CPUs loses some.
func (d *digest) loss(free, cpus int) int {
	others := d.largest
	if free == d.largest {
		others = d.second
	}
	return d.largest - max(others, free-cpus)
}

// floorOver is the floor of a want that no NUMA node can hold alone.
func (s *state) floorOver(c *cost, w *want) bool {
	var some [maxCells]int
	var more [maxCells]int64
	cpus, memory := some[:0], more[:0]
	for i := range s.digest.slots[w.backing] {
		n := &s.digest.slots[w.backing][i]
		if most := s.most(n, w); most > 0 {
			cpus, memory = append(cpus, most), append(memory, n.memory)
		}
	}
	few, ok := fewest(cpus, w.vcpus)
	if !ok || few > w.vcpus {
		return false
	}
	*c = cost{costNodes: int64(few), costCrowd: int64(len(s.claims))}
	bound, ok := fewest(memory, w.memory)
	switch bound = max(2, few, bound); {
	case ok && bound <= w.vcpus:
		c[costNodes] = int64(bound)
		c[costDistance] = int64(bound*(bound-1)/2) * s.nearest
	case w.policy.Pinned() && w.backing == ordinary:
		c[costResort] = resortUnbound
	default:
		return false
	}
	if w.policy.Pinned() {
		c[costResort] |= s.resort
		c[costCaches] = 1
	}
	return true
}

// fewest returns how few of the nodes could hold as much in sum.
func fewest[N int | int64](nodes []N, need N) (int, bool) {
	slices.Sort(nodes)
	for k := range min(len(nodes), maxCells) {
		if need -= nodes[len(nodes)-1-k]; need <= 0 {
			return k + 1, true
		}
	}
	return 0, false
}
