package planner

import (
	"math"
	"slices"

	"github.com/numaform/numaform/fleet"
)

// A pinned VM that fits an empty NUMA node, but no node as it is now, is split over several
// nodes. Taking half of a free node costs the next VM its place, while the remainder next
// to an existing VM is useless to other VMs. So the VM takes the pieces, over all nodes,
// that lose the least room for typical VMs. ADR 12 in the docs directory has the figures.

// A VM is split in units of 24ths of its memory and 8ths of its cores. A further NUMA node
// must save a 48th of the room that the VM's own CPUs are worth, a further L3 cache a 6th.
const (
	splitPages     = 24
	splitCores     = 8
	splitRoomCost  = 48
	splitNodeCost  = 1
	splitCacheCost = 8
	// splitTie exceeds any sum of distances: the nearer node only breaks ties.
	splitTie = 1 << 13
)

// interleaveOver lists the numbers of NUMA nodes tried for interleaving a cell of all the
// memory in equal parts.
var interleaveOver = []int{2, 3, 4, 6, 8, 12}

// piece is a share of a node that a split VM may take. Memory of pieces without cores
// belongs to the one cell that is interleaved over several nodes in equal parts.
type piece struct {
	cores, pages int // in units of the splitter
	cost         int64
}

// splitter finds the pieces, at most one of each node, that hold a request at the least
// cost. This is a two-dimensional knapsack problem. The splitter solves it by dynamic
// programming over the nodes, by the units taken so far.
type splitter struct {
	search
	supplies     []supply // by node; zero for a node without capacity
	threads      int      // CPUs of the largest core; cores with fewer are rare
	core         int      // vCPUs of a unit: one or several cores
	page         int64    // MiB of a unit
	cores, pages int      // of the VM, in units; the last core may not be full, see short
	leastPages   int      // of a cell, and of each node of the interleaved one
	pieces       [][]piece
	// eachPages is the number of units that each node gives to the interleaved cell.
	eachPages int
	// least is the least cost of the pieces of the first nodes, by the number of nodes and
	// by the index that at returns.
	least [][]int64
}

// The states of the interleaved cell after some nodes: a cell must not end without a vCPU.
const (
	noInterleaved = iota
	interleavedMemoryOnly
	interleavedAll
	interleavedStates
)

// refine returns a better plan for a VM that does not fit one NUMA node of its chosen host:
// on partially allocated cores of one node, or else split so that it costs other VMs least.
// If it finds none, or the VM needs none, it returns the plan unchanged. Hosts are compared
// by the plan that refine replaces, so a host with whole cores on one node wins.
func (s *state) refine(p *plan, w request) plan {
	if !w.policy.Pinned() || w.partial || p.isLocal() {
		return *p
	}
	if partial, may := w.onPartialCores(); may {
		best, found := plan{}, false
		for n := range s.nodes {
			if one, ok := s.pinnedTo(partial, scope{only: n}); ok && (!found || one.cost.less(&best.cost)) {
				best, found = one, true
			}
		}
		if found {
			best.cost[costSpread] = p.cost[costSpread]
			return best
		}
	}
	if split, ok := s.split(p, w); ok {
		return split
	}
	return *p
}

// isLocal reports whether the plan uses CPUs and memory of one NUMA node only.
func (p *plan) isLocal() bool { return len(p.parts) == 1 && p.interleaved == nil && !p.unbound }

