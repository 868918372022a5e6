package topology

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Merge combines the facts that several sources report about one host: each fact comes from
// the best source that has it, in the order of the Source constants. Where sources
// contradict each other, Merge returns warnings. It ignores a source that contradicts the
// live host, and makes other doubtful facts unknown, so that no pin is based on them.
func Merge(machines ...Machine) (Machine, []string) {
	machines, warnings := dropContradicting(machines)
	merged := Machine{Sources: map[Fact]Source{}}
	for _, m := range byRank(machines, FactCPUs) {
		merged.Model = cmp.Or(merged.Model, m.Model)
		merged.Arch = cmp.Or(merged.Arch, m.Arch)
		if merged.MemoryMiB == 0 || (m.MemoryMiB > 0 && m.Sources[FactCPUs] == SourceStatus) {
			merged.MemoryMiB = m.MemoryMiB
		}
	}
	warnings = append(warnings, merged.mergeCPUs(machines)...)
	warnings = append(warnings, merged.mergeNUMANodes(machines)...)
	warnings = append(warnings, merged.checkMergedMemory()...)
	warnings = append(warnings, merged.mergeCores(machines)...)

	// A single NUMA node has all the memory, unless the node is assumed.
	if len(merged.NUMANodes) == 1 && merged.NUMANodes[0].MemoryMiB == Unknown &&
		merged.MemoryMiB != 0 && merged.Sources[FactNUMA] != SourceAssumed {
		merged.NUMANodes[0].MemoryMiB = merged.MemoryMiB
		merged.Sources[FactMemory] = merged.Sources[FactNUMA]
	}
	return merged, warnings
}

// byRank returns the machines sorted by the fact's source, the best first. Machines without
// the fact are last.
func byRank(machines []Machine, fact Fact) []Machine {
	rank := func(m Machine) int {
		if r := m.Sources[fact].rank(); r >= 0 {
			return r
		}
		return len(allSources())
	}
	sorted := slices.Clone(machines)
	slices.SortStableFunc(sorted, func(a, b Machine) int { return cmp.Compare(rank(a), rank(b)) })
	return sorted
}

// best returns the machine with the best source of the fact, or nil.
func best(machines []Machine, fact Fact) *Machine {
	sorted := byRank(machines, fact)
	if len(sorted) == 0 || sorted[0].Sources[fact].rank() < 0 {
		return nil
	}
	return &sorted[0]
}

// mergeCPUs uses the CPUs of the best source. A report is live, but files and notes can be
// outdated, so CPUs that the report does not list as online become offline.
func (m *Machine) mergeCPUs(machines []Machine) []string {
	source := best(machines, FactCPUs)
	if source == nil {
		return nil
	}
	m.CPUs = slices.Clone(source.CPUs)
	m.Sources[FactCPUs] = source.Sources[FactCPUs]
	for i := range m.CPUs {
		cpu := &m.CPUs[i]
		cpu.NUMANode, cpu.Core, cpu.L3, cpu.CacheLevel, cpu.Kind = Unknown, Unknown, Unknown, 0, ""
	}
	var warnings []string
	for _, live := range byRank(machines, FactCPUs) {
		online, now := m.OnlineCPUs(), live.OnlineCPUs()
		name := m.Sources[FactCPUs].name()
		switch source := live.Sources[FactCPUs]; {
		case source == SourceReport && !online.Equal(now):
			warnings = append(warnings, fmt.Sprintf("%s lists CPUs %s, but only %s are online and used: %s",
				name, online, now.Intersection(m.cpuIDs()), m.Sources[FactCPUs].fix()))
			for i := range m.CPUs {
				m.CPUs[i].Online = m.CPUs[i].Online && now.Contains(m.CPUs[i].ID)
			}
		case source == SourceStatus && online.Size() != now.Size():
			warnings = append(warnings, fmt.Sprintf("%s lists %d CPUs, but Proxmox counts %d: %s",
				name, online.Size(), now.Size(), m.Sources[FactCPUs].fix()))
		}
	}
	return warnings
}

// mergeNUMANodes uses the NUMA nodes of the best source, and for each node the memory, huge
// pages and distances of the best source that has them. The node of a CPU becomes unknown
// if the live report lists a different one, as after a change of firmware settings.
func (m *Machine) mergeNUMANodes(machines []Machine) []string {
	source := best(machines, FactNUMA)
	if source == nil {
		return nil
	}
	m.copyFact(FactNUMA, source)
	for _, node := range source.NUMANodes {
		merged := NUMANode{ID: node.ID, MemoryMiB: Unknown}
		for _, other := range byRank(machines, FactMemory) {
			known := other.NUMANode(node.ID)
			if known == nil {
				continue
			}
			merged.add(*known)
			if m.Sources[FactMemory] == "" && known.MemoryMiB != Unknown {
				m.Sources[FactMemory] = other.Sources[FactMemory]
			}
		}
		m.NUMANodes = append(m.NUMANodes, merged)
	}
	for i := range m.NUMANodes {
		m.NUMANodes[i].dropDistances(m)
	}

	var moved []int
	for _, live := range machines {
		if live.Sources[FactNUMA] != SourceReport {
			continue
		}
		for i := range m.CPUs {
			now := live.CPU(m.CPUs[i].ID)
			if now != nil && now.Online && now.NUMANode != m.CPUs[i].NUMANode {
				moved = append(moved, m.CPUs[i].ID)
				m.CPUs[i].NUMANode = Unknown
			}
		}
	}
	if len(moved) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("CPUs %s are on different NUMA nodes than in %s; numaform treats their NUMA nodes as unknown: %s",
		CPUs(moved...), m.Sources[FactNUMA].name(), m.Sources[FactNUMA].fix())}
}

