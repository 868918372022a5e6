// Package topology holds facts about Proxmox hosts: their CPUs, cores, caches,
// NUMA nodes, memory, guests, storages and templates. It parses and prints the
// formats such facts come in (affinity, numaN, lscpu, settings files). It never
// talks to a host and decides nothing: start at Snapshot.
package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// RegionName names a Proxmox cluster.
type RegionName string

// HostName names a Proxmox VE node within its region.
type HostName string

// HostID names a host among all regions. Its text form is "region/host".
type HostID struct {
	Region RegionName
	Host   HostName
}

// String returns the host as "region/host".
func (h HostID) String() string { return string(h.Region) + "/" + string(h.Host) }

// MarshalText returns the host as "region/host".
func (h HostID) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText parses "region/host".
func (h *HostID) UnmarshalText(text []byte) error {
	region, host, ok := strings.Cut(string(text), "/")
	if !ok || region == "" || host == "" {
		return fmt.Errorf("parsing host %q: want region/host", text)
	}
	h.Region, h.Host = RegionName(region), HostName(host)
	return nil
}

// Compare orders hosts by region, then by name.
func (h HostID) Compare(other HostID) int {
	return cmp.Or(cmp.Compare(h.Region, other.Region), cmp.Compare(h.Host, other.Host))
}

// Snapshot is everything that was read of all regions at one time. Hosts are
// sorted by HostID, and everything within them by its id or name.
type Snapshot struct {
	Regions []Region `json:"regions"`
	Hosts   []Host   `json:"hosts"`
}

// Region is one Proxmox cluster.
type Region struct {
	Name RegionName `json:"name"`
	// Version is the Proxmox VE version, such as "9.0.3".
	Version string `json:"version,omitempty"`
	// Quorate is false when the cluster lost its quorum: then nothing may be written.
	Quorate bool `json:"quorate"`
	// HidesGuests is set when the credential may not see all guests: then a VMID
	// that is not listed may be taken all the same.
	HidesGuests bool `json:"hides_guests,omitempty"`
	// MappingsProblem says why not all resource mappings of PCI devices are known.
	MappingsProblem string   `json:"mappings_problem,omitempty"`
	Pools           []string `json:"pools,omitempty"`
}

// Host is one Proxmox VE node.
type Host struct {
	Region RegionName `json:"region"`
	Name   HostName   `json:"name"`
	Online bool       `json:"online"`
	// Problem says why the host cannot be used, or is empty.
	Problem string `json:"problem,omitempty"`
	// Maintenance is true while Proxmox' HA keeps guests off the host. Those that are
	// there run on; no new ones should come.
	Maintenance bool `json:"maintenance,omitempty"`
	// Warnings are about sources that could not be read, or that contradict the host or
	// each other; the host is usable.
	Warnings []string `json:"warnings,omitempty"`
	// MachineWarnings are those of the Warnings that came with the Machine, and hold until
	// it is read again.
	MachineWarnings []string `json:"-"`

	// ReadAt is when the host was read, and what Agent says is compared with; zero means
	// that it was not.
	ReadAt time.Time `json:"read_at,omitzero"`
	// Agent is what the host agent says in the host's notes, or nil if it says nothing.
	Agent *Agent `json:"agent,omitempty"`
	// AgentProblem says why what stands there is not known, and how to mend that.
	AgentProblem string `json:"agent_problem,omitempty"`
	// Contradicted says how the topology in the notes is not that of the live host.
	Contradicted string `json:"contradicted,omitempty"`
	// NotesAt is when the notes were read.
	NotesAt time.Time `json:"-"`

	Machine

	ReservedCPUs      CPUSet `json:"reserved_cpus,omitzero"`
	ReservedMemoryMiB int64  `json:"reserved_memory_mib,omitempty"`
	// MemoryNodes are the NUMA nodes without CPUs whose memory VMs may have; nil leaves that
	// to LendsMemory.
	MemoryNodes *CPUSet `json:"memory_nodes,omitempty"`

	// PCIDevices are those that resource mappings name, by mapping, and of one mapping in
	// the order in which Proxmox takes them.
	PCIDevices []PCIDevice `json:"pci_devices,omitempty"`

	Guests    []Guest    `json:"guests,omitempty"`
	Storages  []Storage  `json:"storages,omitempty"`
	Templates []Template `json:"templates,omitempty"`
}

// ID returns the host's name among all regions.
func (h *Host) ID() HostID { return HostID{Region: h.Region, Host: h.Name} }

