package placement

import (
	"fmt"
	"slices"
)

// maxCells is the number of numaN options that Proxmox supports.
const maxCells = 8

// FaultKind is a kind of Fault.
type FaultKind int

// The kinds of fault.
const (
	// FaultTwice means that a CPU is assigned to two vCPUs, or that the floating VMs have
	// more vCPUs than there are unpinned CPUs.
	FaultTwice FaultKind = iota
	// FaultCannotStart means that Proxmox or QEMU refuses to start the VM.
	FaultCannotStart
	// FaultRule means that the VM starts, but not as promised.
	FaultRule
	faultKinds
)

// Fault is a violation of a rule.
type Fault struct {
	Kind FaultKind
	// VM is the VM that violates the rule, or 0 if all VMs together violate it.
	VM   int
	Text string
}

// Guest is a VM with its place.
type Guest struct {
	VM
	Place
}

// Check checks a machine's guests against every rule and returns the violations. It shares
// no code with the placers.
func Check(m *Machine, guests []Guest) []Fault {
	c := checker{machine: m, owner: map[int]int{}, bound: make([]int64, len(m.Nodes))}
	for i := range guests {
		c.pins(&guests[i])
		c.cells(&guests[i])
		c.total += guests[i].MemoryMiB
	}
	c.memory()
	c.floating(guests)
	return c.faults
}

// checker collects faults, and the resources used by all guests.
type checker struct {
	machine *Machine
	faults  []Fault
	owner   map[int]int // CPU id to VM
	bound   []int64     // memory by NUMA node
	total   int64
}

func (c *checker) add(kind FaultKind, vm int, format string, args ...any) {
	c.faults = append(c.faults, Fault{Kind: kind, VM: vm, Text: fmt.Sprintf(format, args...)})
}

// pins checks that a pinned VM has one CPU for each vCPU, and that these CPUs are online,
// not reserved, and not used by other VMs.
func (c *checker) pins(g *Guest) {
	if g.CPUs == nil {
		return
	}
	for _, id := range g.CPUs {
		cpu := c.machine.CPU(id)
		switch other, taken := c.owner[id]; {
		case cpu == nil:
			c.add(FaultCannotStart, g.ID, "VM %d is pinned to CPU %d, which is not online", g.ID, id)
		case cpu.Reserved:
			c.add(FaultRule, g.ID, "VM %d is pinned to CPU %d, which is reserved", g.ID, id)
		case taken:
			c.add(FaultTwice, g.ID, "CPU %d is given to VM %d and to VM %d", id, other, g.ID)
		}
		c.owner[id] = g.ID
	}
	if len(g.CPUs) != g.VCPUs {
		kind := FaultRule
		if len(g.CPUs) < g.VCPUs { // vCPUs would share CPUs
			kind = FaultTwice
		}
		c.add(kind, g.ID, "VM %d has %d vCPUs and %d CPUs", g.ID, g.VCPUs, len(g.CPUs))
	}
}

// cells checks numa0, numa1, …: each guest CPU is in exactly one cell, the memory adds up,
// the host nodes exist and have memory, and pins are on the host nodes.
func (c *checker) cells(g *Guest) {
	if g.Cells == nil {
		return
	}
	if len(g.Cells) > maxCells {
		c.add(FaultCannotStart, g.ID, "VM %d has %d cells", g.ID, len(g.Cells))
	}
	var guest []int
	var memory int64
	for i := range g.Cells {
		cell := &g.Cells[i]
		guest = append(guest, cell.GuestCPUs...)
		memory += cell.MemoryMiB
		c.cell(g, cell)
	}
	slices.Sort(guest)
	for i, id := range guest {
		if id != i {
			c.add(FaultCannotStart, g.ID, "VM %d: CPUs of the cells are %v, want each of %d once", g.ID, guest, g.VCPUs)
			break
		}
	}
	if len(guest) != g.VCPUs {
		c.add(FaultCannotStart, g.ID, "VM %d: the cells have %d CPUs, the VM %d", g.ID, len(guest), g.VCPUs)
	}
	if memory != g.MemoryMiB {
		c.add(FaultCannotStart, g.ID, "VM %d: the cells have %d MiB, the VM %d", g.ID, memory, g.MemoryMiB)
	}
}

// cell checks one numaN and binds its memory.
func (c *checker) cell(g *Guest, cell *Cell) {
	if len(cell.Nodes) == 0 || len(cell.GuestCPUs) == 0 || cell.MemoryMiB < 1 {
		c.add(FaultCannotStart, g.ID, "VM %d: empty cell %+v", g.ID, *cell)
		return
	}
	for i, n := range cell.Nodes {
		if !c.machine.binds(n) {
			c.add(FaultCannotStart, g.ID, "VM %d: no memory on node %d", g.ID, n)
			return
		}
		c.bound[n] += part(cell, i)
	}
	for _, v := range cell.GuestCPUs {
		if v < 0 || v >= len(g.CPUs) {
			continue
		}
		if cpu := c.machine.CPU(g.CPUs[v]); cpu != nil && !slices.Contains(cell.Nodes, cpu.Node) {
			c.add(FaultRule, g.ID, "VM %d: vCPU %d is on CPU %d, outside its cell's nodes", g.ID, v, cpu.ID)
		}
	}
}

// binds reports whether memory can be bound on a node: it must exist and have memory.
// Proxmox only checks that the node's directory exists (qemu-server 9.2.6,
// src/PVE/QemuServer/Memory.pm:151).
func (m *Machine) binds(n int) bool {
	return n >= 0 && n < len(m.Nodes) && m.Nodes[n].MemoryMiB > 0
}

// part returns the part of a cell's memory on its i-th node.
func part(cell *Cell, i int) int64 {
	if cell.Parts != nil {
		return cell.Parts[i]
	}
	parts := int64(len(cell.Nodes))
	return cell.MemoryMiB*int64(i+1)/parts - cell.MemoryMiB*int64(i)/parts
}

// memory checks that the memory of no NUMA node, nor of the host, is overcommitted.
func (c *checker) memory() {
	_, usable := c.machine.Usable()
	if c.total > usable {
		c.add(FaultCannotStart, 0, "the VMs have %d MiB, the host %d", c.total, usable)
	}
	for n, bound := range c.bound {
		if bound > c.machine.Nodes[n].MemoryMiB {
			c.add(FaultCannotStart, 0, "node %d gives %d MiB and has %d", n, bound, c.machine.Nodes[n].MemoryMiB)
		}
	}
}

// floating checks that VMs without pins have, in total, a CPU for each vCPU.
func (c *checker) floating(guests []Guest) {
	cpus, _ := c.machine.Usable()
	vcpus := 0
	for i := range guests {
		if guests[i].CPUs == nil {
			vcpus += guests[i].VCPUs
		}
	}
	if vcpus > cpus-len(c.owner) {
		c.add(FaultTwice, 0, "%d vCPUs float over %d CPUs", vcpus, cpus-len(c.owner))
	}
}

// CheckDedicated checks a promise that only numaform makes: each VM has whole cores except
// for one odd vCPU, unless it reports that no whole cores were free.
func CheckDedicated(m *Machine, g *Guest) []Fault {
	broken := 0
	for _, cpus := range m.sharing(func(c CPU) int { return c.Core }) {
		got := 0
		for _, id := range cpus {
			if slices.Contains(g.CPUs, id) {
				got++
			}
		}
		if got > 0 && got < len(cpus) {
			broken++
		}
	}
	if broken > 1 && !g.Broken {
		return []Fault{{FaultRule, g.ID, fmt.Sprintf("VM %d has parts of %d cores", g.ID, broken)}}
	}
	return nil
}
