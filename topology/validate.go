package topology

import (
	"fmt"
	"maps"
	"slices"
)

// Validate returns an error that lists the faults of the machine, up to a limit: duplicate
// or dangling IDs, impossible siblings and impossible amounts.
func (m *Machine) Validate() error {
	if len(m.CPUs) > MaxCPU+1 || len(m.NUMANodes) > MaxCPU+1 {
		return fmt.Errorf("the machine has %d CPUs and %d NUMA nodes: numaform supports at most %d of each", len(m.CPUs), len(m.NUMANodes), MaxCPU+1)
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
	for _, differ := range m.checkCores() {
		faults = append(faults, differ)
	}

	seen := map[int]bool{}
	for i, node := range m.NUMANodes {
		if i > 0 && node.ID < m.NUMANodes[i-1].ID {
			fault("NUMA node %d is after NUMA node %d: sort numa_nodes by id", node.ID, m.NUMANodes[i-1].ID)
		}
		if seen[node.ID] {
			fault("NUMA node %d is listed twice: remove one", node.ID)
		}
		seen[node.ID] = true
		faults = append(faults, node.check(nodes)...)
	}

	if m.MemoryMiB < 0 || m.MemoryMiB > MaxMemoryMiB {
		fault("memory_mib is %d: must be the machine's memory, at most %d, or 0 if it is unknown", m.MemoryMiB, MaxMemoryMiB)
	} else if sum := m.nodeMemoryMiB(); m.MemoryMiB > 0 && sum > m.MemoryMiB {
		fault("the NUMA nodes have %d MiB, more than the machine's %d MiB: correct memory_mib of the nodes or of the machine", sum, m.MemoryMiB)
	}
	return joinFaults(append(faults, m.checkSources()...))
}

// check returns the faults of the CPU; nodes are the IDs of the machine's NUMA nodes.
func (c *CPU) check(nodes map[int]bool) []error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("cpu %d: %s", c.ID, fmt.Sprintf(format, args...)))
	}
	if c.NUMANode != Unknown && len(nodes) > 0 && !nodes[c.NUMANode] {
		fault("NUMA node %d does not exist: add it to numa_nodes or correct the cpu's numa_node", c.NUMANode)
	}
	if c.ID < 0 || c.ID > MaxCPU {
		fault("must be an ID from 0 to %d", MaxCPU)
	}
	for _, field := range []struct {
		name string
		id   int
	}{{"numa_node", c.NUMANode}, {"socket", c.Socket}, {"core", c.Core}, {"l3", c.L3}} {
		if field.id < Unknown {
			fault("%s is %d: must be at least 0, or %d if it is unknown", field.name, field.id, Unknown)
		}
	}
	if c.CacheLevel != 0 && c.CacheLevel != 2 {
		fault("cache_level is %d: must be 2 where l3 is a level 2 cache; remove it elsewhere", c.CacheLevel)
	}
	if !slices.Contains([]Kind{"", KindPerformance, KindEfficiency, KindLowPower}, c.Kind) {
		fault("kind is %s: must be %s, %s or %s; remove it where all cores are alike", quote(string(c.Kind)), KindPerformance, KindEfficiency, KindLowPower)
	}
	return faults
}

// coreFault reports that two CPUs of a core differ in a property that siblings share.
type coreFault struct {
	core, first, second int
	// what is the property, and fact the fact that it belongs to.
	what string
	fact Fact
}

func (f *coreFault) Error() string {
	return fmt.Sprintf("cpu %d and cpu %d are siblings of core %d but have different %s: correct one of them", f.first, f.second, f.core, f.what)
}

// checkCores compares each CPU with the first CPU of its core.
func (m *Machine) checkCores() []*coreFault {
	var faults []*coreFault
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
			fact Fact
			is   bool
		}{
			{"NUMA nodes", FactNUMA, sibling.NUMANode != cpu.NUMANode},
			{"sockets", FactSiblings, sibling.Socket != cpu.Socket},
			{"L3 caches", FactCaches, sibling.L3 != cpu.L3},
			{"kinds", FactSiblings, sibling.Kind != cpu.Kind},
		} {
			if differs.is {
				faults = append(faults, &coreFault{core: cpu.Core, first: sibling.ID, second: cpu.ID, what: differs.what, fact: differs.fact})
			}
		}
	}
	return faults
}

// check returns the faults of the NUMA node; ids are the IDs of the machine's NUMA nodes.
func (n *NUMANode) check(ids map[int]bool) []error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("NUMA node %d: %s", n.ID, fmt.Sprintf(format, args...)))
	}
	if n.ID < 0 || n.ID > MaxCPU {
		fault("must be an ID from 0 to %d", MaxCPU)
	}
	if n.MemoryMiB < Unknown || n.MemoryMiB > MaxMemoryMiB {
		fault("memory_mib is %d: must be from 0 to %d, or %d if it is unknown", n.MemoryMiB, MaxMemoryMiB, Unknown)
	}
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		switch pages := n.HugePages[size]; {
		case size <= 0 || pages < 0:
			fault("huge_pages has %d pages of %d KiB: the page size must be positive and the count must not be negative", pages, size)
		case n.MemoryMiB >= 0 && pages > min(n.MemoryMiB, MaxMemoryMiB)*1024/int64(size):
			fault("huge_pages has %d pages of %d KiB, more than the node's memory of %d MiB: correct one of them", pages, size, n.MemoryMiB)
		case pages > MaxMemoryMiB*1024/int64(size):
			fault("huge_pages has %d pages of %d KiB, more than %d MiB: correct it", pages, size, MaxMemoryMiB)
		}
	}
	for _, other := range slices.Sorted(maps.Keys(n.Distances)) {
		if distance := n.Distances[other]; distance < 1 || distance > 255 {
			fault("the distance to NUMA node %d is %d: must be from 1 to 255", other, distance)
		}
		if !ids[other] {
			fault("distances names NUMA node %d, which does not exist: remove it", other)
		}
	}
	return faults
}

// nodeMemoryMiB returns the total memory of the NUMA nodes whose memory is known.
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
			faults = append(faults, fmt.Errorf("sources: unknown fact %s: remove it", quote(string(fact))))
		}
		if m.Sources[fact].rank() < 0 {
			faults = append(faults, fmt.Errorf("sources: unknown source %s of %s: must be one of %s", quote(string(m.Sources[fact])), fact, allSources()))
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

// rank returns the source's position in the order of precedence: 0 is the best, and -1 is
// an unknown source.
func (s Source) rank() int { return slices.Index(allSources(), s) }
