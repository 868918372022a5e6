package topology

import "slices"

// TellsHugePages reports whether a source provides the reserved huge pages. A source that
// reads the host itself and lists none means that there are none.
func (m *Machine) TellsHugePages() bool {
	source := m.Sources[FactMemory]
	return source == SourceAgent || source == SourceCollected ||
		slices.ContainsFunc(m.NUMANodes, func(n NUMANode) bool { return n.HugePages != nil })
}
