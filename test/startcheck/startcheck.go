// Package startcheck checks whether guests can start on a host without conflicts. It applies
// the rules that Proxmox and QEMU check only at start, and numaform's own rules: no two
// exclusive guests are pinned to the same CPU, and no NUMA node's memory is overcommitted. It
// shares no code with the planner, whose results it checks. Start at Check.
package startcheck

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/numaform/numaform/topology"
)

// Guest contains the parts of a VM's configuration that affect its start.
type Guest struct {
	VMID           int
	Sockets, Cores int
	MemoryMiB      int64
	// NUMAEnabled is the option numa. If it is false, Proxmox ignores the numaN options.
	NUMAEnabled bool
	// NUMA contains the numaN options by N. MemoryMiB 0 and an empty policy mean unset.
	NUMA map[int]topology.NUMACell
	// HugePagesMiB is the size of the huge pages that back the memory; 0 means none.
	HugePagesMiB int64
	// MemoryHotplug is set if the option hotplug contains memory.
	MemoryHotplug bool
	// Affinity is the CPU affinity of all threads; empty means all CPUs.
	Affinity topology.CPUSet
	// Pins is the host CPU to which each vCPU is pinned, for example by numaform-agent.
	Pins []int
	// Exclusive is true if no other exclusive guest may be pinned to the same CPUs.
	Exclusive bool
}

// VCPUs returns the number of virtual CPUs.
func (g *Guest) VCPUs() int { return max(1, g.Sockets) * max(1, g.Cores) }

// pinned returns the host CPUs to which the guest is pinned.
func (g *Guest) pinned() topology.CPUSet { return g.Affinity.Union(topology.CPUs(g.Pins...)) }

// The errors of Proxmox and QEMU without parameters.
var (
	errTotal    = errors.New("total memory for NUMA nodes must be equal to vm static memory")
	errHotplug  = errors.New("cannot enable memory hotplugging with custom NUMA topology")
	errAffinity = errors.New("taskset: failed to set pid 0's affinity: Invalid argument")
	errPages    = errors.New("numa needs to be enabled to use hugepages")
	errUnbound  = errors.New("numa hostnodes need to be defined to use hugepages")
	errWide     = errors.New("more than 1 hostnode value in numa node is not supported when hugepages are enabled")
)

// Check returns the faults that occur if all guests run on the host at once, or nil: first the
// faults of single guests, sorted by VMID, then the conflicts between guests.
func Check(host *topology.Host, guests []Guest) []error {
	sorted := slices.Clone(guests)
	slices.SortStableFunc(sorted, func(a, b Guest) int { return cmp.Compare(a.VMID, b.VMID) })
	var faults []error
	for i := range sorted {
		g := &sorted[i]
		found := slices.Concat(checkSize(host, g), checkNUMA(host, g), checkHugePages(g), checkPins(host, g))
		for _, err := range found {
			faults = append(faults, fmt.Errorf("starting vm %d: %w", g.VMID, err))
		}
	}
	return slices.Concat(faults, checkExclusive(sorted), checkMemory(host, sorted))
}

// checkSize applies the limits of Proxmox on vCPUs and memory.
func checkSize(host *topology.Host, g *Guest) []error {
	var faults []error
	if limit := host.OnlineCPUs().Size(); g.VCPUs() > limit {
		faults = append(faults, fmt.Errorf("MAX %d vcpus allowed per VM on this node", limit))
	}
	if g.MemoryMiB < 1 {
		faults = append(faults, errors.New("memory must be at least 1 MiB"))
	}
	return faults
}

