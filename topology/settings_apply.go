package topology

import (
	"fmt"
	"maps"
	"slices"
)

// Apply overrides the known facts about a host with the settings, field by field. Fields
// that are not set stay unchanged. If the settings have a fault, or the machine contradicts
// them, Apply returns an error and leaves the host unchanged.
func (s Settings) Apply(host *Host) error {
	entry, ok := s.hosts[host.Region][host.Name]
	if !ok {
		entry, ok = s.hosts[host.Region][anyHost]
	}
	if !ok {
		return nil
	}

	changed := *host
	changed.CPUs, changed.NUMANodes = slices.Clone(host.CPUs), slices.Clone(host.NUMANodes)
	changed.Sources = map[Fact]Source{}
	maps.Copy(changed.Sources, host.Sources)

	if len(entry.faults) > 0 {
		return joinFaults(entry.faults)
	}
	faults := entry.applyNodes(&changed)
	faults = append(faults, entry.applyCounts(&changed)...)
	faults = append(faults, entry.applyLimits(&changed)...)
	if err := changed.Machine.Validate(); len(faults) == 0 && err != nil {
		faults = append(faults, fmt.Errorf("%s: conflicts with the known topology of the host: %w", entry.path, err))
	}
	if len(faults) > 0 {
		return joinFaults(faults)
	}
	*host = changed
	return nil
}

// applyNodes replaces the NUMA nodes. If the host's CPUs are unknown, the nodes' CPUs
// become its CPUs. Otherwise the NUMA node of CPUs that no node lists becomes unknown.
func (h *hostSettings) applyNodes(host *Host) []error {
	if len(h.Nodes) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(h.Nodes))
	var listed CPUSet
	for _, id := range ids {
		listed = listed.Union(h.Nodes[id].CPUs)
	}

	// CPU IDs that were assumed to count up from 0 are replaced by the listed IDs, but not
	// by more CPUs.
	if host.Sources[FactCPUs] == SourceStatus && !listed.IsSubsetOf(host.cpuIDs()) && listed.Size() <= len(host.CPUs) {
		host.CPUs = nil
		delete(host.Sources, FactSiblings)
	}

	faults := h.checkNodes(host, ids)
	known := host.Machine
	host.NUMANodes = nil
	for i := range host.CPUs {
		host.CPUs[i].NUMANode = Unknown
	}
	for _, id := range ids {
		node := NUMANode{ID: id, MemoryMiB: Unknown}
		if before := known.NUMANode(id); before != nil {
			node = *before
		}
		if size := h.Nodes[id].memoryMiB(); size > 0 {
			node.MemoryMiB = size
			host.Sources[FactMemory] = SourceSettings
		}
		host.NUMANodes = append(host.NUMANodes, node)
		for _, cpu := range h.Nodes[id].CPUs.List() {
			if existing := host.CPU(cpu); existing != nil {
				existing.NUMANode = id
				continue
			}
			host.CPUs = append(host.CPUs, CPU{ID: cpu, Online: true, NUMANode: id, Socket: Unknown, Core: Unknown, L3: Unknown})
			host.Machine.sort()
		}
	}
	if len(known.CPUs) == 0 && len(host.CPUs) > 0 {
		host.Sources[FactCPUs] = SourceSettings
	}
	for i := range host.NUMANodes {
		host.NUMANodes[i].Distances = maps.Clone(host.NUMANodes[i].Distances)
		host.NUMANodes[i].dropDistances(&host.Machine)
	}
	host.Sources[FactNUMA] = SourceSettings
	return faults
}

