package planner_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// TestCheapest checks that a VM is placed on the first of the cheapest hosts, whatever
// results the planner has cached.
func TestCheapest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		twin := snap.Hosts[0] // costs the same and sorts last
		twin.Name = "pve-9"
		snap.Hosts = append(snap.Hosts, twin)
		p := planner.New(snap, nil)
		for range 2 {
			p.Place(drawOften(t, snap))
		}
		for _, s := range drawOften(t, snap) {
			var got topology.HostID
			want := p.Cheapest(s)
			if placed, _ := p.Place([]fleet.Spec{s}); len(placed) > 0 {
				got = placed[0].Host
			}
			if got != want {
				t.Fatalf("placed on %q, cheapest is %q: %+v", got, want, s)
			}
		}
	})
}

// TestRemembered checks after each batch that every cached result equals a fresh
// evaluation.
func TestRemembered(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		p := planner.New(snap, nil)
		for range 3 {
			specs := drawOften(t, snap)
			placed, _ := p.Place(specs)
			if rapid.Bool().Draw(t, "remove") {
				p.Remove(asExisting(1000, specs, placed)...)
			}
			mustRemember(t, p)
		}
	})
}

// mustRemember checks that the planner has no outdated cached results.
func mustRemember(t tb, p *planner.Planner) {
	t.Helper()
	if outdated := p.Outdated(); len(outdated) > 0 {
		t.Fatalf("outdated:\n%s", strings.Join(outdated, "\n"))
	}
}

// TestRememberingChangesNothing checks that a batch gets the same places as one that
// evaluates every host for every VM, on a half-full datacenter of all real machines.
func TestRememberingChangesNothing(t *testing.T) {
	t.Parallel()
	snap, existing, specs := datacenter(t, 42, 420)
	p := planner.New(snap, existing)
	want, wantNot := p.Clone().PlaceForgetting(specs)
	placed, unplaced := p.Place(specs)
	if diff := cmp.Diff(want, placed) + cmp.Diff(wantNot, unplaced); diff != "" {
		t.Fatalf("(-every host evaluated +remembered):\n%s", diff)
	}
	mustRemember(t, p)
	mustBeValid(t, snap, existing, specs, placed)
}

// TestForgets checks that the cache of a planner stays bounded when it places ever more
// kinds of VMs on many hosts.
func TestForgets(t *testing.T) {
	t.Parallel()
	snap := snapshot()
	var ids []topology.HostID
	for i := range 1000 {
		snap.Hosts = append(snap.Hosts, host(fmt.Sprintf("pve-%04d", i), machine(shape{nodes: 1, cores: 1, smt: 1, memory: gib})))
		ids = append(ids, snap.Hosts[i].ID())
	}
	p := planner.New(snap, nil)
	for mib := range int64(100) {
		s := spec(fleet.PolicyShared, 1, 1+mib)
		s.Hosts = ids
		p.Place([]fleet.Spec{s})
		if n := p.Verdicts(); n > 1<<15 || n == 0 {
			t.Fatalf("%d verdicts remembered after %d kinds of VMs", n, mib+1)
		}
	}
}

// drawOften draws a batch in which some specs may repeat.
func drawOften(t *rapid.T, snap *topology.Snapshot) []fleet.Spec {
	specs := drawSpecs(t, snap)
	for range rapid.SampledFrom([]int{0, 0, 3, 12}).Draw(t, "more of the same") {
		specs = append(specs, specs[len(specs)/2])
	}
	return specs
}

// TestHostsInAnyOrder checks that the order of a spec's hosts, duplicates and unknown hosts
// change nothing.
func TestHostsInAnyOrder(t *testing.T) {
	t.Parallel()
	snap, existing, specs := datacenter(t, 42, 20)
	ids := specs[0].Hosts
	some := slices.Concat(ids[:3], ids[5:6], ids[20:23], ids[40:])
	mixed := slices.Concat(ids[40:], ids[20:23], []topology.HostID{{Region: "r1", Host: "pve-9999"}}, ids[5:6], ids[:3], ids[21:22])
	p := planner.New(snap, existing)
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
		if diff := cmp.Diff(placed, mustAgree(t, got, p.Clone(), other)); diff != "" || len(placed) == 0 {
			t.Errorf("%s (-sorted +in any order):\n%s", way.name, diff)
		}
	}
}

// mustAgree places a batch with both planners and checks that the results are equal.
func mustAgree(t tb, p, q *planner.Planner, specs []fleet.Spec) []planner.Placed {
	t.Helper()
	want, wantNot := q.Place(specs)
	got, gotNot := p.Place(specs)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()) + cmp.Diff(wantNot, gotNot, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("the planners differ:\n%s", diff)
	}
	return got
}

// datacenter returns hosts that repeat all real machines, existing VMs at random places
// that use half of their CPUs, and a batch of n new specs of all policies in typical sizes
// of Kubernetes nodes.
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
	existing := asExisting(1, filling, placed)
	shuffle(r, existing)
	taken := 0
	for i := range existing {
		if taken += existing[i].VCPUs; taken > cpus/2 {
			existing = existing[:i]
			break
		}
	}
	return snap, existing, drawSizes(r, ids, n)
}

// drawSizes draws n specs: about four in seven are Dedicated.
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
