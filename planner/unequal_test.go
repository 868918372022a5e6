package planner_test

import (
	"testing"

	"github.com/numaform/numaform/fleet"
)

// TestUnequalCores checks that a VM gets whole cores that add up, although the L3 cache
// with the most CPUs has a core with an offline thread.
func TestUnequalCores(t *testing.T) {
	t.Parallel()
	m := machine(shape{nodes: 1, cores: 3, smt: 2, coresPerL3: 2, memory: 32 * gib})
	m.CPUs[0].Online = false
	got := placeOne(t, snapshot(host("pve-1", m)), nil, spec(fleet.PolicyDedicated, 4, gib))
	if want := "1-2,4-5"; got.CPUs.String() != want {
		t.Errorf("placed on CPUs %s, want %s: %s", got.CPUs, want, got.Reason)
	}
}
