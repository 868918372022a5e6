package planner_test

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// drawMachine draws a machine, often an unusual one: with shuffled CPU ids, L3 caches across
// NUMA nodes, nodes without CPUs or memory, offline CPUs, 1, 2 or 4 threads per core, two or
// three kinds of core, or unknown siblings.
func drawMachine(t *rapid.T) topology.Machine {
	nodes := rapid.SampledFrom([]int{1, 1, 2, 2, 3, 4, 4, 8, 10, 16}).Draw(t, "nodes")
	cores := rapid.IntRange(1, 6).Draw(t, "cores per node")
	if rapid.IntRange(0, 19).Draw(t, "large if 0") == 0 {
		cores = 16 // up to 1,024 CPUs
	}
	smt := rapid.SampledFrom([]int{1, 2, 2, 4}).Draw(t, "threads per core")
	hybrid := rapid.Bool().Draw(t, "hybrid")
	unknown := rapid.IntRange(0, 5).Draw(t, "siblings unknown if 0") == 0
	l3 := rapid.SampledFrom([]string{"node", "two cores", "across nodes", "unknown"}).Draw(t, "l3")
	stride := rapid.SampledFrom([]int{1, 3}).Draw(t, "node id stride")
	var m topology.Machine
	for n := range nodes {
		for c := range cores {
			proto := topology.CPU{Online: true, NUMANode: n * stride, Core: n*cores + c, L3: drawL3(l3, n, c, cores)}
			threads := smt
			switch {
			case hybrid && c%4 == 3:
				proto.Kind, threads = topology.KindLowPower, 1
				proto.L3, proto.CacheLevel = 1000+n, 2
			case hybrid && c%2 == 1:
				proto.Kind, threads = topology.KindEfficiency, 1
			case hybrid:
				proto.Kind = topology.KindPerformance
			}
			if unknown {
				proto.Core = topology.Unknown
			}
			m.CPUs = append(m.CPUs, slices.Repeat([]topology.CPU{proto}, threads)...)
		}
		m.NUMANodes = append(m.NUMANodes, topology.NUMANode{ID: n * stride, MemoryMiB: drawNodeMemory(t)})
	}
	drawHugePages(t, &m)
	number(t, &m)
	finishMemory(t, &m, nodes*stride)
	return m
}

// drawL3 returns the L3 of a core.
func drawL3(mode string, node, core, cores int) int {
	switch mode {
	case "node":
		return node
	case "two cores":
		return node*cores + core/2
	case "across nodes":
		return node / 2
	}
	return topology.Unknown
}

// drawNodeMemory draws the memory of a NUMA node: equal, unequal, none or unknown.
func drawNodeMemory(t *rapid.T) int64 {
	return rapid.SampledFrom([]int64{32 * gib, 32 * gib, 32 * gib, 8 * gib, 0, topology.Unknown}).Draw(t, "node memory")
}

// drawHugePages reserves huge pages on the NUMA nodes of about a third of the machines.
func drawHugePages(t *rapid.T, m *topology.Machine) {
	if rapid.IntRange(0, 2).Draw(t, "huge pages if 0") > 0 {
		return
	}
	for i := range m.NUMANodes {
		n := &m.NUMANodes[i]
		kinds := []map[int]int64{nil, {2048: 1024}, {1 << 20: 3}, {2048: 512, 1 << 20: 2}}
		if n.MemoryMiB == 32*gib {
			kinds = append(kinds, map[int]int64{2048: 512, 1 << 20: 24}, map[int]int64{1 << 20: 32})
		}
		if n.MemoryMiB != 0 {
			n.HugePages = rapid.SampledFrom(kinds).Draw(t, "pages")
		}
	}
}

// number assigns CPU ids in some order, and takes some CPUs offline.
func number(t *rapid.T, m *topology.Machine) {
	ids := make([]int, len(m.CPUs))
	for i := range ids {
		ids[i] = i
	}
	if rapid.Bool().Draw(t, "shuffled ids") {
		ids = rapid.Permutation(ids).Draw(t, "ids")
	}
	offline := min(len(ids)-1, rapid.IntRange(0, 3).Draw(t, "offline CPUs"))
	for i := range m.CPUs {
		m.CPUs[i].ID = ids[i]
		if ids[i] < offline {
			m.CPUs[i].Online = false
		}
	}
	slices.SortFunc(m.CPUs, func(a, b topology.CPU) int { return a.ID - b.ID })
}

