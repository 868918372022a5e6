package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
)

// query is a want made ready to be compared with many hosts.
type query struct {
	want
	pinned, dedicated bool
	// unit tells which of a slot's rooms counts.
	unit int
}

// query looks at the policy once.
func (w want) query() query {
	q := query{want: w, pinned: w.policy.Pinned(), dedicated: w.policy == fleet.PolicyDedicated}
	if w.policy == fleet.PolicyIsolated {
		q.unit = inCores
	}
	return q
}

// floor lowers least to a cost that no plan for the query on this host undercuts, if
// that is less, and tells whether it did. It looks at each NUMA node alone and at no
// core, and is what evaluate will return for most hosts; where it is less, the host is
// evaluated without need. A part of the cost that it does not know is 0.
func (s *state) floor(q *query, least *packed) bool {
	switch {
	case !s.hasRoom(q):
		return false
	case q.halves:
		return s.floorHalves(q, least)
	}
	first := clamp(s.crowd(q.group), 16) << spreadAt
	if !q.pinned && !q.binds(s.digest.flat) {
		return s.floorShared(q, first, least)
	}
	if first |= 1 << nodesAt; q.pinned {
		first |= clamp(s.digest.resort, 8) << resortAt
	}
	if first > least[0] {
		return false
	}
	fits, lowered := s.floorOnOne(q, first, least)
	return lowered || !fits && first+1<<nodesAt <= least[0] && s.floorOver(q, least)
}

// floorShared is the floor, and the cost, of a query that binds no memory.
func (s *state) floorShared(q *query, first uint64, least *packed) bool {
	var c cost
	s.priceShared(&c, &q.want)
	on := packed{
		first, 0, clamp(c[costLeftMin], leftMinBits),
		clamp(c[costLeftSum], 32)<<leftSumAt | clamp(c[costCrowd], 16),
	}
	return on.lower(least)
}

// hasRoom tells whether the host as a whole has room for the query.
func (s *state) hasRoom(q *query) bool {
	d := &s.digest
	switch {
	case q.vcpus > d.online || q.memory > d.memory[q.backing] || q.devices != "" && !s.hasDevices(&q.want):
		return false
	case !q.pinned:
		return s.floating+q.vcpus <= s.floatRoom(q.ratio, s.allFree)
	case q.agent && !q.halves && q.vcpus > d.agentPins:
		return false
	case q.vcpus > d.pins || d.alone:
		return q.vcpus <= d.pins
	}
	return q.vcpus <= s.pinRoom(q.ratio)
}

// floorOnOne is the floor of a query that one NUMA node can hold, if there is one; first
// is its first word.
func (s *state) floorOnOne(q *query, first uint64, least *packed) (fits, lowered bool) {
	slots := s.digest.slots[q.backing]
	for i := range slots {
		n := &slots[i]
		if n.memory < q.memory || s.most(n, q) < q.vcpus {
			continue
		}
		fits = true
		on := packed{first}
		left, taken := s.nearOn(&on, n, q)
		if least.leads(&on) {
			continue
		}
		leftMin, leftSum := leftOf(share(int64(left), int64(n.usable)), share(n.memory-q.memory, n.size))
		on[2] |= clamp(leftMin, leftMinBits)
		on[3] = clamp(leftSum, 32)<<leftSumAt | clamp(s.digest.loss(int(n.free), taken), 16)<<largestAt | clamp(len(s.claims), 16)
		lowered = on.lower(least) || lowered
	}
	return fits, lowered
}

// most is how many vCPUs of the query the node holds at most.
func (s *state) most(n *slot, q *query) int {
	if !q.pinned {
		return s.floatRoom(q.ratio, int(n.free))
	}
	return int(n.rooms[q.unit].whole) + n.oddFor(q)
}

// oddFor is how many threads of a broken core the query can have at most.
func (n *slot) oddFor(q *query) int {
	if !q.dedicated {
		return 0
	}
	return int(n.odd)
}

// nearOn adds what the query costs on a node down to the slots, and returns what is left
// of the CPUs there, and how many it takes at least.
func (s *state) nearOn(on *packed, n *slot, q *query) (left, taken int) {
	if q.pinned {
		return n.pinned(on, q)
	}
	room := s.floatRoom(q.ratio, int(n.free)) - int(n.homed)
	left = room - q.vcpus
	on[1] = clamp(-left, 16) << overloadAt
	on[2] = clamp(roomFor(room, n.memory)-roomFor(left, n.memory-q.memory), 36) << slotsAt
	return left, 0
}

// pinned is nearOn for what pins. Two kinds of core, or a core shared with another
// guest, would weigh more than all of it: costResort.
func (n *slot) pinned(on *packed, q *query) (left, least int) {
	least, most := q.vcpus, q.vcpus // CPUs taken
	if q.unit == inCores {
		least, most = q.vcpus*int(n.least), q.vcpus*int(n.most)
	}
	odd, room := n.oddFor(q), &n.rooms[q.unit]
	on[1] = 1 << cachesAt
	if cache := int(room.cache); cache > 0 && q.vcpus-odd > cache {
		on[1] = clamp((q.vcpus-odd+cache-1)/cache, 16) << cachesAt
	}
	if int(room.fast)+odd < q.vcpus {
		on[1] |= clamp(q.vcpus, 16) // on efficiency cores
	}
	taken := max(0, least-odd) // of whole cores
	if n.breaks(q) {
		on[2] = 1 << brokenAt
		taken = least + int(n.most) - least%int(n.most) // nobody else gets the core's other threads whole
	}
	rest := roomFor(int(n.rooms[inCPUs].whole)-taken, n.memory-q.memory)
	on[2] |= clamp(int64(n.worth)-rest, 36) << slotsAt
	return int(n.free) - most, least
}

// breaks reports whether the query surely breaks a core of the node.
func (n *slot) breaks(q *query) bool {
	return q.dedicated && n.least == n.most && q.vcpus%int(n.most) > int(n.loose)
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

// floorOver is the floor of a query that no NUMA node can hold alone.
func (s *state) floorOver(q *query, least *packed) bool {
	var some [maxCells]int
	var more [maxCells]int64
	cpus, memory, slots := some[:0], more[:0], s.digest.slots[q.backing]
	for i := range slots {
		if most := s.most(&slots[i], q); most > 0 {
			cpus, memory = append(cpus, most), append(memory, slots[i].memory)
		}
	}
	few, ok := fewest(cpus, q.vcpus)
	if !ok || few > q.vcpus {
		return false
	}
	c := cost{costSpread: s.crowd(q.group), costNodes: int64(few), costCrowd: int64(len(s.claims))}
	bound, ok := fewest(memory, q.memory)
	switch bound = max(2, few, bound); {
	case ok && bound <= q.vcpus:
		c[costNodes] = int64(bound)
		c[costDistance] = int64(bound*(bound-1)/2) * s.nearest
	case (q.pinned || s.digest.lends) && q.backing == ordinary:
		c[costResort] = resortUnbound
	default:
		return false
	}
	if q.pinned {
		c[costResort] |= s.digest.resort
		c[costCaches] = 1
	}
	over := c.pack()
	return over.lower(least)
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
