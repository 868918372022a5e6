package planner

import (
	"cmp"
	"slices"
)

// manyNodes is the largest number of NUMA nodes for which every subset is tried.
const manyNodes = 8

// run tries sets of 1, 2, 3, … NUMA nodes and returns the best plan on the smallest number.
// Memory may be out of proportion to the CPUs only if no set keeps the proportion.
func (q *search) run(all []supply) (plan, bool) {
	most := min(len(all), maxCells, q.want.vcpus)
	if q.wide > 0 {
		most = min(most, q.wide)
	}
	for k := 1; k <= most; k++ {
		if !q.enough(all, k) {
			continue
		}
		sets := q.sets(all, k)
		for _, skew := range []bool{false, true} {
			if skew && q.straight {
				break
			}
			if best, ok := q.bestOf(all, sets, skew); ok {
				return best, true
			}
		}
	}
	return plan{}, false
}

// enough reports whether the k largest nodes could hold the want.
func (q *search) enough(all []supply, k int) bool {
	cpus, memory := make([]int, len(all)), make([]int64, len(all))
	loose := 0
	for i, s := range all {
		cpus[i], memory[i] = s.whole, s.memory
		loose = max(loose, s.loose)
	}
	slices.SortFunc(cpus, func(a, b int) int { return cmp.Compare(b, a) })
	slices.SortFunc(memory, func(a, b int64) int { return cmp.Compare(b, a) })
	var c int
	var m int64
	for i := range k {
		c += cpus[i]
		m += memory[i]
	}
	return c+loose >= q.want.vcpus && m >= q.want.memory
}

// sets returns the sets of k nodes to try, as positions in all.
func (q *search) sets(all []supply, k int) [][]int {
	if len(all) <= manyNodes {
		return subsets(len(all), k)
	}
	var sets [][]int
	for seed := range all {
		order := sequence(len(all))
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Compare(q.distance[all[seed].node][all[a].node], q.distance[all[seed].node][all[b].node])
		})
		sets = append(sets, slices.Sorted(slices.Values(order[:k])))
	}
	order := sequence(len(all))
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(all[b].whole, all[a].whole) })
	return append(sets, slices.Sorted(slices.Values(order[:k])))
}

// subsets returns the sets of k out of n positions in lexical order.
func subsets(n, k int) [][]int {
	if k == 0 {
		return [][]int{nil}
	}
	var sets [][]int
	for last := k - 1; last < n; last++ {
		for _, head := range subsets(last, k-1) {
			sets = append(sets, append(slices.Clone(head), last))
		}
	}
	slices.SortFunc(sets, slices.Compare)
	return sets
}

