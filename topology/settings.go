package topology

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// anyHost is the key of the entry for hosts of a region that have no entry of their own.
const anyHost = "*"

// Settings is a nodes-settings.json: an administrator's facts about hosts, in the format
// of karpenter-provider-proxmox. Its NUMA nodes, memory and reservations override every
// other source.
type Settings struct {
	hosts map[RegionName]map[HostName]hostSettings
}

// hostSettings is one host's entry. Zero and absent both mean not set.
type hostSettings struct {
	// Cores is accepted because other tools write it; numaform ignores it.
	Cores int `json:"cores,omitempty"`
	// Sockets and UncoreCaches count the host's CPU sockets and last-level caches, Threads
	// the threads of each core.
	Sockets      int `json:"sockets,omitempty"`
	Threads      int `json:"threads,omitempty"`
	UncoreCaches int `json:"uncorecaches,omitempty"`
	// Nodes are the NUMA nodes by ID.
	Nodes map[int]nodeSettings `json:"nodes,omitempty"`

	ReservedCPUs []int `json:"reservedcpus,omitempty"`
	// ReservedMemory is in bytes.
	ReservedMemory int64 `json:"reservedmemory,omitempty"`
	// MemoryNodes are the NUMA nodes without CPUs whose memory VMs may use. This field is
	// specific to numaform. An empty list differs from an absent one.
	MemoryNodes []int `json:"memorynodes,omitzero"`

	// path is the path of the entry in the file, such as region-1.pve-1, and faults are its
	// faults that do not depend on a host.
	path   string
	faults []error
}

// nodeSettings is a NUMA node. Its memory in bytes has two keys: karpenter-provider-proxmox
// uses one in its documentation and the other in its code.
type nodeSettings struct {
	CPUs    CPUSet `json:"cpus,omitzero"`
	Memory  int64  `json:"memory,omitempty"`
	MemSize int64  `json:"memsize,omitempty"`
}

func (n nodeSettings) memoryMiB() int64 { return max(n.Memory, n.MemSize) >> 20 }

// problem describes a fault of the node, or returns "".
func (n nodeSettings) problem() string {
	switch {
	case n.Memory < 0 || n.MemSize < 0:
		return "memory is negative: set it to the memory of the node in bytes"
	case n.Memory != 0 && n.MemSize != 0 && n.Memory != n.MemSize:
		return "memory and memsize are synonyms but differ: remove one"
	case n.CPUs.IsEmpty() && n.memoryMiB() == 0:
		return "has neither cpus nor memory: add one of them or remove the node"
	}
	return ""
}

// errorf returns an error about a field of the entry.
func (h *hostSettings) errorf(field, format string, args ...any) error {
	return fmt.Errorf("%s.%s: %w", h.path, field, fmt.Errorf(format, args...))
}

// ParseSettings parses a nodes-settings.json. Unknown and duplicate keys, values of the
// wrong type and invalid ranges are errors that name the key. Other faults of an entry, such
// as a CPU on two NUMA nodes, affect only its hosts: Apply returns them.
func ParseSettings(data []byte) (Settings, error) {
	s := Settings{hosts: map[RegionName]map[HostName]hostSettings{}}
	if err := strictJSON(data, &s.hosts); err != nil {
		return Settings{}, fmt.Errorf("parsing settings: %w", err)
	}
	for region, hosts := range s.hosts {
		for name, host := range hosts {
			host.path = string(region) + "." + string(name)
			host.faults = host.check()
			hosts[name] = host
		}
	}
	return s, nil
}

// Regions returns the regions in the settings, sorted.
func (s Settings) Regions() []RegionName { return slices.Sorted(maps.Keys(s.hosts)) }

// Named returns the hosts that have their own entry, sorted. The caller warns about names
// that do not exist, which are probably misspelled.
func (s Settings) Named() []HostID {
	var ids []HostID
	for region, hosts := range s.hosts {
		for name := range hosts {
			if name != anyHost {
				ids = append(ids, HostID{Region: region, Host: name})
			}
		}
	}
	slices.SortFunc(ids, HostID.Compare)
	return ids
}

// check returns the faults of the entry that do not depend on the host.
func (h *hostSettings) check() []error {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, h.errorf(field, format, args...))
	}
	for _, field := range []struct {
		name  string
		value int64
	}{
		{"cores", int64(h.Cores)},
		{"sockets", int64(h.Sockets)},
		{"threads", int64(h.Threads)},
		{"uncorecaches", int64(h.UncoreCaches)},
		{"reservedmemory", h.ReservedMemory},
	} {
		if field.value < 0 {
			fault(field.name, "%d is negative: remove it if it is unknown", field.value)
		}
	}
	for _, id := range h.MemoryNodes {
		if id < 0 || id > MaxCPU {
			fault("memorynodes", "%d: must be an ID from 0 to %d", id, MaxCPU)
		}
	}

	nodeOf := map[int]int{} // by CPU
	for _, id := range slices.Sorted(maps.Keys(h.Nodes)) {
		node, field := h.Nodes[id], nodeField(id)
		if id < 0 || id > MaxCPU {
			fault(field, "must be an ID from 0 to %d", MaxCPU)
		}
		if problem := node.problem(); problem != "" {
			fault(field, "%s", problem)
		}
		for _, cpu := range node.CPUs.List() {
			if other, listed := nodeOf[cpu]; listed {
				fault(field+".cpus", "cpu %d is also on node %d: remove it from one", cpu, other)
				break
			}
			nodeOf[cpu] = id
		}
	}

	seen := map[int]bool{}
	for _, cpu := range h.ReservedCPUs {
		switch _, listed := nodeOf[cpu]; {
		case cpu < 0 || cpu > MaxCPU:
			fault("reservedcpus", "%d: must be an ID from 0 to %d", cpu, MaxCPU)
		case seen[cpu]:
			fault("reservedcpus", "cpu %d is listed twice: remove one", cpu)
		case len(nodeOf) > 0 && !listed:
			fault("reservedcpus", "cpu %d is not on a node: add it to a node or remove it", cpu)
		}
		seen[cpu] = true
	}
	return faults
}

// nodeField returns the path of a NUMA node in a host's entry.
func nodeField(id int) string { return "nodes." + strconv.Itoa(id) }
