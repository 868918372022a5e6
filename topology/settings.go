package topology

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// anyHost is the entry for hosts of a region without an entry of their own.
const anyHost = "*"

// Settings is a nodes-settings.json: an administrator's facts about hosts, in the format
// of karpenter-provider-proxmox. It overrides every other source.
type Settings struct {
	hosts map[RegionName]map[HostName]hostSettings
	// lines are the line numbers of the regions.
	lines map[RegionName]int
}

// hostSettings is one host's entry. Zero and absent both mean not set.
type hostSettings struct {
	// Cores is accepted because other tools write it; numaform ignores it.
	Cores int `json:"cores,omitempty"`
	// Sockets, Threads and UncoreCaches are counts: the host's CPU sockets, threads per
	// core, and the host's last-level caches.
	Sockets      int `json:"sockets,omitempty"`
	Threads      int `json:"threads,omitempty"`
	UncoreCaches int `json:"uncorecaches,omitempty"`
	// Nodes are the NUMA nodes by ID.
	Nodes map[int]nodeSettings `json:"nodes,omitempty"`

	ReservedCPUs []int `json:"reservedcpus,omitempty"`
	// ReservedMemory is in bytes.
	ReservedMemory int64 `json:"reservedmemory,omitempty"`
	// MemoryNodes are the NUMA nodes without CPUs whose memory VMs may use. This field is
	// numaform's own. An empty list differs from an absent one.
	MemoryNodes []int `json:"memorynodes,omitzero"`

	at position
}

// nodeSettings is a NUMA node. Its memory in bytes has two names: the one in the other
// project's documentation, and the one in its code.
type nodeSettings struct {
	CPUs    CPUSet `json:"cpus,omitzero"`
	Memory  int64  `json:"memory,omitempty"`
	MemSize int64  `json:"memsize,omitempty"`
}

func (n nodeSettings) memoryMiB() int64 { return max(n.Memory, n.MemSize) >> 20 }

// fault returns what is wrong with the node by itself, or "".
func (n nodeSettings) fault() string {
	switch {
	case n.Memory < 0 || n.MemSize < 0:
		return "memory is negative: write the bytes that the node has"
	case n.Memory != 0 && n.MemSize != 0 && n.Memory != n.MemSize:
		return "memory and memsize mean the same but differ: remove one"
	case n.CPUs.IsEmpty() && n.memoryMiB() == 0:
		return "has neither cpus nor memory: add them or remove the node"
	default:
		return ""
	}
}

// position finds the line of a field in one host's entry.
type position struct {
	root *jsonNode
	path []string
}

// errorf returns an error about the field at a path relative to the host's entry.
func (p position) errorf(field []string, format string, args ...any) error {
	path := append(slices.Clone(p.path), field...)
	name := ""
	for i, key := range path {
		if i > 0 {
			name += "."
		}
		name += key
	}
	return fmt.Errorf("line %d: %s: %w", p.root.lineOf(path...), name, fmt.Errorf(format, args...))
}

// ParseSettings parses a nodes-settings.json. Unknown and duplicate keys, invalid ranges
// and CPUs on two NUMA nodes are errors that name the line and the field.
func ParseSettings(data []byte) (Settings, error) {
	s := Settings{hosts: map[RegionName]map[HostName]hostSettings{}, lines: map[RegionName]int{}}
	root, err := strictJSON(data, &s.hosts)
	if err != nil {
		return Settings{}, fmt.Errorf("parsing settings: %w", err)
	}
	var faults []error
	for _, region := range slices.Sorted(maps.Keys(s.hosts)) {
		s.lines[region] = root.lineOf(string(region))
		for _, name := range slices.Sorted(maps.Keys(s.hosts[region])) {
			host := s.hosts[region][name]
			host.at = position{root: root, path: []string{string(region), string(name)}}
			s.hosts[region][name] = host
			faults = append(faults, host.check()...)
		}
	}
	if len(faults) > 0 {
		return Settings{}, fmt.Errorf("parsing settings: %w", joinFaults(faults))
	}
	return s, nil
}

