package planner_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
)

// BenchmarkPlace places ten VMs per host in one batch on a half-full datacenter: with
// the index, by comparing remembered verdicts of all hosts, and by evaluating all
// hosts; then one VM more, of a kind that was asked for before and of one that was not.
// Run it with -benchtime 1x; DESIGN.md says what the figures mean.
func BenchmarkPlace(b *testing.B) {
	for b.Loop() {
		small, large := newContestants(b, 100), newContestants(b, 1000)
		few, _ := timed(small.indexed.Clone, small.specs, 50)
		many, placed := timed(large.indexed.Clone, large.specs, 5)
		memo, same := timed(large.indexed.Remembering, large.specs, 1)
		scan, scanned := timed(large.indexed.Scanning, large.specs, 1)
		if diff := cmp.Diff(placed, scanned) + cmp.Diff(placed, same); diff != "" {
			b.Fatalf("index and scan differ:\n%s", diff)
		}
		fresh := large.single(func() *planner.Planner { return large.indexed.Clone() })
		large.single(func() *planner.Planner { return large.indexed })
		known := large.single(func() *planner.Planner { return large.indexed })
		perVM := float64(many) / float64(len(large.specs))
		b.ReportMetric(perVM/1e3, "us/vm")
		b.ReportMetric(float64(len(placed))/float64(len(large.specs)), "placed")
		b.ReportMetric(float64(scan)/float64(many), "scan/index")
		b.ReportMetric(float64(memo)/float64(many), "remembering/index")
		b.ReportMetric(perVM/float64(few)*float64(len(small.specs)), "vm1000/vm100")
		b.ReportMetric(float64(many)/float64(known), "batch/known")
		b.ReportMetric(float64(many)/float64(fresh), "batch/fresh")
		b.ReportMetric(float64(large.new.Milliseconds()), "ms/new")
	}
}

// contestants are planners of one datacenter.
type contestants struct {
	indexed *planner.Planner
	specs   []fleet.Spec
	new     time.Duration
}

func newContestants(b *testing.B, hosts int) contestants {
	b.Helper()
	snap, kept, specs := datacenter(b, hosts, 10*hosts)
	began := cpuTime()
	p := planner.New(snap, kept)
	return contestants{indexed: p, new: cpuTime() - began, specs: specs}
}

// single is how long one VM alone takes: the mean over the first hundred specs.
func (c *contestants) single(on func() *planner.Planner) time.Duration {
	const n = 100
	began := cpuTime()
	for i := range n {
		on().Place(c.specs[i : i+1])
	}
	return (cpuTime() - began) / n
}

// timed places a batch several times, each from the same state, and returns the mean
// of the times that it took.
func timed(p func() *planner.Planner, specs []fleet.Spec, times int) (time.Duration, []planner.Placed) {
	var sum time.Duration
	var placed []planner.Placed
	for range times {
		q := p()
		began := cpuTime()
		placed, _ = q.Place(specs)
		sum += cpuTime() - began
	}
	return sum / time.Duration(times), placed
}

// cpuTime is what the process had of the CPUs: other processes do not count.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
