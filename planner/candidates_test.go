package planner_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// TestIndexIsScan checks that the index of candidate hosts finds what evaluating
// every host for every VM finds, batch after batch.
func TestIndexIsScan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		p := planner.New(snap, nil)
		scan, memo := p.Scanning(), p.Remembering()
		for range 2 {
			specs := drawOften(t, snap)
			mustAgree(t, p, scan, specs)
			memo.Place(specs)
		}
		mustAgree(t, p, memo, drawOften(t, snap))
	})
}

// drawOften draws a batch in which some specs may be wanted more often than others.
func drawOften(t *rapid.T, snap *topology.Snapshot) []fleet.Spec {
	specs := drawSpecs(t, snap)
	for range rapid.SampledFrom([]int{0, 0, 3, 12}).Draw(t, "more of the same") {
		specs = append(specs, specs[len(specs)/2])
	}
	return specs
}

// TestIndexIsScanFarAway checks that the index finds what a scan finds where parts of
// costs are too large to be told apart by bounds.
func TestIndexIsScanFarAway(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		far := rapid.SampledFrom([]int{1 << 19, 1 << 21, 1 << 30}).Draw(t, "far")
		for i := range snap.Hosts {
			for _, n := range snap.Hosts[i].NUMANodes {
				for to := range n.Distances {
					n.Distances[to] *= far
				}
			}
		}
		p := planner.New(snap, nil)
		mustAgree(t, p, p.Scanning(), drawOften(t, snap))
	})
}

// TestHostsInAnyOrder checks that the order of a spec's hosts, doubles, and hosts that
// nobody knows change nothing.
func TestHostsInAnyOrder(t *testing.T) {
	t.Parallel()
	snap, kept, specs := datacenter(t, 42, 20)
	ids := specs[0].Hosts
	some := slices.Concat(ids[:3], ids[5:6], ids[20:23], ids[40:])
	mixed := slices.Concat(ids[40:], ids[20:23], []topology.HostID{{Region: "r1", Host: "pve-9999"}}, ids[5:6], ids[:3], ids[21:22])
	p := planner.New(snap, kept)
	for _, way := range []struct {
		name        string
		sorted, any []topology.HostID
	}{
		{"all", ids, slices.Concat(ids[30:], ids[:31])},
		{"some", some, mixed},
	} {
		want, got := p.Clone(), p.Clone()
		one, other := slices.Clone(specs), slices.Clone(specs)
		for i := range specs {
			one[i].Hosts, other[i].Hosts = way.sorted, way.any
		}
		placed, _ := want.Place(one)
		if diff := cmp.Diff(placed, mustAgree(t, got, p.Scanning(), other)); diff != "" || len(placed) == 0 {
			t.Errorf("%s (-sorted +in any order):\n%s", way.name, diff)
		}
	}
}

// TestPacked checks that packed costs compare as costs do.
func TestPacked(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawCost(t), drawCost(t)
		copy(b[:rapid.IntRange(0, len(b)).Draw(t, "the same")], a)
		packedA, blurredA := planner.Packed(a)
		packedB, blurredB := planner.Packed(b)
		costs, packs := slices.Compare(a, b), slices.Compare(packedA, packedB)
		if packs != 0 && packs != costs {
			t.Fatalf("%v and %v compare as %d, packed as %d", a, b, costs, packs)
		}
		if packs == 0 && costs != 0 && (!blurredA || !blurredB) {
			t.Fatalf("%v and %v are packed alike, and not blurred", a, b)
		}
		if next := planner.Next(packedA); slices.Compare(packedA, next) >= 0 || packs < 0 && slices.Compare(packedB, next) < 0 {
			t.Fatalf("%x does not come after %x", next, packedA)
		}
	})
}

// drawCost draws the parts of a cost, some of them large: all but the first, which is a
// set of few flags.
func drawCost(t *rapid.T) []int64 {
	c := make([]int64, planner.CostParts)
	c[0] = rapid.Int64Range(0, 31).Draw(t, "resort")
	for i := 1; i < len(c); i++ {
		c[i] = rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, 1<<20), rapid.Int64Range(0, 1<<40)).Draw(t, "part")
	}
	return c
}

