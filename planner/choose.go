package planner

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// choose picks the cores of a part: from the smallest group that holds all of it, else from
// the largest group, then the next largest. L3 caches that the VM already uses come first.
// Only a part that may be odd takes some threads of a core, from the core with the fewest
// free ones. used collects the L3 caches.
func (q *search) choose(p *part, odd bool, used map[int]bool) bool {
	if q.want.halves {
		return q.chooseHalves(p, odd, used)
	}
	need := p.vcpus
	done := map[int]bool{}
	for need > 0 {
		g := q.nextGroup(p, need, odd, used, done)
		if g == none {
			break
		}
		done[g] = true
		if got := q.takeFrom(p, g, need); got > 0 {
			need -= got
			used[q.groups[g].l3] = true
		}
	}
	switch {
	case need == 0:
		return true
	case odd:
		return q.takeOdd(p, need, used)
	}
	return q.takeLargest(p, used)
}

// takeLargest picks cores by size alone, the largest first, as divide counted them. Group
// by group, cores of unequal sizes do not always add up.
func (q *search) takeLargest(p *part, used map[int]bool) bool {
	p.picks = nil
	need := p.vcpus
	var all []pick
	for _, g := range q.nodes[p.node].groups {
		for size, count := range q.whole[g] {
			if q.allowed[g] && count > 0 {
				all = append(all, pick{group: g, size: size, count: count})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b pick) int {
		return cmp.Compare(q.gives(b.group, b.size), q.gives(a.group, a.size))
	})
	for _, k := range all {
		gives := q.gives(k.group, k.size)
		if k.count = min(k.count, need/gives); k.count > 0 {
			p.picks = append(p.picks, k)
			need -= k.count * gives
			used[q.groups[k.group].l3] = true
		}
	}
	return need == 0
}

// nextGroup returns the next group to take cores from, or none.
func (q *search) nextGroup(p *part, need int, odd bool, used, done map[int]bool) int {
	best, bestRank := none, [5]int{}
	for _, g := range q.nodes[p.node].groups {
		if !q.allowed[g] || done[g] {
			continue
		}
		free, whole := q.groupFree(g), q.groupExact(g, need)
		if whole == 0 {
			continue
		}
		rank := [5]int{1, int(slowness(&q.groups[g])), -whole, b2i(!used[q.groups[g].l3]), g}
		if whole == need || odd && (free >= need || q.looseIn(g) >= need-whole) {
			rank[0], rank[2] = 0, free
			if used[q.groups[g].l3] {
				rank[0] = -1
			}
		}
		if best == none || slices.Compare(rank[:], bestRank[:]) < 0 {
			best, bestRank = g, rank
		}
	}
	return best
}

// b2i returns 1 for true and 0 for false.
func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// slowness returns the extra cost of a vCPU on the cores of a group over the fastest kind.
func slowness(g *group) int64 {
	switch g.kind {
	case topology.KindEfficiency:
		return 1
	case topology.KindLowPower:
		return 2
	}
	return 0
}

// groupFree returns the number of vCPUs that the group's whole cores hold.
func (q *search) groupFree(g int) int {
	total := 0
	for size, count := range q.whole[g] {
		total += count * q.gives(g, size)
	}
	return total
}

// groupExact returns the largest number of vCPUs, up to most, that whole cores of the
// group add up to.
func (q *search) groupExact(g, most int) int {
	got := 0
	for size, count := range q.whole[g] {
		gives := q.gives(g, size)
		got += gives * min(count, (most-got)/gives)
	}
	return got
}

// takeFrom takes whole cores of a group and returns how many vCPUs they hold. Isolated VMs
// take the smallest cores because they leave the siblings idle.
func (q *search) takeFrom(p *part, g, need int) int {
	got := 0
	sizes := len(q.whole[g])
	for i := range sizes {
		size := i
		if q.want.policy == fleet.PolicyIsolated {
			size = sizes - 1 - i
		}
		gives := q.gives(g, size)
		if n := min(q.whole[g][size], (need-got)/gives); n > 0 {
			p.picks = append(p.picks, pick{group: g, size: size, count: n})
			got += n * gives
		}
	}
	return got
}

// takeOdd takes the remainder from the core with the fewest free threads: a partially
// allocated core before a whole one, and in either case preferably in an L3 that the VM
// uses.
func (q *search) takeOdd(p *part, rest int, used map[int]bool) bool {
	bestRank := [4]int{}
	for _, g := range q.nodes[p.node].groups {
		if !q.allowed[g] {
			continue
		}
		left := q.leftBySize(p, g)
		for _, c := range q.groups[g].cores {
			spare := q.isWhole(c) && left[q.cores[c].size] > 0
			if q.free[c] < rest || !spare && !q.isLoose(c) || p.hasShard(c) {
				continue
			}
			rank := [4]int{b2i(!used[q.groups[g].l3]), b2i(spare), q.free[c], c}
			if p.odd == none || slices.Compare(rank[:], bestRank[:]) < 0 {
				p.odd, p.oddThreads, bestRank = c, rest, rank
			}
		}
	}
	if p.odd != none {
		used[q.groups[q.cores[p.odd].group].l3] = true
	}
	return p.odd != none
}

// leftBySize counts the whole cores of a group that the part does not take.
func (q *search) leftBySize(p *part, g int) []int {
	left := append([]int(nil), q.whole[g]...)
	for _, k := range p.picks {
		if k.group == g {
			left[k.size] -= k.count
		}
	}
	return left
}
