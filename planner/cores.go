package planner

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
)

// choose picks the cores of a part and reports whether they hold all of its vCPUs. If
// groups fit the whole part, it takes one of them: preferably in an L3 cache in used, then
// with fast cores, then the smallest. Otherwise, it takes groups in turn, fast cores and
// large groups first. If odd is true, the part may also take some threads of one core: see
// takeOdd. choose adds the L3 caches of the part to used.
func (q *search) choose(p *part, odd bool, used map[int]bool) bool {
	if q.request.partial {
		return q.choosePartial(p, odd, used)
	}
	need := p.vcpus
	var added []int // the L3 caches that this part adds to used
	for done := map[int]bool{}; need > 0; {
		g := q.nextGroup(p, need, odd, used, done)
		if g == none {
			break
		}
		done[g] = true
		if got := q.takeWhole(p, g, need); got > 0 {
			need -= got
			if l3 := q.groups[g].l3; !used[l3] {
				used[l3] = true
				added = append(added, l3)
			}
		}
	}
	switch {
	case need == 0:
		return true
	case odd:
		return q.takeOdd(p, need, used)
	}

	// Cores of unequal sizes, taken group by group, do not always add up: pick them by size
	// alone, the largest first, as divide does.
	p.picks = nil
	for _, l3 := range added {
		delete(used, l3)
	}
	need = p.vcpus
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

// nextGroup returns the next group to take whole cores from, or none if no other group has
// a whole core that holds at most need vCPUs.
func (q *search) nextGroup(p *part, need int, odd bool, used, done map[int]bool) int {
	best, bestRank := none, [5]int{}
	for _, g := range q.nodes[p.node].groups {
		if !q.allowed[g] || done[g] {
			continue
		}
		whole := 0 // the most vCPUs, up to need, that whole cores add up to
		for size, count := range q.whole[g] {
			gives := q.gives(g, size)
			whole += gives * min(count, (need-whole)/gives)
		}
		if whole == 0 {
			continue
		}
		free := q.groupFree(g)
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

// groupFree returns the number of vCPUs that fit on the group's whole free cores.
func (q *search) groupFree(g int) int {
	total := 0
	for size, count := range q.whole[g] {
		total += count * q.gives(g, size)
	}
	return total
}

// takeWhole takes whole cores of a group for at most need vCPUs and returns how many vCPUs
// they hold. Isolated VMs take the smallest cores first because they leave the siblings
// idle.
func (q *search) takeWhole(p *part, g, need int) int {
	got := 0
	sizes := len(q.whole[g])
	for i := range sizes {
		size := i
		if q.request.policy == fleet.PolicyIsolated {
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

// takeOdd takes the last rest vCPUs of a part from one core and reports whether it found
// one. It prefers a core in an L3 cache in used, then a partially allocated core to a whole
// one, then the core with the fewest free threads.
func (q *search) takeOdd(p *part, rest int, used map[int]bool) bool {
	bestRank := [4]int{}
	for _, g := range q.nodes[p.node].groups {
		if !q.allowed[g] {
			continue
		}
		left := slices.Clone(q.whole[g]) // whole cores that the part does not take
		for _, k := range p.picks {
			if k.group == g {
				left[k.size] -= k.count
			}
		}
		for _, c := range q.groups[g].cores {
			spare := q.isWhole(c) && left[q.cores[c].size] > 0
			if q.free[c] < rest || !spare && !q.isLoose(c) || p.usesThreadsOf(c) {
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

// A Dedicated VM for which too few whole cores are free may use threads of several
// partially allocated ones, unless it requires whole cores. Such a VM is placed with a
// separate request after all other attempts: see batch.repair. Where whole cores would span
// NUMA nodes, a VM also uses such threads on the host that was chosen for it: see refine.

// onPartialCores returns the request with partial set if it may use partially allocated
// cores, and whether it may: only Dedicated VMs that do not require whole cores do.
func (w request) onPartialCores() (request, bool) {
	w.partial = w.policy == fleet.PolicyDedicated && !w.wholeOnly
	return w, w.partial
}

// threads is a number of threads of one partially allocated core.
type threads struct{ core, threads int }

// partialThreads returns the number of threads that a part uses on partially allocated
// cores.
func (p *part) partialThreads() int {
	total := 0
	for _, t := range p.partial {
		total += t.threads
	}
	return total
}

// usesThreadsOf reports whether the part uses threads of a partially allocated core.
func (p *part) usesThreadsOf(core int) bool {
	return slices.ContainsFunc(p.partial, func(t threads) bool { return t.core == core })
}

// choosePartial is choose for a partial request. In each group, it takes whole cores before
// partially allocated ones.
func (q *search) choosePartial(p *part, odd bool, used map[int]bool) bool {
	need := p.vcpus
	var added []int // the L3 caches that this part adds to used
	for done := map[int]bool{}; need > 0; {
		next := q.nextPartial(p, need, used, done)
		if next == none {
			break
		}
		done[next] = true
		got := q.takeWhole(p, next, need)
		got += q.takeThreads(p, next, need-got)
		if got > 0 {
			need -= got
			if l3 := q.groups[next].l3; !used[l3] {
				used[l3] = true
				added = append(added, l3)
			}
		}
	}
	switch {
	case need == 0:
		return true
	case odd:
		return q.takeOdd(p, need, used)
	}

	// Take whole cores of all groups, then threads, as divide does.
	p.picks, p.partial = nil, nil
	for _, l3 := range added {
		delete(used, l3)
	}
	need = p.vcpus
	for _, take := range []func(p *part, g, need int) int{q.takeWhole, q.takeThreads} {
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

// nextPartial returns the group from which choosePartial takes next, or none. It prefers a
// group that has all need vCPUs, then one in an L3 cache in used, then one with fast cores.
func (q *search) nextPartial(p *part, need int, used, done map[int]bool) int {
	next, nextRank := none, [5]int{}
	for _, g := range q.nodes[p.node].groups {
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
		if next == none || slices.Compare(rank[:], nextRank[:]) < 0 {
			next, nextRank = g, rank
		}
	}
	return next
}

// takeThreads takes up to most threads of a group's partially allocated cores and returns
// how many it took. Cores that no other guest uses come before cores that one uses, and
// within both sets, the cores with the fewest free threads come first.
func (q *search) takeThreads(p *part, g, most int) int {
	var loose []int
	for _, c := range q.groups[g].cores {
		if q.isLoose(c) && !p.usesThreadsOf(c) {
			loose = append(loose, c)
		}
	}
	slices.SortStableFunc(loose, func(a, b int) int {
		return cmp.Or(cmp.Compare(b2i(q.byVM[a]), b2i(q.byVM[b])), cmp.Compare(q.free[a], q.free[b]))
	})
	got := 0
	for _, c := range loose {
		if n := min(q.free[c], most-got); n > 0 {
			p.partial = append(p.partial, threads{core: c, threads: n})
			got += n
		}
	}
	return got
}
