package placement

// FillList returns the VMs of a seed in order of arrival, up to the machine's total CPUs
// and memory.
func FillList(m *Machine, flavors []Flavor, seed uint64) []VM {
	cpus, memory := m.Usable()
	d := newDraws(flavors, seed)
	var list []VM
	for {
		vm := d.draw()
		cpus -= vm.VCPUs
		memory -= vm.MemoryMiB
		if cpus < 0 || memory < 0 {
			return list
		}
		list = append(list, vm)
	}
}

// Fill is the result for a list of VMs on one machine with one seed.
type Fill struct {
	// Listed is the number of VMs in the list; Placed is the number that were placed.
	Listed, Placed int
	// Prefix is the number of VMs before the first VM that is not on a single NUMA node.
	Prefix int
	Faults Faults
}

// RunFill places the VMs of a list in order.
func RunFill(k Kind, m *Machine, list []VM) Fill {
	r := newRun(k, m)
	f := Fill{Listed: len(list)}
	missed := false
	for _, vm := range list {
		q, ok := r.arrive(vm)
		if ok {
			f.Placed++
		}
		missed = missed || !ok || q.nodes > 1
		if !missed {
			f.Prefix++
		}
	}
	f.Faults = r.faults
	return f
}
