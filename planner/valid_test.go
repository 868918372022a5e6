package planner_test

import (
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/test/startcheck"
	"github.com/numaform/numaform/topology"
)

// resident is an existing or newly placed VM with its place on a host.
type resident struct {
	spec  *fleet.Spec
	place *fleet.Placement
	fresh bool
}

// mustBeValid checks a batch against every hard rule, on all hosts.
func mustBeValid(t tb, snap *topology.Snapshot, existing []fleet.VM, specs []fleet.Spec, placed []planner.Placed) {
	t.Helper()
	for i := range snap.Hosts {
		h := &snap.Hosts[i]
		var here []resident
		for j := range existing {
			if existing[j].Host == h.ID() {
				here = append(here, resident{&existing[j].Spec, &existing[j].Placement, false})
			}
		}
		for j := range placed {
			if placed[j].Host == h.ID() {
				here = append(here, resident{&specs[placed[j].Index], &placed[j].Placement, true})
			}
		}
		mustStart(t, h, here, unmanaged(h, existing))
		for _, r := range here {
			if r.fresh {
				mustFollowPolicy(t, h, r)
			}
		}
		mustHaveHugePages(t, h, here, unmanaged(h, existing))
		mustOwnCores(t, h, here)
		mustNotSqueeze(t, h, here, unmanaged(h, existing))
		mustKeepCeiling(t, h, here)
		mustGetDevices(t, h, here, existing)
	}
}

// mustKeepCeiling checks that the host's agent allows the pins of all VMs on the host,
// counting siblings.
func mustKeepCeiling(t tb, h *topology.Host, here []resident) {
	t.Helper()
	pinned, fresh := topology.CPUSet{}, false
	for _, r := range here {
		if r.spec.PinWith == fleet.PinWithHostAgent {
			pinned, fresh = pinned.Union(r.place.CPUs), fresh || r.fresh
		}
	}
	if h.Agent == nil || !fresh {
		return
	}
	cores, whole, online := map[int]bool{}, 0, 0
	for _, c := range h.CPUs {
		cores[c.Core] = cores[c.Core] || c.Online && c.Core != topology.Unknown && pinned.Contains(c.ID)
	}
	for _, c := range h.CPUs {
		online += count(c.Online)
		whole += count(c.Online && (cores[c.Core] || pinned.Contains(c.ID)))
	}
	if whole*100 > online*h.Agent.MaxPinnedPercent || whole == online {
		t.Fatalf("%s: %d of %d CPUs are pinned, including siblings, want at most %d %%", h.ID(), whole, online, h.Agent.MaxPinnedPercent)
	}
}

// mustAccount checks that every spec has exactly one result, and a reason.
func mustAccount(t tb, specs []fleet.Spec, placed []planner.Placed, unplaced []planner.Unplaced) {
	t.Helper()
	var seen []int
	for _, p := range placed {
		seen = append(seen, p.Index)
		if p.Reason == "" || !slices.Contains(specs[p.Index].Hosts, p.Host) {
			t.Fatalf("spec %d: host %s, reason %q", p.Index, p.Host, p.Reason)
		}
	}
	for _, u := range unplaced {
		seen = append(seen, u.Index)
		if u.Reason == "" {
			t.Fatalf("spec %d is refused without a reason", u.Index)
		}
	}
	slices.Sort(seen)
	want := make([]int, len(specs))
	for i := range want {
		want[i] = i
	}
	if !slices.Equal(seen, want) {
		t.Fatalf("results for specs %v, want each of %d once", seen, len(specs))
	}
}

// unmanaged returns the guests of the host that use resources and are not in existing.
func unmanaged(h *topology.Host, existing []fleet.VM) []topology.Guest {
	var guests []topology.Guest
	for _, g := range h.Guests {
		ours := slices.ContainsFunc(existing, func(vm fleet.VM) bool {
			return vm.Host == h.ID() && int(vm.VMID) == g.VMID && string(vm.Key) == g.Key
		})
		if !ours && !g.Template && (g.Running || !g.Pins.IsEmpty()) {
			guests = append(guests, g)
		}
	}
	return guests
}