// finishMemory sometimes adds a NUMA node without CPUs, sets the host's total memory, and
// sometimes sets distances.
func finishMemory(t *rapid.T, m *topology.Machine, nextID int) {
	if len(m.NUMANodes) > 1 && rapid.IntRange(0, 4).Draw(t, "extra node if 0") == 0 {
		m.NUMANodes = append(m.NUMANodes, topology.NUMANode{ID: nextID, MemoryMiB: 16 * gib})
		m.Arch = rapid.SampledFrom([]string{"", "", "arm64"}).Draw(t, "arch")
	}
	for _, n := range m.NUMANodes {
		m.MemoryMiB += n.MemoryMiB
		if n.MemoryMiB == topology.Unknown {
			m.MemoryMiB += 16*gib + 1
		}
	}
	if rapid.Bool().Draw(t, "distances") {
		for i := range m.NUMANodes {
			m.NUMANodes[i].Distances = map[int]int{}
			for j, other := range m.NUMANodes {
				m.NUMANodes[i].Distances[other.ID] = 10 + 11*b2i(i%2 != j%2) + b2i(i != j)
			}
		}
	}
}

// b2i returns 1 for true and 0 for false.
func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// drawHost draws a host with reservations and unmanaged guests.
func drawHost(t *rapid.T, name string, guests bool) topology.Host {
	h := host(name, drawMachine(t))
	if n := rapid.IntRange(0, 2).Draw(t, "reserved CPUs"); n > 0 {
		ids := h.OnlineCPUs().List()
		h.ReservedCPUs = topology.CPUs(ids[:min(n, len(ids))]...)
		h.ReservedMemoryMiB = 1 * gib
	}
	if rapid.Bool().Draw(t, "load is known") {
		h.Load = topology.NewLoad(rapid.Float64Range(0, 1).Draw(t, "CPU load"), rapid.Float64Range(0, 1).Draw(t, "memory load"), nil)
	}
	drawDevices(t, &h)
	if guests {
		drawGuests(t, &h)
	}
	if rapid.Bool().Draw(t, "agent") {
		h.Agent = &topology.Agent{MaxPinnedPercent: rapid.IntRange(1, 100).Draw(t, "most pinned")}
	}
	return h
}

// drawGuests adds guests that do not conflict with each other.
func drawGuests(t *rapid.T, h *topology.Host) {
	free := h.OnlineCPUs().Difference(h.ReservedCPUs).List()
	room := h.MemoryMiB - h.ReservedMemoryMiB
	for _, n := range h.NUMANodes {
		room -= n.HugePages[2048]*2 + n.HugePages[1<<20]*gib
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "guests") {
		g := topology.Guest{
			VMID: 9000 + i, Kind: topology.GuestVM, VCPUs: rapid.IntRange(1, min(3, h.OnlineCPUs().Size())).Draw(t, "guest vcpus"), MemoryMiB: 512,
			Running: rapid.Bool().Draw(t, "running"), Template: rapid.IntRange(0, 4).Draw(t, "template if 0") == 0,
			PCIDevices: drawPassed(t),
		}
		if room -= g.MemoryMiB; room < 0 {
			return
		}
		switch {
		case rapid.Bool().Draw(t, "pinned") && len(free) >= g.VCPUs:
			g.Pins = topology.CPUs(free[len(free)-g.VCPUs:]...)
			free = free[:len(free)-g.VCPUs]
		case rapid.Bool().Draw(t, "in huge pages"):
			drawPages(t, h, &g)
		}
		h.Guests = append(h.Guests, g)
	}
}

