package planner_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// TestHardRules checks the hard rules for two batches in sequence. The second batch sees
// the VMs of the first as existing VMs, with and without running guests.
func TestHardRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		first, second := drawSpecs(t, snap), drawSpecs(t, snap)
		placed, _ := place(t, snap, nil, first...)
		existing := asExisting(2000, first, placed)
		if rapid.Bool().Draw(t, "running") {
			for _, vm := range existing {
				h := snap.Host(vm.Host)
				h.Guests = append(h.Guests, guestOf(vm))
			}
		}
		place(t, snap, existing, second...)
	})
}

// TestCommittedIsKept checks that a planner that placed VMs returns the same results as a
// new planner that gets them as existing VMs.
func TestCommittedIsKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		first, second := drawSpecs(t, snap), drawSpecs(t, snap)
		p := planner.New(snap, nil)
		placed, unplaced := p.Place(first)
		clone := p.Clone()
		want, wantNot := planner.New(snap, asExisting(2000, first, placed)).Place(second)
		for name, q := range map[string]*planner.Planner{"committed": p, "clone": clone} {
			got, gotNot := q.Place(second)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s (-existing +%s):\n%s", name, name, diff)
			}
			if diff := cmp.Diff(wantNot, gotNot, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s (-existing +%s):\n%s", name, name, diff)
			}
		}
		mustStayUnplaced(t, snap, asExisting(2000, first, placed), first, unplaced)
	})
}

// mustStayUnplaced checks that a second attempt changes nothing: unplaced specs stay
// unplaced.
func mustStayUnplaced(t tb, snap *topology.Snapshot, existing []fleet.VM, specs []fleet.Spec, unplaced []planner.Unplaced) {
	t.Helper()
	for _, u := range unplaced {
		if placed, _ := planner.New(snap, existing).Place(specs[u.Index : u.Index+1]); len(placed) > 0 {
			t.Fatalf("spec %d was refused (%s), then placed: %s", u.Index, u.Reason, placed[0].Reason)
		}
	}
}

// TestInputsStay checks that snapshot, existing VMs and specs are not modified.
func TestInputsStay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		first, second := drawSpecs(t, snap), drawSpecs(t, snap)
		placed, _ := planner.New(snap, nil).Place(first)
		existing := asExisting(2000, first, placed)
		before := []string{cmp.Diff(nil, snap), cmp.Diff(nil, existing), cmp.Diff(nil, second)}
		planner.New(snap, existing).Place(second)
		if diff := cmp.Diff(before, []string{cmp.Diff(nil, snap), cmp.Diff(nil, existing), cmp.Diff(nil, second)}); diff != "" {
			t.Fatalf("inputs changed:\n%s", diff)
		}
	})
}

// TestOrderDoesNotMatter checks that the result is the same after shuffling everything
// whose order is irrelevant.
func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		first, specs := drawSpecs(t, snap), drawSpecs(t, snap)
		placed, _ := planner.New(snap, nil).Place(first)
		existing := asExisting(2000, first, placed)
		want, wantNot := planner.New(snap, existing).Place(specs)
		seed := rapid.Uint64().Draw(t, "seed")
		r := rand.New(rand.NewPCG(seed, seed))
		shuffle(r, snap.Hosts)
		for i := range snap.Hosts {
			shuffle(r, snap.Hosts[i].CPUs)
			shuffle(r, snap.Hosts[i].Guests)
			shuffle(r, snap.Hosts[i].NUMANodes)
		}
		shuffle(r, existing)
		for i := range specs {
			shuffle(r, specs[i].Hosts)
		}
		got, gotNot := planner.New(snap, existing).Place(specs)
		if diff := cmp.Diff(want, got) + cmp.Diff(wantNot, gotNot); diff != "" {
			t.Fatalf("after shuffling:\n%s", diff)
		}
	})
}

func shuffle[T any](r *rand.Rand, s []T) {
	r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}

// TestAddedHostNeverHurts checks that an additional empty host never makes a spec unplaced.
func TestAddedHostNeverHurts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		s := drawSpec(t, snap)
		placed, _ := place(t, snap, nil, s)
		extra := drawHost(t, "pve-0", false)
		more := snapshot(append([]topology.Host{extra}, snap.Hosts...)...)
		s.Hosts = append(s.Hosts, extra.ID())
		if again, unplaced := place(t, more, nil, s); len(again) < len(placed) {
			t.Fatalf("with one more host: %s", unplaced[0].Reason)
		}
	})
}

// TestRemoveAndAddAgain checks that a VM that is removed and added again gets the same
// place at the same cost, and that Fits agrees with Place.
func TestRemoveAndAddAgain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		specs := drawSpecs(t, snap)
		placed, _ := place(t, snap, nil, specs...)
		existing := asExisting(2000, specs, placed)
		last := drawSpec(t, snap)
		if again, _ := place(t, snap, existing, last); len(again) == 0 {
			for _, id := range last.Hosts {
				if planner.New(snap, existing).Fits(last, id) {
					t.Fatalf("fits %s but was not placed", id)
				}
			}
			return
		}
		once := placeOne(t, snap, existing, last)
		if !planner.New(snap, existing).Fits(last, once.Host) {
			t.Fatalf("placed on %s but does not fit", once.Host)
		}
		p := planner.New(snap, existing)
		before := p.Cost(last, once.Host)
		added, _ := p.Place([]fleet.Spec{last})
		p.Remove(asExisting(3000, []fleet.Spec{last}, added)...)
		if diff := cmp.Diff(before, p.Cost(last, once.Host)); diff != "" {
			t.Fatalf("cost after adding and removing:\n%s", diff)
		}
		again, _ := p.Place([]fleet.Spec{last})
		if diff := cmp.Diff([]planner.Placed{once}, again); diff != "" {
			t.Fatalf("place after removing and adding again:\n%s", diff)
		}
	})
}

// TestNamesDoNotMatter checks that new CPU ids do not change the cost of a place.
func TestNamesDoNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := snapshot(drawHost(t, "pve-1", true))
		s := drawSpec(t, snap)
		before, _ := place(t, snap, nil, s)
		h := snap.Hosts[0]
		ids := make([]int, len(h.CPUs))
		for i := range ids {
			ids[i] = 2*i + 1
		}
		renamed := rename(h, rapid.Permutation(ids).Draw(t, "new ids"))
		other := snapshot(renamed)
		after, _ := place(t, other, nil, s)
		if len(before) != len(after) {
			t.Fatalf("placed %d, after renaming CPUs %d", len(before), len(after))
		}
		if diff := cmp.Diff(planner.New(snap, nil).Cost(s, h.ID()), planner.New(other, nil).Cost(s, h.ID())); diff != "" {
			t.Fatalf("cost after renaming CPUs:\n%s", diff)
		}
	})
}

// rename gives the host's CPUs the new ids.
func rename(h topology.Host, ids []int) topology.Host {
	to := map[int]int{}
	cpus := make([]topology.CPU, len(h.CPUs))
	for i, c := range h.CPUs {
		to[c.ID] = ids[i]
		c.ID = ids[i]
		cpus[i] = c
	}
	move := func(set topology.CPUSet) topology.CPUSet {
		var moved []int
		for _, id := range set.List() {
			moved = append(moved, to[id])
		}
		return topology.CPUs(moved...)
	}
	h.CPUs = cpus
	h.ReservedCPUs = move(h.ReservedCPUs)
	guests := make([]topology.Guest, len(h.Guests))
	for i, g := range h.Guests {
		g.Pins = move(g.Pins)
		guests[i] = g
	}
	h.Guests = guests
	return h
}