// mustStart checks with the independent package startcheck that all guests of a host can
// start.
func mustStart(t tb, h *topology.Host, here []resident, others []topology.Guest) {
	t.Helper()
	var guests []startcheck.Guest
	for i, r := range here {
		guests = append(guests, startcheck.Guest{
			VMID: i, Sockets: 1, Cores: r.spec.VCPUs, MemoryMiB: r.spec.MemoryMiB,
			NUMAEnabled: len(r.place.Cells) > 0, NUMA: cellMap(r.place.Cells), HugePagesMiB: r.spec.HugePages.MiB(),
			Affinity: r.place.CPUs, Pins: r.place.VCPUPins, Exclusive: r.spec.Policy.Pinned(),
		})
	}
	for i, g := range others {
		guests = append(guests, startcheck.Guest{
			VMID: 100 + i, Cores: g.VCPUs, MemoryMiB: max(1, g.MemoryMiB),
			NUMAEnabled: len(g.NUMA) > 0, NUMA: cellMap(g.NUMA), Affinity: g.Pins, Exclusive: !g.Pins.IsEmpty(),
			HugePagesMiB: pagesOf(g),
		})
	}
	if faults := startcheck.Check(overcommitted(h, here), guests); len(faults) > 0 {
		t.Fatalf("%s: %v", h.ID(), faults)
	}
}

// overcommitted returns the host with the memory that all VMs on it tolerate to be
// allocated. Only Shared VMs tolerate more than the host has, and huge pages are never
// overcommitted.
func overcommitted(h *topology.Host, here []resident) *topology.Host {
	ratio := 0.0
	for _, r := range here {
		tolerates := 1.0
		switch {
		case r.spec.HugePages != "":
			continue
		case r.spec.Policy == fleet.PolicyShared:
			tolerates = max(1, r.spec.MemoryOvercommit)
		}
		if ratio == 0 || tolerates < ratio {
			ratio = tolerates
		}
	}
	if ratio <= 1 {
		return h
	}
	huge := int64(0)
	for _, n := range h.NUMANodes {
		huge += n.HugePages[2048]*2 + n.HugePages[1<<20]*gib
	}
	more := *h
	more.MemoryMiB += int64((ratio - 1) * float64(max(0, h.MemoryMiB-h.ReservedMemoryMiB-huge)))
	return &more
}

// pagesOf returns the size of a guest's huge pages. Drawn guests that accept any are too
// small for 1 GiB pages.
func pagesOf(g topology.Guest) int64 {
	if g.HugePagesKiB == topology.Unknown {
		return 2
	}
	return int64(g.HugePagesKiB) >> 10
}

// mustHaveHugePages checks that new VMs use huge pages that are reserved and not used by
// others, on each NUMA node.
func mustHaveHugePages(t tb, h *topology.Host, here []resident, others []topology.Guest) {
	t.Helper()
	type pages struct {
		node int
		size int64
	}
	used, fresh := map[pages]int64{}, map[pages]bool{}
	for _, r := range here {
		for _, cell := range r.place.Cells {
			p := pages{cell.HostNodes.List()[0], r.spec.HugePages.MiB()}
			used[p] += cell.MemoryMiB
			fresh[p] = fresh[p] || r.fresh
		}
	}
	for _, g := range others {
		for _, cell := range g.NUMA {
			used[pages{cell.HostNodes.List()[0], pagesOf(g)}] += cell.MemoryMiB
		}
	}
	for p := range fresh {
		if p.size == 0 || !fresh[p] {
			continue
		}
		if has := nodeByID(h, p.node).HugePages[int(p.size)<<10] * p.size; used[p] > has {
			t.Fatalf("%s: %d MiB in huge pages of %d MiB on NUMA node %d, which has %d", h.ID(), used[p], p.size, p.node, has)
		}
	}
}