// drawPages backs a guest with huge pages, reserved or not, of a NUMA node that has
// ordinary memory too.
func drawPages(t *rapid.T, h *topology.Host, g *topology.Guest) {
	for _, n := range h.NUMANodes {
		cpus := slices.ContainsFunc(h.CPUs, func(c topology.CPU) bool { return c.Online && c.NUMANode == n.ID })
		if n.ID > 9 || n.MemoryMiB < 8*gib || n.HugePages[1<<20] == 32 || !cpus {
			continue
		}
		ids := make([]int, g.VCPUs)
		for i := range ids {
			ids[i] = i
		}
		g.HugePagesKiB = rapid.SampledFrom([]int{2048, topology.Unknown}).Draw(t, "page size")
		g.NUMA = []topology.NUMACell{{
			GuestCPUs: topology.CPUs(ids...), HostNodes: topology.CPUs(n.ID), MemoryMiB: g.MemoryMiB, Policy: topology.NUMABind,
		}}
		return
	}
}

// drawSnapshot draws up to three hosts.
func drawSnapshot(t *rapid.T, guests bool) *topology.Snapshot {
	snap := snapshot()
	for i := range rapid.IntRange(1, 3).Draw(t, "hosts") {
		snap.Hosts = append(snap.Hosts, drawHost(t, fmt.Sprintf("pve-%d", i+1), guests))
	}
	return snap
}

// drawSpec draws a spec for some of the hosts.
func drawSpec(t *rapid.T, snap *topology.Snapshot, policies ...fleet.Policy) fleet.Spec {
	if len(policies) == 0 {
		policies = []fleet.Policy{fleet.PolicyShared, fleet.PolicyNUMA, fleet.PolicyDedicated, fleet.PolicyDedicated, fleet.PolicyIsolated}
	}
	s := spec(rapid.SampledFrom(policies).Draw(t, "policy"),
		rapid.IntRange(1, 14).Draw(t, "vcpus"), int64(rapid.IntRange(1, 40*gib).Draw(t, "memory")))
	s.Overcommit = rapid.SampledFrom([]float64{0, 1, 1.5, 4}).Draw(t, "overcommit")
	s.MemoryOvercommit = rapid.SampledFrom([]float64{0, 0, 1, 1.2, 2}).Draw(t, "memory overcommit")
	s.Hosts = nil
	drawExtras(t, &s)
	for i := range snap.Hosts {
		if len(snap.Hosts) == 1 || rapid.IntRange(0, 3).Draw(t, "host allowed") > 0 {
			s.Hosts = append(s.Hosts, snap.Hosts[i].ID())
		}
	}
	return s
}

// drawExtras sometimes sets optional fields, such as huge pages and a spread.
func drawExtras(t *rapid.T, s *fleet.Spec) {
	if s.Policy.Pinned() && rapid.Bool().Draw(t, "host agent") {
		s.PinWith = fleet.PinWithHostAgent
	}
	if s.Policy != fleet.PolicyShared {
		s.HugePages = rapid.SampledFrom([]fleet.HugePages{"", "", fleet.HugePages2Mi, fleet.HugePages1Gi}).Draw(t, "huge pages")
		page := max(1, s.HugePages.MiB())
		s.MemoryMiB = (s.MemoryMiB + page - 1) / page * page
	}
	s.WholeCores = rapid.Bool().Draw(t, "whole cores")
	s.Spread = rapid.SampledFrom([]fleet.Spread{"", "", fleet.SpreadHosts}).Draw(t, "spread")
	s.HostSelection = rapid.SampledFrom([]fleet.HostSelection{"", "", fleet.LeastAllocated, fleet.MostAllocated, fleet.Balanced}).Draw(t, "host selection")
	s.Pool = rapid.SampledFrom([]string{"workers", "others"}).Draw(t, "pool")
	s.PCIDevices = drawWanted(t)
}

func drawSpecs(t *rapid.T, snap *topology.Snapshot, policies ...fleet.Policy) []fleet.Spec {
	specs := make([]fleet.Spec, rapid.IntRange(1, 8).Draw(t, "specs"))
	for i := range specs {
		specs[i] = drawSpec(t, snap, policies...)
	}
	return specs
}
