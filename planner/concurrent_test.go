package planner_test

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// TestSameOnManyGoroutines checks that reading a planner from many goroutines, and placing
// with clones of it, gives the same result as a single goroutine.
func TestSameOnManyGoroutines(t *testing.T) {
	t.Parallel()
	snap, existing, specs := datacenter(t, 14, 140)
	p := planner.New(snap, existing)
	want := answers(t, p, snap, specs)
	got := make([]string, 8)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = answers(t, p, snap, specs) })
	}
	wg.Wait()
	for i, g := range got {
		if g != want {
			t.Errorf("goroutine %d:\n%s", i, cmp.Diff(want, g))
		}
	}
	if again := answers(t, planner.New(snap, existing), snap, specs); again != want {
		t.Errorf("a second planner:\n%s", cmp.Diff(want, again))
	}
}

// answers returns the results of Room, Fits, View and Place as JSON, to compare them.
func answers(t testing.TB, p *planner.Planner, snap *topology.Snapshot, specs []fleet.Spec) string {
	t.Helper()
	all := []any{p.Room()}
	for i := range snap.Hosts {
		id := snap.Hosts[i].ID()
		all = append(all, p.Fits(specs[i], id), p.View(specs[i], id))
	}
	c := p.Clone()
	for _, batch := range [][]fleet.Spec{specs, specs[:20]} {
		placed, unplaced := c.Place(batch)
		all = append(all, placed, unplaced)
	}
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// FuzzPlace searches for machines, guests and specs for which a placement violates a hard
// rule, or a cached result is outdated.
func FuzzPlace(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		first, second := drawSpecs(t, snap), drawSpecs(t, snap)
		placed, _ := place(t, snap, nil, first...)
		existing := asExisting(2000, first, placed)
		p := planner.New(snap, existing)
		placed, _ = p.Place(second)
		mustRemember(t, p)
		mustBeValid(t, snap, existing, second, placed)
	}))
}
