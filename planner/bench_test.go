package planner_test

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// BenchmarkPlace measures how long it takes to place ten VMs per host in one batch on a
// half-full datacenter, and to place a single VM before and after that batch, of a kind
// that the planner has seen and of a kind that it has not. Run it with -benchtime 1x;
// DESIGN.md explains the figures.
func BenchmarkPlace(b *testing.B) {
	for b.Loop() {
		small, large := newContestant(b, 100), newContestant(b, 1000)
		few, _, _ := timed(small.planner, small.specs, 50)
		many, placed, after := timed(large.planner, large.specs, 5)
		perVM := float64(many) / float64(len(large.specs))
		b.ReportMetric(perVM/1e3, "us/vm")
		b.ReportMetric(float64(len(placed))/float64(len(large.specs)), "placed")
		b.ReportMetric(perVM/float64(few)*float64(len(small.specs)), "vm1000/vm100")
		b.ReportMetric(float64(many)/float64(large.new(large.planner)), "batch/new")
		b.ReportMetric(float64(many)/float64(large.some().new(large.planner)), "batch/new-some")
		b.ReportMetric(float64(many)/float64(large.known(large.planner)), "batch/known")
		b.ReportMetric(float64(many)/float64(large.new(after)), "batch/new-later")
		b.ReportMetric(float64(many)/float64(large.known(after)), "batch/known-later")
		b.ReportMetric(float64(large.built.Milliseconds()), "ms/New")
	}
}

// contestant is the planner of a datacenter, the specs to place, and the time that New
// took.
type contestant struct {
	planner *planner.Planner
	specs   []fleet.Spec
	built   time.Duration
}

func newContestant(b *testing.B, hosts int) contestant {
	b.Helper()
	snap, existing, specs := datacenter(b, hosts, 10*hosts)
	began := cpuTime()
	p := planner.New(snap, existing)
	return contestant{planner: p, built: cpuTime() - began, specs: specs}
}

// singles is the number of VMs placed one at a time to measure the mean time of one.
const singles = 1000

// new returns the mean time to place one VM of a kind that the planner has not seen.
func (c *contestant) new(p *planner.Planner) time.Duration {
	runtime.GC() // exclude garbage of earlier steps
	var sum time.Duration
	for i := range singles {
		spec, q := c.specs[i], p.Clone() // a clone starts without cached results
		began := cpuTime()
		q.Place([]fleet.Spec{spec})
		sum += cpuTime() - began
	}
	return sum / singles
}

// some returns the contestant with two of every three hosts allowed.
func (c *contestant) some() *contestant {
	left := contestant{specs: slices.Clone(c.specs)}
	var hosts []topology.HostID
	for i, h := range c.specs[0].Hosts {
		if i%3 > 0 {
			hosts = append(hosts, h)
		}
	}
	for i := range left.specs {
		left.specs[i].Hosts = hosts
	}
	return &left
}

// known returns the mean time to place one VM of a kind that the planner has seen.
func (c *contestant) known(p *planner.Planner) time.Duration {
	q := p.Clone()
	q.Place(c.specs[:singles])
	runtime.GC()
	var sum time.Duration
	for i := range singles {
		began := cpuTime()
		q.Place(c.specs[i : i+1])
		sum += cpuTime() - began
	}
	return sum / singles
}

// timed places a batch several times, each from the same state, and returns the mean time
// and the last planner.
func timed(p *planner.Planner, specs []fleet.Spec, times int) (time.Duration, []planner.Placed, *planner.Planner) {
	var sum time.Duration
	var placed []planner.Placed
	var q *planner.Planner
	runtime.GC()
	for range times {
		q = p.Clone()
		began := cpuTime()
		placed, _ = q.Place(specs)
		sum += cpuTime() - began
	}
	return sum / time.Duration(times), placed, q
}

// cpuTime returns the CPU time of this process, which excludes other processes.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
