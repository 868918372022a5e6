package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// backing is the kind of host memory behind a guest: ordinary memory or huge pages of one
// size. Memory of one kind cannot back guests of another.
type backing int

const (
	ordinary backing = iota
	pages2Mi
	pages1Gi
	backings
)

// unknownBacking is the backing of an unknown page size; no host has memory of it.
const unknownBacking backing = -1

// backingOf returns the backing that a spec requests.
func backingOf(spec *fleet.Spec) backing {
	switch spec.HugePages {
	case "":
		return ordinary
	case fleet.HugePages2Mi:
		return pages2Mi
	case fleet.HugePages1Gi:
		return pages1Gi
	}
	return unknownBacking
}

// mib returns the unit in which memory is allocated, in MiB: the size of one huge page, or
// 1 for ordinary memory.
func (b backing) mib() int64 {
	switch b {
	case pages2Mi:
		return fleet.HugePages2Mi.MiB()
	case pages1Gi:
		return fleet.HugePages1Gi.MiB()
	}
	return 1
}

// in returns the suffix for an amount of memory in reasons; it is empty for ordinary
// memory.
func (b backing) in() string {
	switch b {
	case pages2Mi:
		return " in huge pages of 2 MiB"
	case pages1Gi:
		return " in huge pages of 1 GiB"
	}
	return ""
}

// backingOfGuest returns the backing of an existing guest. For a guest that accepts any
// huge pages, Proxmox uses 1 GiB pages if the memory of the guest and of each cell is a
// multiple of 1 GiB. If the host reserves no 1 GiB pages, backingOfGuest assumes 2 MiB
// pages.
func (x *index) backingOfGuest(g *topology.Guest) backing {
	switch g.HugePagesKiB {
	case 0:
		return ordinary
	case 1 << 20:
		return pages1Gi
	case topology.Unknown:
		odd := slices.ContainsFunc(g.NUMA, func(c topology.NUMACell) bool { return c.MemoryMiB%pages1Gi.mib() != 0 })
		if x.memory[pages1Gi] > 0 && g.MemoryMiB%pages1Gi.mib() == 0 && !odd {
			return pages1Gi
		}
	}
	return pages2Mi
}

// lastPaged is the last NUMA node whose huge pages Proxmox can give to a guest: Proxmox
// reads a two-digit id as several nodes (qemu-server 9.2.6,
// src/PVE/QemuServer/Memory.pm:629).
const lastPaged = 9

// readMemory computes the memory that is available to guests on the host and on each NUMA
// node. Reserved huge pages hold no ordinary guest memory, and the memory reserved for
// the host is subtracted from each node in proportion to its size.
func (x *index) readMemory(host *topology.Host) {
	raw := x.nodeMemory(host)

	// VMs cannot use the memory of nodes without CPUs that do not lend it.
	hasCPU := make([]bool, len(x.nodes))
	for _, at := range x.nodeOf {
		if at != none {
			hasCPU[at] = true
		}
	}
	total := host.MemoryMiB
	for i := range x.nodes {
		switch n := &x.nodes[i]; {
		case hasCPU[i] || raw[i] == 0 || len(x.ids) == 0:
		case host.LendsMemory(n.id):
			n.lends, x.lends = true, true
		default:
			x.unlent = append(x.unlent, n.id)
			total -= raw[i]
			raw[i] = 0
		}
	}
	total = max(0, total)
	all := sum(raw)
	if total == 0 && !x.anyAssumed() {
		total = all
	}

	x.pagesKnown = host.HugePagesKnown()
	var huge int64
	for _, n := range host.NUMANodes {
		var kib int64
		for size, count := range n.HugePages {
			kib += int64(size) * count
		}
		huge += kib / 1024
		at, ok := x.nodeAt[n.ID]
		if !ok {
			continue
		}
		raw[at] = max(0, raw[at]-kib/1024)
		for b := pages2Mi; b < backings && n.ID <= lastPaged; b++ {
			mib := n.HugePages[int(b.mib())<<10] * b.mib()
			x.nodes[at].memory[b] += mib
			x.memory[b] += mib
		}
	}

	x.memory[ordinary] = max(0, total-huge-host.ReservedMemoryMiB)
	x.surplus = surplusOf(host, huge)
	for i := range x.nodes {
		n := &x.nodes[i]
		n.memory[ordinary] = raw[i]
		if all > 0 {
			n.memory[ordinary] = max(0, raw[i]-mulDivCeil(host.ReservedMemoryMiB, raw[i], all))
		}
		if x.flat {
			n.memory[ordinary] = x.memory[ordinary]
		}
		for b := range n.bindable {
			n.bindable[b] = n.usable > 0 && n.memory[b] > 0
		}
	}
}

