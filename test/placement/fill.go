package placement

// FillList returns the VMs of a seed in order of arrival, until the machine's totals of
// CPUs and memory hold no more.
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

// Fill is the result for a list of VMs, on one machine and with one seed.
type Fill struct {
	// Listed is the number of VMs that the machine's totals hold; Placed of them got a
	// place.
	Listed, Placed int
	// Prefix is the number of VMs before the first one that is not on one NUMA node.
	Prefix int
	Faults Faults
}

// RunFill places a list of VMs, one after the other.
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
