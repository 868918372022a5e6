package placement

import "math"

// The seeds of the runs: one set for tuning placers, the other only for use after tuning.
const (
	firstTuningSeed  = 1
	firstHeldOutSeed = 1001
)

// Seeds returns the first n seeds for tuning or, if heldOut is set, for use after tuning.
func Seeds(n int, heldOut bool) []uint64 {
	first := uint64(firstTuningSeed)
	if heldOut {
		first = firstHeldOutSeed
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = first + uint64(i)
	}
	return seeds
}

// Column is one of the measured shares.
type Column int

// The columns. Lower is better for refusals, higher for the others.
const (
	// Prefix is Fill.Prefix relative to the optimum, or to its bound if the optimum is not
	// proven.
	Prefix Column = iota
	// Filled is the share of the listed VMs that were placed.
	Filled
	// NUMA, L3, Core and Refused are shares of the churn's arrivals.
	NUMA
	L3
	Core
	Refused
	// CalmNUMA and the following are the same shares with Load.Within.
	CalmNUMA
	CalmL3
	CalmCore
	CalmRefused
	columns
)

// Shares is one value for each column.
type Shares [columns]float64

// Run is the result of a placer on one machine with one seed.
type Run struct {
	Machine string
	Shares  Shares
	Faults  Faults
}

// Table contains all runs of one mix.
type Table struct {
	Mix     string
	Placers []string
	// Runs are the runs of each placer, in the same order for all placers.
	Runs [][]Run
	// Proved is the number of runs with a proven optimum. Gap is the sum of the other runs'
	// gaps, as shares of their bounds.
	Proved int
	Gap    float64
	// Left lists the machines that are too small for every VM of the mix.
	Left []string
}

// Measure runs every placer on every machine with every seed.
func Measure(mix Mix, all []*Machine, kinds []Kind, seeds []uint64) *Table {
	t := &Table{Mix: mix.Name, Runs: make([][]Run, len(kinds))}
	for _, k := range kinds {
		t.Placers = append(t.Placers, k.Name)
	}
	for _, m := range all {
		flavors := mix.On(m)
		if len(flavors) == 0 {
			t.Left = append(t.Left, m.Name)
			continue
		}
		for _, seed := range seeds {
			list := FillList(m, flavors, seed)
			best := BestPrefix(m, list)
			t.note(best)
			for i, k := range kinds {
				fill := RunFill(k, m, list)
				churn := RunChurn(k, m, flavors, seed, Load{Events: churnEvents})
				calm := RunChurn(k, m, flavors, seed, Load{Events: churnEvents, Within: true})
				run := Run{Machine: m.Name}
				run.addFill(&fill, best)
				run.addChurn(&churn, NUMA)
				run.addChurn(&calm, CalmNUMA)
				t.Runs[i] = append(t.Runs[i], run)
			}
		}
	}
	return t
}

// note adds an optimum.
func (t *Table) note(best Optimum) {
	if best.Proved() {
		t.Proved++
	}
	t.Gap += share(best.Bound-best.Found, best.Bound)
}

// addFill adds the result for a list of VMs.
func (r *Run) addFill(fill *Fill, best Optimum) {
	r.Shares[Prefix] = share(fill.Prefix, best.Bound)
	r.Shares[Filled] = share(fill.Placed, fill.Listed)
	r.Faults.add(fill.Faults)
}

// addChurn adds the result of a churn to the columns that start at first.
func (r *Run) addChurn(churn *Churn, first Column) {
	for i, count := range []int{churn.NUMA, churn.L3, churn.Core, churn.Refused} {
		r.Shares[first+Column(i)] = share(count, churn.Arrivals)
	}
	r.Faults.add(churn.Faults)
}

func share(part, whole int) float64 { return float64(part) / float64(whole) }

// Mean returns the means of runs, and the sums of their faults.
func Mean(runs []Run) (Shares, Faults) {
	var mean Shares
	var faults Faults
	for _, r := range runs {
		for c := range mean {
			mean[c] += r.Shares[c] / float64(len(runs))
		}
		faults.add(r.Faults)
	}
	return mean, faults
}

// Lead compares a and b run by run, and returns the mean lead of a in a column and its
// standard error.
func Lead(a, b []Run, c Column) (mean, deviation float64) {
	n := float64(len(a))
	var squares float64
	for i := range a {
		d := a[i].Shares[c] - b[i].Shares[c]
		if c == Refused || c == CalmRefused {
			d = -d
		}
		mean += d / n
		squares += d * d / n
	}
	return mean, math.Sqrt(max(0, squares-mean*mean) / max(1, n-1))
}

// OnMachine returns the runs on one machine.
func OnMachine(runs []Run, machine string) []Run {
	var here []Run
	for _, r := range runs {
		if r.Machine == machine {
			here = append(here, r)
		}
	}
	return here
}

// Machines lists the machines of the table, in order.
func (t *Table) Machines() []string {
	var names []string
	for _, r := range t.Runs[0] {
		if len(names) == 0 || names[len(names)-1] != r.Machine {
			names = append(names, r.Machine)
		}
	}
	return names
}
