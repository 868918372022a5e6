package planner_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
)

// TestRemoveIsNew checks that a planner updated as VMs are placed and removed equals a new
// one, whether the VMs were passed to New, already run, or were placed.
func TestRemoveIsNew(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		first, second := drawSpecs(t, snap), drawSpecs(t, snap)
		placed, _ := planner.New(snap, nil).Place(first)
		existing := asExisting(2000, first, placed)
		for _, vm := range existing {
			if rapid.Bool().Draw(t, "running") {
				h := snap.Host(vm.Host)
				h.Guests = append(h.Guests, guestOf(vm))
			}
		}
		p := planner.New(snap, existing)
		placed, _ = p.Place(second)
		all := append(existing, asExisting(3000, second, placed)...)
		var stay, gone []fleet.VM
		for _, vm := range all {
			if rapid.Bool().Draw(t, "goes") {
				gone = append(gone, vm)
			} else {
				stay = append(stay, vm)
			}
		}
		before := p.Clone()
		p.Remove(gone...)
		p.Remove(asExisting(4000, second, placed[:0])...)
		fresh := planner.New(snap, stay)
		if diff := cmp.Diff(fresh.Room(), p.Room()); diff != "" {
			t.Fatalf("room (-new +removed):\n%s", diff)
		}
		third := append(second[:1:1], drawSpecs(t, snap)...) // some specs repeat
		mustAgree(t, p, fresh, third)
		mustAgree(t, before, planner.New(snap, all), third) // clones do not change
	})
}

// TestRemoveWhoIsUnknown checks that removing an unknown VM releases nothing.
func TestRemoveWhoIsUnknown(t *testing.T) {
	t.Parallel()
	h := twoNodes()
	specs := same(spec(fleet.PolicyDedicated, 2, gib), 1)
	h.Name = "pve-1"
	p := planner.New(snapshot(h), nil)
	placed, _ := p.Place(specs)
	vm := asExisting(1, specs, placed)[0]
	before := p.Room()
	other, agent, away := vm, vm, vm
	other.MemoryMiB++
	agent.PinWith = fleet.PinWithHostAgent
	away.Host.Host = "pve-9"
	p.Remove(other, agent, away)
	if diff := cmp.Diff(before, p.Room()); diff != "" {
		t.Errorf("room after removing an unknown VM:\n%s", diff)
	}
	p.Remove(vm, vm)
	if diff := cmp.Diff(planner.New(snapshot(h), nil).Room(), p.Room()); diff != "" {
		t.Errorf("room after removing twice:\n%s", diff)
	}
}
