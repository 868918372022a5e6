package planner_test

import (
	"fmt"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// BenchmarkPlace places ten VMs per host in one batch, and reports the time for each.
func BenchmarkPlace(b *testing.B) {
	for _, hosts := range []int{100, 1000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			snap, specs := datacenter(b, hosts)
			var placed []planner.Placed
			for b.Loop() {
				placed, _ = planner.New(snap, nil).Place(specs)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(specs)), "us/vm")
			b.ReportMetric(float64(len(placed))/float64(len(specs)), "placed")
		})
	}
}

// datacenter has hosts of all real machines in turn, and ten specs for each of them,
// of the sizes that Kubernetes nodes have.
func datacenter(b *testing.B, n int) (*topology.Snapshot, []fleet.Spec) {
	b.Helper()
	names := machines.Names()
	snap := snapshot()
	var ids []topology.HostID
	for i := range n {
		m, err := machines.Load(names[i%len(names)])
		if err != nil {
			b.Fatal(err)
		}
		m.MemoryMiB = max(m.MemoryMiB, int64(len(m.CPUs))*4*gib)
		snap.Hosts = append(snap.Hosts, host(fmt.Sprintf("pve-%04d", i), m))
		ids = append(ids, snap.Hosts[i].ID())
	}
	sizes := []struct {
		vcpus  int
		memory int64
	}{{2, 4}, {2, 4}, {4, 8}, {4, 8}, {4, 16}, {6, 12}, {8, 16}, {8, 32}, {12, 24}, {16, 32}}
	var specs []fleet.Spec
	for i := range 10 * n {
		s := spec(fleet.PolicyDedicated, sizes[i%10].vcpus, sizes[i%10].memory*gib)
		s.Hosts = ids
		specs = append(specs, s)
	}
	return snap, specs
}