// Machine is what is known of a host's hardware. CPUs and NUMANodes are sorted
// by ID.
type Machine struct {
	Model string `json:"model,omitempty"`
	// Arch is Kubernetes' name of the architecture; empty means amd64.
	Arch string `json:"arch,omitempty"`
	CPUs []CPU  `json:"cpus,omitempty"`
	// NUMANodes has at least one element once CPUs are known.
	NUMANodes []NUMANode `json:"numa_nodes,omitempty"`
	// MemoryMiB is what the host has in all; 0 means unknown.
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	// Sources says where each kind of fact was read; a missing key means that
	// the fact is unknown.
	Sources map[Fact]Source `json:"sources,omitempty"`
	// Threads is what a live source counts without telling which CPUs are siblings. It is
	// there to be compared, and of no use once sources are merged.
	Threads Threads `json:"-"`
}

// Threads is how many threads cores have.
type Threads struct {
	// PerCore is that of the cores with the most; 0 means unknown.
	PerCore int
	// Even is set if all cores have as many.
	Even bool
}

// Fact is a kind of fact about a machine.
type Fact string

// The facts whose sources are kept apart.
const (
	FactCPUs     Fact = "cpus"     // which logical CPUs are online
	FactSiblings Fact = "siblings" // CPU.Core
	FactCaches   Fact = "caches"   // CPU.L3
	FactNUMA     Fact = "numa"     // CPU.NUMANode
	FactMemory   Fact = "memory"   // NUMANode.MemoryMiB
)

// Source names where a fact was read, best first.
type Source string

// The sources, in the order of their precedence.
const (
	SourceSettings  Source = "settings"  // nodes-settings.json
	SourceAgent     Source = "agent"     // numaform-agent on the host
	SourceCollected Source = "collected" // numaform topology collect
	SourceCapacity  Source = "node-capacity"
	SourceReport    Source = "report" // lscpu block of /nodes/{n}/report
	SourceStatus    Source = "status" // counts of /nodes/{n}/status or /cluster/resources
	SourceAssumed   Source = "assumed"
)

// Unknown stands for an id or an amount that no source told.
const Unknown = -1

// CPU is one logical CPU of a host.
type CPU struct {
	ID     int  `json:"id"`
	Online bool `json:"online"`
	// NUMANode is the id of the CPU's NUMA node, or Unknown.
	NUMANode int `json:"numa_node"`
	// Socket is the id of the CPU's socket, or Unknown.
	Socket int `json:"socket"`
	// Core is equal for the sibling threads of one core, unique on the host,
	// and Unknown where siblings are not known.
	Core int `json:"core"`
	// L3 is equal for CPUs that share a last-level cache, unique on the host,
	// and Unknown where caches are not known.
	L3 int `json:"l3"`
	// CacheLevel is 2 where that cache is of level 2, as on cores without an L3; 0 means 3.
	CacheLevel int  `json:"cache_level,omitempty"`
	Kind       Kind `json:"kind,omitempty"`
}

// Kind tells apart the cores of a hybrid machine. It is empty where all are alike.
type Kind string

// The kinds of core.
const (
	KindPerformance Kind = "performance"
	KindEfficiency  Kind = "efficiency"
	// KindLowPower cores are slower than both: Intel's LP-E cores, the least of three kinds of Arm.
	KindLowPower Kind = "low-power"
)

// NUMANode is a NUMA node of a host. It may have no CPUs or no memory.
type NUMANode struct {
	ID int `json:"id"`
	// MemoryMiB is the node's memory, 0 if it has none, or Unknown.
	MemoryMiB int64 `json:"memory_mib"`
	// HugePages is the number of reserved huge pages by page size in KiB.
	HugePages map[int]int64 `json:"huge_pages,omitempty"`
	// Distances is the distance to each NUMA node by its id; nil means unknown.
	Distances map[int]int `json:"distances,omitempty"`
}

// GuestKind tells virtual machines from containers.
type GuestKind string

// The kinds of guest.
const (
	GuestVM        GuestKind = "qemu"
	GuestContainer GuestKind = "lxc"
)

