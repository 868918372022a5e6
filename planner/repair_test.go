package planner_test

import (
	"math/rand/v2"
	"testing"

	"github.com/numaform/numaform/fleet"
)

// TestSmallBatchesPackBest checks against an exhaustive search that as few VMs of a small
// batch as possible span both NUMA nodes of a host.
func TestSmallBatchesPackBest(t *testing.T) {
	t.Parallel()
	const cores = 12
	snap := snapshot(host("pve-1", machine(shape{nodes: 2, cores: cores, smt: 1, memory: 256 * gib})))
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var specs []fleet.Spec
		for left := 2 * cores; left > 0 && len(specs) < 12; {
			vcpus := min(left, 1+r.IntN(cores))
			left -= vcpus
			specs = append(specs, spec(fleet.PolicyDedicated, vcpus, gib))
		}
		placed, unplaced := place(t, snap, nil, specs...)
		cut := 0
		for _, p := range placed {
			cut += len(p.Cells) - 1
		}
		if want := fewestCut(specs, cores, cores); cut != want || len(unplaced) > 0 {
			t.Errorf("%v: %d of them cut up and %d unplaced, want %d and none", sizes(specs), cut, len(unplaced), want)
		}
	}
}

// fewestCut returns how many specs must span two nodes with a and b CPUs.
func fewestCut(specs []fleet.Spec, a, b int) int {
	if len(specs) == 0 {
		return 0
	}
	vcpus, rest := specs[0].VCPUs, specs[1:]
	best := 1 + fewestCut(rest, a, b)
	if vcpus <= a {
		best = min(best, fewestCut(rest, a-vcpus, b))
	}
	if vcpus <= b {
		best = min(best, fewestCut(rest, a, b-vcpus))
	}
	return best
}

// sizes returns the vCPUs of specs.
func sizes(specs []fleet.Spec) []int {
	list := make([]int, len(specs))
	for i := range specs {
		list[i] = specs[i].VCPUs
	}
	return list
}

// TestExchangeAcrossHosts checks that a VM that would be split takes the place of another
// new VM that can go elsewhere, but never of an existing VM.
func TestExchangeAcrossHosts(t *testing.T) {
	t.Parallel()
	one := host("pve-1", machine(shape{nodes: 1, cores: 6, smt: 1, memory: 64 * gib}))
	two := host("pve-2", machine(shape{nodes: 2, cores: 4, smt: 1, memory: 64 * gib}))
	snap := snapshot(one, two)
	small, large := spec(fleet.PolicyDedicated, 4, 32*gib, "pve-1", "pve-2"), spec(fleet.PolicyDedicated, 3, 16*gib, "pve-1")
	placed, unplaced := place(t, snap, nil, small, large)
	if len(unplaced) > 0 || placed[0].Host != two.ID() || placed[1].Host != one.ID() {
		t.Errorf("placed %+v, unplaced %+v", placed, unplaced)
	}
	existing := asExisting(2000, []fleet.Spec{small}, placed[:1])
	existing[0].Host = one.ID()
	existing[0].Cells = nil
	if _, unplaced := place(t, snap, existing, large); len(unplaced) != 1 {
		t.Error("an existing VM moved")
	}
}
