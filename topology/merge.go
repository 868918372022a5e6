package topology

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Merge joins the facts that several sources report about one host: each fact comes from
// the best source that has it, in the order of the Source constants. It also returns
// warnings where sources contradict each other: it leaves out a file that contradicts the
// live host, and makes other doubtful facts unknown, so that no VM is pinned to them.
func Merge(machines ...Machine) (Machine, []string) {
	var merged Machine
	machines, warnings := dropForeign(machines)
	merged.Sources = map[Fact]Source{}
	for _, m := range byRank(machines, FactCPUs) {
		merged.Model = cmp.Or(merged.Model, m.Model)
		merged.Arch = cmp.Or(merged.Arch, m.Arch)
		if merged.MemoryMiB == 0 || (m.MemoryMiB > 0 && m.Sources[FactCPUs] == SourceStatus) {
			merged.MemoryMiB = m.MemoryMiB
		}
	}
	warnings = append(warnings, merged.mergeCPUs(machines)...)
	merged.mergeNUMANodes(machines)
	warnings = append(warnings, merged.doubtNUMANodes(machines)...)
	warnings = append(warnings, merged.doubtMemory()...)
	for _, fact := range []Fact{FactSiblings, FactCaches} {
		if best := best(machines, fact); best != nil {
			merged.copyFact(fact, best)
		}
	}
	warnings = append(warnings, merged.doubtSiblings(machines)...)
	warnings = append(warnings, merged.dropImpossibleCores()...)
	merged.fillOnlyNode()
	return merged, warnings
}

// byRank sorts machines by the fact's source, best first, and machines without the fact
// last.
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

// mergeCPUs takes the CPUs of the best source. A report is live while files and notes
// age: CPUs that the report does not list as online become offline.
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
		switch live.Sources[FactCPUs] {
		case SourceReport:
			warnings = append(warnings, m.takeOffline(&live)...)
		case SourceStatus:
			warnings = append(warnings, m.compareCounts(&live)...)
		}
	}
	return warnings
}

func (m *Machine) takeOffline(live *Machine) []string {
	gone := m.OnlineCPUs().Difference(live.OnlineCPUs())
	added := live.OnlineCPUs().Difference(m.OnlineCPUs())
	if gone.IsEmpty() && added.IsEmpty() {
		return nil
	}
	warning := fmt.Sprintf("%s lists CPUs %s, but %s are online now, and no others are used: %s",
		m.Sources[FactCPUs].name(), m.OnlineCPUs(), live.OnlineCPUs().Intersection(m.cpuIDs()), again)
	for i := range m.CPUs {
		m.CPUs[i].Online = m.CPUs[i].Online && !gone.Contains(m.CPUs[i].ID)
	}
	return []string{warning}
}

func (m *Machine) compareCounts(status *Machine) []string {
	ours, theirs := m.OnlineCPUs().Size(), status.OnlineCPUs().Size()
	if ours == theirs {
		return nil
	}
	return []string{fmt.Sprintf("%s lists %d CPUs, but Proxmox counts %d: %s", m.Sources[FactCPUs].name(), ours, theirs, again)}
}

// mergeNUMANodes takes the nodes, and the node of each CPU, from the best source for
// them, and the memory, huge pages and distances of each node from the best source that
// has them.
func (m *Machine) mergeNUMANodes(machines []Machine) {
	source := best(machines, FactNUMA)
	if source == nil {
		return
	}
	m.copyFact(FactNUMA, source)
	for _, node := range source.NUMANodes {
		merged := NUMANode{ID: node.ID, MemoryMiB: Unknown}
		for _, other := range byRank(machines, FactMemory) {
			if known := other.NUMANode(node.ID); known != nil {
				merged.add(*known)
				m.noteMemory(*known, &other)
			}
		}
		m.NUMANodes = append(m.NUMANodes, merged)
	}
	for i := range m.NUMANodes {
		m.NUMANodes[i].dropDistances(m)
	}
}

// noteMemory records the first, and so the best, source of a NUMA node's memory.
func (m *Machine) noteMemory(node NUMANode, source *Machine) {
	if _, noted := m.Sources[FactMemory]; !noted && node.MemoryMiB != Unknown {
		m.Sources[FactMemory] = source.Sources[FactMemory]
	}
}