// checkNUMA applies the requirements of Proxmox and QEMU on the numaN options.
func checkNUMA(host *topology.Host, g *Guest) []error {
	if !g.NUMAEnabled || len(g.NUMA) == 0 {
		return nil
	}
	var faults []error
	if g.MemoryHotplug {
		faults = append(faults, errHotplug)
	}
	var total int64
	owner := map[int]int{}
	for at, n := range slices.Sorted(maps.Keys(g.NUMA)) {
		cell := g.NUMA[n]
		if n != at {
			faults = append(faults, fmt.Errorf("numa: Node ID missing: %d", at))
		}
		if n > 7 {
			faults = append(faults, fmt.Errorf("unknown setting 'numa%d'", n))
		}
		total += cell.MemoryMiB
		faults = append(faults, checkCell(host, n, cell)...)
		faults = append(faults, checkGuestCPUs(g, n, owner)...)
	}
	if total != g.MemoryMiB {
		faults = append(faults, errTotal)
	}
	if len(owner) != g.VCPUs() {
		faults = append(faults, fmt.Errorf("numaN name %d of %d vCPUs", len(owner), g.VCPUs()))
	}
	return faults
}

// checkCell checks one numaN against the host. A node needs no CPUs: Proxmox only checks
// that its directory exists (qemu-server 9.2.6, src/PVE/QemuServer/Memory.pm:151).
func checkCell(host *topology.Host, n int, cell topology.NUMACell) []error {
	var faults []error
	if cell.MemoryMiB < 1 {
		faults = append(faults, fmt.Errorf("missing NUMA node%d memory value", n))
	}
	for _, id := range cell.HostNodes.List() {
		at := slices.IndexFunc(host.NUMANodes, func(node topology.NUMANode) bool { return node.ID == id })
		switch {
		case at < 0:
			faults = append(faults, fmt.Errorf("host NUMA node%d doesn't exist", id))
		case host.NUMANodes[at].MemoryMiB == 0:
			faults = append(faults, fmt.Errorf("numa%d: host NUMA node%d has no memory", n, id))
		}
		if cell.Policy == "" {
			faults = append(faults, fmt.Errorf("you need to define a policy for hostnode %d", id))
		}
	}
	return faults
}

// checkHugePages applies the requirements of Proxmox on a guest backed by huge pages.
// Proxmox parses a two-digit host node as several nodes (qemu-server 9.2.6,
// src/PVE/QemuServer/Memory.pm:629).
func checkHugePages(g *Guest) []error {
	switch {
	case g.HugePagesMiB == 0:
		return nil
	case !g.NUMAEnabled:
		return []error{errPages}
	}
	var faults []error
	for _, n := range slices.Sorted(maps.Keys(g.NUMA)) {
		cell := g.NUMA[n]
		switch {
		case cell.HostNodes.IsEmpty():
			faults = append(faults, errUnbound)
		case cell.HostNodes.Size() > 1 || cell.HostNodes.List()[0] > 9:
			faults = append(faults, errWide)
		case cell.MemoryMiB%g.HugePagesMiB != 0:
			faults = append(faults, fmt.Errorf("Memory size %d is not a multiple of the requested hugepages size %d", //nolint:staticcheck // Proxmox's text
				cell.MemoryMiB, g.HugePagesMiB))
		}
	}
	return faults
}

// checkGuestCPUs checks the vCPUs of one numaN and records it as their owner.
func checkGuestCPUs(g *Guest, n int, owner map[int]int) []error {
	var faults []error
	for _, cpu := range g.NUMA[n].GuestCPUs.List() {
		if cpu >= g.VCPUs() {
			faults = append(faults, fmt.Errorf("CPU index (%d) should be smaller than maxcpus (%d)", cpu, g.VCPUs()))
			continue
		}
		if other, taken := owner[cpu]; taken {
			faults = append(faults, fmt.Errorf("CPU %d is in numa%d and numa%d", cpu, other, n))
		}
		owner[cpu] = n
	}
	return faults
}

// nodeCPUs returns the online CPUs of the host's NUMA nodes with the given IDs.
func nodeCPUs(host *topology.Host, ids topology.CPUSet) topology.CPUSet {
	var cpus []int
	for _, c := range host.CPUs {
		if c.Online && ids.Contains(c.NUMANode) {
			cpus = append(cpus, c.ID)
		}
	}
	return topology.CPUs(cpus...)
}
