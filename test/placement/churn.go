package placement

// The parameters of churn.
const (
	churnEvents = 400
	// churnPercent is the share of the usable CPUs that a Load keeps in use, in percent.
	churnPercent = 80
)

// Load configures the length of the churn, and how the load is limited to 80 % of the CPUs.
type Load struct {
	// Events is the number of arrivals and departures.
	Events int
	// Within limits the load including an arriving VM to 80 %. Otherwise only the load
	// before its arrival is limited, and the load can exceed 80 % with that VM.
	Within bool
}

// Churn is the result of arrivals and departures on one machine with one seed.
type Churn struct {
	Arrivals, Refused int
	// NUMA and L3 count the arrivals that use as few NUMA nodes and L3 caches as on the
	// empty machine. Core counts the arrivals that share no core with another VM.
	NUMA, L3, Core int
	Faults         Faults
}

// RunChurn fills a machine to 80 % of its CPUs and keeps that load for a number of events:
// while the load is higher, a random VM leaves, otherwise a VM arrives. If the machine has
// too few free CPUs or too little free memory for the new VM, this VM is skipped, and a
// random VM leaves instead. With the same seed, every placer gets the same sequence of
// sizes.
func RunChurn(k Kind, m *Machine, flavors []Flavor, seed uint64, load Load) Churn {
	r := newRun(k, m)
	d := newDraws(flavors, seed)
	var c Churn
	vm := d.draw()
	for range load.Events {
		switch {
		case r.isOver(load, vm):
			r.leave(r.guests[d.pick(len(r.guests))].VM)
		case vm.VCPUs > r.cpus || vm.MemoryMiB > r.memory:
			r.leave(r.guests[d.pick(len(r.guests))].VM)
			vm = d.draw()
		default:
			q, ok := r.arrive(vm)
			c.count(q, ok, leastCaches(m, vm))
			vm = d.draw()
		}
	}
	c.Faults = r.faults
	return c
}

// isOver reports whether a VM has to leave before the next one may arrive.
func (r *run) isOver(load Load, vm VM) bool {
	cpus, _ := r.machine.Usable()
	used := cpus - r.cpus
	if load.Within {
		used += vm.VCPUs
	}
	return used > cpus*churnPercent/100
}

// count adds one arrival.
func (c *Churn) count(q quality, ok bool, leastCaches int) {
	c.Arrivals++
	if !ok {
		c.Refused++
		return
	}
	if q.nodes == 1 {
		c.NUMA++
	}
	if q.caches <= leastCaches {
		c.L3++
	}
	if q.alone {
		c.Core++
	}
}
