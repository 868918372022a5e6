package startcheck

import (
	"fmt"
	"maps"
	"slices"

	"github.com/numaform/numaform/topology"
)

// checkPins checks the CPUs to which one guest is pinned.
func checkPins(host *topology.Host, g *Guest) []error {
	var faults []error
	online := host.OnlineCPUs()
	if !g.Affinity.IsEmpty() && g.Affinity.Intersection(online).IsEmpty() {
		faults = append(faults, errAffinity)
	}
	pins := g.pinned()
	if off := pins.Difference(online); !off.IsEmpty() {
		faults = append(faults, fmt.Errorf("pinned to CPUs %s, which are not online", off))
	}
	if kept := pins.Intersection(host.ReservedCPUs); !kept.IsEmpty() {
		faults = append(faults, fmt.Errorf("pinned to CPUs %s, which are reserved for the host", kept))
	}
	if len(g.Pins) == 0 {
		return append(faults, checkFloating(host, g)...)
	}
	if !g.Affinity.IsEmpty() && !topology.CPUs(g.Pins...).IsSubsetOf(g.Affinity) {
		faults = append(faults, fmt.Errorf("pins %v are outside the affinity %s", g.Pins, g.Affinity))
	}
	if len(g.Pins) != g.VCPUs() || topology.CPUs(g.Pins...).Size() != len(g.Pins) {
		return append(faults, fmt.Errorf("pins %v are not one CPU for each of %d vCPUs", g.Pins, g.VCPUs()))
	}
	return append(faults, checkPinsInCells(host, g)...)
}

// checkFloating checks that an affinity is within the NUMA nodes of the guest's memory.
func checkFloating(host *topology.Host, g *Guest) []error {
	if !g.NUMAEnabled || g.Affinity.IsEmpty() {
		return nil
	}
	var nodes topology.CPUSet
	for _, cell := range g.NUMA {
		nodes = nodes.Union(cell.HostNodes)
	}
	if out := g.Affinity.Difference(nodeCPUs(host, nodes)); !nodes.IsEmpty() && !out.IsEmpty() {
		return []error{fmt.Errorf("affinity has CPUs %s outside host NUMA nodes %s", out, nodes)}
	}
	return nil
}

// checkPinsInCells checks that each vCPU runs on the NUMA nodes that back its cell.
func checkPinsInCells(host *topology.Host, g *Guest) []error {
	if !g.NUMAEnabled {
		return nil
	}
	var faults []error
	for _, n := range slices.Sorted(maps.Keys(g.NUMA)) {
		cell := g.NUMA[n]
		if cell.HostNodes.IsEmpty() {
			continue
		}
		cpus := nodeCPUs(host, cell.HostNodes)
		for _, vcpu := range cell.GuestCPUs.List() {
			if vcpu < len(g.Pins) && !cpus.Contains(g.Pins[vcpu]) {
				faults = append(faults, fmt.Errorf("vCPU %d of numa%d is pinned to CPU %d outside host NUMA nodes %s",
					vcpu, n, g.Pins[vcpu], cell.HostNodes))
			}
		}
	}
	return faults
}

// checkExclusive checks that no two exclusive guests are pinned to the same CPU.
func checkExclusive(guests []Guest) []error {
	var faults []error
	owner := map[int]int{}
	for i := range guests {
		if !guests[i].Exclusive {
			continue
		}
		for _, cpu := range guests[i].pinned().List() {
			if other, taken := owner[cpu]; taken {
				faults = append(faults, fmt.Errorf("CPU %d is pinned for vm %d and vm %d", cpu, other, guests[i].VMID))
				continue
			}
			owner[cpu] = guests[i].VMID
		}
	}
	return faults
}

// pages identifies the huge pages of one size on a NUMA node.
type pages struct {
	node int
	mib  int64
}

// checkMemory checks that the memory of the host and of each NUMA node is not
// overcommitted. Memory bound to several nodes must fit into them together. Reserved huge
// pages are not part of ordinary memory; Proxmox allocates other huge pages from ordinary
// memory.
func checkMemory(host *topology.Host, guests []Guest) []error {
	total, cells := ordinaryMemory(host, guests)
	var faults []error
	if room := max(0, host.MemoryMiB-host.ReservedMemoryMiB-hugePages(host.NUMANodes)); host.MemoryMiB > 0 && total > room {
		faults = append(faults, fmt.Errorf("guests have %d MiB of the host's %d", total, room))
	}
	for _, ids := range slices.Sorted(maps.Keys(cells)) {
		bound, err := topology.ParseCPUSet(ids)
		if err != nil || bound.IsEmpty() {
			continue
		}
		if room, known := nodeMemory(host, bound); known && boundWithin(cells, bound) > room {
			faults = append(faults, fmt.Errorf("%d MiB are bound to host NUMA nodes %s, which have %d",
				boundWithin(cells, bound), bound, room))
		}
	}
	return faults
}

// ordinaryMemory sums the guests' ordinary memory, in total and by the NUMA nodes to which
// it is bound.
func ordinaryMemory(host *topology.Host, guests []Guest) (total int64, cells map[string]int64) {
	cells = map[string]int64{}
	huge := map[pages]int64{}
	for i := range guests {
		g := &guests[i]
		bound := g.NUMA
		if !g.NUMAEnabled {
			bound = nil
		}
		if g.HugePagesMiB == 0 || len(bound) == 0 {
			total += g.MemoryMiB
		}
		for _, cell := range bound {
			switch {
			case g.HugePagesMiB == 0:
				cells[cell.HostNodes.String()] += cell.MemoryMiB
			case !cell.HostNodes.IsEmpty():
				huge[pages{cell.HostNodes.List()[0], g.HugePagesMiB}] += cell.MemoryMiB
			}
		}
	}
	for p, memory := range huge {
		made := max(0, memory-reserved(host, p))
		total += made
		cells[topology.CPUs(p.node).String()] += made
	}
	return total, cells
}

// boundWithin sums the memory bound to the nodes or to a subset of them.
func boundWithin(cells map[string]int64, nodes topology.CPUSet) int64 {
	var sum int64
	for ids, memory := range cells {
		set, err := topology.ParseCPUSet(ids)
		if err == nil && !set.IsEmpty() && set.IsSubsetOf(nodes) {
			sum += memory
		}
	}
	return sum
}

// nodeMemory sums the memory of NUMA nodes, and reports false if the memory of a node is
// unknown.
func nodeMemory(host *topology.Host, ids topology.CPUSet) (int64, bool) {
	var sum int64
	found := 0
	for _, n := range host.NUMANodes {
		if ids.Contains(n.ID) && n.MemoryMiB != topology.Unknown {
			found++
			sum += n.MemoryMiB - hugePages([]topology.NUMANode{n})
		}
	}
	return sum, found == ids.Size()
}

// reserved returns the MiB of reserved huge pages of one size on one NUMA node.
func reserved(host *topology.Host, p pages) int64 {
	for _, n := range host.NUMANodes {
		if n.ID == p.node {
			return n.HugePages[int(p.mib)<<10] * p.mib
		}
	}
	return 0
}

// hugePages returns the MiB of all huge pages of the nodes.
func hugePages(nodes []topology.NUMANode) int64 {
	var kib int64
	for _, n := range nodes {
		for size, count := range n.HugePages {
			kib += int64(size) * count
		}
	}
	return kib >> 10
}
