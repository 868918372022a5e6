package planner_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// TestView checks that a View agrees with Fits and refusals, by policy, host and NUMA node.
func TestView(t *testing.T) {
	t.Parallel()
	big := topology.Host{Region: "r1", Name: "pve-1", Online: true, Machine: machine(shape{nodes: 2, cores: 4, smt: 2, memory: 16 * gib})}
	big.ReservedCPUs = topology.CPUs(0)
	big.Guests = []topology.Guest{
		{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: 3, MemoryMiB: 2 * gib},
		{VMID: 101, Kind: topology.GuestVM, Running: true, VCPUs: 1, MemoryMiB: 2 * gib, Pins: topology.CPUs(1)},
	}
	vcpus := func(n int) *int { return &n }
	tests := []struct {
		name string
		spec fleet.Spec
		want planner.View
	}{
		{"shared", spec(fleet.PolicyShared, 4, gib), planner.View{Fits: true, VCPUs: 11}},
		{
			"numa", spec(fleet.PolicyNUMA, 4, 30*gib),
			planner.View{Lacks: "has 28 GiB free", Fix: "add a host, lower the memory requests of the pods, or allow smaller instance types in the NodePool", VCPUs: 11, Nodes: []planner.NodeView{{VCPUs: vcpus(6)}, {VCPUs: vcpus(8)}}},
		},
		{"dedicated", spec(fleet.PolicyDedicated, 4, gib), planner.View{Fits: true, VCPUs: 11, Nodes: []planner.NodeView{{VCPUs: vcpus(4)}, {VCPUs: vcpus(8)}}}},
		{
			"isolated", spec(fleet.PolicyIsolated, 7, gib),
			planner.View{Lacks: "has room for 4 vCPUs and 14 GiB on NUMA node 1; 2 NUMA nodes together have room for 6 vCPUs and 28 GiB", Fix: "add a host, lower the CPU requests of the pods, or allow smaller instance types in the NodePool", VCPUs: 11, Nodes: []planner.NodeView{{VCPUs: vcpus(2)}, {VCPUs: vcpus(4)}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := tt.want
			want.CPUs, want.Reserved, want.Taken, want.Floating, want.MemoryMiB, want.FreeMiB = 16, 1, 1, 3, 32*gib, 28*gib
			nodes := want.Nodes
			want.Nodes = []planner.NodeView{
				{NUMANode: 0, CPUs: 7, Taken: 1, MemoryMiB: 16 * gib, FreeMiB: 14 * gib}, {NUMANode: 1, CPUs: 8, MemoryMiB: 16 * gib, FreeMiB: 14 * gib},
			}
			for i := range nodes {
				want.Nodes[i].VCPUs = nodes[i].VCPUs
			}
			p := planner.New(snapshot(big), nil)
			got := p.View(tt.spec, big.ID())
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("view differs:\n%s", diff)
			}
			tt.spec.Hosts = []topology.HostID{big.ID()}
			if fits := p.Fits(tt.spec, big.ID()); fits != got.Fits {
				t.Errorf("fits is %v, the view has %v", fits, got.Fits)
			}
			if _, unplaced := p.Place([]fleet.Spec{tt.spec}); len(unplaced) > 0 && !strings.Contains(unplaced[0].Reason, got.Lacks+": "+got.Fix) {
				t.Errorf("refused as %q, the view has %q: %q", unplaced[0].Reason, got.Lacks, got.Fix)
			}
		})
	}
}

func TestViewOfHostsThatTakeNothing(t *testing.T) {
	t.Parallel()
	down := twoNodes()
	down.Online = false
	p := planner.New(snapshot(down), nil)
	if v := p.View(spec(fleet.PolicyShared, 1, gib), down.ID()); v.Fits || v.Lacks != "is unavailable: offline" {
		t.Errorf("a host that is down has the view %+v", v)
	}
	if v := p.View(spec("Greedy", 1, gib), down.ID()); v.Fits || !strings.Contains(v.Lacks, "unknown") {
		t.Errorf("an unknown policy has the view %+v", v)
	}
	if v := p.View(spec(fleet.PolicyShared, 1, gib), topology.HostID{Region: "r1", Host: "pve-9"}); v.Fits || v.Lacks != "is unknown" {
		t.Errorf("an unknown host has the view %+v", v)
	}
}