// split returns the plan that costs other VMs least, if the VM fits an empty NUMA node. It
// tries the passes up to p's resort, and stops at the first resort that has a plan. It does
// not split VMs in huge pages, which cannot back a cell over several nodes, VMs with PCI
// devices, which are close to one node only, or VMs on hosts with assumed memory. An odd VM
// shares a core if whole cores are scarce, or if it finds no whole core and would share one
// without the split too.
func (s *state) split(p *plan, w request) (best plan, found bool) {
	if w.backing != ordinary || w.devices != "" || s.anyAssumed() {
		return plan{}, false
	}
	if empty, ok := newState(s.index).evaluate(w); !ok || !empty.isLocal() {
		return plan{}, false
	}

	worst := p.cost[costResort]
	for _, pass := range s.passes {
		if pass.resort > worst || found && pass.resort != best.cost[costResort] {
			break
		}
		if w.policy == fleet.PolicyIsolated && pass.resort&resortUnknown != 0 {
			continue
		}
		c := splitter{search: search{state: s, request: w, allowed: pass.allowed, loose: looseReserved, scope: scope{only: none}}}
		split, ok := c.run()
		if ok && s.strands(&split) || !ok && worst&resortShared != 0 {
			c.loose = looseShared
			if shared, also := c.run(); also {
				split, ok = shared, true
			}
		}
		split.cost[costResort] = pass.resort
		if ok && (!found || split.cost.less(&best.cost)) {
			best, found = split, true
		}
	}

	best.cost[costSpread] = p.cost[costSpread]

	best.cost[costSkew] = int64(b2i(best.isSkewed(w)))
	return best, found
}

// isSkewed reports whether the memory of a cell on one node is out of proportion to its
// vCPUs by more than one unit of memory, in a plan without an interleaved cell.
func (p *plan) isSkewed(w request) bool {
	return p.interleaved == nil && slices.ContainsFunc(p.parts, func(part part) bool {
		off := part.memory*int64(w.vcpus) - w.memory*int64(part.vcpus)
		return max(off, -off) > mulDivCeil(w.memory, int64(w.vcpus), splitPages)
	})
}

// run tries the sizes that a part of the interleaved cell may have, and returns the best
// plan, or false if none exists.
func (c *splitter) run() (plan, bool) {
	c.setUnits()
	c.pieces, c.eachPages = nil, 0
	for n := range c.nodes {
		c.pieces = append(c.pieces, c.piecesOf(n))
	}
	best, found, size := plan{}, false, 0
	try := func(pages int) {
		if pages == c.eachPages || pages < c.leastPages {
			return
		}
		c.eachPages = pages
		if p, ok := c.cheapest(); ok && (!found || p.cost.less(&best.cost)) {
			best, found, size = p, true, pages
		}
	}
	for _, over := range interleaveOver {
		try(max(1, c.pages/over))
	}
	for pages := c.pages / 2; !found && pages > 0; pages-- { // little memory is left
		try(pages)
	}
	if !found {
		return plan{}, false
	}
	c.eachPages = size
	return c.nearest(best), true
}

// nearest returns the plan whose memory is nearest to a node that gives CPUs, among the
// plans of equal cost.
func (c *splitter) nearest(best plan) plan {
	parts, all, found := best.parts, c.pieces, false
	for _, home := range parts {
		c.pieces = make([][]piece, len(all))
		for n := range all {
			for _, p := range all[n] {
				p.cost = p.cost*splitTie + int64(p.pages)*c.distance[home.node][n]
				c.pieces[n] = append(c.pieces[n], p)
			}
		}
		if p, ok := c.cheapest(); ok && (!found || p.cost.less(&best.cost)) {
			best, found = p, true
		}
	}
	if found {
		best.cost[costSlots] /= splitTie
	}
	return best
}

// setUnits chooses the units and lists the capacity of each node.
func (c *splitter) setUnits() {
	c.supplies, c.threads, c.core = make([]supply, len(c.nodes)), 1, 1
	for _, s := range c.search.supplies() {
		c.supplies[s.node] = s
		for _, size := range s.sizes {
			c.core = max(c.core, size.gives)
		}
		for _, g := range c.nodes[s.node].groups {
			if c.allowed[g] {
				c.threads = max(c.threads, slices.Max(c.groups[g].sizes))
			}
		}
	}
	for c.request.vcpus > splitCores*c.core {
		c.core *= 2
	}
	c.cores = (c.request.vcpus + c.core - 1) / c.core
	c.page = mulDivCeil(c.request.memory, 1, splitPages)
	c.pages = int(mulDivCeil(c.request.memory, 1, c.page))
	missing := int64(c.pages)*c.page - c.request.memory // the last page may not be full
	c.leastPages = int(mulDivCeil(minCellMiB+missing, 1, c.page))
}

