// Package placement measures how well placers place VMs on real machines. It compares
// numaform's planner with other placers, reimplemented from their documentation. Every run
// is on one host and the VMs arrive one at a time, so that only the choice of CPUs and NUMA
// nodes matters. The package is not part of numaform; docs/placement.md contains the
// figures. Start at Measure.
package placement

// VM is a virtual machine to place.
type VM struct {
	// ID is unique within a run.
	ID        int
	VCPUs     int
	MemoryMiB int64
}

// Place is the placement of a VM.
type Place struct {
	// CPUs is the host CPU of each vCPU; nil for a VM that floats over the host.
	CPUs []int
	// Cells are the Proxmox options numa0, numa1, …; nil binds no memory.
	Cells []Cell
	// Broken is set if the placer reports that the VM uses parts of several cores.
	Broken bool
}

// Cell is one numaN option: guest CPUs, and the NUMA nodes that back their memory.
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
	// Place places a VM, or reports false if it does not fit.
	Place(vm VM) (Place, bool)
	// Remove frees the resources of a placed VM.
	Remove(vm VM)
}

// Kind is a placer with its name.
type Kind struct {
	Name string
	// New returns a placer for an empty machine.
	New func(m *Machine) Placer
	// Dedicated placers promise to use whole cores or to report otherwise. CheckDedicated
	// checks the promise.
	Dedicated bool
}

// Kinds returns all placers of the tables, numaform last.
func Kinds() []Kind {
	return []Kind{
		Unpinned(), Sequential(), MostFreeMemory(), KPP(true), KPP(false), Kubelet(false), Kubelet(true),
		Nova(false), Nova(true), Numaform(true), Numaform(false),
	}
}
