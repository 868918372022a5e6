package topology

import "fmt"

// FromCapacity returns the machine described by a stopped VM named node-capacity, as the
// host daemon of karpenter-provider-proxmox writes it: affinity lists the host's CPUs,
// and their order matters. Each cell's GuestCPUs are positions in that list, and its
// HostNodes is the NUMA node of these CPUs and the memory. The VM describes no siblings or
// caches.
func FromCapacity(affinity string, cells []NUMACell) (Machine, error) {
	spans, err := parseSpans(affinity, ",")
	if err != nil {
		return Machine{}, fmt.Errorf("reading node-capacity: affinity %s: %w", quote(affinity), err)
	}
	var order []int
	for _, s := range spans {
		if order = append(order, expand([]span{s})...); len(order) > MaxCPU {
			return Machine{}, fmt.Errorf("reading node-capacity: affinity must list at most %d CPUs", MaxCPU)
		}
	}
	var m Machine
	for _, id := range order {
		m.CPUs = append(m.CPUs, CPU{ID: id, Online: true, NUMANode: Unknown, Socket: Unknown, Core: Unknown, L3: Unknown})
	}
	for i, cell := range cells {
		if cell.HostNodes.Size() != 1 {
			return Machine{}, fmt.Errorf("reading node-capacity: numa%d: hostnodes is %q: must be one NUMA node; use one numaN for each NUMA node", i, cell.HostNodes)
		}
		id := cell.HostNodes.List()[0]
		for _, position := range cell.GuestCPUs.List() {
			if position >= len(m.CPUs) {
				return Machine{}, fmt.Errorf("reading node-capacity: numa%d: cpus has position %d, but affinity lists %d CPUs: list every CPU in affinity",
					i, position, len(m.CPUs))
			}
			m.CPUs[position].NUMANode = id
		}
		node := NUMANode{ID: id, MemoryMiB: Unknown}
		if cell.MemoryMiB > 0 {
			node.MemoryMiB = cell.MemoryMiB
			m.MemoryMiB += cell.MemoryMiB
		}
		m.NUMANodes = append(m.NUMANodes, node)
	}
	m.sort()
	m = m.WithSource(SourceCapacity)
	if len(cells) == 0 && len(m.CPUs) > 0 {
		m.assumeNUMANode()
	}
	if err := m.Validate(); err != nil {
		return Machine{}, fmt.Errorf("reading node-capacity: %w", err)
	}
	return m, nil
}
