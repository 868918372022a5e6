package sysfs

import (
	"cmp"
	"maps"
	"slices"

	"github.com/numaform/numaform/topology"
)

// cpus reads all CPUs. Linux reports no details of offline CPUs.
func (c *collector) cpus(online, all topology.CPUSet) []topology.CPU {
	nodes, kinds := c.nodeOfCPU(online), c.kinds(online)
	cores, caches := groups{}, groups{}
	var cpus []topology.CPU
	for _, id := range all.List() {
		cpu := topology.CPU{
			ID: id, Online: online.Contains(id),
			NUMANode: topology.Unknown, Socket: topology.Unknown, Core: topology.Unknown, L3: topology.Unknown,
		}
		if cpu.Online {
			dir := join(cpuDir, "cpu", id)
			if node, ok := nodes[id]; ok {
				cpu.NUMANode = node
			}
			cpu.Socket, cpu.Kind = c.number(dir+"/topology/physical_package_id"), kinds[id]
			shared, level := c.lastLevel(dir + "/cache")
			cpu.Core, cpu.L3 = cores.of(c.siblings(dir+"/topology")), caches.of(shared)
			if cpu.L3 != topology.Unknown && level < 3 {
				cpu.CacheLevel = level
			}
		}
		cpus = append(cpus, cpu)
	}
	return cpus
}

// nodeOfCPU returns the NUMA node of each CPU that is on one.
func (c *collector) nodeOfCPU(online topology.CPUSet) map[int]int {
	nodes := map[int]int{}
	ids := c.subdirs(nodeDir, "node")
	if len(ids) == 0 {
		for _, cpu := range online.List() {
			nodes[cpu] = 0
		}
	}
	for _, id := range ids {
		for _, cpu := range c.list(join(nodeDir, "node", id) + "/cpulist").List() {
			nodes[cpu] = id
		}
	}
	return nodes
}

// siblings reads the CPUs of a core; older kernels only have the other file name.
func (c *collector) siblings(dir string) string {
	return cmp.Or(c.list(dir+"/core_cpus_list").String(), c.list(dir+"/thread_siblings_list").String())
}

// lastLevel reads the CPUs that share a CPU's last-level cache, and its level: 3, or 2 if
// there is no L3.
func (c *collector) lastLevel(dir string) (shared string, best int) {
	best = 1
	for _, index := range c.subdirs(dir, "index") {
		at := join(dir, "index", index)
		if level := c.number(at + "/level"); level > best && level <= 3 {
			best, shared = level, c.list(at+"/shared_cpu_list").String()
		}
	}
	return shared, best
}

// groups numbers sets in the order of their first appearance.
type groups map[string]int

func (g groups) of(set string) int {
	if set == "" {
		return topology.Unknown
	}
	if _, known := g[set]; !known {
		g[set] = len(g)
	}
	return g[set]
}

// kinds reads the kinds of core of the machine, if there are several. On Intel hybrids each
// kind has its own performance counters; elsewhere Linux reports the capacity of each CPU
// (cpu_capacity in its Documentation/ABI/testing/sysfs-devices-system-cpu).
func (c *collector) kinds(online topology.CPUSet) map[int]topology.Kind {
	kinds := map[int]topology.Kind{}
	for unit, kind := range map[string]topology.Kind{
		"cpu_core": topology.KindPerformance, "cpu_atom": topology.KindEfficiency, "cpu_lowpower": topology.KindLowPower,
	} {
		for _, id := range c.list("sys/devices/" + unit + "/cpus").List() {
			kinds[id] = kind
		}
	}
	if len(kinds) == 0 {
		kinds = c.kindsByCapacity(online)
	}
	seen := map[topology.Kind]bool{}
	for _, kind := range kinds {
		seen[kind] = true
	}
	if len(seen) < 2 {
		return nil
	}
	return kinds
}

// kindsByCapacity groups CPUs into kinds: a capacity below four fifths of the largest of a
// kind starts a new one, because equal cores may differ in clock rate. The slowest of three
// or more kinds is low-power, all between are efficient.
func (c *collector) kindsByCapacity(online topology.CPUSet) map[int]topology.Kind {
	capacity := map[int]int{}
	for _, id := range online.List() {
		capacity[id] = c.number(join(cpuDir, "cpu", id) + "/cpu_capacity")
		if capacity[id] <= 0 {
			return nil
		}
	}
	var tops []int // the largest capacity of each kind
	for _, value := range slices.Backward(slices.Sorted(maps.Values(capacity))) {
		if len(tops) == 0 || value*5 < tops[len(tops)-1]*4 {
			tops = append(tops, value)
		}
	}
	kinds := map[int]topology.Kind{}
	for id, value := range capacity {
		switch {
		case value*5 >= tops[0]*4:
			kinds[id] = topology.KindPerformance
		case len(tops) > 2 && value <= tops[len(tops)-1]:
			kinds[id] = topology.KindLowPower
		default:
			kinds[id] = topology.KindEfficiency
		}
	}
	return kinds
}
