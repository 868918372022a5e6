package sysfs

import (
	"cmp"

	"github.com/numaform/numaform/topology"
)

// cpus reads all CPUs. Of one that is offline Linux tells nothing.
func (c *collector) cpus(online, all topology.CPUSet) []topology.CPU {
	nodes, kinds := c.nodeOfCPU(online), c.kinds()
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
			cpu.Core, cpu.L3 = cores.of(c.siblings(dir+"/topology")), caches.of(c.lastLevel(dir+"/cache"))
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

// siblings reads the CPUs of a core; older kernels have the other name alone.
func (c *collector) siblings(dir string) string {
	return cmp.Or(c.list(dir+"/core_cpus_list").String(), c.list(dir+"/thread_siblings_list").String())
}

// lastLevel reads the CPUs that share a CPU's last-level cache: level 3, or level 2
// where there is none.
func (c *collector) lastLevel(dir string) string {
	best, shared := 1, ""
	for _, index := range c.subdirs(dir, "index") {
		at := join(dir, "index", index)
		if level := c.number(at + "/level"); level > best && level <= 3 {
			best, shared = level, c.list(at+"/shared_cpu_list").String()
		}
	}
	return shared
}

// groups numbers sets in the order in which they are met.
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

// kinds reads which cores an Intel hybrid has: each kind has performance counters of
// its own. Elsewhere nothing tells.
func (c *collector) kinds() map[int]topology.Kind {
	kinds := map[int]topology.Kind{}
	large := c.list("sys/devices/cpu_core/cpus")
	small := c.list("sys/devices/cpu_atom/cpus").Union(c.list("sys/devices/cpu_lowpower/cpus"))
	if large.IsEmpty() || small.IsEmpty() {
		return kinds
	}
	for _, id := range large.List() {
		kinds[id] = topology.KindPerformance
	}
	for _, id := range small.List() {
		kinds[id] = topology.KindEfficiency
	}
	return kinds
}
