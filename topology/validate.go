package topology

import (
	"fmt"
	"maps"
	"slices"
)

// Validate returns everything that is wrong with the machine: duplicate or dangling IDs,
// impossible siblings and impossible amounts. It joins one error for each fault, up to a
// limit, and returns nil for a valid machine.
func (m *Machine) Validate() error {
	if len(m.CPUs) > MaxCPU+1 || len(m.NUMANodes) > MaxCPU+1 {
		return fmt.Errorf("it has %d CPUs and %d NUMA nodes: at most %d of each are read", len(m.CPUs), len(m.NUMANodes), MaxCPU+1)
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	nodes := map[int]bool{}
	for _, node := range m.NUMANodes {
		nodes[node.ID] = true
	}
	if len(m.CPUs) > 0 && len(nodes) == 0 {
		fault("numa_nodes is empty: a machine with CPUs has at least NUMA node 0; add it")
	}
	for i, cpu := range m.CPUs {
		if i > 0 && cpu.ID == m.CPUs[i-1].ID {
			fault("cpu %d is listed twice: remove one", cpu.ID)
		} else if i > 0 && cpu.ID < m.CPUs[i-1].ID {
			fault("cpu %d is after cpu %d: sort cpus by id", cpu.ID, m.CPUs[i-1].ID)
		}
		faults = append(faults, cpu.check(nodes)...)
	}
	faults = append(faults, m.checkCores()...)

	seen := map[int]bool{}
	for i, node := range m.NUMANodes {
		if i > 0 && node.ID < m.NUMANodes[i-1].ID {
			fault("NUMA node %d is after NUMA node %d: sort numa_nodes by id", node.ID, m.NUMANodes[i-1].ID)
		}
		if seen[node.ID] {
			fault("NUMA node %d is listed twice: remove one", node.ID)
		}
		seen[node.ID] = true
	}
	for i := range m.NUMANodes {
		faults = append(faults, m.NUMANodes[i].check(nodes)...)
	}

	if m.MemoryMiB < 0 {
		fault("memory_mib is %d: want the machine's memory, or 0 for unknown", m.MemoryMiB)
	} else if sum := m.nodeMemoryMiB(); m.MemoryMiB > 0 && sum > m.MemoryMiB {
		fault("the NUMA nodes have %d MiB, more than the machine's %d MiB: correct memory_mib of either", sum, m.MemoryMiB)
	}
	return joinFaults(append(faults, m.checkSources()...))
}

// check returns what is wrong with the CPU; nodes are the machine's NUMA nodes.
func (c *CPU) check(nodes map[int]bool) []error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("cpu %d: %s", c.ID, fmt.Sprintf(format, args...)))
	}
	if c.NUMANode != Unknown && len(nodes) > 0 && !nodes[c.NUMANode] {
		fault("NUMA node %d does not exist: add it to numa_nodes or correct the cpu's numa_node", c.NUMANode)
	}
	if c.ID < 0 || c.ID > MaxCPU {
		fault("want an id from 0 to %d", MaxCPU)
	}
	for _, field := range []struct {
		name string
		id   int
	}{{"numa_node", c.NUMANode}, {"socket", c.Socket}, {"core", c.Core}, {"l3", c.L3}} {
		if field.id < Unknown {
			fault("%s is %d: want 0 or more, or %d for unknown", field.name, field.id, Unknown)
		}
	}
	if c.CacheLevel != 0 && c.CacheLevel != 2 {
		fault("cache_level is %d: want 2 where l3 is a cache of level 2, or leave it out", c.CacheLevel)
	}
	if !slices.Contains([]Kind{"", KindPerformance, KindEfficiency, KindLowPower}, c.Kind) {
		fault("kind is %s: want %s, %s, %s, or none where all cores are alike", quote(string(c.Kind)), KindPerformance, KindEfficiency, KindLowPower)
	}
	return faults
}

// checkCores compares each CPU with the first CPU of its core.
func (m *Machine) checkCores() []error {
	var faults []error
	first := map[int]CPU{}
	for _, cpu := range m.CPUs {
		if cpu.Core == Unknown {
			continue
		}
		sibling, ok := first[cpu.Core]
		if !ok {
			first[cpu.Core] = cpu
			continue
		}
		for _, differs := range []struct {
			what string
			is   bool
		}{
			{"NUMA nodes", sibling.NUMANode != cpu.NUMANode},
			{"sockets", sibling.Socket != cpu.Socket},
			{"L3 caches", sibling.L3 != cpu.L3},
			{"kinds", sibling.Kind != cpu.Kind},
		} {
			if differs.is {
				faults = append(faults, fmt.Errorf("cpu %d and cpu %d are siblings of core %d but have different %s: correct either",
					sibling.ID, cpu.ID, cpu.Core, differs.what))
			}
		}
	}
	return faults
}

// check returns what is wrong with the NUMA node; ids are the machine's nodes.
func (n *NUMANode) check(ids map[int]bool) []error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("NUMA node %d: %s", n.ID, fmt.Sprintf(format, args...)))
	}
	if n.ID < 0 || n.ID > MaxCPU {
		fault("want an id from 0 to %d", MaxCPU)
	}
	if n.MemoryMiB < Unknown {
		fault("memory_mib is %d: want 0 or more, or %d for unknown", n.MemoryMiB, Unknown)
	}
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		switch pages := n.HugePages[size]; {
		case size <= 0 || pages < 0:
			fault("huge_pages has %d pages of %d KiB: want a page size above 0 and no negative count", pages, size)
		case n.MemoryMiB >= 0 && pages > n.MemoryMiB*1024/int64(size):
			fault("huge_pages has %d pages of %d KiB, more than its memory of %d MiB: correct either", pages, size, n.MemoryMiB)
		}
	}
	for _, other := range slices.Sorted(maps.Keys(n.Distances)) {
		if distance := n.Distances[other]; distance < 1 || distance > 255 {
			fault("the distance to NUMA node %d is %d: want 1 to 255", other, distance)
		}
		if !ids[other] {
			fault("distances names NUMA node %d, which does not exist: remove it", other)
		}
	}
	return faults
}

// nodeMemoryMiB returns the sum over the NUMA nodes whose memory is known.
func (m *Machine) nodeMemoryMiB() int64 {
	var sum int64
	for _, node := range m.NUMANodes {
		sum += max(node.MemoryMiB, 0)
	}
	return sum
}

func (m *Machine) checkSources() []error {
	var faults []error
	for _, fact := range slices.Sorted(maps.Keys(m.Sources)) {
		if !slices.Contains(allFacts(), fact) {
			faults = append(faults, fmt.Errorf("sources: fact %s is unknown: remove it", quote(string(fact))))
		}
		if m.Sources[fact].rank() < 0 {
			faults = append(faults, fmt.Errorf("sources: %s comes from %s, which is unknown: correct it", fact, quote(string(m.Sources[fact]))))
		}
	}
	return faults
}

func allFacts() []Fact {
	return []Fact{FactCPUs, FactSiblings, FactCaches, FactNUMA, FactMemory}
}

// allSources returns the sources, best first.
func allSources() []Source {
	return []Source{
		SourceSettings, SourceAgent, SourceCollected, SourceCapacity, SourceReport, SourceStatus, SourceAssumed,
	}
}

// rank returns the source's position in the order of precedence, 0 being the best, or -1.
func (s Source) rank() int { return slices.Index(allSources(), s) }