// doubtNUMANodes makes a CPU's NUMA node unknown if the live report lists another one,
// because a firmware setting has changed since.
func (m *Machine) doubtNUMANodes(machines []Machine) []string {
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
	return []string{fmt.Sprintf("CPUs %s are on other NUMA nodes than %s says; theirs are taken as unknown: %s",
		CPUs(moved...), m.Sources[FactNUMA].name(), again)}
}

// doubtMemory makes the NUMA nodes' memory unknown if the sum clearly exceeds the host's
// memory. A small excess comes from rounding.
func (m *Machine) doubtMemory() []string {
	sum := m.nodeMemoryMiB()
	if m.MemoryMiB == 0 || sum <= m.MemoryMiB {
		return nil
	}
	if sum <= m.MemoryMiB+m.MemoryMiB/50 {
		m.MemoryMiB = sum
		return nil
	}
	for i := range m.NUMANodes {
		m.NUMANodes[i].MemoryMiB, m.NUMANodes[i].HugePages = Unknown, nil
	}
	warning := fmt.Sprintf("%s gives the NUMA nodes %d MiB, but the host has %d MiB; how much each has is taken as unknown: %s",
		m.Sources[FactMemory].name(), sum, m.MemoryMiB, again)
	delete(m.Sources, FactMemory)
	return []string{warning}
}

// add fills in what is unknown.
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

// copyFact copies one fact of each CPU from source; it stays unknown for CPUs that source
// does not list. A core's socket and kind come with its siblings.
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

// doubtSiblings makes the siblings unknown if another source has different ones: wrong
// siblings assign a core twice, and several people can write some of the sources.
func (m *Machine) doubtSiblings(machines []Machine) []string {
	for _, other := range byRank(machines, FactSiblings) {
		if !m.told(FactSiblings) || !other.told(FactSiblings) || m.sameCores(&other) {
			continue
		}
		for i := range m.CPUs {
			m.CPUs[i].Core = Unknown
		}
		warning := fmt.Sprintf("%s and %s tell different siblings; siblings are taken as unknown: %s",
			m.Sources[FactSiblings].name(), other.Sources[FactSiblings].name(), again)
		delete(m.Sources, FactSiblings)
		return []string{warning}
	}
	return nil
}

// sameCores reports whether both machines group the online CPUs into the same cores,
// considering only CPUs whose core both know.
func (m *Machine) sameCores(other *Machine) bool {
	theirs, ours := map[int]int{}, map[int]int{}
	for _, cpu := range m.CPUs {
		also := other.CPU(cpu.ID)
		if !cpu.Online || cpu.Core == Unknown || also == nil || also.Core == Unknown {
			continue
		}
		there, known := theirs[cpu.Core]
		here, knownHere := ours[also.Core]
		if known && there != also.Core || knownHere && here != cpu.Core {
			return false
		}
		theirs[cpu.Core], ours[also.Core] = also.Core, cpu.Core
	}
	return true
}

// dropImpossibleCores makes siblings unknown for cores that would span two NUMA nodes or
// caches, because then two sources contradict each other.
func (m *Machine) dropImpossibleCores() []string {
	faults := m.checkCores()
	if len(faults) == 0 {
		return nil
	}
	for i := range m.CPUs {
		m.CPUs[i].Core = Unknown
	}
	warning := fmt.Sprintf("siblings of %s contradict NUMA nodes of %s: %s; siblings are taken as unknown: %s",
		m.Sources[FactSiblings].name(), m.Sources[FactNUMA].name(), faults[0], again)
	delete(m.Sources, FactSiblings)
	return []string{warning}
}

// fillOnlyNode assigns all memory to the only NUMA node, unless that node is assumed.
func (m *Machine) fillOnlyNode() {
	if len(m.NUMANodes) != 1 || m.NUMANodes[0].MemoryMiB != Unknown || m.MemoryMiB == 0 ||
		m.Sources[FactNUMA] == SourceAssumed {
		return
	}
	m.NUMANodes[0].MemoryMiB = m.MemoryMiB
	m.Sources[FactMemory] = m.Sources[FactNUMA]
}
