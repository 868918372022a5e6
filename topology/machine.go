package topology

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
)

// Core is a physical core whose sibling threads are known.
type Core struct {
	// ID is CPU.Core of the core's CPUs.
	ID int
	// CPUs are the core's online threads.
	CPUs     CPUSet
	NUMANode int
	L3       int
	Kind     Kind
}

// Group is the unit of placement: the CPUs that share a NUMA node, last-level cache and
// core kind. Caches and NUMA nodes do not nest: on some machines a NUMA node has several
// caches, and on others a cache spans two NUMA nodes.
type Group struct {
	NUMANode int
	L3       int
	Kind     Kind
	// CPUs are the group's online CPUs.
	CPUs CPUSet
}

// FromCounts returns the machine described by the counts of /nodes/{n}/status: sockets,
// cores over all sockets, online threads, and the host's memory in MiB. It assumes CPU
// IDs 0, 1, 2, … and a single NUMA node. Siblings are known only if the numbers of cores
// and threads are equal, so that no core has two threads. Pass 0 for sockets and cores if
// the source is /cluster/resources, which does not count them.
func FromCounts(model string, sockets, cores, cpus int, memoryMiB int64) Machine {
	m := Machine{Model: model, MemoryMiB: memoryMiB}
	for id := range min(cpus, MaxCPU+1) {
		cpu := CPU{ID: id, Online: true, Socket: Unknown, Core: Unknown, L3: Unknown}
		if sockets == 1 {
			cpu.Socket = 0
		}
		if cores == cpus {
			cpu.Core = id
		}
		m.CPUs = append(m.CPUs, cpu)
	}
	if len(m.CPUs) == 0 {
		return m
	}
	m.NUMANodes = []NUMANode{{ID: 0, MemoryMiB: Unknown}}
	if cores > 0 && cpus > cores && cpus%cores == 0 {
		m.Threads = Threads{PerCore: cpus / cores, Even: true}
	}
	m = m.WithSource(SourceStatus)
	m.Sources[FactNUMA] = SourceAssumed
	return m
}

// WithSource returns the machine with every known fact marked as read from source. It
// replaces the sources that the machine had.
func (m Machine) WithSource(source Source) Machine {
	m.Sources = map[Fact]Source{}
	for _, cpu := range m.CPUs {
		m.Sources[FactCPUs] = source
		if cpu.NUMANode != Unknown {
			m.Sources[FactNUMA] = source
		}
		if cpu.Core != Unknown {
			m.Sources[FactSiblings] = source
		}
		if cpu.L3 != Unknown {
			m.Sources[FactCaches] = source
		}
	}
	for _, node := range m.NUMANodes {
		if node.MemoryMiB != Unknown {
			m.Sources[FactMemory] = source
		}
	}
	return m
}

// CPU returns the CPU with the ID, or nil.
func (m *Machine) CPU(id int) *CPU {
	i, ok := slices.BinarySearchFunc(m.CPUs, id, func(c CPU, id int) int { return cmp.Compare(c.ID, id) })
	if !ok {
		return nil
	}
	return &m.CPUs[i]
}

// NUMANode returns the NUMA node with the ID, or nil.
func (m *Machine) NUMANode(id int) *NUMANode {
	i, ok := slices.BinarySearchFunc(m.NUMANodes, id, func(n NUMANode, id int) int { return cmp.Compare(n.ID, id) })
	if !ok {
		return nil
	}
	return &m.NUMANodes[i]
}

// cpuIDs returns the IDs of all CPUs, including offline ones.
func (m *Machine) cpuIDs() CPUSet {
	ids := make([]int, len(m.CPUs))
	for i, cpu := range m.CPUs {
		ids[i] = cpu.ID
	}
	return CPUs(ids...)
}

// nodeIDs returns the IDs of the NUMA nodes.
func (m *Machine) nodeIDs() CPUSet {
	ids := make([]int, len(m.NUMANodes))
	for i, node := range m.NUMANodes {
		ids[i] = node.ID
	}
	return CPUs(ids...)
}

// SiblingsKnown reports whether the core of every online CPU is known.
func (m *Machine) SiblingsKnown() bool {
	online := 0
	for _, cpu := range m.CPUs {
		if !cpu.Online {
			continue
		}
		if cpu.Core == Unknown {
			return false
		}
		online++
	}
	return online > 0
}

// Cores returns the cores that have online CPUs, sorted by ID. It omits CPUs whose core
// is unknown.
func (m *Machine) Cores() []Core {
	threads := map[int][]int{}
	cores := map[int]Core{}
	for _, cpu := range m.CPUs {
		if !cpu.Online || cpu.Core == Unknown {
			continue
		}
		threads[cpu.Core] = append(threads[cpu.Core], cpu.ID)
		cores[cpu.Core] = Core{ID: cpu.Core, NUMANode: cpu.NUMANode, L3: cpu.L3, Kind: cpu.Kind}
	}
	var sorted []Core
	for _, id := range slices.Sorted(maps.Keys(cores)) {
		core := cores[id]
		core.CPUs = CPUs(threads[id]...)
		sorted = append(sorted, core)
	}
	return sorted
}

// Groups returns the groups of the online CPUs, sorted by NUMA node, cache and kind. A
// group's NUMANode and L3 may be Unknown.
func (m *Machine) Groups() []Group {
	type key struct {
		numaNode, l3 int
		kind         Kind
	}
	members := map[key][]int{}
	for _, cpu := range m.CPUs {
		if cpu.Online {
			k := key{cpu.NUMANode, cpu.L3, cpu.Kind}
			members[k] = append(members[k], cpu.ID)
		}
	}
	groups := make([]Group, 0, len(members))
	for k, ids := range members {
		groups = append(groups, Group{NUMANode: k.numaNode, L3: k.l3, Kind: k.kind, CPUs: CPUs(ids...)})
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(a.NUMANode, b.NUMANode), cmp.Compare(a.L3, b.L3),
			cmp.Compare(a.Kind, b.Kind))
	})
	return groups
}

// UnmarshalJSON sets missing IDs to Unknown, and a missing online to true.
func (c *CPU) UnmarshalJSON(data []byte) error {
	type plain CPU
	cpu := plain{ID: Unknown, Online: true, NUMANode: Unknown, Socket: Unknown, Core: Unknown, L3: Unknown}
	if err := json.Unmarshal(data, &cpu); err != nil {
		return err
	}
	*c = CPU(cpu)
	return nil
}

// UnmarshalJSON sets a missing ID or memory to Unknown instead of zero.
func (n *NUMANode) UnmarshalJSON(data []byte) error {
	type plain NUMANode
	node := plain{ID: Unknown, MemoryMiB: Unknown}
	if err := json.Unmarshal(data, &node); err != nil {
		return err
	}
	*n = NUMANode(node)
	return nil
}

func (m *Machine) sort() {
	slices.SortStableFunc(m.CPUs, func(a, b CPU) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortStableFunc(m.NUMANodes, func(a, b NUMANode) int { return cmp.Compare(a.ID, b.ID) })
}
