package planner

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/fleet"
)

// search looks for a plan on one host within the allowed groups. If allowed is nil, the
// vCPUs float: the plan then has NUMA nodes but no cores.
type search struct {
	*state
	request request
	allowed []bool
	loose   looseness
	scope
	resort int64
}

// supply is the capacity of one NUMA node in a search.
type supply struct {
	node   int
	whole  int // vCPUs on whole cores; on all free CPUs if they float
	loose  int // most free threads of one partially allocated core
	sizes  []sizeCount
	memory int64
}

// sizeCount is a number of cores that give the same number of vCPUs each.
type sizeCount struct{ gives, count int }

// supplies lists the capacity of each bindable NUMA node.
func (q *search) supplies() []supply {
	var all []supply
	for i := range q.nodes {
		n := &q.nodes[i]
		s := supply{node: i, memory: q.memoryOn(i)}
		if !n.bindable[q.request.backing] || s.memory <= 0 || q.only != none && q.only != i {
			continue
		}
		for _, g := range n.groups {
			if q.allowed[g] {
				q.addGroup(&s, g)
			}
		}
		if s.whole+s.loose > 0 {
			all = append(all, s)
		}
	}
	return all
}

// addGroup adds the cores of a group to a supply.
func (q *search) addGroup(s *supply, g int) {
	for size, count := range q.whole[g] {
		if count > 0 {
			s.add(q.gives(g, size), count)
		}
	}
	switch {
	case q.request.partial:
		for _, c := range q.groups[g].cores {
			if q.isLoose(c) {
				s.add(1, q.free[c])
			}
		}
	case q.request.policy == fleet.PolicyDedicated:
		s.loose = max(s.loose, q.looseIn(g))
	}
}

// add adds count cores with gives vCPUs each. It keeps the sizes sorted by vCPUs per core,
// descending.
func (s *supply) add(gives, count int) {
	s.whole += gives * count
	i := 0
	for i < len(s.sizes) && s.sizes[i].gives > gives {
		i++
	}
	if i < len(s.sizes) && s.sizes[i].gives == gives {
		s.sizes[i].count += count
		return
	}
	s.sizes = slices.Insert(s.sizes, i, sizeCount{gives: gives, count: count})
}

// memoryOn returns the memory that a node can give. If the memory is not bound to the node
// alone, it is the free memory of the host, or 0 if the node cannot give its equal part.
func (q *search) memoryOn(node int) int64 {
	switch {
	case q.wide > 0 && !q.hasMemory(node, mulDivCeil(q.request.memory, 1, int64(q.wide))):
		return 0
	case q.unbound || q.wide > 0:
		return q.left[ordinary]
	}
	return q.nodeMemFree(node, q.request.backing)
}

// gives returns the number of vCPUs that a whole core of the group and size holds.
func (q *search) gives(group, size int) int {
	if q.request.policy == fleet.PolicyIsolated {
		return 1
	}
	return q.groups[group].sizes[size]
}

// looseIn returns the most free threads of one partially allocated core of the group.
func (q *search) looseIn(g int) int {
	most := 0
	for _, c := range q.groups[g].cores {
		if q.isLoose(c) {
			most = max(most, q.free[c])
		}
	}
	return most
}

// isLoose reports whether the core is partially allocated and may give an odd thread.
func (q *search) isLoose(c int) bool {
	return q.free[c] > 0 && !q.isWhole(c) && (q.loose == looseShared || !q.byVM[c])
}

// manyNodes is the largest number of NUMA nodes for which every subset is tried.
const manyNodes = 8

// run tries sets of 1, 2, 3, … NUMA nodes and returns the best plan on the smallest number,
// or false if none exists. Memory may be out of proportion to the CPUs only if no set of
// that size keeps the proportion.
func (q *search) run(all []supply) (plan, bool) {
	most := min(len(all), maxCells, q.request.vcpus)
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

// bestOf returns the cheapest plan over the sets, and whether one exists.
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

// enough reports whether the k largest nodes could hold the request.
func (q *search) enough(all []supply, k int) bool {
	cpus, memory := make([]int, len(all)), make([]int64, len(all))
	c := 0
	for i, s := range all {
		cpus[i], memory[i] = s.whole, s.memory
		c = max(c, s.loose)
	}
	slices.Sort(cpus)
	slices.Sort(memory)
	for _, n := range cpus[len(all)-k:] {
		c += n
	}
	return c >= q.request.vcpus && sum(memory[len(all)-k:]) >= q.request.memory
}

// sets returns the sets of k nodes to try, as positions in all: every set, or for more than
// manyNodes nodes, each node with the nodes nearest to it, and the k nodes with the most
// vCPUs.
func (q *search) sets(all []supply, k int) [][]int {
	if len(all) <= manyNodes {
		return subsets(len(all), k)
	}
	var sets [][]int
	add := func(compare func(a, b int) int) {
		order := sequence(len(all))
		slices.SortStableFunc(order, compare)
		sets = append(sets, slices.Sorted(slices.Values(order[:k])))
	}
	for seed := range all {
		near := q.distance[all[seed].node]
		add(func(a, b int) int { return cmp.Compare(near[all[a].node], near[all[b].node]) })
	}
	add(func(a, b int) int { return cmp.Compare(all[b].whole, all[a].whole) })
	return sets
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

// try builds a plan that uses every node of the set. It returns false if none exists.
func (q *search) try(sub []supply, d division, skew bool) (plan, bool) {
	vcpus, odd, ok := divide(sub, d.caps, q.request.vcpus, d.even)
	if !ok {
		return plan{}, false
	}
	least := int64(1)
	if len(sub) > 1 && !q.unbound && q.wide == 0 { // each node backs a cell
		least = minCellMiB
	}
	memory, ok := divideMemory(sub, vcpus, q.request, least)
	if !ok {
		return plan{}, false
	}
	p := plan{parts: make([]part, len(sub)), unbound: q.unbound}
	used := map[int]bool{} // L3 caches
	for i, s := range sub {
		p.parts[i] = part{node: s.node, vcpus: vcpus[i], memory: memory[i], odd: none}
		if q.wide > 0 { // nodes with CPUs give no more than other nodes
			p.parts[i].memory = mulDivCeil(q.request.memory, 1, int64(q.wide))
		}
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

// overPins reports whether the plan takes more CPUs than floating guests can spare, or
// pins more CPUs than the host agent allows.
func (q *search) overPins(p *plan) bool {
	if q.allowed == nil {
		return false
	}
	taken, pinned := 0, 0
	addCore := func(core int) { // its siblings count as pinned
		if !q.byAgent[core] {
			pinned += len(q.cores[core].cpus)
		}
	}
	for _, part := range p.parts {
		taken += q.taken(part)
		pinned += q.wholeCPUs(part)
		if part.odd != none {
			addCore(part.odd)
		}
		for _, t := range part.partial {
			addCore(t.core)
		}
	}
	return taken > q.pinRoom(q.request.ratio) || q.request.agent && pinned > q.agentRoom()
}

// taken returns the number of CPUs of one part that no other guest can use.
func (q *search) taken(p part) int { return p.oddThreads + p.partialThreads() + q.wholeCPUs(p) }

// wholeCPUs returns the number of CPUs of a part's whole cores, including idle siblings.
func (q *search) wholeCPUs(p part) int {
	total := 0
	for _, k := range p.picks {
		total += k.count * q.groups[k.group].sizes[k.size]
	}
	return total
}