// Guest is a VM or container that exists on a host, whoever made it. Templates
// are guests too: they hold a VMID and disk, but neither CPUs nor memory.
type Guest struct {
	VMID     int       `json:"vmid"`
	Name     string    `json:"name,omitempty"`
	Kind     GuestKind `json:"kind"`
	Running  bool      `json:"running"`
	Template bool      `json:"template,omitempty"`
	// VCPUs is cores × sockets, or a container's core limit (0: no limit).
	VCPUs     int   `json:"vcpus"`
	MemoryMiB int64 `json:"memory_mib"`
	// HugePagesKiB is the size of the host's huge pages that back a VM's memory, 0 for
	// ordinary memory, and Unknown where Proxmox takes those that suit.
	HugePagesKiB int `json:"huge_pages_kib,omitempty"`
	// Pins is the set of host CPUs that the guest is pinned to, by its running
	// affinity or by the host agent; empty means that it floats.
	Pins CPUSet `json:"pins,omitzero"`
	// NUMA is the guest's numa0, numa1, …, as running.
	NUMA []NUMACell `json:"numa,omitempty"`
	// PCIDevices are those that are passed through to it.
	PCIDevices []PassedDevice `json:"pci_devices,omitempty"`
	// Disks are the slots of the disks of a VM with numaform's marker, sorted.
	Disks []string `json:"disks,omitempty"`
	Tags  []string `json:"tags,omitempty"`
	// ClusterID and Key are read off numaform's marker, and empty without one.
	ClusterID string `json:"cluster_id,omitempty"`
	Key       string `json:"key,omitempty"`
	// Lock is Proxmox' lock, such as "clone" or "migrate", or empty.
	Lock string `json:"lock,omitempty"`
}

// NUMACell is one numaN of a VM: a NUMA node that the guest sees, and the host's
// NUMA nodes whose memory backs it.
type NUMACell struct {
	GuestCPUs CPUSet `json:"guest_cpus"`
	// HostNodes are ids of NUMA nodes of the host.
	HostNodes CPUSet     `json:"host_nodes"`
	MemoryMiB int64      `json:"memory_mib"`
	Policy    NUMAPolicy `json:"policy"`
}

// NUMAPolicy is how Linux takes the memory of a NUMACell from its HostNodes.
type NUMAPolicy string

// The NUMA policies that Proxmox knows.
const (
	NUMABind       NUMAPolicy = "bind"
	NUMAPreferred  NUMAPolicy = "preferred"
	NUMAInterleave NUMAPolicy = "interleave"
)

// Storage is a storage as one host sees it.
type Storage struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Shared  bool     `json:"shared,omitempty"`
	Active  bool     `json:"active"`
	Content []string `json:"content,omitempty"`
	// TotalMiB and FreeMiB are 0 where the host does not tell.
	TotalMiB int64 `json:"total_mib,omitempty"`
	FreeMiB  int64 `json:"free_mib,omitempty"`
}

// Template is a VM template on a host, with those of its options that a clone
// inherits and that HCL must repeat so that an import changes nothing.
type Template struct {
	VMID int      `json:"vmid"`
	Name string   `json:"name"`
	Tags []string `json:"tags,omitempty"`
	// DiskInterface is the boot disk's, such as "scsi0".
	DiskInterface string `json:"disk_interface"`
	DiskGiB       int64  `json:"disk_gib"`
	Storage       string `json:"storage"`
	// Drives are the slots of its other drives, sorted: a clone has them too.
	Drives []string `json:"drives,omitempty"`
	// CloudInit is whether one of these is a cloud-init drive.
	CloudInit bool `json:"cloud_init,omitempty"`
	// Options are the template's own config keys that a clone inherits: scsihw,
	// ostype, machine, bios, serial0, vga, agent, boot, cpu, and under the key of the
	// boot disk that disk's options without volume and size.
	Options map[string]string `json:"options,omitempty"`
	// Problem says why no node can be cloned from it (a hookscript or an
	// affinity that a token cannot remove, say), or is empty.
	Problem string `json:"problem,omitempty"`
}

// Host returns the host of that id, or nil.
func (s *Snapshot) Host(id HostID) *Host {
	i, ok := slices.BinarySearchFunc(s.Hosts, id, func(h Host, id HostID) int { return h.ID().Compare(id) })
	if !ok {
		return nil
	}
	return &s.Hosts[i]
}

// LendsMemory reports whether VMs may have the memory of a NUMA node without CPUs, such as
// persistent or CXL memory. Unless the settings say so, it may be a GPU's on any architecture
// but amd64, as on Grace Hopper and POWER9, and is lent to nobody.
func (h *Host) LendsMemory(node int) bool {
	if h.MemoryNodes != nil {
		return h.MemoryNodes.Contains(node)
	}
	return h.Arch == ""
}

// OnlineCPUs returns the CPUs that are online, reserved ones included.
func (m *Machine) OnlineCPUs() CPUSet {
	var ids []int
	for _, c := range m.CPUs {
		if c.Online {
			ids = append(ids, c.ID)
		}
	}
	return CPUs(ids...)
}