// sequence returns 0..n-1.
func sequence(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// bestOf returns the cheapest plan over the sets, and whether there is one.
func (q *search) bestOf(all []supply, sets [][]int, skew bool) (plan, bool) {
	var best plan
	found := false
	for _, set := range sets {
		sub := make([]supply, len(set))
		for i, at := range set {
			sub[i] = all[at]
		}
		for _, d := range q.divisions(sub, skew) {
			if p, ok := q.try(sub, d, skew); ok && (!found || p.cost.less(&best.cost)) {
				best, found = p, true
			}
		}
	}
	return best, found
}

// try makes a plan that uses every node of the set; ok is false if there is none.
func (q *search) try(sub []supply, d division, skew bool) (plan, bool) {
	vcpus, odd, ok := divide(sub, d.caps, q.want.vcpus, d.even)
	if !ok {
		return plan{}, false
	}
	memory, ok := divideMemory(sub, vcpus, q.want)
	if !ok {
		return plan{}, false
	}
	if q.wide > 0 { // the CPUs' nodes give no more than the others
		for i := range memory {
			memory[i] = mulDivCeil(q.want.memory, 1, int64(q.wide))
		}
	}
	p := plan{parts: make([]part, len(sub)), unbound: q.unbound}
	used := map[int]bool{} // L3 caches
	for i, s := range sub {
		p.parts[i] = part{node: s.node, vcpus: vcpus[i], memory: memory[i], odd: none}
		if q.allowed != nil && !q.choose(&p.parts[i], i == odd, used) {
			return plan{}, false
		}
	}
	if q.overPins(&p) {
		return plan{}, false
	}
	q.price(&p, skew)
	return p, true
}

// overPins reports whether the plan takes more CPUs than floating guests can spare, or than
// the host agent allows to be pinned.
func (q *search) overPins(p *plan) bool {
	if q.allowed == nil {
		return false
	}
	taken := 0
	for _, part := range p.parts {
		taken += q.taken(part)
	}
	return taken > q.pinRoom(q.want.ratio) || q.want.agent && q.opens(p) > q.agentRoom()
}

// opens returns the number of CPUs on cores that get their first pins of the host agent
// with the plan.
func (q *search) opens(p *plan) int {
	total := 0
	open := func(core int) {
		if !q.byAgent[core] {
			total += len(q.cores[core].cpus)
		}
	}
	for _, part := range p.parts {
		total += q.wholeCPUs(part)
		if part.odd != none {
			open(part.odd)
		}
		for _, shard := range part.shards {
			open(shard.core)
		}
	}
	return total
}

// taken returns the number of CPUs of one part that no other guest can use.
func (q *search) taken(p part) int { return p.oddThreads + p.threadsIn() + q.wholeCPUs(p) }

// wholeCPUs returns the number of CPUs of a part's whole cores, including idle siblings.
func (q *search) wholeCPUs(p part) int {
	total := 0
	for _, k := range p.picks {
		total += k.count * q.groups[k.group].sizes[k.size]
	}
	return total
}

// price fills in the cost of a plan.
func (q *search) price(p *plan, skew bool) {
	c := &p.cost
	c[costResort] = q.resort
	c[costNodes] = int64(len(p.parts))
	var nodes []int
	for _, part := range p.parts {
		nodes = append(nodes, part.node)
	}
	c[costDistance] = q.span(nodes) + q.reach(&q.want, nodes)
	if skew {
		c[costSkew] = 1
	}
	least, most := p.parts[0].vcpus, p.parts[0].vcpus
	caches := map[int]bool{}
	for _, part := range p.parts {
		least, most = min(least, part.vcpus), max(most, part.vcpus)
		q.priceCores(c, part, caches)
		if q.allowed == nil {
			over := q.homed[part.node] + part.vcpus - q.floatRoom(q.want.ratio, q.nodeFree[part.node])
			c[costOverload] += int64(max(0, over))
		}
	}
	c[costCaches] = int64(len(caches))
	c[costUneven] = int64(most - least)
	q.priceSlots(p)
	q.priceLeft(p)
	c[costCrowd] = int64(len(q.claims))
}

// priceCores adds the cost of a part's caches and cores.
func (q *search) priceCores(c *cost, p part, caches map[int]bool) {
	for _, k := range p.picks {
		g := &q.groups[k.group]
		caches[g.l3] = true
		c[costEfficiency] += slowness(g) * int64(k.count*q.gives(k.group, k.size))
	}
	for _, s := range p.shards {
		g := &q.groups[q.cores[s.core].group]
		caches[g.l3] = true
		c[costEfficiency] += slowness(g) * int64(s.threads)
	}
	if p.odd != none {
		g := &q.groups[q.cores[p.odd].group]
		caches[g.l3] = true
		c[costEfficiency] += slowness(g) * int64(p.oddThreads)
		if q.isWhole(p.odd) {
			c[costBroken]++
		}
	}
}

// priceLeft prices what is left of the touched nodes and of the host's largest.
func (q *search) priceLeft(p *plan) {
	var cpus, usable, memory, size int64
	slots := make([]int, len(q.nodes))
	for i := range q.nodes {
		slots[i] = q.nodeFree[i]
	}
	before := slices.Max(slots)
	for _, part := range p.parts {
		n := &q.nodes[part.node]
		takes := q.taken(part)
		left := q.nodeFree[part.node] - takes
		if q.allowed == nil {
			left = q.floatRoom(q.want.ratio, q.nodeFree[part.node]) - q.homed[part.node] - part.vcpus
		}
		slots[part.node] -= takes
		cpus += int64(max(0, left))
		usable += int64(n.usable)
		size += n.memory[q.want.backing]
		memory += max(0, q.nodeMemFree(part.node, q.want.backing)-part.memory)
	}
	p.cost.setLeft(share(cpus, usable), share(memory, size))
	p.cost[costLargest] = int64(before - slices.Max(slots))
}

// span returns the sum of the distances between nodes.
func (s *state) span(nodes []int) int64 {
	var sum int64
	for i, a := range nodes {
		for _, b := range nodes[:i] {
			sum += s.distance[a][b]
		}
	}
	return sum
}
