package planner_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// Each test here reproduces a mistake of another placer, on a machine where it happens.

// TestLargerThanANode checks that a VM larger than one NUMA node's memory spans nodes, and
// that its cells add up to its memory: a VM with all of its memory in each cell could not
// start.
func TestLargerThanANode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		machine string
		vcpus   int
		memory  int64
		nodes   int
	}{
		{"xeon-4108-2s-smt", 8, 60 * gib, 2},
		{"opteron-48c-8node-sparse", 6, 20 * gib, 2},
		{"opteron-48c-8node-sparse", 24, 60 * gib, 4},
		{"xeon-6230-2s-snc2", 40, 300 * gib, 2},
	}
	for _, tt := range tests {
		for _, policy := range []fleet.Policy{fleet.PolicyDedicated, fleet.PolicyNUMA} {
			snap := snapshot(host("pve-1", known(t, tt.machine)))
			got := placeOne(t, snap, nil, spec(policy, tt.vcpus, tt.memory))
			if len(got.Cells) > tt.nodes || len(got.Cells) < 2 && policy == fleet.PolicyDedicated {
				t.Errorf("%s: %d vCPUs and %d MiB span %d nodes, want %d", tt.machine, tt.vcpus, tt.memory, len(got.Cells), tt.nodes)
			}
		}
	}
}

// TestAlternatingNumbers checks that a small VM stays within one NUMA node even if CPU ids
// alternate between the nodes.
func TestAlternatingNumbers(t *testing.T) {
	t.Parallel()
	two := machine(shape{nodes: 2, cores: 8, smt: 2, memory: 64 * gib, interleaved: true})
	for name, m := range map[string]topology.Machine{
		"even and odd": two, "xeon-e7-4870": known(t, "xeon-e7-4870-4s-pci"), "xeon-6230": known(t, "xeon-6230-2s-snc2"),
	} {
		got := placeOne(t, snapshot(host("pve-1", m)), nil, spec(fleet.PolicyDedicated, 4, 8*gib))
		if len(got.Cells) != 1 || len(got.L3) != 1 {
			t.Errorf("%s: 4 vCPUs on %d nodes, L3 %v: %s", name, len(got.Cells), got.L3, got.Reason)
		}
	}
}

// TestOverlappingPinsSurvive checks that a new VM gets none of the CPUs of an existing VM
// whose pins overlapped with a VM that has since been deleted.
func TestOverlappingPinsSurvive(t *testing.T) {
	t.Parallel()
	snap := snapshot(host("pve-1", machine(shape{nodes: 1, cores: 4, smt: 1, memory: 64 * gib})))
	stays := fleet.VM{Key: "b", VMID: 2, Spec: spec(fleet.PolicyDedicated, 3, gib), Placement: fleet.Placement{
		Host: snap.Hosts[0].ID(), CPUs: topology.CPUs(1, 2, 3), VCPUPins: []int{1, 2, 3},
	}}
	if got := placeOne(t, snap, []fleet.VM{stays}, spec(fleet.PolicyDedicated, 1, gib)); got.CPUs.String() != "0" {
		t.Errorf("got CPU %s, want 0, the only free one", got.CPUs)
	}
}

// TestOddSizes checks that VMs of odd sizes share no core while cores are plentiful, that
// VMs of even sizes share none while whole cores exist, and that the reason of a VM that
// shares a core reports it.
func TestOddSizes(t *testing.T) {
	t.Parallel()
	snap := snapshot(host("pve-1", machine(shape{nodes: 1, cores: 16, smt: 2, memory: 64 * gib})))
	specs := same(spec(fleet.PolicyDedicated, 3, gib), 2)
	placed, _ := place(t, snap, nil, specs...)
	if len(placed) != 2 || strings.Contains(placed[0].Reason+placed[1].Reason, "shares") {
		t.Fatalf("placed %+v, want two VMs on cores of their own", placed)
	}
	existing := asExisting(1, specs, placed)
	if third := placeOne(t, snap, existing, specs[0]); !strings.Contains(third.Reason, "shares the core of CPU") {
		t.Errorf("reason %q does not report that the core is shared", third.Reason)
	}
	if even := placeOne(t, snap, existing, spec(fleet.PolicyDedicated, 24, gib)); strings.Contains(even.Reason, "shares") {
		t.Errorf("an even size shares a core: %s", even.Reason)
	}
	even := spec(fleet.PolicyDedicated, 26, gib)
	even.WholeCores = true
	if _, unplaced := place(t, snap, existing, even); len(unplaced) != 1 {
		t.Error("an even size that requires whole cores shares some")
	}
}