// cellMap returns the cells by their number.
func cellMap(cells []topology.NUMACell) map[int]topology.NUMACell {
	m := map[int]topology.NUMACell{}
	for i, c := range cells {
		m[i] = c
	}
	return m
}

// mustFollowPolicy checks the guarantees of a policy for a single VM.
func mustFollowPolicy(t tb, h *topology.Host, r resident) {
	t.Helper()
	want := 0
	if r.spec.Policy.Pinned() {
		want = r.spec.VCPUs
	}
	if r.place.CPUs.Size() != want || !r.place.CPUs.Equal(topology.CPUs(r.place.VCPUPins...)) {
		t.Fatalf("%s with %d vCPUs has CPUs %s and pins %v", r.spec.Policy, r.spec.VCPUs, r.place.CPUs, r.place.VCPUPins)
	}
	least, most := 0, 0
	if r.spec.Policy != fleet.PolicyShared && len(realNodes(h)) > 1 {
		least, most = 1, 8
	}
	if r.spec.Policy.Pinned() && strings.Contains(r.place.Reason, "memory not bound to a NUMA node because none has room") {
		least, most = 0, 0
	}
	if r.spec.HugePages != "" {
		least, most = 1, max(1, most)
	}
	if got := len(r.place.Cells); got < least || got > most {
		t.Fatalf("%s on %d NUMA nodes has %d cells", r.spec.Policy, len(h.NUMANodes), got)
	}
	mustBind(t, h, r)
	mustTellCaches(t, h, r)
}

// mustBind checks the cells' memory and policies: at most one cell is interleaved over several
// NUMA nodes, and the reason reports it.
func mustBind(t tb, h *topology.Host, r resident) {
	t.Helper()
	interleaved := 0
	for _, cell := range r.place.Cells {
		if len(r.place.Cells) > 1 && cell.MemoryMiB < 64 {
			t.Fatalf("cell %+v has less than 64 MiB, which the provider refuses", cell)
		}
		want := topology.NUMABind
		if r.spec.HugePages == "" && nodeByID(h, cell.HostNodes.List()[0]).MemoryMiB == topology.Unknown {
			want = topology.NUMAPreferred
		}
		if cell.Policy == topology.NUMAInterleave && cell.HostNodes.Size() > 1 {
			interleaved++
			continue
		}
		if cell.Policy != want || cell.HostNodes.Size() != 1 {
			t.Fatalf("cell %+v, want policy %s on one NUMA node", cell, want)
		}
	}
	all := !strings.Contains(r.place.Reason, "of the memory in equal parts from")
	if explained := strings.Contains(r.place.Reason, "memory in equal parts from"); interleaved > 1 || explained != (interleaved == 1) || explained && all != (len(r.place.Cells) == 1) {
		t.Fatalf("%d cells over several NUMA nodes of %d, reason %q", interleaved, len(r.place.Cells), r.place.Reason)
	}
}

