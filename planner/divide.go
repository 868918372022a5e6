package planner

import (
	"cmp"
	"slices"
)

// division is one way to divide vCPUs among a set of nodes.
type division struct {
	caps []int // by node
	even bool
}

// divisions lists the ways to try: evenly, the largest node first, and evenly within the
// fewest L3 caches.
func (q *search) divisions(sub []supply, skew bool) []division {
	caps := make([]int, len(sub))
	for i, s := range sub {
		caps[i] = q.request.vcpus
		if !skew {
			caps[i] = min(caps[i], int(s.memory*int64(q.request.vcpus)/q.request.memory))
		}
	}
	if len(sub) == 1 {
		return []division{{caps, true}}
	}
	ways := []division{{caps, true}, {caps, false}}
	if within := q.withinCaches(sub, caps); within != nil {
		ways = append(ways, division{within, true})
	}
	return ways
}

// withinCaches lowers the caps of a set of nodes to the capacity of the fewest L3 caches
// that suffice: the largest of each node, then the largest of all. It returns nil if no
// node has several caches, if all caches together do not suffice, or if vCPUs float.
func (q *search) withinCaches(sub []supply, caps []int) []int {
	if q.allowed == nil {
		return nil
	}
	rest := make([][]int, len(sub)) // the vCPUs that each remaining cache holds, descending
	within := make([]int, len(sub)) // the vCPUs that the chosen caches hold
	need := q.request.vcpus
	take := func(i int) { // the largest remaining cache of a node
		got := min(rest[i][0], caps[i]-within[i])
		within[i] += got
		need -= got
		rest[i] = rest[i][1:]
	}
	several := false
	for i := range sub {
		rest[i] = q.cachesOf(sub[i].node)
		several = several || len(rest[i]) > 1
		if len(rest[i]) > 0 {
			take(i)
		}
	}
	if !several {
		return nil
	}
	for need > 0 {
		best := none
		for i := range rest {
			if len(rest[i]) > 0 && within[i] < caps[i] && (best == none || rest[i][0] > rest[best][0]) {
				best = i
			}
		}
		if best == none {
			return nil
		}
		take(best)
	}
	return within
}

// cachesOf lists how many vCPUs fit on the whole cores of each L3 cache of a node, in
// descending order.
func (q *search) cachesOf(node int) []int {
	var holds []int
	last := none
	for _, g := range q.nodes[node].groups {
		free := 0
		if q.allowed[g] {
			free = q.groupFree(g)
		}
		switch l3 := q.groups[g].l3; {
		case free == 0:
		case len(holds) > 0 && l3 == last: // groups of one L3 are adjacent
			holds[len(holds)-1] += free
		default:
			holds, last = append(holds, free), l3
		}
	}
	slices.SortFunc(holds, func(a, b int) int { return b - a })
	return holds
}

// divide divides vCPUs among NUMA nodes so that each gets some, in whole cores except for
// one odd remainder. caps bounds each share in addition to the node's CPUs. odd is the node
// that takes the remainder, or none. If even is set, each node first gets an equal share,
// rounded down to whole cores; the rest fills the largest node first. ok is false if the
// nodes have too little room or one of them would get no vCPU.
func divide(sub []supply, caps []int, vcpus int, even bool) (shares []int, odd int, ok bool) {
	shares = make([]int, len(sub))
	need := vcpus
	order := sequence(len(sub)) // by capacity, largest first
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(min(caps[b], sub[b].whole), min(caps[a], sub[a].whole))
	})

	if even {
		for i := range sub {
			shares[i] = exact(sub[i].sizes, min(caps[i], vcpus/len(sub)))
			need -= shares[i]
		}
	}
	for at, i := range order {
		most := need
		for _, later := range order[at+1:] { // each later node keeps at least one vCPU
			most -= b2i(shares[later] == 0)
		}
		grown := exact(sub[i].sizes, min(caps[i], shares[i]+max(0, most)))
		if grown > shares[i] {
			need -= grown - shares[i]
			shares[i] = grown
		}
	}
	if need <= 0 {
		return shares, none, !slices.Contains(shares, 0)
	}

	// The remainder goes to a node without a share, else to one with a partially allocated
	// core, else to the one with the most whole cores left.
	odd = none
	largest, bestRoom := 0, -1
	for i := range sub {
		largest = max(largest, sub[i].whole+1)
	}
	for i := range sub {
		room := sub[i].whole - shares[i]
		if caps[i]-shares[i] < need || room < need && sub[i].loose < need {
			continue
		}
		if sub[i].loose >= need {
			room += largest
		}
		if shares[i] == 0 { // otherwise the node would remain unused
			room += 2 * largest
		}
		if room > bestRoom {
			odd, bestRoom = i, room
		}
	}
	if odd == none {
		return nil, none, false
	}
	shares[odd] += need
	return shares, odd, !slices.Contains(shares, 0)
}

// exact returns the largest number, up to most, that whole cores add up to.
func exact(sizes []sizeCount, most int) int {
	got := 0
	for _, s := range sizes {
		got += s.gives * min(s.count, (most-got)/s.gives)
	}
	return got
}

// divideMemory divides the memory in proportion to the vCPUs, in whole pages. Memory that
// does not fit its node moves to nodes with room. Every node gets at least leastMiB. It
// returns false if the memory cannot be divided in this way.
func divideMemory(sub []supply, vcpus []int, w request, leastMiB int64) ([]int64, bool) {
	memory, page := make([]int64, len(sub)), w.backing.mib()
	pages, least := w.memory/page, mulDivCeil(leastMiB, 1, page)
	left := pages
	for i := range sub {
		if sub[i].memory/page < least {
			return nil, false
		}
		memory[i] = min(sub[i].memory/page, max(least, pages*int64(vcpus[i])/int64(w.vcpus)))
		left -= memory[i]
	}
	for i := range sub {
		more := min(sub[i].memory/page-memory[i], left)
		if more < 0 {
			more = max(more, least-memory[i])
		}
		memory[i] += more
		left -= more
	}
	for i := range memory {
		memory[i] *= page
	}
	return memory, left == 0
}
