package planner

import "github.com/numaform/numaform/fleet"

// search looks for a plan on one host within the allowed groups. Without allowed groups it
// looks for memory only.
type search struct {
	*state
	want    want
	allowed []bool
	loose   looseness
	scope
	resort int64
}

// supply is what one NUMA node can give to a search.
type supply struct {
	node   int
	whole  int // vCPUs on whole cores
	loose  int // most free threads of one partially allocated core
	sizes  []sizeCount
	memory int64
}

// sizeCount is a number of cores that give the same number of vCPUs each.
type sizeCount struct{ gives, count int }

// supplies lists what each bindable NUMA node can give.
func (q *search) supplies() []supply {
	var all []supply
	for i := range q.nodes {
		n := &q.nodes[i]
		s := supply{node: i, memory: q.memoryOn(i)}
		if !n.bindable[q.want.backing] || s.memory <= 0 || q.only != none && q.only != i {
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

// memoryOn returns what a node can give: of the host's memory if it need not be bound to
// the node alone.
func (q *search) memoryOn(node int) int64 {
	switch {
	case q.wide > 0 && !q.hasMemory(node, mulDivCeil(q.want.memory, 1, int64(q.wide))):
		return 0
	case q.unbound || q.wide > 0:
		return q.left[ordinary]
	}
	return q.nodeMemFree(node, q.want.backing)
}

// addGroup adds the cores of a group to a supply.
func (q *search) addGroup(s *supply, g int) {
	for size, count := range q.whole[g] {
		if count > 0 {
			gives := q.gives(g, size)
			s.whole += gives * count
			s.sizes = addSize(s.sizes, gives, count)
		}
	}
	switch {
	case q.want.halves:
		for _, c := range q.groups[g].cores {
			if q.isLoose(c) {
				s.whole += q.free[c]
				s.sizes = addSize(s.sizes, 1, q.free[c])
			}
		}
	case q.want.policy == fleet.PolicyDedicated:
		s.loose = max(s.loose, q.looseIn(g))
	}
}

// addSize adds cores to a list sorted by what they give, descending.
func addSize(sizes []sizeCount, gives, count int) []sizeCount {
	i := 0
	for i < len(sizes) && sizes[i].gives > gives {
		i++
	}
	if i < len(sizes) && sizes[i].gives == gives {
		sizes[i].count += count
		return sizes
	}
	sizes = append(sizes, sizeCount{})
	copy(sizes[i+1:], sizes[i:])
	sizes[i] = sizeCount{gives: gives, count: count}
	return sizes
}

// gives returns the number of vCPUs that a whole core of the group and size holds.
func (q *search) gives(group, size int) int {
	if q.want.policy == fleet.PolicyIsolated {
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

// exact returns the largest number, up to most, that whole cores add up to.
func exact(sizes []sizeCount, most int) int {
	got := 0
	for _, s := range sizes {
		got += s.gives * min(s.count, (most-got)/s.gives)
	}
	return got
}