// surplusOf returns the measured memory in use, in MiB, beyond the memory of running guests,
// the reserved memory, and huge MiB of huge pages.
func surplusOf(host *topology.Host, huge int64) int64 {
	if host.Load == nil {
		return 0
	}
	surplus := host.MemoryMiB*int64(host.Load.MemoryPercent)/100 - huge - host.ReservedMemoryMiB
	for _, guest := range host.Guests {
		if guest.Running && guest.HugePagesKiB == 0 {
			surplus -= guest.MemoryMiB
		}
	}
	return max(0, surplus)
}

// nodeMemory returns each node's memory. It divides the rest of the host's memory among the
// nodes without a reported size, in proportion to their CPUs.
func (x *index) nodeMemory(host *topology.Host) []int64 {
	memory, cpus := make([]int64, len(x.nodes)), make([]int64, len(x.nodes))
	for _, at := range x.nodeOf {
		if at != none {
			cpus[at]++
		}
	}
	left, unknownCPUs := host.MemoryMiB, int64(0)
	for _, n := range host.NUMANodes {
		at, ok := x.nodeAt[n.ID]
		switch {
		case !ok:
		case n.MemoryMiB == topology.Unknown:
			x.nodes[at].assumed = true
			unknownCPUs += cpus[at]
		default:
			memory[at] = n.MemoryMiB
			left -= n.MemoryMiB
		}
	}
	for i := range x.nodes {
		if x.nodes[i].assumed && unknownCPUs > 0 {
			memory[i] = max(0, left) * cpus[i] / unknownCPUs
		}
	}
	return memory
}

// anyAssumed reports whether the memory of some node is unknown.
func (x *index) anyAssumed() bool {
	return slices.ContainsFunc(x.nodes, func(n node) bool { return n.assumed })
}

// updateFree computes the free memory of each kind. Guests may use more huge pages than are
// reserved, because Proxmox allocates missing ones when a guest starts: the surplus comes
// from ordinary memory.
func (s *state) updateFree() {
	bound, unbound := s.bound[ordinary], s.used[ordinary]-sum(s.bound[ordinary])
	s.left[ordinary] = s.memory[ordinary] - s.used[ordinary]
	for b := pages2Mi; b < backings; b++ {
		if s.used[b] == 0 && s.memory[b] == 0 {
			continue
		}
		if s.bound[b] == nil {
			s.bound[b] = make([]int64, len(s.nodes))
		}
		anywhere := s.used[b] - sum(s.bound[b])
		s.memFree[b] = spread(s.nodes, b, s.bound[b], anywhere)
		s.left[b] = sum(s.memFree[b])
		made := slices.Clone(bound)
		for i := range s.nodes {
			beyond := max(0, s.bound[b][i]-s.nodes[i].memory[b])
			made[i] += beyond
			anywhere -= s.nodes[i].memory[b] - (s.bound[b][i] - beyond) // minus the pages left on the node
			s.left[ordinary] -= beyond
		}
		bound = made
		unbound += max(0, anywhere)
		s.left[ordinary] -= max(0, anywhere)
	}
	s.balance = s.left[ordinary]
	s.left[ordinary] = max(0, s.balance)
	s.memFree[ordinary] = spread(s.nodes, ordinary, bound, unbound)
}

// spread returns the free memory of each node after distributing the unbound memory of
// guests over the nodes: by node size, and where that does not fit, by the remaining
// room. Linux fills the nodes in a similar way, and a node that is short of memory never
// appears emptier than it is.
func spread(nodes []node, of backing, bound []int64, unbound int64) []int64 {
	free := make([]int64, len(nodes))
	var size int64
	for i := range nodes {
		size += nodes[i].memory[of]
		free[i] = max(0, nodes[i].memory[of]-bound[i])
	}
	if size == 0 || unbound <= 0 {
		return free
	}
	left := unbound
	for i := range nodes {
		take := min(free[i], mulDivCeil(unbound, nodes[i].memory[of], size))
		free[i] -= take
		left -= take
	}

	room := sum(free)
	if left <= 0 || room == 0 {
		return free
	}
	left = min(left, room)
	for i := range free {
		free[i] -= min(free[i], mulDivCeil(left, free[i], room))
	}
	return free
}

// mulDivCeil returns a*b/c rounded up.
func mulDivCeil(a, b, c int64) int64 { return (a*b + c - 1) / c }

func sum(amounts []int64) int64 {
	var all int64
	for _, amount := range amounts {
		all += amount
	}
	return all
}
