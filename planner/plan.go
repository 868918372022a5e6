package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/numaform/numaform/fleet"
)

// request is the part of a Spec that determines its plan on a host: Specs with equal requests
// share the result of one evaluation.
type request struct {
	policy fleet.Policy
	vcpus  int
	memory int64
	ratio  float64
	// memoryRatio is the memory overcommit that the VM tolerates.
	memoryRatio float64
	// backing is the kind of memory.
	backing backing
	// group is the pool whose VMs are spread over hosts, or empty.
	group string
	// selection is how to select the host; empty packs, like MostAllocated.
	selection fleet.HostSelection
	// maxLoad is the measured CPU load, in percent, from which a host is refused, or 0.
	maxLoad int
	// wholeOnly requests use no partially allocated core except for the odd threads; partial
	// requests use several.
	wholeOnly, partial bool
	// agent requests are pinned by the host agent.
	agent bool
	// devices are the PCI devices; see devicesOf.
	devices string
}

// requestOf returns the request of a spec.
func requestOf(spec *fleet.Spec) request {
	w := request{
		policy: spec.Policy,
		vcpus:  spec.VCPUs,
		memory: spec.MemoryMiB,
		ratio:  ratioOf(spec),

		memoryRatio: memoryRatioOf(spec),

		backing:   backingOf(spec),
		wholeOnly: spec.WholeCores && spec.Policy == fleet.PolicyDedicated,
		agent:     spec.Policy.Pinned() && spec.PinWith == fleet.PinWithHostAgent,
		devices:   devicesOf(spec),
		selection: spec.HostSelection,
		maxLoad:   spec.MaxHostLoad,
	}
	if w.selection == "" && w.policy == fleet.PolicyShared {
		w.selection = fleet.LeastAllocated
	}
	if spec.Spread == fleet.SpreadHosts {
		w.group = spec.Pool
	}
	return w
}

// spreads reports whether the request prefers hosts with more free resources.
func (w request) spreads() bool {
	return w.selection == fleet.LeastAllocated || w.selection == fleet.Balanced
}

// problem explains why no host can ever fit the request, or returns an empty string.
func (w request) problem() string {
	switch {
	case w.vcpus < 1 || w.memory < 1:
		return "a VM must have at least 1 vCPU and 1 MiB of memory: raise cpu and memory"
	case !(w.ratio > 0) || math.IsInf(w.ratio, 0):
		return "the overcommit must be a positive number: set overcommit in the ProxmoxNodeClass"
	case !(w.memoryRatio >= 1) || math.IsInf(w.memoryRatio, 0):
		return "the memory overcommit must be a number of at least 1: set memoryOvercommit in the ProxmoxNodeClass"
	case w.backing == unknownBacking:
		return "the VM's huge page size is unknown: use 2Mi or 1Gi in the ProxmoxNodeClass"
	case w.backing != ordinary && w.policy == fleet.PolicyShared:
		return "the policy Shared does not support huge pages: use NUMA, Dedicated or Isolated in the ProxmoxNodeClass"
	case w.memory%w.backing.mib() != 0:
		return fmt.Sprintf("the VM's memory of %d MiB is not a multiple of %d MiB, the size of its huge pages: "+
			"allow other instance types in the NodePool, or set another huge page size in the ProxmoxNodeClass", w.memory, w.backing.mib())
	}
	switch w.selection {
	case "", fleet.LeastAllocated, fleet.MostAllocated, fleet.Balanced:
	default:
		return "the host selection " + string(w.selection) + " is unknown: use LeastAllocated, MostAllocated or Balanced in the ProxmoxNodeClass"
	}
	switch w.policy {
	case fleet.PolicyShared, fleet.PolicyNUMA, fleet.PolicyDedicated, fleet.PolicyIsolated:
		return ""
	}
	return "the policy " + string(w.policy) + " is unknown: use Shared, NUMA, Dedicated or Isolated"
}

