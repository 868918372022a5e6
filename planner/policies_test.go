package planner_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// twoNodes returns a host with 2 NUMA nodes of 4 cores with 2 threads and 32 GiB each: node
// 0 has CPUs 0-3 and 8-11, node 1 has 4-7 and 12-15.
func twoNodes() topology.Host {
	return host("pve-1", machine(shape{nodes: 2, cores: 4, smt: 2, memory: 32 * gib}))
}

func cell(cpus []int, node int, memory int64) topology.NUMACell {
	return topology.NUMACell{
		GuestCPUs: topology.CPUs(cpus...), HostNodes: topology.CPUs(node), MemoryMiB: memory, Policy: topology.NUMABind,
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		spec fleet.Spec
		want fleet.Placement
	}{
		{"shared", spec(fleet.PolicyShared, 4, 8*gib), fleet.Placement{
			Reason: "runs on 16 shared CPUs; leaves room for 12 vCPUs, 56 GiB; LeastAllocated: 25 % of the host's CPUs and 12 % of its memory allocated",
		}},
		{"numa", spec(fleet.PolicyNUMA, 4, 8*gib), fleet.Placement{
			Cells:  []topology.NUMACell{cell([]int{0, 1, 2, 3}, 0, 8*gib)},
			Reason: "NUMA 0: memory bound, 4 vCPUs floating, 1 NUMA node (the minimum); leaves 8 CPUs, 24 GiB",
		}},
		{"numa on two nodes", spec(fleet.PolicyNUMA, 4, 40*gib), fleet.Placement{
			Cells:  []topology.NUMACell{cell([]int{0, 1}, 0, 20*gib), cell([]int{2, 3}, 1, 20*gib)},
			Reason: "NUMA 0+1: memory bound, 4 vCPUs floating, 2 NUMA nodes (the minimum); leaves 16 CPUs, 24 GiB",
		}},
		{"dedicated", spec(fleet.PolicyDedicated, 4, 8*gib), fleet.Placement{
			VCPUPins: []int{0, 8, 1, 9}, L3: []int{0},
			Cells:  []topology.NUMACell{cell([]int{0, 1, 2, 3}, 0, 8*gib)},
			Reason: "NUMA 0, L3 0: 2 whole cores, 1 NUMA node (the minimum); leaves 4 CPUs, 24 GiB",
		}},
		{"dedicated, odd", spec(fleet.PolicyDedicated, 3, 8*gib), fleet.Placement{
			VCPUPins: []int{0, 8, 1}, L3: []int{0},
			Cells:  []topology.NUMACell{cell([]int{0, 1, 2}, 0, 8*gib)},
			Reason: "NUMA 0, L3 0: 1 whole core and 1 odd thread, 1 NUMA node (the minimum); leaves 5 CPUs, 24 GiB",
		}},
		{"dedicated, odd, on two nodes", spec(fleet.PolicyDedicated, 11, 11*gib), fleet.Placement{
			VCPUPins: []int{0, 8, 1, 9, 2, 10, 4, 12, 5, 13, 6}, L3: []int{0, 1},
			Cells:  []topology.NUMACell{cell([]int{0, 1, 2, 3, 4, 5}, 0, 6*gib), cell([]int{6, 7, 8, 9, 10}, 1, 5*gib)},
			Reason: "NUMA 0+1, L3 0+1: 5 whole cores and 1 odd thread, 2 NUMA nodes (the minimum); leaves 5 CPUs, 53 GiB",
		}},
		{"isolated", spec(fleet.PolicyIsolated, 3, 8*gib), fleet.Placement{
			VCPUPins: []int{0, 1, 2}, L3: []int{0},
			Cells:  []topology.NUMACell{cell([]int{0, 1, 2}, 0, 8*gib)},
			Reason: "NUMA 0, L3 0: one thread of 3 whole cores, 1 NUMA node (the minimum); leaves 2 CPUs, 24 GiB",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.want.Host = topology.HostID{Region: "r1", Host: "pve-1"}
			tt.want.CPUs = topology.CPUs(tt.want.VCPUPins...)
			got := placeOne(t, snapshot(twoNodes()), nil, tt.spec)
			if diff := cmp.Diff(tt.want, got.Placement, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("placement (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExistingTakeTheirPlace checks the free capacity of twoNodes next to one existing VM.
func TestExistingTakeTheirPlace(t *testing.T) {
	t.Parallel()
	half := spec(fleet.PolicyShared, 8, gib)
	half.Overcommit = 0.5
	dense := spec(fleet.PolicyShared, 16, gib)
	dense.Overcommit = 4
	loose := spec(fleet.PolicyDedicated, 8, gib)
	loose.Overcommit = 2
	tests := []struct {
		name     string
		existing fleet.Spec
		next     fleet.Spec
		fits     bool
	}{
		{"isolated blocks siblings for dedicated", spec(fleet.PolicyIsolated, 4, gib), spec(fleet.PolicyDedicated, 9, gib), false},
		{"isolated leaves the rest", spec(fleet.PolicyIsolated, 4, gib), spec(fleet.PolicyDedicated, 8, gib), true},
		{"isolated blocks siblings for shared", spec(fleet.PolicyIsolated, 4, gib), spec(fleet.PolicyShared, 9, gib), false},
		{"dedicated beside shared", spec(fleet.PolicyShared, 8, gib), spec(fleet.PolicyDedicated, 8, gib), true},
		{"dedicated squeezes shared", spec(fleet.PolicyShared, 9, gib), spec(fleet.PolicyDedicated, 8, gib), false},
		{"own overcommit does not squeeze others", spec(fleet.PolicyShared, 9, gib), loose, false},
		{"dedicated beside dense shared", dense, spec(fleet.PolicyDedicated, 12, gib), true},
		{"dedicated squeezes dense shared", dense, spec(fleet.PolicyDedicated, 13, gib), false},
		{"isolated squeezes shared", spec(fleet.PolicyShared, 9, gib), spec(fleet.PolicyIsolated, 4, gib), false},
		{"strict ratio holds for the VM that has it", half, spec(fleet.PolicyShared, 1, gib), false},
		{"numa counts as floating", spec(fleet.PolicyNUMA, 8, gib), spec(fleet.PolicyDedicated, 9, gib), false},
		{"memory of the host", spec(fleet.PolicyShared, 1, 60*gib), spec(fleet.PolicyShared, 1, 5*gib), false},
		{"floating memory is on every node", spec(fleet.PolicyShared, 1, 40*gib), spec(fleet.PolicyNUMA, 1, 13*gib), false},
		{"the remaining memory can be bound", spec(fleet.PolicyShared, 1, 40*gib), spec(fleet.PolicyDedicated, 2, 12*gib), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			snap := snapshot(twoNodes())
			one := placeOne(t, snap, nil, tt.existing)
			existing := asExisting(2000, []fleet.Spec{tt.existing}, []planner.Placed{one})
			if got := planner.New(snap, existing).Fits(tt.next, one.Host); got != tt.fits {
				t.Errorf("fits %v, want %v", got, tt.fits)
			}
			snap.Hosts[0].Guests = []topology.Guest{guestOf(existing[0])}
			if got := planner.New(snap, existing).Fits(tt.next, one.Host); got != tt.fits {
				t.Errorf("while it runs: fits %v, want %v", got, tt.fits)
			}
		})
	}
}

// TestLiveAndPlanned checks that an existing VM takes both its planned and its live pins,
// and that a guest with another key is an unrelated guest.
func TestLiveAndPlanned(t *testing.T) {
	t.Parallel()
	snap := snapshot(host("pve-1", machine(shape{nodes: 1, cores: 8, smt: 1, memory: 64 * gib})))
	existing := fleet.VM{Key: "a", VMID: 5, Spec: spec(fleet.PolicyDedicated, 2, 4*gib), Placement: fleet.Placement{
		Host: snap.Hosts[0].ID(), CPUs: topology.CPUs(0, 1), VCPUPins: []int{0, 1},
	}}
	live := guestOf(existing)
	live.Pins = topology.CPUs(1, 2)
	other := live
	other.Key = "b"
	floats := live
	floats.Pins = topology.CPUSet{}
	tests := []struct {
		name   string
		guest  topology.Guest
		free   int
		memory int64
	}{
		{"union of pins, memory once", live, 5, 60 * gib},
		{"another key is another guest", other, 5, 56 * gib},
		{"pins not in force yet", floats, 6, 60 * gib},
	}
	for _, tt := range tests {
		snap.Hosts[0].Guests = []topology.Guest{tt.guest}
		p := planner.New(snap, []fleet.VM{existing})
		for extra, want := range map[int]bool{0: true, 1: false} {
			s := spec(fleet.PolicyDedicated, tt.free+extra, gib)
			if got := p.Fits(s, existing.Host); got != want {
				t.Errorf("%s: %d CPUs fit: %v, want %v", tt.name, s.VCPUs, got, want)
			}
			s = spec(fleet.PolicyDedicated, 1, tt.memory+int64(extra))
			if got := p.Fits(s, existing.Host); got != want {
				t.Errorf("%s: %d MiB fit: %v, want %v", tt.name, s.MemoryMiB, got, want)
			}
		}
	}
}

// TestBoundMemory checks how the memory of existing guests is distributed over the nodes.
func TestBoundMemory(t *testing.T) {
	t.Parallel()
	guest := func(memory int64, cells ...topology.NUMACell) topology.Guest {
		return topology.Guest{VMID: 1, Kind: topology.GuestVM, Running: true, VCPUs: 1, MemoryMiB: memory, NUMA: cells}
	}
	both := cell([]int{0}, 0, 30*gib)
	both.HostNodes = topology.CPUs(0, 1)
	tests := []struct {
		name        string
		guest       topology.Guest
		node0, both int64 // the largest VM that fits one node, and both
	}{
		{"bound to node 1", guest(30*gib, cell([]int{0}, 1, 30*gib)), 32 * gib, 34 * gib},
		{"bound to both", guest(30*gib, both), 17 * gib, 34 * gib},
		{"floating: by size", guest(30 * gib), 17 * gib, 34 * gib},
		{"bound to node 1, the rest floating", guest(40*gib, cell([]int{0}, 1, 30*gib)), 24 * gib, 24 * gib},
	}
	for _, tt := range tests {
		h := twoNodes()
		h.Guests = []topology.Guest{tt.guest}
		p := planner.New(snapshot(h), nil)
		for extra, want := range map[int64]bool{0: true, 1: false} {
			if got := p.Fits(spec(fleet.PolicyNUMA, 1, tt.node0+extra), h.ID()); got != want {
				t.Errorf("%s: 1 vCPU with %d MiB fits: %v, want %v", tt.name, tt.node0+extra, got, want)
			}
			if got := p.Fits(spec(fleet.PolicyDedicated, 8, tt.both+extra), h.ID()); got != want {
				t.Errorf("%s: 8 vCPUs with %d MiB fit: %v, want %v", tt.name, tt.both+extra, got, want)
			}
		}
	}
}

// TestFloatingMemorySpills checks that floating memory beyond its share of a full node is
// distributed over the other nodes.
func TestFloatingMemorySpills(t *testing.T) {
	t.Parallel()
	h := host("pve-1", machine(shape{nodes: 3, cores: 2, smt: 1, memory: 32 * gib}))
	h.Guests = []topology.Guest{
		{VMID: 1, Running: true, MemoryMiB: 31 * gib, NUMA: []topology.NUMACell{cell([]int{0}, 2, 31*gib)}},
		{VMID: 2, Running: true, MemoryMiB: 30 * gib}, // 10 on each node; node 2 has only 1 free
	}
	p := planner.New(snapshot(h), nil)
	const free = 22*gib - 9*gib/2
	for memory, want := range map[int64]bool{free: true, free + 1: false} {
		if got := p.Fits(spec(fleet.PolicyNUMA, 1, memory), h.ID()); got != want {
			t.Errorf("%d MiB on one node fit: %v, want %v", memory, got, want)
		}
	}
}

// TestRemoteMemory checks a pinned VM whose memory does not fit the nodes of its CPUs: one
// cell uses equal parts of several nodes; if that fails too, the VM has no cells. The
// reason reports both, and a host where one node has all of the memory is preferred.
func TestRemoteMemory(t *testing.T) {
	t.Parallel()
	large := twoNodes()
	large.Name, large.MemoryMiB = "pve-2", 128*gib
	for i := range large.NUMANodes {
		large.NUMANodes[i].MemoryMiB = 64 * gib
	}
	uneven := twoNodes()
	uneven.Guests = []topology.Guest{{VMID: 1, Running: true, MemoryMiB: 30 * gib, NUMA: []topology.NUMACell{cell([]int{0}, 1, 30*gib)}}}
	for _, policy := range []fleet.Policy{fleet.PolicyDedicated, fleet.PolicyIsolated} {
		s := spec(policy, 1, 33*gib)
		got := placeOne(t, snapshot(twoNodes()), nil, s)
		if len(got.Cells) != 1 || got.Cells[0].HostNodes.String() != "0-1" || !strings.Contains(got.Reason, "memory in equal parts from 2 NUMA nodes") {
			t.Errorf("%s: cells %+v: %s", policy, got.Cells, got.Reason)
		}
		got = placeOne(t, snapshot(uneven), nil, s)
		if got.Cells != nil || len(got.VCPUPins) != 1 || !strings.Contains(got.Reason, "memory not bound to a NUMA node because none has room") {
			t.Errorf("%s: cells %+v: %s", policy, got.Cells, got.Reason)
		}
		s.Hosts = append(s.Hosts, large.ID())
		got = placeOne(t, snapshot(twoNodes(), large), nil, s)
		if got.Host != large.ID() || len(got.Cells) != 1 || got.Cells[0].HostNodes.Size() != 1 {
			t.Errorf("%s on %s: cells %+v, want one on pve-2", policy, got.Host, got.Cells)
		}
	}
}

// TestCPUsTogether checks that a VM keeps its CPUs on one L3 cache if only its memory must
// be divided, and gets memory of the nearest NUMA node that has enough. A VM that fits no
// empty NUMA node is divided as a whole.
func TestCPUsTogether(t *testing.T) {
	t.Parallel()
	h := host("pve-1", machine(shape{nodes: 3, cores: 4, smt: 1, memory: 20 * gib}))
	for i := range h.NUMANodes {
		h.NUMANodes[i].Distances = map[int]int{0: 20, 1: 30, 2: 20, i: 10}
		if i == 1 {
			h.NUMANodes[i].Distances = map[int]int{0: 30, 1: 10, 2: 30}
		}
		h.Guests = append(h.Guests, topology.Guest{
			VMID: i + 1, Running: true, MemoryMiB: 14 * gib, NUMA: []topology.NUMACell{cell([]int{0}, i, 14*gib)},
		})
	}
	got := placeOne(t, snapshot(h), nil, spec(fleet.PolicyDedicated, 4, 8*gib))
	if got.Cells[0].HostNodes.String() != "0,2" || len(got.L3) != 1 {
		t.Errorf("cells %+v, L3 %v, want the first of nodes 0 and 2, and one cache: %s", got.Cells, got.L3, got.Reason)
	}
	if policy := got.Cells[0].Policy; policy != topology.NUMAInterleave { // otherwise Linux fills one of them first
		t.Errorf("the cell is of policy %s, want interleave", policy)
	}
	h.Guests = nil
	got = placeOne(t, snapshot(h), nil, spec(fleet.PolicyDedicated, 4, 30*gib))
	if len(got.Cells) != 2 || len(got.L3) != 2 {
		t.Errorf("cells %+v, L3 %v, want two of each: %s", got.Cells, got.L3, got.Reason)
	}
}

// TestCutSparesRoom checks that a VM which fits no NUMA node uses capacity that is of
// little use to other VMs, on many NUMA nodes if necessary.
func TestCutSparesRoom(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		left []int64 // MiB that remain free of each node's 20 GiB
		want string
	}{
		{[]int64{3 * gib, 3 * gib, 3 * gib, 7 * gib, 7 * gib}, "0-2"},
		{[]int64{9 * gib / 4, 9 * gib / 4, 9 * gib / 4, 9 * gib / 4, 7 * gib, 7 * gib}, "0-3"},
	} {
		h := host("pve-1", machine(shape{nodes: len(test.left), cores: 4, smt: 1, memory: 20 * gib}))
		leave(&h, test.left...)
		got := placeOne(t, snapshot(h), nil, spec(fleet.PolicyDedicated, 4, 8*gib))
		if len(got.Cells) != 1 || got.Cells[0].HostNodes.String() != test.want || len(got.L3) != 1 {
			t.Errorf("%d MiB left: cells %+v, L3 %v, want one cell of nodes %s: %s", test.left, got.Cells, got.L3, test.want, got.Reason)
		}
	}
}

// leave adds a guest to each NUMA node of a host, so that left MiB of the node remain free.
func leave(h *topology.Host, left ...int64) {
	for i, mib := range left {
		used := h.NUMANodes[i].MemoryMiB - mib
		h.Guests = append(h.Guests, topology.Guest{
			VMID: i + 1, Running: true, MemoryMiB: used, NUMA: []topology.NUMACell{cell([]int{0}, i, used)},
		})
	}
}

// TestCutInCells checks how a VM is split: a cell for each node that gives both vCPUs and
// memory, and an interleaved one over the nodes that give only memory, with a vCPU in each
// cell and equal memory from each node of the interleaved one.
func TestCutInCells(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		left          []int64 // MiB that remain free of each node's 20 GiB
		vcpus, memory int
		want          []string // guest CPUs, nodes and MiB of each cell
	}{
		{"own and interleaved", []int64{5 * gib, 2 * gib, 2 * gib}, 4, 8 * gib, []string{"0-1 on 0-2: 5114", "2-3 on 0: 3078"}},
		{"one vCPU has one cell", []int64{gib, gib / 4, gib / 4, gib / 4, gib / 4, gib / 4, gib / 4, gib / 4}, 1, 2 * gib, []string{"0 on 0-7: 2048"}},
		{"two nodes", []int64{6 * gib, 6 * gib}, 4, 8 * gib, []string{"0-1 on 0-1: 5456", "2-3 on 0: 2736"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := host("pve-1", machine(shape{nodes: len(test.left), cores: 4, smt: 2, memory: 20 * gib}))
			leave(&h, test.left...)
			got := placeOne(t, snapshot(h), nil, spec(fleet.PolicyDedicated, test.vcpus, int64(test.memory)))
			var cells []string
			for _, c := range got.Cells {
				cells = append(cells, fmt.Sprintf("%s on %s: %d", c.GuestCPUs, c.HostNodes, c.MemoryMiB))
			}
			if diff := cmp.Diff(test.want, cells); diff != "" {
				t.Errorf("cells (-want +got):\n%s%s", diff, got.Reason)
			}
		})
	}
}

// TestCutKeepsCores checks that a split VM has the same guarantees as others: performance
// cores first, both threads of a core adjacent in one cell, and even cells if it is larger
// than a NUMA node, counted in cores for an isolated one.
func TestCutKeepsCores(t *testing.T) {
	t.Parallel()
	hybrid := host("pve-1", machine(shape{nodes: 3, cores: 8, smt: 1, memory: 20 * gib}))
	for i := range hybrid.CPUs {
		hybrid.CPUs[i].Kind = topology.KindPerformance
		if hybrid.CPUs[i].Core%8 > 3 {
			hybrid.CPUs[i].Kind = topology.KindEfficiency
		}
	}
	leave(&hybrid, 4*gib, 4*gib, 4*gib)
	if got := placeOne(t, snapshot(hybrid), nil, spec(fleet.PolicyDedicated, 4, 8*gib)); got.CPUs.String() != "0-3" || strings.Contains(got.Reason, "kinds") {
		t.Errorf("CPUs %s, want the performance cores 0-3: %s", got.CPUs, got.Reason)
	}

	for _, vcpus := range []int{2, 4, 6} {
		h := host("pve-1", machine(shape{nodes: 3, cores: 4, smt: 2, memory: 20 * gib}))
		leave(&h, 5*gib, 3*gib, 3*gib)
		got := placeOne(t, snapshot(h), nil, spec(fleet.PolicyDedicated, vcpus, 8*gib))
		for i := 0; i < vcpus; i += 2 {
			inOne := slices.ContainsFunc(got.Cells, func(c topology.NUMACell) bool { return c.GuestCPUs.Contains(i) && c.GuestCPUs.Contains(i+1) })
			if got.VCPUPins[i]+12 != got.VCPUPins[i+1] || !inOne {
				t.Errorf("%d vCPUs: pins %v, cells %+v, want vCPUs %d and %d on one core, in one cell", vcpus, got.VCPUPins, got.Cells, i, i+1)
			}
		}
	}

	large := host("pve-1", machine(shape{nodes: 4, cores: 8, smt: 2, memory: 64 * gib}))
	leave(&large, 64*gib-1, 64*gib-1, 3*gib, 3*gib)
	got := placeOne(t, snapshot(large), nil, spec(fleet.PolicyIsolated, 10, 40*gib))
	if len(got.Cells) != 2 || got.Cells[0].MemoryMiB != 20*gib || got.Cells[0].GuestCPUs.Size() != 5 {
		t.Errorf("cells %+v, want two of 5 vCPUs and 20 GiB", got.Cells)
	}
}

// TestNoSmallCells checks that no cell of several has less than 64 MiB, which the provider
// refuses: a node with less is not used, or the memory is not bound.
func TestNoSmallCells(t *testing.T) {
	t.Parallel()
	short := func(mib int64) topology.Host { // only mib MiB of node 1 are free
		h := twoNodes()
		leave(&h, 31*gib, mib)
		return h
	}
	busy := twoNodes() // one CPU of node 1 is free
	busy.Guests = []topology.Guest{{VMID: 1, Running: true, VCPUs: 7, MemoryMiB: gib, Pins: topology.CPUs(4, 5, 6, 7, 12, 13, 14)}}
	paged := busy
	paged.NUMANodes = slices.Clone(busy.NUMANodes)
	for i := range paged.NUMANodes {
		paged.NUMANodes[i].HugePages = map[int]int64{2048: 512}
	}
	scraps := host("pve-1", machine(shape{nodes: 2, cores: 4, smt: 1, memory: 20 * gib}))
	leave(&scraps, 245, 24)
	inPages := spec(fleet.PolicyNUMA, 9, 256)
	inPages.HugePages = fleet.HugePages2Mi
	for _, test := range []struct {
		name string
		host topology.Host
		spec fleet.Spec
		want []int64 // MiB of each cell; nil if the VM is not placed
	}{
		{"63 MiB left", short(63), spec(fleet.PolicyNUMA, 12, 8*gib), nil},
		{"64 MiB left", short(64), spec(fleet.PolicyNUMA, 12, 8*gib), []int64{8*gib - 64, 64}},
		{"pinned", short(63), spec(fleet.PolicyDedicated, 12, 8*gib), []int64{}},
		{"split", scraps, spec(fleet.PolicyDedicated, 4, 256), []int64{}},
		{"few vCPUs on a node", busy, spec(fleet.PolicyNUMA, 9, 256), []int64{192, 64}},
		{"in huge pages", paged, inPages, []int64{192, 64}},
		{"too little for two cells", busy, spec(fleet.PolicyNUMA, 9, 127), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			placed, unplaced := place(t, snapshot(test.host), nil, test.spec)
			var got []int64
			for _, p := range placed {
				got = []int64{}
				for _, c := range p.Cells {
					got = append(got, c.MemoryMiB)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("MiB of the cells (-want +got):\n%s%+v", diff, unplaced)
			}
		})
	}
}

// TestMemoryOvercommit checks how many of ten VMs of 16 GiB a host with 64 GiB takes, beside
// another VM.
func TestMemoryOvercommit(t *testing.T) {
	t.Parallel()
	shared := func(memory int64, ratio float64) fleet.Spec {
		s := spec(fleet.PolicyShared, 1, memory)
		s.MemoryOvercommit = ratio
		return s
	}
	paged := spec(fleet.PolicyNUMA, 1, 8*gib)
	paged.HugePages = fleet.HugePages1Gi
	pinned := spec(fleet.PolicyDedicated, 1, 16*gib)
	pinned.MemoryOvercommit = 2 // has no effect
	tests := []struct {
		name   string
		beside []fleet.Spec
		vm     fleet.Spec
		host   func(*topology.Host)
		want   int
	}{
		{"off by default", nil, shared(16*gib, 0), nil, 4},
		{"one and a half", nil, shared(16*gib, 1.5), nil, 6},
		{"not quite", nil, shared(16*gib, 1.49), nil, 5},
		{"never pinned", nil, pinned, nil, 4},
		{"a higher ratio", []fleet.Spec{shared(16*gib, 2)}, shared(16*gib, 1.5), nil, 5},
		{"a lower ratio", []fleet.Spec{shared(16*gib, 1.25)}, shared(16*gib, 2), nil, 4},
		{"a VM that does not tolerate it", []fleet.Spec{shared(gib, 0)}, shared(16*gib, 2), nil, 3},
		{"a bound VM", []fleet.Spec{spec(fleet.PolicyNUMA, 1, gib)}, shared(16*gib, 2), nil, 3},
		{"a pinned VM", []fleet.Spec{spec(fleet.PolicyDedicated, 1, gib)}, shared(16*gib, 2), nil, 3},
		{"a pinned VM after it", []fleet.Spec{shared(60*gib, 2)}, spec(fleet.PolicyDedicated, 1, 8*gib), nil, 0},
		{"a VM in huge pages", []fleet.Spec{paged}, shared(16*gib, 1.5), func(h *topology.Host) { h.NUMANodes[0].HugePages = map[int]int64{1 << 20: 16} }, 4},
		{"reserved memory", nil, shared(16*gib, 2), func(h *topology.Host) { h.ReservedMemoryMiB = 16 * gib }, 6},
		{"a guest of others", nil, shared(16*gib, 1.5), func(h *topology.Host) {
			h.Guests = []topology.Guest{{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: 1, MemoryMiB: 20 * gib}}
		}, 4},
		{"larger than the host", nil, shared(65*gib, 2), nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := host("pve-1", machine(shape{nodes: 1, cores: 16, smt: 2, memory: 64 * gib}))
			if tt.host != nil {
				tt.host(&h)
			}
			snap := snapshot(h)
			var existing []fleet.VM
			if len(tt.beside) > 0 {
				placed, _ := place(t, snap, nil, tt.beside...)
				existing = asExisting(2000, tt.beside, placed)
			}
			placed, unplaced := place(t, snap, existing, same(tt.vm, 10)...)
			if len(placed) != tt.want {
				t.Errorf("placed %d, want %d: %v", len(placed), tt.want, unplaced)
			}
			used := int64(0)
			for _, g := range h.Guests {
				used += g.MemoryMiB
			}
			for i := range existing {
				if existing[i].HugePages == "" {
					used += existing[i].MemoryMiB
				}
			}
			reported := 0
			for _, p := range placed {
				reported += count(strings.Contains(p.Reason, "overcommits the memory of the host by"))
			}
			beyond := 0
			for range placed {
				used += tt.vm.MemoryMiB
				beyond += count(used > 64*gib-h.ReservedMemoryMiB-h.NUMANodes[0].HugePages[1<<20]*gib)
			}
			if reported != beyond {
				t.Errorf("%d placements report that memory is overcommitted, want %d: %v", reported, beyond, placed)
			}
		})
	}
}
