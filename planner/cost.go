package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// The parts of a cost, the most significant first. An unplaced VM outweighs all of them.
const (
	costResort     = iota // see resortUnknown and the following constants
	costSpread            // VMs of the same pool on the host, if the pool is spread over hosts
	costNodes             // number of NUMA nodes
	costDistance          // distances between them, and from them to the VM's PCI devices
	costSkew              // 1 if memory is not proportional to the CPUs of each node
	costOverload          // floating vCPUs whose memory is on a node, beyond the node's room for them
	costCaches            // number of L3 caches
	costUneven            // difference between the vCPUs of the plan's largest and smallest parts
	costEfficiency        // vCPUs on efficiency cores, plus twice those on low-power cores
	costStrain            // see strain
	costHost              // see hostCost: 0 if hosts are selected by packing, the following parts
	costHostSum           // the same for hosts of equal costHost
	costPartial           // whole cores that become partially allocated
	costSlots             // loss of room for VMs of typical sizes
	costLeftMin           // parts per million left on the plan's nodes: the lesser of CPUs and memory
	costLeftSum           // parts per million left on the plan's nodes: CPUs plus memory
	costLargest           // decrease of the largest number of free CPUs on one node of the host
	costCrowd             // number of guests on the host
	costParts
)

// cost is the cost of a place for one VM. The first part that differs between two costs
// decides which is lower.
type cost [costParts]int64

// less reports whether c is the lower cost.
func (c *cost) less(other *cost) bool {
	for i := range c {
		if c[i] != other[i] {
			return c[i] < other[i]
		}
	}
	return false
}

// million is the scale of shares in costs.
const million = 1_000_000

// share returns part of whole in parts per million, or 0 if either is not positive.
func share(part, whole int64) int64 {
	if whole <= 0 {
		return 0
	}
	return max(0, part) * million / whole
}

// strain counts the reasons to prefer another host that places the VM equally well: guests of
// the host are being backed up, or the VM's memory is free only if the host gives up caches.
func (s *state) strain(w request) int64 {
	return int64(b2i(s.backup) + b2i(s.short(w)))
}

// short reports whether the measured free memory of the host is less than the VM needs.
func (s *state) short(w request) bool {
	return w.backing == ordinary && s.surplus > 0 && w.memory > s.left[ordinary]-s.surplus
}

// hostCost returns the cost of selecting the host for a plan: the part of the host that is
// allocated to guests, including the plan's VM, by the scarcer of CPUs and memory, and then
// by both together. Balanced averages it with the measured load. It is zero if hosts are
// selected by packing.
func (s *state) hostCost(p *plan, w request) (first, second int64) {
	if !w.spreads() {
		return 0, 0
	}
	cpus, memory := s.allocated(p, w)
	first, second = max(cpus, memory), cpus+memory
	if load := s.load; w.selection == fleet.Balanced && load != nil {
		first = (first + int64(max(load.CPUPercent, load.MemoryPercent))*million/100) / 2
	}
	return first, second
}

// allocated returns the shares of the host's CPUs and memory that are allocated to guests,
// including the VM of a plan that is not committed yet. A vCPU without pins counts as one
// CPU, whatever the overcommit, so the shares can exceed a million.
func (s *state) allocated(p *plan, w request) (cpus, memory int64) {
	taken := s.usable - s.allFree + s.floating
	if w.policy.Pinned() {
		q := search{state: s, request: w}
		for _, part := range p.parts {
			taken += q.taken(part)
		}
	} else {
		taken += w.vcpus
	}
	return share(int64(taken), int64(s.usable)), share(s.memory[w.backing]-s.remaining(w.backing)+w.memory, s.memory[w.backing])
}

// setLeft sets the costs of the CPUs and memory that are left on the plan's nodes. The
// lesser share comes first, because CPUs without memory, or memory without CPUs, are
// wasted.
func (c *cost) setLeft(cpus, memory int64) {
	c[costLeftMin], c[costLeftSum] = min(cpus, memory), cpus+memory
}

// Typical VMs have 2 or 4 GiB of memory per vCPU. On a node with less free memory per free
// CPU, memory limits the number of such VMs.
const (
	leanMiB = 2048
	richMiB = 4096
)

// roomFor returns the value of free whole cores and memory. VMs with 2 GiB per vCPU count
// double: most VMs have that ratio, and room for a VM with more memory is also room for one
// with less.
func roomFor(cpus int, memory int64) int64 {
	memory = max(0, memory)
	return 2*slots(min(cpus, int(memory/leanMiB))) + slots(min(cpus, int(memory/richMiB)))
}

