package planner_test

import (
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// TestCostOrder checks for several parts of the cost which place wins if all more
// significant parts are equal.
func TestCostOrder(t *testing.T) {
	t.Parallel()
	for _, tt := range contests(t) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := tt.spec
			s.Hosts = nil
			for i := range tt.hosts {
				s.Hosts = append(s.Hosts, tt.hosts[i].ID())
			}
			got := placeOne(t, snapshot(tt.hosts...), nil, s)
			if got.Host.Host != tt.host || got.CPUs.String() != tt.cpus {
				t.Errorf("placed on %s CPUs %s, want %s CPUs %s: %s", got.Host, got.CPUs, tt.host, tt.cpus, got.Reason)
			}
		})
	}
}

// contest is a VM, its possible hosts, and the place that it must get.
type contest struct {
	name  string
	hosts []topology.Host
	spec  fleet.Spec
	host  topology.HostName
	cpus  string
}

// contests returns contests for several parts of the cost.
func contests(t *testing.T) []contest {
	t.Helper()
	one := func(cores int, memory int64) topology.Machine {
		return machine(shape{nodes: 1, cores: cores, smt: 1, memory: memory})
	}
	quiet := topology.Guest{VMID: 1, Kind: topology.GuestVM, Running: true}
	busy := host("pve-1", one(8, 32*gib))
	busy.Guests = []topology.Guest{quiet}
	halfUsed := host("pve-1", machine(shape{nodes: 1, cores: 8, smt: 1, coresPerL3: 4, memory: 32 * gib}))
	halfUsed.ReservedCPUs = topology.CPUs(4, 5)
	// Node 0 of oneSlot is full, so using node 1 costs the host its largest slot.
	oneSlot := host("pve-1", machine(shape{nodes: 2, cores: 4, smt: 1, memory: 32 * gib}))
	oneSlot.Guests = []topology.Guest{{VMID: 1, Kind: topology.GuestVM, Running: true, VCPUs: 4, Pins: topology.CPUs(0, 1, 2, 3)}}
	twoSlots := host("pve-2", machine(shape{nodes: 2, cores: 4, smt: 1, memory: 32 * gib}))
	twoSlots.Guests = []topology.Guest{quiet, quiet} // more guests than oneSlot has
	far, near := distant(2, 40), distant(3, 11)
	return []contest{
		{"fewer nodes", []topology.Host{
			host("pve-1", machine(shape{nodes: 2, cores: 4, smt: 1, memory: 32 * gib})), host("pve-2", one(32, 256*gib)),
		}, spec(fleet.PolicyDedicated, 6, gib), "pve-2", "0-5"},
		{
			"fewer nodes though farther",
			[]topology.Host{host("pve-1", near), host("pve-2", far)},
			spec(fleet.PolicyDedicated, 6, 60*gib), "pve-2", "0-2,4-6",
		},
		{"fewer caches", []topology.Host{
			host("pve-1", machine(shape{nodes: 1, cores: 8, smt: 1, coresPerL3: 4, memory: 32 * gib})), host("pve-2", one(32, 256*gib)),
		}, spec(fleet.PolicyDedicated, 6, gib), "pve-2", "0-5"},
		{
			"performance cores first",
			[]topology.Host{host("pve-1", known(t, "hybrid-i7-1370p-6p8e"))},
			spec(fleet.PolicyDedicated, 2, gib), "pve-1", "0-1",
		},
		{
			"isolated on performance cores too",
			[]topology.Host{host("pve-1", known(t, "hybrid-i7-1370p-6p8e"))},
			spec(fleet.PolicyIsolated, 2, gib), "pve-1", "0,2",
		},
		{
			"efficiency cores when the others are too few",
			[]topology.Host{host("pve-1", known(t, "hybrid-i7-1370p-6p8e"))},
			spec(fleet.PolicyIsolated, 8, gib), "pve-1", "12-19",
		},
		{
			"kinds mixed when nothing else fits",
			[]topology.Host{host("pve-1", known(t, "hybrid-i7-1370p-6p8e"))},
			spec(fleet.PolicyDedicated, 14, gib), "pve-1", "0-13",
		},
		{"no partially allocated core", []topology.Host{
			host("pve-1", machine(shape{nodes: 1, cores: 4, smt: 2, memory: 32 * gib})), host("pve-2", one(32, 256*gib)),
		}, spec(fleet.PolicyDedicated, 3, gib), "pve-2", "0-2"},
		{"the smallest group", []topology.Host{halfUsed}, spec(fleet.PolicyDedicated, 2, gib), "pve-1", "6-7"},
		{
			"least left",
			[]topology.Host{host("pve-1", one(16, 32*gib)), host("pve-2", one(4, 32*gib))},
			spec(fleet.PolicyDedicated, 4, gib), "pve-2", "0-3",
		},
		{
			"least left of either",
			[]topology.Host{host("pve-1", one(8, 16*gib)), host("pve-2", one(4, 64*gib))},
			spec(fleet.PolicyDedicated, 4, 8*gib), "pve-2", "0-3",
		},
		{
			"largest slot existing",
			[]topology.Host{oneSlot, twoSlots},
			spec(fleet.PolicyDedicated, 4, gib), "pve-2", "0-3",
		},
		{
			"fewer guests",
			[]topology.Host{busy, host("pve-2", one(8, 32*gib))},
			spec(fleet.PolicyShared, 4, gib), "pve-2", "",
		},
		{
			"the first id",
			[]topology.Host{host("pve-1", one(8, 32*gib)), host("pve-2", one(8, 32*gib))},
			spec(fleet.PolicyDedicated, 4, gib), "pve-1", "0-3",
		},
	}
}

