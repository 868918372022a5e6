package topology

import "slices"

// Confidence is the extent to which a machine's facts are known.
type Confidence string

// The levels of confidence, the best first.
const (
	// ConfidenceExact means that siblings, caches, NUMA nodes and their memory are known.
	ConfidenceExact Confidence = "exact"
	// ConfidencePartial means that the NUMA nodes are known, but not all other facts.
	ConfidencePartial Confidence = "partial"
	// ConfidenceCounts means that the CPUs are known, but not their NUMA nodes.
	ConfidenceCounts Confidence = "counts only"
	// ConfidenceNone means that no CPU is known.
	ConfidenceNone Confidence = "none"
)

// Confidence returns the extent to which the machine's facts are known. Missing lists the
// unknown ones.
func (m *Machine) Confidence() Confidence {
	switch missing := m.Missing(); {
	case len(m.CPUs) == 0:
		return ConfidenceNone
	case len(missing) == 0:
		return ConfidenceExact
	case m.provides(FactNUMA):
		return ConfidencePartial
	default:
		return ConfidenceCounts
	}
}

// Missing returns the facts that are assumed, or unknown for some online CPU or NUMA
// node, in a fixed order.
func (m *Machine) Missing() []Fact {
	var missing []Fact
	for _, fact := range allFacts() {
		unknownCPU := slices.ContainsFunc(m.CPUs, func(c CPU) bool {
			return c.Online && (fact == FactSiblings && c.Core == Unknown ||
				fact == FactCaches && c.L3 == Unknown || fact == FactNUMA && c.NUMANode == Unknown)
		})
		unknownMemory := fact == FactMemory && slices.ContainsFunc(m.NUMANodes, func(n NUMANode) bool { return n.MemoryMiB == Unknown })
		if !m.provides(fact) || unknownCPU || unknownMemory {
			missing = append(missing, fact)
		}
	}
	return missing
}

// provides reports whether the fact has a source, for at least some CPUs or NUMA nodes, and
// is not assumed.
func (m *Machine) provides(fact Fact) bool {
	source, ok := m.Sources[fact]
	return ok && source != SourceAssumed
}

// HugePagesKnown reports whether a source lists the reserved huge pages. If a source that
// reads the host itself lists none, the host has none.
func (m *Machine) HugePagesKnown() bool {
	source := m.Sources[FactMemory]
	return source == SourceAgent || source == SourceCollected ||
		slices.ContainsFunc(m.NUMANodes, func(n NUMANode) bool { return n.HugePages != nil })
}