// checkMergedMemory makes the NUMA nodes' memory unknown if the sum exceeds the host's
// memory by more than 2 %. A smaller excess comes from rounding: the sum then becomes the
// host's memory.
func (m *Machine) checkMergedMemory() []string {
	sum := m.nodeMemoryMiB()
	switch {
	case m.MemoryMiB == 0 || sum <= m.MemoryMiB:
		return nil
	case sum <= m.MemoryMiB+m.MemoryMiB/50:
		m.MemoryMiB = sum
		return nil
	}
	for i := range m.NUMANodes {
		m.NUMANodes[i].MemoryMiB, m.NUMANodes[i].HugePages = Unknown, nil
	}
	warning := fmt.Sprintf("%s lists %d MiB on the NUMA nodes, but the host has %d MiB; numaform treats the memory of each node as unknown: %s",
		m.Sources[FactMemory].name(), sum, m.MemoryMiB, m.Sources[FactMemory].fix())
	delete(m.Sources, FactMemory)
	return []string{warning}
}

// add fills in the unknown fields.
func (n *NUMANode) add(other NUMANode) {
	if n.MemoryMiB == Unknown {
		n.MemoryMiB = other.MemoryMiB
	}
	if n.HugePages == nil {
		n.HugePages = maps.Clone(other.HugePages)
	}
	if n.Distances == nil {
		n.Distances = maps.Clone(other.Distances)
	}
}

// dropDistances removes distances to NUMA nodes that the machine does not have.
func (n *NUMANode) dropDistances(m *Machine) {
	maps.DeleteFunc(n.Distances, func(id, _ int) bool { return m.NUMANode(id) == nil })
}

// copyFact copies one fact of each CPU from source. The fact stays unknown for CPUs that
// source does not list. The siblings include the core's socket and kind.
func (m *Machine) copyFact(fact Fact, source *Machine) {
	m.Sources[fact] = source.Sources[fact]
	for i := range m.CPUs {
		cpu := &m.CPUs[i]
		from := source.CPU(cpu.ID)
		switch {
		case from == nil:
		case fact == FactNUMA:
			cpu.NUMANode = from.NUMANode
		case fact == FactCaches:
			cpu.L3, cpu.CacheLevel = from.L3, from.CacheLevel
		case fact == FactSiblings:
			cpu.Core, cpu.Socket, cpu.Kind = from.Core, from.Socket, from.Kind
		}
	}
}

// mergeCores uses the siblings and caches of their best sources. Siblings become unknown if
// two sources differ, or if a core would span two NUMA nodes or caches: with wrong siblings
// the planner would assign a core twice, and some sources can be edited by hand.
func (m *Machine) mergeCores(machines []Machine) []string {
	for _, fact := range []Fact{FactSiblings, FactCaches} {
		if best := best(machines, fact); best != nil {
			m.copyFact(fact, best)
		}
	}

	problem := ""
	name, fix := m.Sources[FactSiblings].name(), m.Sources[FactSiblings].fix()
	if m.provides(FactSiblings) {
		for _, other := range byRank(machines, FactSiblings) {
			if problem == "" && other.provides(FactSiblings) && !m.sameCores(&other) {
				problem = fmt.Sprintf("%s and %s have different siblings", name, other.Sources[FactSiblings].name())
			}
		}
	}
	if faults := m.checkCores(); problem == "" && len(faults) > 0 {
		fault := faults[0]
		problem = fmt.Sprintf("siblings of %s contradict %s of %s: %s", name, fault.what, m.Sources[fault.fact].name(), fault)
	}
	if problem == "" {
		return nil
	}
	for i := range m.CPUs {
		m.CPUs[i].Core = Unknown
	}
	delete(m.Sources, FactSiblings)
	return []string{problem + "; numaform treats the siblings as unknown: " + fix}
}

// sameCores reports whether both machines group the online CPUs into the same cores,
// considering only CPUs whose core is known in both.
func (m *Machine) sameCores(other *Machine) bool {
	theirs, ours := map[int]int{}, map[int]int{}
	for _, cpu := range m.CPUs {
		also := other.CPU(cpu.ID)
		if !cpu.Online || cpu.Core == Unknown || also == nil || also.Core == Unknown {
			continue
		}
		theirCore, known := theirs[cpu.Core]
		ourCore, knownTheirs := ours[also.Core]
		if known && theirCore != also.Core || knownTheirs && ourCore != cpu.Core {
			return false
		}
		theirs[cpu.Core], ours[also.Core] = also.Core, cpu.Core
	}
	return true
}