// TestHybridGivesNoCPUTwice checks that no CPU is assigned twice on a hybrid machine. A
// placer that computes the threads per core by division gets 20 CPUs / 14 cores = 1 and
// assigns CPUs twice.
func TestHybridGivesNoCPUTwice(t *testing.T) {
	t.Parallel()
	snap := snapshot(host("pve-1", known(t, "hybrid-i7-1370p-6p8e")))
	for _, vcpus := range []int{1, 2, 3, 4, 5} {
		placed, unplaced := place(t, snap, nil, same(spec(fleet.PolicyDedicated, vcpus, gib), 20)...)
		if len(placed)*vcpus > 20 || len(placed) == 0 || len(placed)+len(unplaced) != 20 {
			t.Errorf("%d VMs with %d vCPUs on 20 CPUs", len(placed), vcpus)
		}
	}
}

// TestFloatingGuestsKeepTheirShare checks that a pinned VM leaves floating guests, which
// use all unpinned CPUs, as many CPUs as they have vCPUs.
func TestFloatingGuestsKeepTheirShare(t *testing.T) {
	t.Parallel()
	h := host("pve-1", machine(shape{nodes: 1, cores: 8, smt: 1, memory: 64 * gib}))
	h.Guests = []topology.Guest{
		{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: gib},
		{VMID: 101, Kind: topology.GuestContainer, Running: true, MemoryMiB: gib}, // no limit: counts as 1 vCPU
		{VMID: 102, Kind: topology.GuestVM, VCPUs: 4, MemoryMiB: gib},             // stopped
		{VMID: 103, Kind: topology.GuestVM, Template: true, VCPUs: 4, MemoryMiB: 60 * gib, Pins: topology.CPUs(0)},
	}
	p := planner.New(snapshot(h), nil)
	for vcpus, want := range map[int]bool{3: true, 4: false} {
		if got := p.Fits(spec(fleet.PolicyDedicated, vcpus, gib), h.ID()); got != want {
			t.Errorf("%d dedicated CPUs beside 5 floating vCPUs on 8: fits %v, want %v", vcpus, got, want)
		}
	}
}

// TestForeignGuestsBesideOurs checks that the overcommit of a pinned VM limits the density
// of unmanaged guests, which have no promise, beside VMs of ours that have one.
func TestForeignGuestsBesideOurs(t *testing.T) {
	t.Parallel()
	h := host("pve-1", machine(shape{nodes: 1, cores: 8, smt: 1, memory: 64 * gib}))
	h.Guests = []topology.Guest{{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: gib}}
	shared := spec(fleet.PolicyShared, 8, gib)
	shared.Overcommit = 4
	existing := asExisting(2000, []fleet.Spec{shared}, []planner.Placed{placeOne(t, snapshot(h), nil, shared)})
	p := planner.New(snapshot(h), existing)
	for _, tt := range []struct {
		overcommit float64
		room       int
	}{{1, 2}, {2, 4}, {4, 5}} { // CPUs needed: 8/4 + 4/overcommit, but at least 12/4
		s := spec(fleet.PolicyDedicated, tt.room, gib)
		s.Overcommit = tt.overcommit
		more := s
		more.VCPUs++
		if !p.Fits(s, h.ID()) || p.Fits(more, h.ID()) {
			t.Errorf("overcommit %v: %d CPUs fit %v, one more %v", tt.overcommit, tt.room, p.Fits(s, h.ID()), p.Fits(more, h.ID()))
		}
	}
}

