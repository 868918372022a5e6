package placement

import (
	"fmt"
	"maps"
	"slices"

	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

const (
	gib = 1024 // in MiB
	// guessPerCPU is the memory in MiB per CPU of a NUMA node without a reported size.
	guessPerCPU = 4 * gib
	// reservedParts sets the reserved memory: 1/reservedParts of the memory of a host, and
	// of each of its NUMA nodes.
	reservedParts = 20
)

// Machine is a host: its resources, and the part that VMs may use.
type Machine struct {
	Name string
	// Host is the machine in the planner's format, including reservations.
	Host topology.Host
	// CPUs are the online CPUs of the NUMA nodes, including reserved CPUs, ascending by ID.
	CPUs []CPU
	// Nodes are the NUMA nodes with CPUs or memory, ascending by ID.
	Nodes []Node
	// at maps a CPU ID to its position in CPUs.
	at map[int]int
	// caches are the groups of CPU IDs that share an L3 cache, without reserved CPUs.
	caches [][]int
}

// CPU is an online CPU of a machine.
type CPU struct {
	ID, Socket int
	// Node is a position in Machine.Nodes.
	Node int
	// Core and L3 are equal for CPUs that share a core or an L3 cache.
	Core, L3 int
	Reserved bool
}

// Node is a NUMA node of a machine.
type Node struct {
	ID int
	// CPUs are the IDs of the CPUs that are not reserved, ascending.
	CPUs []int
	// MemoryMiB is the memory that VMs may use.
	MemoryMiB int64
}

// Machines returns the machines of the catalog with their first core and a twentieth of
// their memory reserved.
func Machines() ([]*Machine, error) {
	var all []*Machine
	for _, name := range machines.Names() {
		raw, err := machines.Load(name)
		if err != nil {
			return nil, fmt.Errorf("reading the machines: %w", err)
		}
		all = append(all, NewMachine(name, raw))
	}
	return all, nil
}

// NewMachine reserves the first core and a twentieth of the memory of a machine.
func NewMachine(name string, raw topology.Machine) *Machine {
	m := &Machine{Name: name, at: map[int]int{}}
	m.Host = topology.Host{Region: "bench", Name: "pve", Online: true, Machine: raw}
	m.readNodes()
	m.readCPUs()
	m.reserveCore()
	m.caches = m.sharing(func(c CPU) int { return c.L3 })
	return m
}

// readNodes reads the NUMA nodes and their memory. Amounts are rounded down so that a
// twentieth of each is an integer. Huge pages count as ordinary memory.
func (m *Machine) readNodes() {
	cpus := map[int]int64{}
	for _, c := range m.Host.CPUs {
		if c.Online {
			cpus[c.NUMANode]++
		}
	}
	var nodes []topology.NUMANode
	m.Host.MemoryMiB = 0
	for _, n := range m.Host.NUMANodes {
		if n.MemoryMiB == topology.Unknown {
			n.MemoryMiB = cpus[n.ID] * guessPerCPU
		}
		if cpus[n.ID] == 0 && n.MemoryMiB == 0 {
			continue
		}
		n.MemoryMiB -= n.MemoryMiB % reservedParts
		n.HugePages = nil
		nodes = append(nodes, n)
		m.Nodes = append(m.Nodes, Node{ID: n.ID, MemoryMiB: n.MemoryMiB - n.MemoryMiB/reservedParts})
		m.Host.MemoryMiB += n.MemoryMiB
	}
	m.Host.NUMANodes = nodes
	m.Host.ReservedMemoryMiB = m.Host.MemoryMiB / reservedParts
}

// readCPUs reads the online CPUs with a NUMA node. It omits the others because the memory
// close to them is unknown.
func (m *Machine) readCPUs() {
	for _, c := range m.Host.CPUs {
		node := slices.IndexFunc(m.Nodes, func(n Node) bool { return n.ID == c.NUMANode })
		if !c.Online || node < 0 {
			continue
		}
		m.at[c.ID] = len(m.CPUs)
		m.CPUs = append(m.CPUs, CPU{ID: c.ID, Socket: c.Socket, Node: node, Core: c.Core, L3: c.L3})
	}
}

// reserveCore reserves the core of the lowest CPU, and the omitted CPUs.
func (m *Machine) reserveCore() {
	first := m.CPUs[0].Core
	var reserved []int
	for _, c := range m.Host.CPUs {
		if m.CPU(c.ID) == nil {
			reserved = append(reserved, c.ID)
		}
	}
	for i := range m.CPUs {
		c := &m.CPUs[i]
		if c.Core == first {
			c.Reserved = true
			reserved = append(reserved, c.ID)
			continue
		}
		m.Nodes[c.Node].CPUs = append(m.Nodes[c.Node].CPUs, c.ID)
	}
	m.Host.ReservedCPUs = topology.CPUs(reserved...)
}

// CPU returns the online CPU with that ID, or nil.
func (m *Machine) CPU(id int) *CPU {
	at, ok := m.at[id]
	if !ok {
		return nil
	}
	return &m.CPUs[at]
}

// Usable returns the CPUs and the memory that VMs may use in total.
func (m *Machine) Usable() (cpus int, memory int64) {
	for _, n := range m.Nodes {
		cpus += len(n.CPUs)
		memory += n.MemoryMiB
	}
	return cpus, memory
}

// sharing returns the groups of CPU IDs for which what returns the same value, without
// reserved CPUs.
func (m *Machine) sharing(what func(CPU) int) [][]int {
	byID := map[int][]int{}
	for _, c := range m.CPUs {
		if !c.Reserved {
			byID[what(c)] = append(byID[what(c)], c.ID)
		}
	}
	var groups [][]int
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		groups = append(groups, byID[id])
	}
	return groups
}
