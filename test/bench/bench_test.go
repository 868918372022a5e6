// Package bench_test measures the cost of scaling: the time from a pod to a started VM, and
// from a node to a deleted VM, compared with direct calls to Proxmox, and the cost of one
// more VM in fleets of different sizes. It runs the real controller, engine and provider
// with a real control plane and a simulated Proxmox.
//
// `make bench` runs all benchmarks. These commands run single rows of BenchmarkRoad, and
// print their stages and requests:
//
//	go test ./test/bench -run '^$' -v -rounds 1 -bench 'Road/vms=20$/clone=5s/^seeds$'
//	go test ./test/bench -run '^$' -v -rounds 1 -bench 'Road/(idle-20|remove-20|burst-200|plus-one-at-200)'
//
// A benchmark fails if a figure other than a wall-clock time is more than 10 % above the
// committed figure for the same kind of machine in testdata/figures.json, apart from noise
// in small figures. CPU times are compared relative to the CPU time of a reference, a plan of
// the engine without a provider, in the same run. With -update, it writes that file instead; then `go test ./test/bench
// -run Readme -update` updates the table of docs/performance.md.
package bench_test

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// sizes are the measured fleets, with 10, 20 or 50 VMs on each host.
var sizes = []struct{ vms, hosts int }{{10, 1}, {100, 5}, {1000, 50}, {5000, 100}}

// maxGrowth is the maximum cost of one VM in the fleet of 1,000 VMs relative to the
// smallest fleet, in CPU time and in the provider's calls: docs/adr/0004 has the figures.
const maxGrowth = 1.3

// repetitions is how often a cost is measured. The result is the minimum of each time,
// because other load on the machine only adds to it.
const repetitions = 6

// cost is the cost of adding one VM.
type cost struct {
	cpu, wall, snapshot, plan, clone time.Duration
	// provider and own are the numbers of calls to Proxmox by the provider and by numaform.
	// reread is the number of own calls right before the apply.
	provider, own, reread int
}

func BenchmarkAddOneVM(b *testing.B) {
	var costs []cost
	for _, size := range sizes {
		b.Run(fmt.Sprintf("vms=%d/hosts=%d", size.vms, size.hosts), func(b *testing.B) {
			f := build(b, size.vms, size.hosts)
			f.add(b) // the first apply on a host also fetches the provider
			f.verify(b)
			f.undo(b)
			least := cost{cpu: math.MaxInt64}
			for b.Loop() {
				for range repetitions {
					c := f.add(b)
					b.Logf("cpu %v, wall %v", c.cpu, c.wall)
					least = least.least(c)
					b.StopTimer()
					f.undo(b)
					b.StartTimer()
				}
			}
			least.report(b)
			costs = append(costs, least)
		})
	}
	if len(costs) == len(sizes) { // no size was filtered out
		grow(b, costs)
	}
}

// grow reports how the cost of one VM grows with the fleet, and fails if it exceeds
// maxGrowth.
func grow(b *testing.B, costs []cost) {
	b.Helper()
	b.Run("growth", func(b *testing.B) {
		last := costs[2]
		calls := float64(last.provider) / float64(costs[0].provider)
		cpu := last.cpu.Seconds() / costs[0].cpu.Seconds()
		b.ReportMetric(calls, "x-calls-of-10")
		b.ReportMetric(cpu, "x-cpu-of-10")
		b.ReportMetric(last.cpu.Seconds()/costs[1].cpu.Seconds(), "x-cpu-of-100")
		b.ReportMetric(costs[3].cpu.Seconds()/costs[0].cpu.Seconds(), "x-cpu-of-10-at-5000")
		b.ReportMetric(0, "ns/op")
		if cpu > maxGrowth || calls > maxGrowth {
			b.Errorf("one VM costs %.2f times the CPU and %.2f times the calls of a fleet of %d, want at most %.1f",
				cpu, calls, sizes[0].vms, maxGrowth)
		}
	})
}

// least returns the minimum of each time and the maximum of each number of calls. A cost
// that is not measured yet, whose CPU time is math.MaxInt64, does not count.
func (c cost) least(d cost) cost {
	if c.cpu == math.MaxInt64 {
		return d
	}
	return cost{
		cpu: min(c.cpu, d.cpu), wall: min(c.wall, d.wall), snapshot: min(c.snapshot, d.snapshot),
		plan: min(c.plan, d.plan), clone: min(c.clone, d.clone),
		provider: max(c.provider, d.provider), own: max(c.own, d.own), reread: max(c.reread, d.reread),
	}
}

