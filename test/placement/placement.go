// Package placement measures how well placers put VMs on real machines: numaform's own
// planner and others, rebuilt from their documentation. Every run is on one host and the
// VMs arrive one at a time, so that only the choice of CPUs and NUMA nodes matters. Nothing
// here is part of numaform; docs/placement.md shows the figures. Start at Measure.
package placement

// VM is a virtual machine to place.
type VM struct {
	// ID is unique within a run.
	ID        int
	VCPUs     int
	MemoryMiB int64
}

// Place is where a placer puts a VM.
type Place struct {
	// CPUs is the host CPU of each vCPU; nil for a VM that floats over the host.
	CPUs []int
	// Cells are Proxmox' numa0, numa1, …; nil binds no memory.
	Cells []Cell
	// Broken reports that the placer admits to use several partially allocated cores.
	Broken bool
}

// Cell is one numaN: guest CPUs, and the NUMA nodes that back its memory.
type Cell struct {
	GuestCPUs []int
	// Nodes are positions in Machine.Nodes.
	Nodes     []int
	MemoryMiB int64
	// Parts is the memory that each of Nodes gives, in MiB; nil means equal parts.
	Parts []int64
}

// Placer places VMs on one host.
type Placer interface {
	// Place finds a place and takes it, or reports that there is none.
	Place(vm VM) (Place, bool)
	// Remove frees what a placed VM took.
	Remove(vm VM)
}

// Kind is a placer with its name.
type Kind struct {
	Name string
	// New returns a placer for an empty machine.
	New func(m *Machine) Placer
	// Dedicated placers promise to use whole cores or to report otherwise, which is
	// checked.
	Dedicated bool
}

// Kinds returns all placers of the tables, numaform last.
func Kinds() []Kind {
	return []Kind{
		Unpinned(), Sequential(), MostFreeMemory(), KPP(true), KPP(false), Kubelet(false), Kubelet(true),
		Nova(false), Nova(true), Numaform(true), Numaform(false),
	}
}