// short returns the number of vCPUs that the last unit of cores lacks.
func (c *splitter) short() int { return c.cores*c.core - c.request.vcpus }

// odd returns the number of vCPUs that use only a part of a core.
func (c *splitter) odd() int {
	if c.request.policy == fleet.PolicyIsolated {
		return 0
	}
	return c.request.vcpus % c.threads
}

// holds returns the number of units that a node can give, including one that is not full.
func (c *splitter) holds(s *supply) int {
	units, rest := s.whole/c.core, s.whole%c.core
	if odd := c.odd(); odd > 0 && s.loose >= odd {
		rest += odd
	}
	if c.short() > 0 && rest >= c.core-c.short() {
		units++
	}
	return min(units, c.cores)
}

// piecesOf lists the pieces that a node can give.
func (c *splitter) piecesOf(n int) []piece {
	if !c.nodes[n].bindable[ordinary] && !c.nodes[n].lends {
		return nil
	}
	s, free, memory := &c.supplies[n], c.wholeOn(n), c.memFree[ordinary][n]
	takes := c.core // CPUs of a unit: an isolated VM leaves the siblings idle
	if c.request.policy == fleet.PolicyIsolated {
		takes *= c.threads
	}
	caches, worth := c.cachesOf(n), roomFor(c.request.vcpus, math.MaxInt64)
	var pieces []piece
	for k := range c.holds(s) + 1 {
		used := 0 // L3 caches, largest first
		for need := k * c.core; used < len(caches) && need > 0; used++ {
			need -= caches[used]
		}
		for m := 1; m <= c.pages && int64(m)*c.page <= memory; m++ {
			loss := roomFor(free, memory) - roomFor(free-k*takes, memory-int64(m)*c.page)
			cost := splitRoomCost*loss + worth*int64(splitNodeCost+splitCacheCost*used)
			pieces = append(pieces, piece{cores: k, pages: m, cost: cost})
		}
	}
	return pieces
}

// isInterleaved reports whether a piece contributes to the interleaved cell. If the piece
// has more than eachPages units of memory, the rest is a cell of its own, which needs
// leastPages, and both cells need a core.
func (c *splitter) isInterleaved(p piece) bool {
	return p.pages == c.eachPages || p.pages >= c.eachPages+c.leastPages && p.cores*c.core-c.short() > c.threads
}

// with returns the state of the interleaved cell after one more piece, and whether that
// state is allowed.
func (c *splitter) with(cell int, p piece) (int, bool) {
	switch {
	case !c.isInterleaved(p):
		return cell, p.cores > 0 && p.pages >= c.leastPages
	case p.cores > 0:
		return interleavedAll, true
	}
	return max(cell, interleavedMemoryOnly), true
}

// at returns the index into least for the units taken so far.
func (c *splitter) at(cell, cores, pages int) int {
	return (cell*(c.cores+1)+cores)*(c.pages+1) + pages
}

// add lowers the costs in next wherever a piece, added to the units taken before, costs
// less.
func (c *splitter) add(next, before []int64, p piece) {
	for cell := range interleavedStates {
		to, ok := c.with(cell, p)
		if !ok {
			continue
		}
		for cores := 0; cores+p.cores <= c.cores; cores++ {
			from := before[c.at(cell, cores, 0):c.at(cell, cores, c.pages+1-p.pages)]
			into := next[c.at(to, cores+p.cores, p.pages):]
			for i, cost := range from {
				if cost < math.MaxInt64 {
					into[i] = min(into[i], cost+p.cost)
				}
			}
		}
	}
}