// plan is one way to place a requested VM on a host.
type plan struct {
	cost  cost
	parts []part
	// interleaved lists the NUMA nodes that back the interleaved cell, eachMiB from each.
	// Additional memory of a part is a separate cell.
	interleaved []int
	eachMiB     int64
	// unbound plans bind memory to no NUMA node.
	unbound bool
}

// part is the share of a plan on one NUMA node.
type part struct {
	node   int
	vcpus  int
	memory int64 // including its share of an interleaved cell
	picks  []pick
	// odd is the core of which the part uses only oddThreads threads, or none.
	odd, oddThreads int
	// partial lists the threads of partially allocated cores that a partial request uses.
	partial []threads
}

// pick is a number of whole cores of one size in a group.
type pick struct{ group, size, count int }

// evaluate returns the best plan for a request on the host, and whether one exists.
func (s *state) evaluate(w request) (plan, bool) {
	if s.problem != "" || w.vcpus > s.online || w.memory > s.memoryRoom(&w) || !s.hasDevices(&w) || s.tooBusy(w) {
		return plan{}, false
	}
	var p plan
	var ok bool
	switch {
	case w.policy.Pinned():
		p, ok = s.pinned(w)
	case s.floatRoom(w.ratio, s.allFree) < s.floating+w.vcpus:
	case w.policy == fleet.PolicyNUMA && (!s.flat || w.backing != ordinary):
		// On a flat host, only memory in huge pages is bound to the NUMA node.
		q := search{state: s, request: w, scope: scope{only: none}}
		p, ok = q.run(s.bindSupplies(w))
		if !ok && s.lends && w.backing == ordinary {
			p, ok = s.interleave(w)
		}
	default:
		limit := int64(s.floatRoom(w.ratio, s.allFree))
		p.cost[costCrowd] = int64(len(s.claims))
		p.cost.setLeft(
			share(limit-int64(s.floating+w.vcpus), limit),
			share(s.memoryRoom(&w)-w.memory, s.memory[ordinary]),
		)
		ok = true
	}
	p.cost[costSpread] = s.crowd(w.group)
	if ok {
		p.cost[costStrain] = s.strain(w)
		p.cost[costHost], p.cost[costHostSum] = s.hostCost(&p, w)
	}
	return p, ok
}

// tooBusy reports whether the measured load of the host excludes it. An unknown load does
// not.
func (s *state) tooBusy(w request) bool {
	return w.maxLoad > 0 && s.load != nil && s.load.CPUPercent >= w.maxLoad
}

// evaluateAll is like evaluate but falls back to partially allocated cores.
func (s *state) evaluateAll(w request) (plan, bool) {
	p, ok := s.evaluate(w)
	if partial, may := w.onPartialCores(); !ok && may {
		return s.evaluate(partial)
	}
	return p, ok
}

// crowd returns the number of VMs of a pool on the host.
func (s *state) crowd(group string) int64 {
	i := slices.IndexFunc(s.pools, func(p pool) bool { return p.name == group })
	if i < 0 {
		return 0
	}
	return s.pools[i].vms
}

// bindSupplies lists the capacity of the nodes for a VM with floating vCPUs and bound
// memory. A node holds as many of the VM's vCPUs as floatRoom returns for its free CPUs.
func (s *state) bindSupplies(w request) []supply {
	var all []supply
	for i := range s.nodes {
		cpus := s.floatRoom(w.ratio, s.nodeFree[i])
		memory := s.nodeMemFree(i, w.backing)
		if s.nodes[i].bindable[w.backing] && cpus > 0 && memory > 0 {
			all = append(all, supply{node: i, whole: cpus, sizes: []sizeCount{{gives: 1, count: cpus}}, memory: memory})
		}
	}
	return all
}

