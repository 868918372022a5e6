package placement

// The churn of a run.
const (
	churnArrivals = 400
	// churnPercent of the CPUs that VMs may have are in use at most when a VM comes.
	churnPercent = 80
)

// Churn is what came of arrivals and departures, on one machine and with one seed.
type Churn struct {
	Arrivals, Refused int
	// NUMA and L3 count the arrivals that lie on as few NUMA nodes and L3 caches as on
	// the empty machine; Core counts those that share no core with another VM.
	NUMA, L3, Core int
	Faults         Faults
}

// RunChurn keeps a machine at 80 % of its CPUs: placed VMs leave at random until no
// more than that is in use, then one comes. If the machine's totals do not hold it, it
// is not asked for, and another VM leaves instead. Arrivals count once the machine was
// full for the first time. A seed gives every placer the same row of sizes.
func RunChurn(k Kind, m *Machine, flavors []Flavor, seed uint64) Churn {
	r := newRun(k, m)
	d := newDraws(flavors, seed)
	cpus, _ := m.Usable()
	headroom := cpus - cpus*churnPercent/100
	var c Churn
	full := false
	for c.Arrivals < churnArrivals {
		for r.cpus < headroom {
			full = true
			r.leave(r.guests[d.pick(len(r.guests))].VM)
		}
		vm := d.draw()
		if vm.VCPUs > r.cpus || vm.MemoryMiB > r.memory {
			full = true
			r.leave(r.guests[d.pick(len(r.guests))].VM)
			continue
		}
		q, ok := r.arrive(vm)
		full = full || !ok
		if full {
			c.count(q, ok, leastCaches(m, vm))
		}
	}
	c.Faults = r.faults
	return c
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