func (c cost) report(b *testing.B) {
	b.Helper()
	figures{
		"cpu-s":             c.cpu.Seconds(),
		"provider-requests": float64(c.provider),
		"snapshot-requests": float64(c.own),
		"reread-requests":   float64(c.reread),
		"snapshot-s":        c.snapshot.Seconds(),
		"plan-s":            c.plan.Seconds(),
		"to-first-clone-s":  c.clone.Seconds(),
		"wall-s":            c.wall.Seconds(), // includes whole seconds of the provider's polls
	}.report(b)
}

// add creates one VM on the last host as numaform does, and measures it.
func (f *fixture) add(b *testing.B) cost {
	b.Helper()
	ctx := context.Background()
	f.sim.ResetCalls()
	began := time.Now()
	snapshot := f.read(b)
	c := cost{snapshot: time.Since(began), own: len(f.sim.Calls())}
	change := f.propose(b, snapshot, 1, f.last())
	f.sim.ResetCalls()
	before, planning := children(b), time.Now()
	var approved time.Time
	results, err := f.scaler.Apply(ctx, change, func(plans []scaler.RootPlan) (string, error) {
		approved = time.Now()
		if len(plans) != 1 || plans[0].Verdict.Decision != guard.Allow {
			return "", fmt.Errorf("plans %v, want one that the guard allows", plans)
		}
		return "", nil
	})
	if err != nil || len(results) != 1 || len(results[0].Created) != 1 {
		b.Fatalf("apply: %v, %v", results, err)
	}
	c.cpu, c.plan, c.wall = children(b)-before, approved.Sub(planning), time.Since(began)
	f.count(b, &c, approved)
	return c
}

// configCall matches the path for reading one guest.
var configCall = regexp.MustCompile(`^/nodes/([^/]+)/(?:qemu|lxc)/\d+/config$`)

// count separates the provider's calls during an apply from numaform's own.
func (f *fixture) count(b *testing.B, c *cost, approved time.Time) {
	b.Helper()
	for _, call := range f.sim.Calls() {
		if call.Agent != ownAgent {
			c.provider++
			if call.Method == "POST" && strings.HasSuffix(call.Path, "/clone") {
				c.clone = call.Time.Sub(approved)
			}
			continue
		}
		c.reread++
		match := configCall.FindStringSubmatch(call.Path)
		if call.Time.Before(approved) || (match != nil && match[1] != string(f.last().Host)) {
			b.Errorf("numaform reread %s, want only guests of %s, right before the apply", call.Path, f.last())
		}
	}
	if c.reread == 0 || c.provider == 0 || c.clone <= 0 {
		b.Errorf("%d calls of numaform, %d of the provider, clone after %v: the measurement is wrong", c.reread, c.provider, c.clone)
	}
}

// children returns the CPU time of all ended child processes. It includes providers,
// because engines wait for them.
func children(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// propose places the given number of VMs on each of the hosts, and returns the change that
// creates all of them.
func (f *fixture) propose(b *testing.B, snapshot *topology.Snapshot, vms int, hosts ...topology.HostID) *scaler.Change {
	b.Helper()
	current, _, err := f.scaler.Fleet(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	p := planner.New(snapshot, current.VMs)
	var requests []scaler.Request
	for _, host := range hosts {
		placed, unplaced := p.Place(specs(vms, host))
		if len(unplaced) > 0 {
			b.Fatalf("placing: %v", unplaced)
		}
		for _, one := range placed {
			requests = append(requests, scaler.Request{Spec: specs(1, host)[0], Placement: one.Placement})
		}
	}
	change, err := f.scaler.Propose(b.Context(), snapshot, requests, nil)
	if err != nil {
		b.Fatal(err)
	}
	return change
}

// BenchmarkSnapshot reads a whole Proxmox cluster. It fails if this takes too many calls
// in total or at once, or if a call writes.
func BenchmarkSnapshot(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("vms=%d/hosts=%d", size.vms, size.hosts), func(b *testing.B) {
			f := build(b, size.vms, size.hosts)
			for b.Loop() {
				f.sim.ResetCalls()
				f.read(b)
			}
			calls := f.sim.Calls()
			guests := size.vms + size.hosts // one template on each host
			limit := 3*size.hosts + guests
			if size.hosts == 1 {
				limit++ // one for the host's notes: see ADR 7
			}
			if len(calls) > limit {
				b.Errorf("%d calls for %d hosts and %d guests, want at most %d", len(calls), size.hosts, guests, limit)
			}
			if most := f.sim.MaxInFlight(); most > 3 {
				b.Errorf("%d calls at once, want at most 3", most)
			}
			b.ReportMetric(float64(len(calls)), "calls")
			b.ReportMetric(float64(len(calls)-guests)/float64(size.hosts), "calls-per-host")
			b.ReportMetric(float64(f.sim.MaxInFlight()), "calls-at-once")
			if slices.ContainsFunc(calls, func(c pvesim.Call) bool { return c.Method != "GET" }) {
				b.Error("a snapshot wrote")
			}
		})
	}
}