// TestVMsInTheMakingCount checks that VMs in creation use resources: our VMs that Proxmox
// does not list yet, and stopped VMs that another client is cloning or creating.
func TestVMsInTheMakingCount(t *testing.T) {
	t.Parallel()
	h := host("pve-1", machine(shape{nodes: 1, cores: 8, smt: 1, memory: 64 * gib}))
	h.Guests = []topology.Guest{
		{VMID: 7, Kind: topology.GuestVM, VCPUs: 2, MemoryMiB: gib, Pins: topology.CPUs(0, 1), Lock: "clone"},
		{VMID: 8, Kind: topology.GuestVM, VCPUs: 1, MemoryMiB: gib, ClusterID: "other", Key: "k"},
		{VMID: 9, Kind: topology.GuestVM, VCPUs: 1, MemoryMiB: gib, Lock: "create"},
	}
	snap := snapshot(h)
	specs := []fleet.Spec{spec(fleet.PolicyDedicated, 2, gib)}
	placed, _ := place(t, snap, nil, specs...)
	if placed[0].CPUs.String() != "2-3" {
		t.Errorf("first VM got CPUs %s, want 2-3", placed[0].CPUs)
	}
	existing := asExisting(2000, specs, placed)
	if p := planner.New(snap, existing); !p.Fits(specs[0], h.ID()) || p.Fits(spec(fleet.PolicyDedicated, 3, gib), h.ID()) {
		t.Error("of 8 CPUs 4 are pinned and 2 vCPUs float: want room for 2 exactly")
	}
}

// TestSplitRatherThanRefuse checks that a VM is split if it fits an empty NUMA node but no
// node as it is now.
func TestSplitRatherThanRefuse(t *testing.T) {
	t.Parallel()
	snap := snapshot(host("pve-1", machine(shape{nodes: 2, cores: 8, smt: 1, memory: 64 * gib})))
	specs := same(spec(fleet.PolicyDedicated, 5, gib), 2)
	placed, _ := place(t, snap, nil, specs...)
	got := placeOne(t, snap, asExisting(1, specs, placed), spec(fleet.PolicyDedicated, 6, gib))
	if len(got.Cells) != 2 || !strings.Contains(got.Reason, "minimum on an empty host: 1") {
		t.Errorf("%d cells: %s", len(got.Cells), got.Reason)
	}
}

// TestSiblingsAreNotGuessed checks that unknown siblings are not guessed: an Isolated VM is
// refused with a hint, the reason of a Dedicated VM reports the unknown siblings, and a
// host with known siblings is preferred.
func TestSiblingsAreNotGuessed(t *testing.T) {
	t.Parallel()
	unknown := host("pve-1", topology.FromCounts("Intel", 2, 16, 32, 64*gib))
	knows := host("pve-2", machine(shape{nodes: 2, cores: 4, smt: 2, memory: 32 * gib}))
	snap := snapshot(unknown, knows)
	got := placeOne(t, snap, nil, spec(fleet.PolicyDedicated, 4, gib))
	if !strings.Contains(got.Reason, "siblings unknown") || len(got.Cells) > 0 || got.L3 != nil {
		t.Errorf("got cells %v, L3 %v: %s", got.Cells, got.L3, got.Reason)
	}
	if _, unplaced := place(t, snap, nil, spec(fleet.PolicyIsolated, 4, gib)); len(unplaced) != 1 ||
		!strings.Contains(unplaced[0].Reason, "does not report which CPUs are siblings: install numaform-agent on the host") {
		t.Errorf("isolated: %+v", unplaced)
	}
	if got := placeOne(t, snap, nil, spec(fleet.PolicyDedicated, 4, gib, "pve-1", "pve-2")); got.Host != knows.ID() {
		t.Errorf("placed on %s, want the host with known siblings", got.Host)
	}
}

// TestCapacityRecordTakesNothing checks that the stopped VM in which
// karpenter-provider-proxmox describes a host takes no resources.
func TestCapacityRecordTakesNothing(t *testing.T) {
	t.Parallel()
	h := host("pve-1", machine(shape{nodes: 1, cores: 4, smt: 1, memory: 8 * gib}))
	h.Guests = []topology.Guest{{
		VMID: 1, Name: "node-capacity", Kind: topology.GuestVM, Tags: []string{"karpenter"},
		VCPUs: 4, MemoryMiB: 8 * gib, Pins: topology.CPUs(0, 1, 2, 3),
	}}
	if !planner.New(snapshot(h), nil).Fits(spec(fleet.PolicyDedicated, 4, 8*gib), h.ID()) {
		t.Error("a stopped node-capacity VM blocks its host")
	}
}