// distant returns a machine with nodes of 4 cores and 60 / nodes GiB, all at the same
// distance.
func distant(nodes, distance int) topology.Machine {
	m := machine(shape{nodes: nodes, cores: 4, smt: 1, memory: 60 * gib / int64(nodes)})
	for i := range m.NUMANodes {
		m.NUMANodes[i].Distances = map[int]int{}
		for j := range m.NUMANodes {
			m.NUMANodes[i].Distances[j] = distance
		}
	}
	return m
}

// TestJointly checks that a VM which fits on any host makes room for one that does not.
func TestJointly(t *testing.T) {
	t.Parallel()
	snap := snapshot(
		host("pve-1", machine(shape{nodes: 1, cores: 4, smt: 1, memory: 32 * gib})),
		host("pve-2", machine(shape{nodes: 1, cores: 8, smt: 1, memory: 64 * gib})),
	)
	specs := []fleet.Spec{
		spec(fleet.PolicyDedicated, 4, gib, "pve-1", "pve-2"),
		spec(fleet.PolicyDedicated, 2, gib, "pve-1"),
	}
	placed, unplaced := place(t, snap, nil, specs...)
	if len(unplaced) > 0 || placed[0].Host.Host != "pve-2" {
		t.Fatalf("placed %+v, unplaced %+v", placed, unplaced)
	}
	// Existing VMs do not move.
	first, _ := place(t, snap, nil, specs[0])
	if _, unplaced := place(t, snap, asExisting(1, specs[:1], first), specs[1]); len(unplaced) != 1 {
		t.Error("an existing VM moved")
	}
}

// TestHugePages checks that reserved huge pages are not available as ordinary memory.
func TestHugePages(t *testing.T) {
	t.Parallel()
	h := twoNodes()
	h.NUMANodes[0].HugePages = map[int]int64{2048: 8 * 1024} // 16 GiB
	p := planner.New(snapshot(h), nil)
	for memory, want := range map[int64]bool{48 * gib: true, 48*gib + 1: false} {
		if got := p.Fits(spec(fleet.PolicyShared, 1, memory), h.ID()); got != want {
			t.Errorf("%d MiB shared fit: %v, want %v", memory, got, want)
		}
	}
	specs := same(spec(fleet.PolicyNUMA, 1, 17*gib), 2)
	if placed, _ := place(t, snapshot(h), nil, specs...); len(placed) != 1 || placed[0].Cells[0].HostNodes.String() != "1" {
		t.Errorf("placed %+v, want one VM on NUMA node 1", placed)
	}
}

