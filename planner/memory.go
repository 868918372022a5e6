package planner

import "github.com/numaform/numaform/topology"

// readMemory computes what guests may have of the host and of each NUMA node. Reserved huge
// pages hold no ordinary guest memory, and the memory reserved for the host is subtracted
// from each node in proportion to its size.
func (x *index) readMemory(host *topology.Host) {
	raw := x.nodeMemory(host)
	total, huge := host.MemoryMiB, int64(0)
	total -= x.readLenders(host, raw)
	all := sum(raw)
	if total == 0 && !x.anyAssumed() {
		total = all
	}
	for _, n := range host.NUMANodes {
		var kib int64
		for size, count := range n.HugePages {
			kib += int64(size) * count
		}
		pages := kib / 1024
		huge += pages
		if at, ok := x.nodeAt[n.ID]; ok {
			raw[at] = max(0, raw[at]-pages)
		}
	}
	x.memory[ordinary] = max(0, total-huge-host.ReservedMemoryMiB)
	x.readHugePages(host)
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

// readLenders marks the nodes without CPUs that lend their memory. VMs cannot use memory of
// the others: it is removed from raw, and returned as a sum if it is part of the host's.
func (x *index) readLenders(host *topology.Host, raw []int64) (unlent int64) {
	hasCPU := make([]bool, len(x.nodes))
	for _, at := range x.nodeOf {
		if at != none {
			hasCPU[at] = true
		}
	}
	for i := range x.nodes {
		switch n := &x.nodes[i]; {
		case hasCPU[i] || raw[i] == 0 || len(x.ids) == 0:
		case host.LendsMemory(n.id):
			n.lends, x.lends = true, true
		default:
			x.unlent = append(x.unlent, n.id)
			unlent += raw[i]
			raw[i] = 0
		}
	}
	return min(unlent, host.MemoryMiB)
}

// nodeMemory returns each node's memory. For nodes without a reported size, the rest of the
// host's memory is divided by the number of CPUs.
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
	for i := range x.nodes {
		if x.nodes[i].assumed {
			return true
		}
	}
	return false
}

// mulDivCeil returns a*b/c rounded up.
func mulDivCeil(a, b, c int64) int64 { return (a*b + c - 1) / c }

// spread returns the free memory of each node after distributing the unbound memory of
// guests over the nodes: by node size, and where that does not fit, by the remaining room.
// Linux would fill the nodes in that way, and a node that is already short of memory never
// looks emptier than it is.
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
