package planner_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
)

// TestStandbyUsesNothing checks that a standby VM uses resources only if it reserves them
// or has started, and that it starts only if they are free.
func TestStandbyUsesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := drawSnapshot(t, true)
		specs := drawSpecs(t, snap)
		placed, _ := planner.New(snap, nil).Place(specs)
		awake := asExisting(2000, specs, placed)
		idle := make([]fleet.VM, len(awake))
		copy(idle, awake)
		for i := range idle {
			idle[i].Standby = true
		}
		empty := planner.New(snap, nil).Room()
		for i := range idle {
			guest := guestOf(idle[i])
			guest.Running = false
			h := snap.Host(idle[i].Host)
			h.Guests = append(h.Guests, guest)
		}

		p := planner.New(snap, idle)
		if diff := cmp.Diff(empty, p.Room()); diff != "" {
			t.Fatalf("room (-without +with standby VMs):\n%s", diff)
		}
		for i := range idle {
			idle[i].Reserve = true
		}
		full := planner.New(snap, awake).Room()
		if diff := cmp.Diff(full, planner.New(snap, idle).Room()); diff != "" {
			t.Fatalf("room (-running +reserved):\n%s", diff)
		}

		for i := range awake {
			if !awake[i].Policy.Pinned() {
				continue
			}
			before := p.Clone()
			if !p.Start(awake[i]) {
				continue
			}
			if p.Start(awake[i]) {
				t.Fatalf("%s started twice on the same CPUs", awake[i].Name)
			}
			again := p.Clone()
			again.Remove(awake[i])
			if diff := cmp.Diff(before.Room(), again.Room()); diff != "" {
				t.Fatalf("room (-before +after starting and removing %s):\n%s", awake[i].Name, diff)
			}
		}
	})
}

// TestStandbyStarts checks that a VM of each policy starts on an empty host but not on a
// full one.
func TestStandbyStarts(t *testing.T) {
	t.Parallel()
	for _, policy := range []fleet.Policy{fleet.PolicyShared, fleet.PolicyNUMA, fleet.PolicyDedicated, fleet.PolicyIsolated} {
		h := twoNodes()
		specs := same(spec(policy, 2, gib), 1)
		placed, _ := planner.New(snapshot(h), nil).Place(specs)
		if len(placed) != 1 {
			t.Fatalf("%s: the VM has no place", policy)
		}
		vm := asExisting(2000, specs, placed)[0]
		p := planner.New(snapshot(h), nil)
		if !p.Start(vm) {
			t.Errorf("%s: the VM does not start on an empty host", policy)
		}
		for range 1000 {
			if filled, _ := p.Place(same(spec(policy, 1, gib), 1)); len(filled) == 0 {
				break
			}
		}
		other := vm
		other.VMID++
		other.Key += "x"
		if p.Start(other) {
			t.Errorf("%s: the VM starts on a full host", policy)
		}
	}
}
