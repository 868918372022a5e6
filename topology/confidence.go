package topology

// Confidence says how well a machine is known.
type Confidence string

// The levels of confidence, the best first.
const (
	// ConfidenceExact is siblings, caches, NUMA nodes and their memory.
	ConfidenceExact Confidence = "exact"
	// ConfidencePartial is NUMA nodes, but not all the rest.
	ConfidencePartial Confidence = "partial"
	// ConfidenceCounts is no more than how many CPUs there are.
	ConfidenceCounts Confidence = "counts only"
	// ConfidenceNone is nothing.
	ConfidenceNone Confidence = "none"
)

// Confidence returns how well the machine is known. Missing says what it lacks.
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

// Missing returns the facts that are not known of every online CPU or NUMA node, or
// are assumed, in a fixed order.
func (m *Machine) Missing() []Fact {
	var missing []Fact
	for _, fact := range allFacts() {
		if !m.knows(fact) {
			missing = append(missing, fact)
		}
	}
	return missing
}

// told reports whether a source told the fact, of some CPUs at least.
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