// Print returns the settings as JSON; the same settings give the same bytes.
func (s Settings) Print() ([]byte, error) {
	hosts := s.hosts
	if hosts == nil {
		hosts = map[RegionName]map[HostName]hostSettings{}
	}
	text, err := printJSON(hosts)
	if err != nil {
		return nil, fmt.Errorf("printing settings: %w", err)
	}
	return text, nil
}

// CheckRegions returns an error for each region that is not known, because its settings
// would never be used.
func (s Settings) CheckRegions(known ...RegionName) error {
	var faults []error
	for _, region := range slices.Sorted(maps.Keys(s.hosts)) {
		if !slices.Contains(known, region) {
			faults = append(faults, fmt.Errorf("line %d: %s: no cluster has this region: want one of %s",
				s.lines[region], quote(string(region)), joined(known)))
		}
	}
	return joinFaults(faults)
}

func joined(regions []RegionName) string {
	texts := make([]string, len(regions))
	for i, region := range regions {
		texts[i] = string(region)
	}
	return strings.Join(texts, ", ")
}

// Named returns the hosts with an entry of their own, sorted. A name that does not exist
// is probably misspelled.
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

// of returns the entry for the host: its own, or else its region's "*".
func (s Settings) of(id HostID) (hostSettings, bool) {
	hosts := s.hosts[id.Region]
	if own, ok := hosts[id.Host]; ok {
		return own, true
	}
	entry, ok := hosts[anyHost]
	return entry, ok
}

// check returns what is wrong with the entry by itself.
func (h *hostSettings) check() []error {
	var faults []error
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
			faults = append(faults, h.at.errorf([]string{field.name}, "%d is negative: leave it out if it is unknown", field.value))
		}
	}
	for _, id := range h.MemoryNodes {
		if id < 0 || id > MaxCPU {
			faults = append(faults, h.at.errorf([]string{"memorynodes"}, "%d: want an id from 0 to %d", id, MaxCPU))
		}
	}
	owner := map[int]int{}
	for _, id := range slices.Sorted(maps.Keys(h.Nodes)) {
		faults = append(faults, h.checkNode(id, owner)...)
	}
	return append(faults, h.checkReserved(owner)...)
}

// checkNode also records in owner the NUMA node of each CPU.
func (h *hostSettings) checkNode(id int, owner map[int]int) []error {
	var faults []error
	node, field := h.Nodes[id], []string{"nodes", strconv.Itoa(id)}
	if id < 0 || id > MaxCPU {
		faults = append(faults, h.at.errorf(field, "want an id from 0 to %d", MaxCPU))
	}
	if fault := node.fault(); fault != "" {
		faults = append(faults, h.at.errorf(field, "%s", fault))
	}
	for _, cpu := range node.CPUs.List() {
		if other, taken := owner[cpu]; taken {
			faults = append(faults, h.at.errorf(append(field, "cpus"), "cpu %d is on node %d too: remove it from one", cpu, other))
			return faults
		}
		owner[cpu] = id
	}
	return faults
}

func (h *hostSettings) checkReserved(owner map[int]int) []error {
	var faults []error
	seen := map[int]bool{}
	for _, cpu := range h.ReservedCPUs {
		switch _, exists := owner[cpu]; {
		case cpu < 0 || cpu > MaxCPU:
			faults = append(faults, h.at.errorf([]string{"reservedcpus"}, "%d: want an id from 0 to %d", cpu, MaxCPU))
		case seen[cpu]:
			faults = append(faults, h.at.errorf([]string{"reservedcpus"}, "cpu %d stands twice: remove one", cpu))
		case len(owner) > 0 && !exists:
			faults = append(faults, h.at.errorf([]string{"reservedcpus"}, "cpu %d is on no node of nodes: add it there or remove it", cpu))
		}
		seen[cpu] = true
	}
	return faults
}
