package placement

// inUse counts the cores in use on a machine of equal cores with two threads: pairs run two
// VMs of one vCPU, singles run one such VM, and twos run a VM of two vCPUs.
type inUse struct{ pairs, singles, twos int }

// LeastRefused returns the share of arrivals that the best online placer refuses in a long
// RunChurn with a Load that is not Within, if a VM of two vCPUs requires a whole core and
// VMs are never moved. The machine has the given number of cores with two threads in one
// NUMA node, and unlimited memory. one is the share of VMs with one vCPU; the others have
// two. LeastRefused solves the Markov decision process by value iteration: in each state,
// it places a VM of one vCPU where the fewest refusals follow.
func LeastRefused(cores int, one float64) float64 {
	const rounds = 2000
	limit := 2 * cores * churnPercent / 100
	states := allInUse(cores)
	refusals, share := map[inUse]float64{}, 0.0
	for range rounds {
		more := map[inUse]float64{}
		for _, s := range states {
			for left, chance := range leaving(s, limit) {
				more[s] += chance * arriving(left, cores, one, refusals)
			}
		}
		share = more[inUse{}] - refusals[inUse{}]
		refusals = more
	}
	return share
}

// allInUse returns the possible states of the given number of cores.
func allInUse(cores int) []inUse {
	var all []inUse
	for pairs := range cores + 1 {
		for singles := range cores + 1 - pairs {
			for twos := range cores + 1 - pairs - singles {
				all = append(all, inUse{pairs, singles, twos})
			}
		}
	}
	return all
}

// leaving returns the possible states, with their probabilities, after random VMs leave
// until at most limit threads are in use.
func leaving(s inUse, limit int) map[inUse]float64 {
	if 2*s.pairs+s.singles+2*s.twos <= limit {
		return map[inUse]float64{s: 1}
	}
	left := map[inUse]float64{}
	vms := float64(2*s.pairs + s.singles + s.twos)
	leave := func(vms, of float64, next inUse) {
		if vms == 0 {
			return
		}
		for state, chance := range leaving(next, limit) {
			left[state] += chance * vms / of
		}
	}
	leave(float64(2*s.pairs), vms, inUse{s.pairs - 1, s.singles + 1, s.twos})
	leave(float64(s.singles), vms, inUse{s.pairs, s.singles - 1, s.twos})
	leave(float64(s.twos), vms, inUse{s.pairs, s.singles, s.twos - 1})
	return left
}

// arriving returns the expected number of refusals, starting with the next arrival.
func arriving(s inUse, cores int, one float64, refusals map[inUse]float64) float64 {
	free := s.pairs+s.singles+s.twos < cores
	best, two := -1.0, 1+refusals[s]
	if s.singles > 0 {
		best = refusals[inUse{s.pairs + 1, s.singles - 1, s.twos}]
	}
	if free {
		own := refusals[inUse{s.pairs, s.singles + 1, s.twos}]
		if best < 0 || own < best {
			best = own
		}
		two = refusals[inUse{s.pairs, s.singles, s.twos + 1}]
	}
	return one*best + (1-one)*two
}
