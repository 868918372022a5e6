package planner

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
)

// A Dedicated VM that finds no whole cores may use threads of several partially allocated
// ones, unless it requires whole cores. That is a separate want, placed only after
// everything else was tried: see batch.placeHalves. On its best host, the VM also uses such
// threads where whole cores would need more than one NUMA node: see onOneNode.

// halved returns the want that accepts partially allocated cores, and whether it may.
func (w want) halved() (want, bool) {
	w.halves = w.policy == fleet.PolicyDedicated && !w.wholeOnly
	return w, w.halves
}

// evaluateAll is evaluate, but falls back to partially allocated cores.
func (s *state) evaluateAll(w want) (plan, bool) {
	p, ok := s.evaluate(w)
	if h, may := w.halved(); !ok && may {
		return s.evaluate(h)
	}
	return p, ok
}

// onOneNode returns, for a plan that is not on one NUMA node, a plan that is and uses
// partially allocated cores there, if the VM may. Hosts are compared without it, so a host
// with whole cores on one node is better.
func (s *state) onOneNode(p *plan, w want) (plan, bool) {
	h, may := w.halved()
	if !may {
		return plan{}, false
	}
	best, found := plan{}, false
	for n := range s.nodes {
		if one, ok := s.pinnedTo(h, scope{only: n}); ok && (!found || one.cost.less(&best.cost)) {
			best, found = one, true
		}
	}
	if !found {
		return plan{}, false
	}
	best.cost[costSpread] = p.cost[costSpread]
	return best, true
}

// placeHalves puts an unplaced spec on partially allocated cores, if it may.
func (b *batch) placeHalves(i int) {
	w, may := b.wants[i].halved()
	if !may || w.problem() != "" {
		return
	}
	whole := b.wants[i]
	b.wants[i] = w
	if host, p, ok := b.best(i); ok {
		b.commit(i, host, &p)
		return
	}
	b.wants[i] = whole
}

// shard is some threads of a partially allocated core.
type shard struct{ core, threads int }

// threadsIn returns the number of threads of a part's shards.
func (p *part) threadsIn() int {
	total := 0
	for _, s := range p.shards {
		total += s.threads
	}
	return total
}

// chooseHalves picks the cores of a part: of the smallest group that holds all of it, else
// of the largest and so on, whole cores before partially allocated ones.
func (q *search) chooseHalves(p *part, odd bool, used map[int]bool) bool {
	need := p.vcpus
	for done := map[int]bool{}; need > 0; {
		g := q.nextHalved(p.node, need, used, done)
		if g == none {
			break
		}
		done[g] = true
		if got := q.takeFrom(p, g, need) + q.takeShards(p, g, need); got > 0 {
			need = p.vcpus - q.wholeCPUs(*p) - p.threadsIn()
			used[q.groups[g].l3] = true
		}
	}
	switch {
	case need == 0:
		return true
	case odd:
		return q.takeOdd(p, need, used)
	}
	return q.takeAnywhere(p, used)
}

// nextHalved returns the next group to take cores from, or none.
func (q *search) nextHalved(node, need int, used, done map[int]bool) int {
	best, bestRank := none, [5]int{}
	for _, g := range q.nodes[node].groups {
		free := q.groupFree(g)
		for _, c := range q.groups[g].cores {
			if q.isLoose(c) {
				free += q.free[c]
			}
		}
		if !q.allowed[g] || done[g] || free == 0 {
			continue
		}
		rank := [5]int{b2i(free < need), b2i(!used[q.groups[g].l3]), int(slowness(&q.groups[g])), free, g}
		if free < need {
			rank[3] = -free
		}
		if best == none || slices.Compare(rank[:], bestRank[:]) < 0 {
			best, bestRank = g, rank
		}
	}
	return best
}

// takeShards takes threads of a group's partially allocated cores, as many as the part
// still needs but no more than most: first of cores that no other guest uses, then of cores
// with the fewest free threads. It returns how many it took.
func (q *search) takeShards(p *part, g, most int) int {
	need := min(most, p.vcpus-q.wholeCPUs(*p)-p.threadsIn())
	var loose []int
	for _, c := range q.groups[g].cores {
		if q.isLoose(c) && !p.hasShard(c) {
			loose = append(loose, c)
		}
	}
	slices.SortStableFunc(loose, func(a, b int) int {
		return cmp.Or(cmp.Compare(b2i(q.byVM[a]), b2i(q.byVM[b])), cmp.Compare(q.free[a], q.free[b]))
	})
	got := 0
	for _, c := range loose {
		if n := min(q.free[c], need-got); n > 0 {
			p.shards = append(p.shards, shard{core: c, threads: n})
			got += n
		}
	}
	return got
}

// hasShard reports whether the part uses threads of a partially allocated core.
func (p *part) hasShard(core int) bool {
	return slices.ContainsFunc(p.shards, func(s shard) bool { return s.core == core })
}

// takeAnywhere picks whole cores of all groups, then threads, as divide counted them.
func (q *search) takeAnywhere(p *part, used map[int]bool) bool {
	p.picks, p.shards = nil, nil
	need := p.vcpus
	for _, take := range []func(p *part, g, need int) int{q.takeFrom, q.takeShards} {
		for _, g := range q.nodes[p.node].groups {
			if !q.allowed[g] || need == 0 {
				continue
			}
			if got := take(p, g, need); got > 0 {
				need -= got
				used[q.groups[g].l3] = true
			}
		}
	}
	return need == 0
}