// cheapest computes the least costs, node by node, and returns the plan of the least cost,
// or false if none exists.
func (c *splitter) cheapest() (plan, bool) {
	first := slices.Repeat([]int64{math.MaxInt64}, interleavedStates*(c.cores+1)*(c.pages+1))
	first[c.at(noInterleaved, 0, 0)] = 0
	c.least = append(c.least[:0], first)
	for n := range c.nodes {
		next := slices.Clone(c.least[n])
		for _, p := range c.pieces[n] {
			c.add(next, c.least[n], p)
		}
		c.least = append(c.least, next)
	}

	last, cell := c.least[len(c.nodes)], noInterleaved
	cost := last[c.at(noInterleaved, c.cores, c.pages)]
	if with := last[c.at(interleavedAll, c.cores, c.pages)]; with < cost {
		cell, cost = interleavedAll, with
	}
	if cost == math.MaxInt64 {
		return plan{}, false
	}
	p, ok := c.plan(cell)
	p.cost[costSlots] = cost
	return p, ok
}

// plan walks back from an end state and builds a plan from the pieces that led to it. It
// returns false if the plan has too many cells, too many pins, or no cores for some part.
func (c *splitter) plan(cell int) (plan, bool) {
	p := plan{eachMiB: int64(c.eachPages) * c.page}
	cores, pages := c.cores, c.pages
	for n := len(c.nodes) - 1; n >= 0; n-- {
		last, from, ok := c.lastOf(n, cell, cores, pages)
		if !ok {
			continue
		}
		cell, cores, pages = from, cores-last.cores, pages-last.pages
		if c.isInterleaved(last) {
			p.interleaved = append(p.interleaved, n)
		}
		if last.cores > 0 {
			p.parts = append(p.parts, part{node: n, vcpus: last.cores * c.core, memory: int64(last.pages) * c.page, odd: none})
		}
	}
	slices.Reverse(p.parts)
	slices.Reverse(p.interleaved)
	if len(p.interleaved) < 2 {
		p.interleaved, p.eachMiB = nil, 0
		p.parts[0].memory -= int64(c.pages)*c.page - c.request.memory // the last page may not be full
	}

	// The last unit of cores can have fewer vCPUs than a full unit (see short). Shorten the
	// part whose node cannot give a full unit, else a part whose node has a partially
	// allocated core with room for the odd vCPUs, else the first part. The shortened part
	// also gets the odd vCPUs.
	short, odd := 0, c.odd()
	for i := range p.parts {
		s := &c.supplies[p.parts[i].node]
		if p.parts[i].vcpus > s.whole {
			short = i
			break
		}
		if s.loose >= odd && c.supplies[p.parts[short].node].loose < odd {
			short = i
		}
	}
	p.parts[short].vcpus -= c.short()

	used := map[int]bool{}
	for i := range p.parts {
		if !c.choose(&p.parts[i], odd > 0 && i == short, used) {
			return plan{}, false
		}
		c.priceCores(&p.cost, p.parts[i], used)
	}
	p.cost[costPartial] = 0
	return p, len(p.parts)+b2i(p.interleaved != nil) <= maxCells && !c.overPins(&p)
}

// lastOf returns the piece of a node that led to a state, and the state before it. ok is
// false if the node gave none.
func (c *splitter) lastOf(n, cell, cores, pages int) (last piece, from int, ok bool) {
	cost := c.least[n+1][c.at(cell, cores, pages)]
	if c.least[n][c.at(cell, cores, pages)] == cost {
		return piece{}, 0, false
	}
	for _, p := range c.pieces[n] {
		if p.cores > cores || p.pages > pages {
			continue
		}
		for from := range interleavedStates {
			before := c.least[n][c.at(from, cores-p.cores, pages-p.pages)]
			if to, ok := c.with(from, p); ok && to == cell && before < math.MaxInt64 && before+p.cost == cost {
				return p, from, true
			}
		}
	}
	panic("planner: a split VM has a piece that no node gave")
}