// slots adds up how many VMs of each typical size (1, 2, 4, 8, … and 3, 6, 12, … vCPUs) fit
// on the CPUs, weighted by the square of the size: large slots are the scarcest.
func slots(cpus int) int64 {
	var worth int64
	for k := 0; cpus>>k > 0; k++ { // sizes of 1<<k and 3<<k
		n := cpus >> k
		worth += int64(n+9*(n/3)) << (2 * k)
	}
	return worth
}

// roomLost returns the room for typical VMs that a node loses if a VM takes memory MiB of
// its memory.
func (s *state) roomLost(node int, memory int64) int64 {
	cpus, free := s.wholeOn(node), s.memFree[ordinary][node]
	return roomFor(cpus, free) - roomFor(cpus, free-memory)
}

// wholeOn returns the number of CPUs on a node's whole free cores.
func (s *state) wholeOn(node int) int {
	cpus := 0
	for _, g := range s.nodes[node].groups {
		for size, count := range s.whole[g] {
			cpus += count * s.groups[g].sizes[size]
		}
	}
	return cpus
}

// price fills in the cost of a plan.
func (q *search) price(p *plan, skew bool) {
	c := &p.cost
	c[costResort] = q.resort
	c[costNodes] = int64(len(p.parts))
	c[costSkew] = int64(b2i(skew))
	c[costCrowd] = int64(len(q.claims))

	var nodes []int
	caches := map[int]bool{}
	least, most := p.parts[0].vcpus, p.parts[0].vcpus
	for _, part := range p.parts {
		nodes = append(nodes, part.node)
		least, most = min(least, part.vcpus), max(most, part.vcpus)
		q.priceCores(c, part, caches)
		if q.allowed == nil {
			over := q.homed[part.node] + part.vcpus - q.floatRoom(q.request.ratio, q.nodeFree[part.node])
			c[costOverload] += int64(max(0, over))
		}
	}
	c[costDistance] = q.span(nodes) + q.reach(&q.request, nodes)
	c[costCaches] = int64(len(caches))
	c[costUneven] = int64(most - least)

	// Compute the slots that the plan takes from its nodes, the remainder of these nodes,
	// and the remainder of the host's largest node.
	var cpus, usable, memory, size int64
	left := append([]int(nil), q.nodeFree...)
	before := slices.Max(left)
	for _, part := range p.parts {
		n := &q.nodes[part.node]
		takes := q.taken(part)
		left[part.node] -= takes
		rest := q.nodeFree[part.node] - takes
		memFree := q.nodeMemFree(part.node, q.request.backing)

		free, slotTakes := q.wholeOn(part.node), q.wholeCPUs(part) // whole cores only, because few VMs use partially allocated ones
		if q.allowed == nil {
			free = q.floatRoom(q.request.ratio, q.nodeFree[part.node]) - q.homed[part.node]
			slotTakes = part.vcpus
			rest = free - part.vcpus
		} else if part.odd != none && q.isWhole(part.odd) {
			slotTakes += len(q.cores[part.odd].cpus)
		}
		c[costSlots] += roomFor(free, memFree) - roomFor(free-slotTakes, memFree-part.memory)

		cpus += int64(max(0, rest))
		usable += int64(n.usable)
		memory += max(0, memFree-part.memory)
		size += n.memory[q.request.backing]
	}
	c.setLeft(share(cpus, usable), share(memory, size))
	c[costLargest] = int64(before - slices.Max(left))
}

// priceCores adds the cost of a part's cores to c, and their L3 caches to caches.
func (q *search) priceCores(c *cost, p part, caches map[int]bool) {
	add := func(group, vcpus int) {
		g := &q.groups[group]
		caches[g.l3] = true
		c[costEfficiency] += slowness(g) * int64(vcpus)
	}
	for _, k := range p.picks {
		add(k.group, k.count*q.gives(k.group, k.size))
	}
	for _, t := range p.partial {
		add(q.cores[t.core].group, t.threads)
	}
	if p.odd != none {
		add(q.cores[p.odd].group, p.oddThreads)
		c[costPartial] += int64(b2i(q.isWhole(p.odd)))
	}
}

// slowness returns the extra cost of a vCPU on the cores of a group compared with the
// fastest kind.
func slowness(g *group) int64 {
	switch g.kind {
	case topology.KindEfficiency:
		return 1
	case topology.KindLowPower:
		return 2
	}
	return 0
}

// span returns the sum of the distances between all pairs of the nodes.
func (s *state) span(nodes []int) int64 {
	var sum int64
	for i, a := range nodes {
		for _, b := range nodes[:i] {
			sum += s.distance[a][b]
		}
	}
	return sum
}
