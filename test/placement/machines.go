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
	// guessPerCPU is the memory of a NUMA node whose memory nobody told, by CPU.
	guessPerCPU = 4 * gib
	// reservedParts is the share of memory that the host keeps: one part of so many.
	reservedParts = 20
)

// Machine is a host as the runs use it: what it has, and what VMs may have of it.
type Machine struct {
	Name string
	// Host is the machine as numaform's planner reads it, reservations included.
	Host topology.Host
	// CPUs are the online CPUs, ascending by id, reserved ones included.
	CPUs []CPU
	// Nodes are the NUMA nodes with CPUs or memory, ascending by id.
	Nodes []Node
	// at is the position of a CPU id in CPUs.
	at map[int]int
	// caches are the ids of the CPUs that share an L3 cache, reserved ones left out.
	caches [][]int
}

// CPU is an online CPU of a machine.
type CPU struct {
	ID, Socket int
	// Node is a position in Machine.Nodes.
	Node int
	// Core and L3 are equal for CPUs that share them.
	Core, L3 int
	Reserved bool
}

// Node is a NUMA node of a machine.
type Node struct {
	ID int
	// CPUs are the ids that are not reserved, ascending.
	CPUs []int
	// MemoryMiB is what VMs may have.
	MemoryMiB int64
}

// Machines returns the machines of the catalog with their first core and a
// twentieth of their memory reserved.
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

// readNodes lists the NUMA nodes with their memory. Amounts are rounded down so that
// a twentieth of each is whole; huge pages are ordinary memory here.
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

// readCPUs lists the online CPUs that belong to a NUMA node. Of the others nobody knows
// which memory is near them, so they are left out.
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

// reserveCore reserves the core of the lowest CPU, and the CPUs that are left out.
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

// CPU returns the online CPU of that id, or nil.
func (m *Machine) CPU(id int) *CPU {
	at, ok := m.at[id]
	if !ok {
		return nil
	}
	return &m.CPUs[at]
}

// Usable returns the CPUs and the memory that VMs may have in all.
func (m *Machine) Usable() (cpus int, memory int64) {
	for _, n := range m.Nodes {
		cpus += len(n.CPUs)
		memory += n.MemoryMiB
	}
	return cpus, memory
}

// sharing returns the ids of the CPUs that share something, reserved ones left out.
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
