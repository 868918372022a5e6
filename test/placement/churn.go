package placement

// The churn of a run.
const (
	churnEvents = 400
	// churnPercent of the CPUs that VMs may have is what a Load keeps in use.
	churnPercent = 80
)

// Load says how long churn goes on, and what is no more than 80 % of the CPUs then.
type Load struct {
	// Events are arrivals and departures.
	Events int
	// Within holds a VM back until it fits within the 80 %. Else they are what is in use
	// before it comes: with it, it may be more.
	Within bool
}

// Churn is what came of arrivals and departures, on one machine and with one seed.
type Churn struct {
	Arrivals, Refused int
	// NUMA and L3 count the arrivals that lie on as few NUMA nodes and L3 caches as on
	// the empty machine; Core counts those that share no core with another VM.
	NUMA, L3, Core int
	Faults         Faults
}

// RunChurn fills a machine and keeps it at 80 % of its CPUs, for so many events: as long
// as the load is more, one of the placed VMs leaves at random, else one comes. If the
// machine's totals do not hold it, it is not asked for, and another VM leaves instead. A
// seed gives every placer the same row of sizes.
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

// isOver reports whether somebody has to leave before the VM may come.
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