// TestAssumedMemory checks that the memory of a node is estimated from its CPUs if no
// source reports it, and that cells then prefer the node instead of binding memory to it.
func TestAssumedMemory(t *testing.T) {
	t.Parallel()
	m := machine(shape{nodes: 2, cores: 4, smt: 1, memory: topology.Unknown})
	m.MemoryMiB = 32 * gib
	snap := snapshot(host("pve-1", m))
	got := placeOne(t, snap, nil, spec(fleet.PolicyDedicated, 2, 16*gib))
	if len(got.Cells) != 1 || got.Cells[0].Policy != topology.NUMAPreferred {
		t.Errorf("cells %+v, want one that is preferred", got.Cells)
	}
	if got := placeOne(t, snap, nil, spec(fleet.PolicyDedicated, 2, 16*gib+1)); len(got.Cells) != 2 {
		t.Errorf("%d cells for more than a node is assumed to have", len(got.Cells))
	}
}

// TestManyNodes checks that a VM spans at most as many NUMA nodes as Proxmox has numaN
// options.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	snap := snapshot(host("pve-1", machine(shape{nodes: 10, cores: 1, smt: 1, memory: gib})))
	if got := placeOne(t, snap, nil, spec(fleet.PolicyDedicated, 8, gib)); len(got.Cells) != 8 {
		t.Errorf("%d cells, want 8", len(got.Cells))
	}
	if planner.New(snap, nil).Fits(spec(fleet.PolicyDedicated, 9, gib), snap.Hosts[0].ID()) {
		t.Error("a VM fits on 9 NUMA nodes")
	}
}

// TestReservedMemory checks that no VM gets memory reserved for the host.
func TestReservedMemory(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 2} {
		h := host("pve-1", machine(shape{nodes: nodes, cores: 4, smt: 1, memory: 32 * gib}))
		h.ReservedMemoryMiB = int64(nodes) * 2 * gib
		p := planner.New(snapshot(h), nil)
		for _, policy := range []fleet.Policy{fleet.PolicyShared, fleet.PolicyDedicated} {
			for extra, want := range map[int64]bool{0: true, 1: false} {
				s := spec(policy, 4, int64(nodes)*30*gib+extra)
				if got := p.Fits(s, h.ID()); got != want {
					t.Errorf("%d nodes, %s, %d MiB fit: %v, want %v", nodes, policy, s.MemoryMiB, got, want)
				}
			}
		}
	}
}

// TestSharesFollowCaches checks that a VM which must span NUMA nodes is divided to use few
// L3 caches: 8 vCPUs as 4 and 4 would use three here, and so would 7 and 1.
func TestSharesFollowCaches(t *testing.T) {
	t.Parallel()
	h := host("pve-1", machine(shape{nodes: 2, cores: 12, smt: 1, coresPerL3: 6, memory: 64 * gib}))
	taken := topology.CPUs(6, 7, 8, 9, 10, 12, 13, 14, 15, 18, 19, 20, 21)
	h.Guests = []topology.Guest{{VMID: 1, Running: true, VCPUs: taken.Size(), MemoryMiB: gib, Pins: taken}}
	got := placeOne(t, snapshot(h), nil, spec(fleet.PolicyDedicated, 8, 8*gib))
	if len(got.Cells) != 2 || len(got.L3) != 2 || got.Cells[0].GuestCPUs.Size() != 6 {
		t.Errorf("cells %+v, L3 %v, want 6 and 2 vCPUs on two caches", got.Cells, got.L3)
	}
}
