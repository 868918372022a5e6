package topology

// Confidence says how completely a machine is known.
type Confidence string

// The levels of confidence, the best first.
const (
	// ConfidenceExact means that siblings, caches, NUMA nodes and their memory are known.
	ConfidenceExact Confidence = "exact"
	// ConfidencePartial means that the NUMA nodes are known, but not all of the rest.
	ConfidencePartial Confidence = "partial"
	// ConfidenceCounts means that only the number of CPUs is known.
	ConfidenceCounts Confidence = "counts only"
	// ConfidenceNone means that nothing is known.
	ConfidenceNone Confidence = "none"
)

// Confidence returns how completely the machine is known. Missing returns what is
// unknown.
func (m *Machine) Confidence() Confidence {
	switch missing := m.Missing(); {
	case len(m.CPUs) == 0:
		return ConfidenceNone
	case len(missing) == 0:
		return ConfidenceExact
	case m.told(FactNUMA):
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
		if !m.knows(fact) {
			missing = append(missing, fact)
		}
	}
	return missing
}

// told reports whether a source provides the fact for at least some CPUs.
func (m *Machine) told(fact Fact) bool {
	source, told := m.Sources[fact]
	return told && source != SourceAssumed
}

func (m *Machine) knows(fact Fact) bool {
	if !m.told(fact) {
		return false
	}
	for _, cpu := range m.CPUs {
		if cpu.Online && cpu.lacks(fact) {
			return false
		}
	}
	for _, node := range m.NUMANodes {
		if fact == FactMemory && node.MemoryMiB == Unknown {
			return false
		}
	}
	return true
}

func (c *CPU) lacks(fact Fact) bool {
	switch fact {
	case FactSiblings:
		return c.Core == Unknown
	case FactCaches:
		return c.L3 == Unknown
	case FactNUMA:
		return c.NUMANode == Unknown
	default:
		return false
	}
}