// mustTellCaches checks that Placement.L3 lists the L3 caches of the VM's CPUs.
func mustTellCaches(t tb, h *topology.Host, r resident) {
	t.Helper()
	var ids []int
	for _, c := range h.CPUs {
		switch {
		case !r.place.CPUs.Contains(c.ID):
		case c.CacheLevel == 2:
			ids = append(ids, topology.Unknown)
		default:
			ids = append(ids, c.L3)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if slices.Contains(ids, topology.Unknown) {
		ids = nil
	}
	if diff := cmp.Diff(ids, r.place.L3); diff != "" {
		t.Fatalf("L3 of CPUs %s (-want +got):\n%s", r.place.CPUs, diff)
	}
}

// siblings returns the online CPUs of each known core.
func siblings(h *topology.Host) map[int][]int {
	cores := map[int][]int{}
	for _, c := range h.CPUs {
		if c.Online && c.Core != topology.Unknown {
			cores[c.Core] = append(cores[c.Core], c.ID)
		}
	}
	return cores
}

// mustOwnCores checks that cores are whole except for one per Dedicated VM, unless the
// reason explains it, that Isolated VMs leave siblings idle, and that VMs that share a core
// report it: see mustAdmitSharing.
func mustOwnCores(t tb, h *topology.Host, here []resident) {
	t.Helper()
	broken := make([]int, len(here))
	for core, cpus := range siblings(h) {
		var users []int
		for i, r := range here {
			got := r.place.CPUs.Intersection(topology.CPUs(cpus...)).Size()
			if got == 0 {
				continue
			}
			users = append(users, i)
			if r.spec.Policy == fleet.PolicyIsolated && got > 1 {
				t.Fatalf("isolated VM has %d threads of core %d", got, core)
			}
			if got < len(cpus) && r.spec.Policy == fleet.PolicyDedicated {
				broken[i]++
			}
		}
		mustAdmitSharing(t, here, users, core)
	}
	for i, n := range broken {
		if r := here[i]; n > 1 && (r.spec.WholeCores || !strings.Contains(r.place.Reason, "enough whole cores")) {
			t.Fatalf("dedicated VM on CPUs %s partially allocates %d cores", here[i].place.CPUs, n)
		}
	}
}

// mustAdmitSharing checks that no VM on a shared core is Isolated, and that at least all
// but one of them report the sharing.
func mustAdmitSharing(t tb, here []resident, users []int, core int) {
	t.Helper()
	if len(users) < 2 {
		return
	}
	admitted := 0
	for _, i := range users {
		if here[i].spec.Policy == fleet.PolicyIsolated {
			t.Fatalf("core %d of an isolated VM has %d users", core, len(users))
		}
		if strings.Contains(here[i].place.Reason, "shares the core") {
			admitted++
		}
	}
	if admitted < len(users)-1 {
		t.Fatalf("core %d has %d users, of which %d report it", core, len(users), admitted)
	}
}

// mustNotSqueeze checks the ratio of floating vCPUs to the remaining CPUs.
func mustNotSqueeze(t tb, h *topology.Host, here []resident, others []topology.Guest) {
	t.Helper()
	taken := h.ReservedCPUs
	floating, ratio, fresh := 0, 1e9, false
	for _, g := range others {
		taken = taken.Union(g.Pins)
		if g.Pins.IsEmpty() {
			floating += g.VCPUs
		}
	}
	for _, r := range here {
		taken = taken.Union(ownedBy(h, r))
		fresh = fresh || r.fresh
		if !r.spec.Policy.Pinned() {
			floating += r.spec.VCPUs
			ratio = min(ratio, promise(r.spec))
		}
	}
	left := h.OnlineCPUs().Difference(taken).Size()
	if fresh && ratio < 1e9 && float64(floating) > ratio*float64(left)+1e-6 {
		t.Fatalf("%s: %d vCPUs float over %d CPUs, promised ratio %v", h.ID(), floating, left, ratio)
	}
}

// promise returns the overcommit of a floating VM.
func promise(s *fleet.Spec) float64 {
	if s.Overcommit == 0 {
		return 1
	}
	return s.Overcommit
}

// ownedBy returns the CPUs that no other guest may use, including idle siblings.
func ownedBy(h *topology.Host, r resident) topology.CPUSet {
	owned := r.place.CPUs
	if r.spec.Policy != fleet.PolicyIsolated {
		return owned
	}
	for _, cpus := range siblings(h) {
		if set := topology.CPUs(cpus...); !set.Intersection(r.place.CPUs).IsEmpty() {
			owned = owned.Union(set)
		}
	}
	return owned
}

// realNodes lists the NUMA nodes that have CPUs or memory.
func realNodes(h *topology.Host) []int {
	var ids []int
	for _, n := range h.NUMANodes {
		has := slices.ContainsFunc(h.CPUs, func(c topology.CPU) bool { return c.Online && c.NUMANode == n.ID })
		if has || n.MemoryMiB != 0 {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// nodeByID returns a NUMA node of the host.
func nodeByID(h *topology.Host, id int) topology.NUMANode {
	return h.NUMANodes[slices.IndexFunc(h.NUMANodes, func(n topology.NUMANode) bool { return n.ID == id })]
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
