package sysfs

import (
	"cmp"
	"maps"
	"slices"

	"github.com/numaform/numaform/topology"
)

// cpus reads all CPUs. Linux reports no details of offline CPUs.
func (c *collector) cpus(online, all topology.CPUSet) []topology.CPU {
	kinds := c.kinds(online)
	nodes := map[int]int{} // by CPU
	nodeIDs := c.subdirs(nodeDir, "node")
	for _, id := range nodeIDs {
		for _, cpu := range c.list(join(nodeDir, "node", id) + "/cpulist").List() {
			nodes[cpu] = id
		}
	}
	cores, caches := groups{}, groups{}
	var cpus []topology.CPU
	for _, id := range all.List() {
		cpu := topology.CPU{
			ID:       id,
			Online:   online.Contains(id),
			NUMANode: topology.Unknown,
			Socket:   topology.Unknown,
			Core:     topology.Unknown,
			L3:       topology.Unknown,
		}
		if cpu.Online {
			dir := join(cpuDir, "cpu", id)
			if node, ok := nodes[id]; ok {
				cpu.NUMANode = node
			} else if len(nodeIDs) == 0 {
				cpu.NUMANode = 0
			}
			cpu.Socket = c.number(dir + "/topology/physical_package_id")
			cpu.Kind = kinds[id]
			cpu.Core = cores.of(cmp.Or(
				c.list(dir+"/topology/core_cpus_list").String(),
				c.list(dir+"/topology/thread_siblings_list").String(), // before Linux 5.7
			))

			// The last-level cache is the L3 cache or, without one, the L2 cache.
			shared, best := "", 1
			for _, index := range c.subdirs(dir+"/cache", "index") {
				at := join(dir+"/cache", "index", index)
				if level := c.number(at + "/level"); level > best && level <= 3 {
					best, shared = level, c.list(at+"/shared_cpu_list").String()
				}
			}
			cpu.L3 = caches.of(shared)
			if cpu.L3 != topology.Unknown && best < 3 {
				cpu.CacheLevel = best
			}
		}
		cpus = append(cpus, cpu)
	}
	return cpus
}

// groups assigns numbers to sets of CPUs in order of first appearance.
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

// kinds reads the kinds of cores, or returns nil if all cores are equal. On Intel hybrids each
// kind has its own performance counters. On other machines Linux reports the capacity of each
// CPU: cpu_capacity in Documentation/ABI/testing/sysfs-devices-system-cpu.
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

// kindsByCapacity returns the kinds of CPUs by capacity, or nil if a capacity is unknown.
// Equal cores can differ in clock rate, so a new kind starts below four fifths of the
// largest capacity of the previous kind. The fastest kind is performance, the slowest of
// three or more is low-power, and all others are efficiency.
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