// mustAgree places a batch with both planners and expects the same answers.
func mustAgree(t tb, p, q *planner.Planner, specs []fleet.Spec) []planner.Placed {
	t.Helper()
	want, wantNot := q.Place(specs)
	got, gotNot := p.Place(specs)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()) + cmp.Diff(wantNot, gotNot, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("the planners differ:\n%s", diff)
	}
	return got
}

// TestFloor checks that no plan is cheaper than the bound of its cost says.
func TestFloor(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		p := planner.New(snap, nil)
		p.Place(drawSpecs(t, snap))
		for _, s := range drawSpecs(t, snap) {
			for i := range snap.Hosts {
				if holds, _ := p.Floor(s, snap.Hosts[i].ID()); !holds {
					t.Fatalf("%s: %+v costs less than its bound, or fits nevertheless", snap.Hosts[i].ID(), s)
				}
			}
		}
	})
}

// TestFloorIsExact checks that the bound is the cost for nearly all VMs and hosts of
// a busy datacenter: else the index would evaluate them all.
func TestFloorIsExact(t *testing.T) {
	t.Parallel()
	snap, kept, specs := datacenter(t, 42, 300)
	p := planner.New(snap, kept)
	exact, total := 0, 0
	for _, s := range specs[:100] {
		for _, id := range s.Hosts {
			holds, same := p.Floor(s, id)
			if !holds {
				t.Fatalf("%s: %+v costs less than its bound, or fits nevertheless", id, s)
			}
			exact += b2i(same)
			total++
		}
	}
	if exact*100 < total*90 {
		t.Errorf("%d of %d bounds are exact, want 90 %%", exact, total)
	}
	t.Logf("%d of %d bounds are exact", exact, total)
}

// TestIndexIsScanAtLarge compares the index with a scan on a half-full datacenter of
// all real machines.
func TestIndexIsScanAtLarge(t *testing.T) {
	t.Parallel()
	snap, kept, specs := datacenter(t, 42, 420)
	p := planner.New(snap, kept)
	placed := mustAgree(t, p, p.Scanning(), specs)
	mustBeValid(t, snap, kept, specs, placed)
}

// datacenter has hosts of all real machines in turn, VMs at random places of it that
// take half of its CPUs, and a batch of n new ones of all policies, of the sizes that
// Kubernetes nodes have.
func datacenter(t testing.TB, hosts, n int) (*topology.Snapshot, []fleet.VM, []fleet.Spec) {
	t.Helper()
	var kinds []topology.Machine
	for _, name := range machines.Names() {
		m, err := machines.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		m.MemoryMiB = max(m.MemoryMiB, int64(len(m.CPUs))*4*gib)
		kinds = append(kinds, m)
	}
	snap := snapshot()
	var ids []topology.HostID
	cpus := 0
	for i := range hosts {
		m := kinds[i%len(kinds)]
		cpus += len(m.CPUs)
		snap.Hosts = append(snap.Hosts, host(fmt.Sprintf("pve-%04d", i), m))
		ids = append(ids, snap.Hosts[i].ID())
	}
	r := rand.New(rand.NewPCG(1, uint64(hosts)))
	filling := drawSizes(r, ids, cpus/4)
	placed, _ := planner.New(snap, nil).Place(filling)
	kept := keep(1, filling, placed)
	shuffle(r, kept)
	taken := 0
	for i := range kept {
		if taken += kept[i].VCPUs; taken > cpus/2 {
			kept = kept[:i]
			break
		}
	}
	return snap, kept, drawSizes(r, ids, n)
}

// drawSizes draws n specs: two thirds are Dedicated.
func drawSizes(r *rand.Rand, hosts []topology.HostID, n int) []fleet.Spec {
	sizes := []struct {
		vcpus  int
		memory int64
	}{{1, 2}, {1, 2}, {1, 4}, {1, 4}, {2, 4}, {2, 4}, {2, 8}, {3, 6}, {4, 8}, {4, 16}}
	policies := []fleet.Policy{
		fleet.PolicyDedicated, fleet.PolicyDedicated, fleet.PolicyDedicated, fleet.PolicyDedicated,
		fleet.PolicyShared, fleet.PolicyNUMA, fleet.PolicyIsolated,
	}
	specs := make([]fleet.Spec, n)
	for i := range specs {
		size := sizes[r.IntN(len(sizes))]
		specs[i] = spec(policies[r.IntN(len(policies))], size.vcpus, size.memory*gib)
		specs[i].Hosts = hosts
	}
	return specs
}
