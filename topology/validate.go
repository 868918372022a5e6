package topology

import (
	"errors"
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
	faults = append(faults, m.checkCPUs()...)
	faults = append(faults, m.checkCores()...)
	faults = append(faults, m.checkNUMANodes()...)
	faults = append(faults, m.checkMemory()...)
	faults = append(faults, m.checkSources()...)
	return joinFaults(faults)
}

func (m *Machine) checkCPUs() []error {
	var faults []error
	nodes := map[int]bool{}
	for _, node := range m.NUMANodes {
		nodes[node.ID] = true
	}
	if len(m.CPUs) > 0 && len(nodes) == 0 {
		faults = append(faults, errors.New("numa_nodes is empty: a machine with CPUs has at least NUMA node 0; add it"))
	}
	for i, cpu := range m.CPUs {
		if i > 0 {
			faults = append(faults, checkOrder(m.CPUs[i-1].ID, cpu.ID)...)
		}
		if cpu.NUMANode != Unknown && len(nodes) > 0 && !nodes[cpu.NUMANode] {
			faults = append(faults, fmt.Errorf("cpu %d: NUMA node %d does not exist: add it to numa_nodes or correct the cpu's numa_node",
				cpu.ID, cpu.NUMANode))
		}
		faults = append(faults, cpu.check()...)
	}
	return faults
}

// checkOrder compares a CPU's ID with the previous one.
func checkOrder(before, id int) []error {
	switch {
	case id == before:
		return []error{fmt.Errorf("cpu %d is listed twice: remove one", id)}
	case id < before:
		return []error{fmt.Errorf("cpu %d stands behind cpu %d: sort cpus by id", id, before)}
	default:
		return nil
	}
}

func (c *CPU) check() []error {
	var faults []error
	if c.ID < 0 || c.ID > MaxCPU {
		faults = append(faults, fmt.Errorf("cpu %d: want an id from 0 to %d", c.ID, MaxCPU))
	}
	for _, field := range []struct {
		name string
		id   int
	}{{"numa_node", c.NUMANode}, {"socket", c.Socket}, {"core", c.Core}, {"l3", c.L3}} {
		if field.id < Unknown {
			faults = append(faults, fmt.Errorf("cpu %d: %s is %d: want 0 or more, or %d for unknown",
				c.ID, field.name, field.id, Unknown))
		}
	}
	if c.CacheLevel != 0 && c.CacheLevel != 2 {
		faults = append(faults, fmt.Errorf("cpu %d: cache_level is %d: want 2 where l3 is a cache of level 2, or leave it out", c.ID, c.CacheLevel))
	}
	if !slices.Contains([]Kind{"", KindPerformance, KindEfficiency, KindLowPower}, c.Kind) {
		faults = append(faults, fmt.Errorf("cpu %d: kind is %s: want %s, %s, %s, or none where all cores are alike",
			c.ID, quote(string(c.Kind)), KindPerformance, KindEfficiency, KindLowPower))
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

func (m *Machine) checkNUMANodes() []error {
	var faults []error
	ids := map[int]bool{}
	for i, node := range m.NUMANodes {
		if i > 0 && node.ID < m.NUMANodes[i-1].ID {
			faults = append(faults, fmt.Errorf("NUMA node %d stands behind NUMA node %d: sort numa_nodes by id",
				node.ID, m.NUMANodes[i-1].ID))
		}
		if ids[node.ID] {
			faults = append(faults, fmt.Errorf("NUMA node %d is listed twice: remove one", node.ID))
		}
		ids[node.ID] = true
	}
	for i := range m.NUMANodes {
		faults = append(faults, m.NUMANodes[i].check(ids)...)
	}
	return faults
}

func (n *NUMANode) check(ids map[int]bool) []error {
	var faults []error
	if n.ID < 0 || n.ID > MaxCPU {
		faults = append(faults, fmt.Errorf("NUMA node %d: want an id from 0 to %d", n.ID, MaxCPU))
	}
	if n.MemoryMiB < Unknown {
		faults = append(faults, fmt.Errorf("NUMA node %d: memory_mib is %d: want 0 or more, or %d for unknown",
			n.ID, n.MemoryMiB, Unknown))
	}
	faults = append(faults, n.checkHugePages()...)
	return append(faults, n.checkDistances(ids)...)
}

func (n *NUMANode) checkHugePages() []error {
	var faults []error
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		pages := n.HugePages[size]
		if size <= 0 || pages < 0 {
			faults = append(faults, fmt.Errorf("NUMA node %d: huge_pages has %d pages of %d KiB: want a page size above 0 and no negative count",
				n.ID, pages, size))
			continue
		}
		if n.MemoryMiB >= 0 && pages > n.MemoryMiB*1024/int64(size) {
			faults = append(faults, fmt.Errorf("NUMA node %d: huge_pages has %d pages of %d KiB, more than its memory of %d MiB: correct either",
				n.ID, pages, size, n.MemoryMiB))
		}
	}
	return faults
}

func (n *NUMANode) checkDistances(ids map[int]bool) []error {
	var faults []error
	for _, other := range slices.Sorted(maps.Keys(n.Distances)) {
		if distance := n.Distances[other]; distance < 1 || distance > 255 {
			faults = append(faults, fmt.Errorf("NUMA node %d: the distance to NUMA node %d is %d: want 1 to 255",
				n.ID, other, distance))
		}
		if !ids[other] {
			faults = append(faults, fmt.Errorf("NUMA node %d: distances names NUMA node %d, which does not exist: remove it",
				n.ID, other))
		}
	}
	return faults
}

func (m *Machine) checkMemory() []error {
	if m.MemoryMiB < 0 {
		return []error{fmt.Errorf("memory_mib is %d: want the machine's memory, or 0 for unknown", m.MemoryMiB)}
	}
	if sum := m.nodeMemoryMiB(); m.MemoryMiB > 0 && sum > m.MemoryMiB {
		return []error{fmt.Errorf("the NUMA nodes have %d MiB, more than the machine's %d MiB: correct memory_mib of either",
			sum, m.MemoryMiB)}
	}
	return nil
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
			faults = append(faults, fmt.Errorf("sources: %s comes from %s, which is unknown: correct it",
				fact, quote(string(m.Sources[fact]))))
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
