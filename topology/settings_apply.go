package topology

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Apply overrides what is known about a host with the settings, field by field. Fields
// that are not set stay unchanged. If the machine contradicts the settings, Apply returns
// an error and leaves the host unchanged.
func (s Settings) Apply(host *Host) error {
	entry, ok := s.of(host.ID())
	if !ok {
		return nil
	}
	changed := *host
	changed.CPUs, changed.NUMANodes = slices.Clone(host.CPUs), slices.Clone(host.NUMANodes)
	changed.Sources = map[Fact]Source{}
	maps.Copy(changed.Sources, host.Sources)
	faults := entry.applyNodes(&changed)
	faults = append(faults, entry.applyThreads(&changed)...)
	entry.applySharing(&changed)
	faults = append(faults, entry.applyReserved(&changed)...)
	faults = append(faults, entry.applyMemoryNodes(&changed)...)
	if err := changed.Machine.Validate(); len(faults) == 0 && err != nil {
		faults = append(faults, entry.at.errorf(nil, "does not fit what is known of the host: %w", err))
	}
	if len(faults) > 0 {
		return fmt.Errorf("applying settings to host %s: %w", host.ID(), joinFaults(faults))
	}
	*host = changed
	return nil
}

// applyNodes replaces the NUMA nodes. If the host's CPUs are unknown, the nodes' CPUs
// become its CPUs; otherwise the NUMA node of CPUs that no node lists becomes unknown.
func (h *hostSettings) applyNodes(host *Host) []error {
	if len(h.Nodes) == 0 {
		return nil
	}
	h.replaceGuessedCPUs(host)
	faults := h.checkAgainst(host)
	known := host.Machine
	host.NUMANodes = nil
	for i := range host.CPUs {
		host.CPUs[i].NUMANode = Unknown
	}
	for _, id := range slices.Sorted(maps.Keys(h.Nodes)) {
		h.applyNode(host, id, known.NUMANode(id))
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

// replaceGuessedCPUs drops CPUs whose IDs were only assumed to count up from 0, if the
// settings list other IDs and no more CPUs.
func (h *hostSettings) replaceGuessedCPUs(host *Host) {
	var told CPUSet
	for _, node := range h.Nodes {
		told = told.Union(node.CPUs)
	}
	if host.Sources[FactCPUs] == SourceStatus && !told.IsSubsetOf(host.cpuIDs()) && told.Size() <= len(host.CPUs) {
		host.CPUs = nil
		delete(host.Sources, FactSiblings)
	}
}

// applyNode adds a NUMA node; before is the node's previous state, or nil.
func (h *hostSettings) applyNode(host *Host, id int, before *NUMANode) {
	told := h.Nodes[id]
	node := NUMANode{ID: id, MemoryMiB: Unknown}
	if before != nil {
		node = *before
	}
	if memory := told.memoryMiB(); memory > 0 {
		node.MemoryMiB = memory
		host.Sources[FactMemory] = SourceSettings
	}
	host.NUMANodes = append(host.NUMANodes, node)
	for _, cpu := range told.CPUs.List() {
		if known := host.CPU(cpu); known != nil {
			known.NUMANode = id
			continue
		}
		host.CPUs = append(host.CPUs, CPU{
			ID: cpu, Online: true, NUMANode: id,
			Socket: Unknown, Core: Unknown, L3: Unknown,
		})
		host.Machine.sort()
	}
}

// checkAgainst compares the nodes with the CPUs and the memory that the host has.
func (h *hostSettings) checkAgainst(host *Host) []error {
	var faults []error
	var memory int64
	for _, id := range slices.Sorted(maps.Keys(h.Nodes)) {
		told := h.Nodes[id]
		memory += told.memoryMiB()
		if host.told(FactNUMA) && host.NUMANode(id) == nil {
			faults = append(faults, h.at.errorf([]string{"nodes", strconv.Itoa(id)},
				"the host has no NUMA node %d, only %s: remove it, or give its CPUs and memory to those", id, host.nodeIDs()))
		}
		absent := told.CPUs.Difference(host.cpuIDs())
		if len(host.CPUs) > 0 && !absent.IsEmpty() {
			faults = append(faults, h.at.errorf([]string{"nodes", strconv.Itoa(id), "cpus"},
				"the host has no CPUs %s, only %s: remove them", absent, host.cpuIDs()))
		}
	}
	if host.MemoryMiB > 0 && memory > host.MemoryMiB {
		faults = append(faults, h.at.errorf([]string{"nodes"},
			"the nodes have %d bytes, but the host has %d: lower their memory; `numactl --hardware` on the host tells it",
			memory<<20, host.MemoryMiB<<20))
	}
	return faults
}

// nodeIDs returns the IDs of the NUMA nodes.
func (m *Machine) nodeIDs() CPUSet {
	ids := make([]int, len(m.NUMANodes))
	for i, node := range m.NUMANodes {
		ids[i] = node.ID
	}
	return CPUs(ids...)
}

// applyThreads applies the number of threads per core: one means that no core has
// siblings. A larger number does not say which CPUs are siblings, so it is only compared
// with the known cores.
func (h *hostSettings) applyThreads(host *Host) []error {
	if h.Threads == 0 {
		return nil
	}
	most := 0
	for _, core := range host.Cores() {
		most = max(most, core.CPUs.Size())
	}
	if most > 0 && most != h.Threads {
		return []error{h.at.errorf([]string{"threads"},
			"%d, but cores have up to %d threads by %s: correct or remove it", h.Threads, most, host.Sources[FactSiblings])}
	}
	if h.Threads != 1 || len(host.CPUs) == 0 {
		return nil
	}
	for i := range host.CPUs {
		host.CPUs[i].Core = host.CPUs[i].ID
	}
	host.Sources[FactSiblings] = SourceSettings
	return nil
}

// applySharing applies counts of one, which mean that all CPUs share a socket or a cache.
// Larger counts do not say which CPUs share one.
func (h *hostSettings) applySharing(host *Host) {
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
}

// applyMemoryNodes sets the NUMA nodes without CPUs whose memory VMs may use.
func (h *hostSettings) applyMemoryNodes(host *Host) []error {
	if h.MemoryNodes == nil {
		return nil
	}
	var faults []error
	for _, id := range h.MemoryNodes {
		if !host.told(FactNUMA) {
			break
		}
		withCPUs := slices.ContainsFunc(host.CPUs, func(c CPU) bool { return c.Online && c.NUMANode == id })
		switch {
		case host.NUMANode(id) == nil:
			faults = append(faults, h.at.errorf([]string{"memorynodes"}, "the host has no NUMA node %d, only %s: remove it", id, host.nodeIDs()))
		case withCPUs:
			faults = append(faults, h.at.errorf([]string{"memorynodes"}, "NUMA node %d has CPUs: list those without, or none", id))
		}
	}
	if len(faults) == 0 {
		nodes := CPUs(h.MemoryNodes...)
		host.MemoryNodes = &nodes
	}
	return faults
}

func (h *hostSettings) applyReserved(host *Host) []error {
	var faults []error
	if reserved := CPUs(h.ReservedCPUs...); !reserved.IsEmpty() {
		if absent := reserved.Difference(host.cpuIDs()); len(host.CPUs) > 0 && !absent.IsEmpty() {
			faults = append(faults, h.at.errorf([]string{"reservedcpus"},
				"the host has no CPUs %s, only %s: remove them", absent, host.cpuIDs()))
		}
		host.ReservedCPUs = reserved
	}
	if h.ReservedMemory > 0 {
		// Round up, so that no less is reserved than requested.
		host.ReservedMemoryMiB = (h.ReservedMemory + 1<<20 - 1) >> 20
	}
	if host.MemoryMiB > 0 && host.ReservedMemoryMiB > host.MemoryMiB {
		faults = append(faults, h.at.errorf([]string{"reservedmemory"},
			"%d bytes, but the host has %d: lower it", h.ReservedMemory, host.MemoryMiB<<20))
	}
	return faults
}
