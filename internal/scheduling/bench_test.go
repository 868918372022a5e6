package scheduling_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// tenHosts are 10 hosts of 128 CPUs and 1 TiB each.
func tenHosts() *topology.Snapshot {
	s := lab()
	s.Hosts = nil
	for i := range 10 {
		s.Hosts = append(s.Hosts, machine(fmt.Sprintf("pve-%02d", i), 2, 4, 8, 1024))
	}
	return s
}

// manyPods returns n pods of several kinds for one pool of Shared VMs.
func manyPods(t testing.TB, n, kinds int) *scheduling.Cluster {
	t.Helper()
	manifests := []string{classes, nodePool("general", "shared", "")}
	for i := range kinds {
		manifests = append(manifests, deployment(fmt.Sprintf("app-%02d", i), n/kinds,
			fmt.Sprintf("%dm", 100+20*(i%10)), fmt.Sprintf("%dMi", 128+64*(i%7)), ""))
	}
	return load(t, manifests...)
}

// BenchmarkDecide measures a whole decision for 10 hosts and 20 instance types:
// Karpenter's Solve and the planner's Place, repeated until both agree.
func BenchmarkDecide(b *testing.B) {
	for _, pods := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			c, snapshot := manyPods(b, pods, 20), tenHosts()
			for b.Loop() {
				if d := decide(b, c, snapshot); d.Placed != pods {
					b.Fatalf("%d of %d pods are placed", d.Placed, pods)
				}
			}
		})
	}
}

// BenchmarkGrouping compares decisions for 5,000 pods of 20 kinds, with equal pods
// handled together and one by one. Both must be the same. "grouped/ungrouped" is the
// ratio of their times.
func BenchmarkGrouping(b *testing.B) {
	c := manyPods(b, 5000, 20)
	request := scheduling.Request{ClusterID: "test", Snapshot: tenHosts()}
	var times [2]time.Duration
	for b.Loop() {
		var decisions [2]*scheduling.Decision
		for i, r := range []scheduling.Request{request, scheduling.Ungrouped(request)} {
			start := time.Now()
			d, err := c.Decide(context.Background(), r)
			if err != nil {
				b.Fatal(err)
			}
			times[i] += time.Since(start)
			decisions[i] = d
		}
		if diff := cmp.Diff(decisions[1], decisions[0]); diff != "" {
			b.Fatalf("grouped pods end differently:\n%s", diff)
		}
	}
	b.ReportMetric(times[0].Seconds()/times[1].Seconds(), "grouped/ungrouped")
	b.ReportMetric(times[0].Seconds()/float64(b.N), "grouped-s/op")
	b.ReportMetric(times[1].Seconds()/float64(b.N), "ungrouped-s/op")
}
