package planner_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// halfUsed returns a host with four cores of threads n and n+4, and a guest pinned to pins.
func halfUsed(name string, pins ...int) topology.Host {
	h := host(name, machine(shape{nodes: 1, cores: 4, smt: 2, memory: 64 * gib}))
	h.Guests = []topology.Guest{{
		VMID: 1, Running: true, VCPUs: len(pins), MemoryMiB: gib, Pins: topology.CPUs(pins...),
	}}
	return h
}

// TestHalves checks that a VM for which whole cores do not suffice gets the remaining whole
// cores and threads of partially allocated ones, and that the reason reports this.
func TestHalves(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		host  topology.Host
		vcpus int
		want  string
		halve bool
	}{
		{halfUsed("pve-1", 0, 1, 2, 3), 2, "4-5", true},
		{halfUsed("pve-1", 0, 1, 2), 4, "3-5,7", true},
		{halfUsed("pve-1", 0, 1, 2), 5, "3-7", true},
		{halfUsed("pve-1", 0, 1, 2), 2, "3,7", false},
		{halfUsed("pve-1", 0, 1, 2), 3, "3-4,7", false},
	} {
		got := placeOne(t, snapshot(tt.host), nil, spec(fleet.PolicyDedicated, tt.vcpus, gib))
		if halve := strings.Contains(got.Reason, "enough whole cores"); got.CPUs.String() != tt.want || halve != tt.halve {
			t.Errorf("%d vCPUs beside %v: CPUs %s, want %s: %s", tt.vcpus, tt.host.Guests[0].Pins, got.CPUs, tt.want, got.Reason)
		}
	}
}

// TestHalvesLast checks that a host with whole cores is preferred, even if the cores are on
// two NUMA nodes, or become free only because another new VM moves.
func TestHalvesLast(t *testing.T) {
	t.Parallel()
	tiny, small := halfUsed("pve-1", 0, 1, 2, 3), host("pve-2", machine(shape{nodes: 2, cores: 1, smt: 2, memory: 8 * gib}))
	got := placeOne(t, snapshot(tiny, small), nil, spec(fleet.PolicyDedicated, 4, 3*gib, "pve-1", "pve-2"))
	if got.Host != small.ID() {
		t.Errorf("placed on %s: %s", got.Host, got.Reason)
	}
	one, two := halfUsed("pve-1", 0, 1, 2), halfUsed("pve-2", 0, 1, 2)
	two.MemoryMiB, two.NUMANodes[0].MemoryMiB = 4*gib, 4*gib
	specs := []fleet.Spec{
		spec(fleet.PolicyDedicated, 2, 2*gib, "pve-1", "pve-2"), spec(fleet.PolicyDedicated, 2, 8*gib, "pve-1", "pve-2"),
	}
	placed, unplaced := place(t, snapshot(one, two), nil, specs...)
	for _, p := range placed {
		if strings.Contains(p.Reason, "enough whole cores") || len(unplaced) > 0 {
			t.Errorf("placed on %s: %s", p.Host, p.Reason)
		}
	}
}

// TestHalvesOnOneNode checks that a VM uses partially allocated cores rather than two NUMA
// nodes, unless it requires whole cores, or another host has enough whole cores on one
// node.
func TestHalvesOnOneNode(t *testing.T) {
	t.Parallel()
	broken := host("pve-1", machine(shape{nodes: 2, cores: 3, smt: 2, memory: 8 * gib})) // siblings are n and n+6
	broken.Guests = []topology.Guest{{VMID: 1, Running: true, VCPUs: 4, MemoryMiB: gib, Pins: topology.CPUs(0, 1, 3, 4)}}
	whole := host("pve-2", machine(shape{nodes: 1, cores: 2, smt: 2, memory: 8 * gib}))
	for _, tt := range []struct {
		require bool
		hosts   []string
		want    string
	}{
		{false, []string{"pve-1"}, "pve-1 2,6-8"},
		{true, []string{"pve-1"}, "pve-1 2,5,8,11"},
		{false, []string{"pve-1", "pve-2"}, "pve-2 0-3"},
	} {
		s := spec(fleet.PolicyDedicated, 4, gib, tt.hosts...)
		s.WholeCores = tt.require
		got := placeOne(t, snapshot(broken, whole), nil, s)
		halves := tt.want == "pve-1 2,6-8"
		if where := fmt.Sprintf("%s %s", got.Host.Host, got.CPUs); where != tt.want ||
			halves != strings.Contains(got.Reason, "as no NUMA node had enough whole cores and memory free") || halves && len(got.Cells) != 1 {
			t.Errorf("%+v: %s, %d cells: %s", tt, where, len(got.Cells), got.Reason)
		}
	}
}

// TestWholeCores checks that a VM which requires whole cores is refused if no whole core is
// free, as an isolated VM is, and that each refusal has its own hint.
func TestWholeCores(t *testing.T) {
	t.Parallel()
	required := spec(fleet.PolicyDedicated, 2, gib)
	required.WholeCores = true
	for fix, s := range map[string]fleet.Spec{
		"or set wholeCores: Prefer in the ProxmoxNodeClass":                        required,
		"has no NUMA node with both a free whole core and free memory: add a host": spec(fleet.PolicyIsolated, 2, gib),
	} {
		_, unplaced := place(t, snapshot(halfUsed("pve-1", 0, 1, 2, 3)), nil, s)
		if len(unplaced) != 1 || !strings.HasSuffix(unplaced[0].Reason, fix) {
			t.Errorf("%s: unplaced %+v, want a reason with %q", s.Policy, unplaced, fix)
		}
	}
}