// pinned finds exclusive CPUs for a VM, and memory close to them. If no NUMA nodes have
// both in proportion, it takes memory in equal parts from several nodes, otherwise from any
// nodes that cells can bind, and as a last resort from anywhere on the host.
func (s *state) pinned(w request) (plan, bool) {
	if w.vcpus > s.pinRoom(w.ratio) {
		return plan{}, false
	}
	if p, ok := s.pinnedTo(w, scope{only: none, straight: !s.flat}); ok || s.flat {
		return p, ok
	}
	if w.backing != ordinary { // huge pages of a cell come from one node
		return s.pinnedTo(w, scope{only: none})
	}
	unbound, ok := s.pinnedTo(w, scope{only: none, unbound: true})
	if !ok { // CPUs are short, not memory
		return plan{}, false
	}
	if p, ok := s.interleave(w); ok {
		return p, true
	}
	if p, ok := s.pinnedTo(w, scope{only: none}); ok {
		return p, true
	}
	return unbound, true
}

// interleave finds CPUs for a VM with one cell whose memory comes in equal parts from as
// few nodes as possible: CPUs of one node, or else of several.
func (s *state) interleave(w request) (plan, bool) {
	for wide := 2; wide <= maxCells; wide++ {
		var best plan
		found := false
		for home := range s.nodes {
			if p, ok := s.interleaveFrom(w, home, wide); ok && (!found || p.cost.less(&best.cost)) {
				best, found = p, true
			}
		}
		if !found {
			best, found = s.interleaveFrom(w, none, wide)
		}
		if found {
			return best, true
		}
	}
	return plan{}, false
}

// interleaveFrom finds CPUs on one NUMA node, or on any if home is none, and memory on wide
// nodes. For a VM with floating vCPUs, the nodes of these CPUs only need room for its
// vCPUs.
func (s *state) interleaveFrom(w request, home, wide int) (plan, bool) {
	each := mulDivCeil(w.memory, 1, int64(wide))
	have := 0
	for i := range s.nodes {
		have += b2i(s.hasMemory(i, each))
	}
	if have < wide {
		return plan{}, false
	}

	var p plan
	var ok bool
	in := scope{only: home, wide: wide}
	if w.policy.Pinned() {
		p, ok = s.pinnedTo(w, in)
	} else {
		q := search{state: s, request: w, scope: in, resort: resortUnbound}
		var all []supply
		for _, supply := range s.bindSupplies(w) {
			supply.memory = q.memoryOn(supply.node)
			if supply.memory > 0 && (home == none || home == supply.node) {
				all = append(all, supply)
			}
		}
		p, ok = q.run(all)
	}
	if !ok {
		return plan{}, false
	}

	// Memory comes from the nodes of the CPUs, then from the other nodes: first from nodes
	// with CPUs, then from the nodes that lose the least room for typical VMs.
	var nodes, others []int
	for _, part := range p.parts {
		nodes = append(nodes, part.node)
	}
	for i := range s.nodes {
		if !slices.Contains(nodes, i) && s.hasMemory(i, each) {
			others = append(others, i)
		}
	}
	near := s.distance[nodes[0]]
	slices.SortStableFunc(others, func(a, b int) int {
		return cmp.Or(
			cmp.Compare(b2i(s.nodes[a].lends), b2i(s.nodes[b].lends)), // lent memory is slower
			cmp.Compare(s.roomLost(a, each), s.roomLost(b, each)), cmp.Compare(near[a], near[b]),
			cmp.Compare(s.memFree[ordinary][a], s.memFree[ordinary][b]),
		)
	})
	others = others[:wide-len(nodes)]
	for _, n := range others {
		p.cost[costSlots] += s.roomLost(n, each)
	}
	p.interleaved, p.eachMiB = slices.Sorted(slices.Values(append(nodes, others...))), each
	p.cost[costNodes] = int64(wide)
	p.cost[costDistance] = s.span(p.interleaved) + s.reach(&w, p.interleaved)
	return p, true
}