// checkNodes compares the nodes with the CPUs and memory of the host.
func (h *hostSettings) checkNodes(host *Host, ids []int) []error {
	var faults []error
	var memory int64
	for _, id := range ids {
		memory += h.Nodes[id].memoryMiB()
		if host.provides(FactNUMA) && host.NUMANode(id) == nil {
			faults = append(faults, h.errorf(nodeField(id),
				"the host has no NUMA node %d, only %s: remove it, or move its CPUs and memory to an existing node", id, host.nodeIDs()))
		}
		if absent := h.Nodes[id].CPUs.Difference(host.cpuIDs()); len(host.CPUs) > 0 && !absent.IsEmpty() {
			faults = append(faults, h.errorf(nodeField(id)+".cpus", "the host has no CPUs %s, only %s: remove them", absent, host.cpuIDs()))
		}
	}
	if host.MemoryMiB > 0 && memory > host.MemoryMiB {
		faults = append(faults, h.errorf("nodes",
			"the nodes have %d bytes, but the host has %d: lower their memory to the values of `numactl --hardware` on the host",
			memory<<20, host.MemoryMiB<<20))
	}
	return faults
}

// applyCounts applies counts of 1: no core has siblings, or all CPUs share a socket or a
// cache. Larger counts do not identify the CPUs that belong together, so applyCounts only
// compares the number of threads with the known cores.
func (h *hostSettings) applyCounts(host *Host) []error {
	var faults []error
	most := 0
	for _, core := range host.Cores() {
		most = max(most, core.CPUs.Size())
	}
	switch {
	case h.Threads != 0 && most > 0 && most != h.Threads:
		faults = append(faults, h.errorf("threads",
			"%d, but cores have up to %d threads according to %s: correct or remove it", h.Threads, most, host.Sources[FactSiblings]))
	case h.Threads == 1 && len(host.CPUs) > 0:
		for i := range host.CPUs {
			host.CPUs[i].Core = host.CPUs[i].ID
		}
		host.Sources[FactSiblings] = SourceSettings
	}

	cachesKnown := slices.ContainsFunc(host.CPUs, func(c CPU) bool { return c.L3 != Unknown })
	for i := range host.CPUs {
		if h.Sockets == 1 {
			host.CPUs[i].Socket = 0
		}
		if h.UncoreCaches == 1 && !cachesKnown {
			host.CPUs[i].L3 = 0
			host.Sources[FactCaches] = SourceSettings
		}
	}
	return faults
}

// applyLimits applies the CPUs and memory that VMs must not use, and the NUMA nodes without
// CPUs whose memory they may use.
func (h *hostSettings) applyLimits(host *Host) []error {
	var faults []error
	if reserved := CPUs(h.ReservedCPUs...); !reserved.IsEmpty() {
		if absent := reserved.Difference(host.cpuIDs()); len(host.CPUs) > 0 && !absent.IsEmpty() {
			faults = append(faults, h.errorf("reservedcpus", "the host has no CPUs %s, only %s: remove them", absent, host.cpuIDs()))
		}
		host.ReservedCPUs = reserved
	}
	if h.ReservedMemory > 0 {
		// Round up, so that no less is reserved than requested.
		host.ReservedMemoryMiB = (h.ReservedMemory + 1<<20 - 1) >> 20
	}
	if host.MemoryMiB > 0 && host.ReservedMemoryMiB > host.MemoryMiB {
		faults = append(faults, h.errorf("reservedmemory", "%d bytes, but the host has %d: lower it", h.ReservedMemory, host.MemoryMiB<<20))
	}

	for _, id := range h.MemoryNodes {
		hasCPUs := slices.ContainsFunc(host.CPUs, func(c CPU) bool { return c.Online && c.NUMANode == id })
		switch {
		case !host.provides(FactNUMA):
		case host.NUMANode(id) == nil:
			faults = append(faults, h.errorf("memorynodes", "the host has no NUMA node %d, only %s: remove it", id, host.nodeIDs()))
		case hasCPUs:
			faults = append(faults, h.errorf("memorynodes", "NUMA node %d has CPUs: list only NUMA nodes without CPUs", id))
		}
	}
	if h.MemoryNodes != nil {
		nodes := CPUs(h.MemoryNodes...)
		host.MemoryNodes = &nodes
	}
	return faults
}