// hasMemory reports whether the node can give memory MiB to an interleaved cell. A node
// whose memory is assumed cannot: that needs the policy preferred, which accepts only one
// node.
func (s *state) hasMemory(node int, memory int64) bool {
	n := &s.nodes[node]
	return (n.bindable[ordinary] || n.lends) && !n.assumed && s.memFree[ordinary][node] >= memory
}

// evaluateOn returns the best plan for a pinned VM on one NUMA node.
func (s *state) evaluateOn(w request, node int) (plan, bool) {
	if w.memory > s.left[w.backing] || w.vcpus > s.pinRoom(w.ratio) || !s.hasDevices(&w) {
		return plan{}, false
	}
	p, ok := s.pinnedTo(w, scope{only: node})
	p.cost[costSpread] = s.crowd(w.group)
	return p, ok
}

// scope limits where a search may look.
type scope struct {
	// unbound takes memory from the host as a whole.
	unbound bool
	// straight keeps memory proportional to the CPUs.
	straight bool
	// wide is the number of nodes that give equal parts of the memory, or 0.
	wide int
	// only is the single NUMA node to use, or none.
	only int
}

// pinnedTo finds cores for a pinned VM: whole ones, and for a partial request also threads
// of partially allocated ones. The odd thread of a VM gets a core of its own while whole
// cores are plentiful, and a shared one afterwards.
func (s *state) pinnedTo(w request, in scope) (plan, bool) {
	if w.partial {
		p, ok := s.pinnedAt(w, looseShared, in)
		p.cost[costResort] |= resortPartial
		return p, ok
	}
	own, ok := s.pinnedAt(w, looseReserved, in)
	if w.policy == fleet.PolicyIsolated || ok && !s.strands(&own) {
		return own, ok
	}
	shared, found := s.pinnedAt(w, looseShared, in)
	switch {
	case ok: // sharing is a choice here, not a last resort: it must not make other hosts look better
		shared.cost = own.cost
	case found && slices.ContainsFunc(shared.parts, s.sharesCore):
		shared.cost[costResort] |= resortShared
	}
	return shared, found
}

// strandedParts is the required number of threads on whole cores for each thread that is
// idle beside an odd VM. Below that, the next odd VM shares a core.
const strandedParts = 10

// strands reports whether the plan partially allocates a core although whole ones are
// scarce.
func (s *state) strands(p *plan) bool {
	breaks := slices.IndexFunc(p.parts, func(p part) bool { return p.odd != none && s.isWhole(p.odd) })
	if breaks < 0 {
		return false
	}
	q := search{state: s}
	odd := &p.parts[breaks]
	size := len(s.cores[odd.odd].cpus)
	whole, stranded := -size, size-odd.oddThreads
	for i := range p.parts {
		whole -= q.wholeCPUs(p.parts[i])
	}
	for i := range s.cores {
		switch {
		case s.cores[i].group == none:
		case s.isWhole(i):
			whole += s.free[i]
		case s.byVM[i]:
			stranded += s.free[i]
		}
	}
	return stranded*strandedParts > whole
}

// looseness defines which partially allocated cores may give an odd thread.
type looseness int

const (
	// looseReserved cores are partially allocated only by the host's own reservation.
	looseReserved looseness = iota
	// looseShared cores may be in use by another guest.
	looseShared
)

// pinnedAt tries the passes of the host in order, and returns the best plan of the first
// resort that has one.
func (s *state) pinnedAt(w request, loose looseness, in scope) (plan, bool) {
	var best plan
	found, resort := false, int64(0)
	for _, pass := range s.passes {
		if found && pass.resort != resort {
			break
		}
		q := search{state: s, request: w, allowed: pass.allowed, loose: loose, scope: in, resort: pass.resort}
		if in.unbound || in.wide > 0 {
			q.resort |= resortUnbound
		}
		if w.policy == fleet.PolicyIsolated && pass.resort&resortUnknown != 0 {
			continue
		}
		if p, ok := q.run(q.supplies()); ok && (!found || p.cost.less(&best.cost)) {
			best, found, resort = p, true, pass.resort
		}
	}
	return best, found
}
