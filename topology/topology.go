// Package topology contains facts about Proxmox hosts: their CPUs, cores, caches, NUMA
// nodes, memory, guests, storages and templates. It parses and prints their formats
// (affinity, numaN, lscpu, settings files). It never talks to a host and makes no
// decisions: start at Snapshot.
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

// HostID identifies a host across all regions. Its text form is "region/host".
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
		return fmt.Errorf("parsing host %q: must be REGION/HOST", text)
	}
	h.Region, h.Host = RegionName(region), HostName(host)
	return nil
}

// Compare orders hosts by region, then by name.
func (h HostID) Compare(other HostID) int {
	return cmp.Or(cmp.Compare(h.Region, other.Region), cmp.Compare(h.Host, other.Host))
}

// Snapshot is the state of all regions at one time. Hosts are sorted by HostID,
// and everything within them by its ID or name.
type Snapshot struct {
	Regions []Region `json:"regions"`
	Hosts   []Host   `json:"hosts"`
}

// Region is one Proxmox cluster.
type Region struct {
	Name RegionName `json:"name"`
	// Version is the Proxmox VE version, such as "9.0.3".
	Version string `json:"version,omitempty"`
	// Quorate is false if the cluster has lost its quorum. Nothing may be written until it
	// has quorum again.
	Quorate bool `json:"quorate"`
	// Clustered is true if Proxmox listed several members of a cluster. A host without a cluster,
	// and a member whose cluster file system does not respond, list only themselves.
	Clustered bool `json:"clustered,omitempty"`
	// HidesGuests is true if the credential cannot list all guests, so a VMID that is not
	// listed may be in use.
	HidesGuests bool `json:"hides_guests,omitempty"`
	// MappingsProblem is the reason why some resource mappings of PCI devices are unknown,
	// or empty.
	MappingsProblem string   `json:"mappings_problem,omitempty"`
	Pools           []string `json:"pools,omitempty"`
	// AddressPools are the pools of static addresses that numaform.yaml has for the region.
	AddressPools []AddressPool `json:"address_pools,omitempty"`
	// VMIDs are the VMIDs that numaform.yaml reserves for numaform's nodes; zero if they are
	// unknown.
	VMIDs VMIDRange `json:"vmids,omitzero"`
}

// VMIDRange is the VMIDs from Lower to Upper.
type VMIDRange struct {
	Lower int `json:"lower"`
	Upper int `json:"upper"`
}

// Contains reports whether a VMID is in the range.
func (r VMIDRange) Contains(vmid int) bool { return r.Lower <= vmid && vmid <= r.Upper }

// Host is one Proxmox VE node.
type Host struct {
	Region RegionName `json:"region"`
	Name   HostName   `json:"name"`
	Online bool       `json:"online"`
	// Problem is the reason why numaform cannot use the host, or empty.
	Problem string `json:"problem,omitempty"`
	// Absent is set if the Proxmox cluster does not have the host: only numaform's configuration,
	// a request, or the configuration of guests names it. The host then also has a Problem.
	Absent bool `json:"absent,omitempty"`
	// Maintenance is true while the host is in the maintenance mode of the Proxmox HA manager,
	// which moves HA guests to other hosts. Other guests may still run there, but the planner
	// places no new VMs on the host.
	Maintenance bool `json:"maintenance,omitempty"`
	// Warnings name sources that cannot be read, or that contradict the host or each
	// other. The host is still usable.
	Warnings []string `json:"warnings,omitempty"`
	// MachineWarnings are the Warnings about Machine. They stay valid until the machine is
	// read again.
	MachineWarnings []string `json:"-"`

	// ReadAt is the time at which the host was read, the reference time for Agent; zero if
	// it was not read.
	ReadAt time.Time `json:"read_at,omitzero"`
	// Agent is the state that the host agent published in the host's notes, or nil.
	Agent *Agent `json:"agent,omitempty"`
	// AgentProblem explains why the agent's data cannot be read and how to fix that, or is
	// empty.
	AgentProblem string `json:"agent_problem,omitempty"`
	// Contradicted describes how the topology in the notes contradicts the live host, or is
	// empty.
	Contradicted string `json:"contradicted,omitempty"`
	// NotesAt is the time at which the notes were read.
	NotesAt time.Time `json:"-"`

	Machine
	// Entry is the host's last entry in the cluster's list; zero if it is unknown, or if Machine
	// must be read again.
	Entry HostEntry `json:"-"`

	ReservedCPUs      CPUSet `json:"reserved_cpus,omitzero"`
	ReservedMemoryMiB int64  `json:"reserved_memory_mib,omitempty"`
	// MemoryNodes are the NUMA nodes without CPUs whose memory VMs may use; nil means the
	// default of LendsMemory.
	MemoryNodes *CPUSet `json:"memory_nodes,omitempty"`

	// PCIDevices are the devices in resource mappings, by mapping, and within a mapping
	// in the order in which Proxmox assigns them.
	PCIDevices []PCIDevice `json:"pci_devices,omitempty"`

	// Load is the measured load, or nil if the credential may not see it.
	Load *Load `json:"load,omitempty"`
	// Backup is true while a guest of the host is backed up, and for a short time afterwards,
	// because Proxmox backs up the guests of a host one after another.
	Backup bool `json:"backup,omitempty"`

	Guests    []Guest    `json:"guests,omitempty"`
	Storages  []Storage  `json:"storages,omitempty"`
	Templates []Template `json:"templates,omitempty"`
	// Addresses are the host's own addresses, as far as they were read.
	Addresses []string `json:"addresses,omitempty"`
}

// HostEntry is the part of a host's entry in the cluster's list that shows a restart or other
// hardware.
type HostEntry struct {
	CPUs      int
	MemoryMiB int64
	Uptime    time.Duration
}

// ID returns the host's ID.
func (h *Host) ID() HostID { return HostID{Region: h.Region, Host: h.Name} }

// Machine describes a host's hardware. CPUs and NUMANodes are sorted by ID.
type Machine struct {
	Model string `json:"model,omitempty"`
	// Arch is the Kubernetes name of the architecture; empty means amd64.
	Arch string `json:"arch,omitempty"`
	CPUs []CPU  `json:"cpus,omitempty"`
	// NUMANodes has at least one element once CPUs are known.
	NUMANodes []NUMANode `json:"numa_nodes,omitempty"`
	// MemoryMiB is the host's total memory; 0 means unknown.
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	// Sources names the source of each kind of fact; a missing key means that the fact is
	// unknown.
	Sources map[Fact]Source `json:"sources,omitempty"`
	// Threads is the count that a live source reports without the siblings of each CPU.
	// Merge compares it with the other sources and then drops it.
	Threads Threads `json:"-"`
}

// Threads is the number of threads per core.
type Threads struct {
	// PerCore is the largest number of threads of any core; 0 means unknown.
	PerCore int
	// Even is true if all cores have the same number.
	Even bool
}

// Fact is a kind of fact about a machine.
type Fact string

// The facts whose sources are recorded separately.
const (
	FactCPUs     Fact = "cpus"     // which logical CPUs are online
	FactSiblings Fact = "siblings" // CPU.Core
	FactCaches   Fact = "caches"   // CPU.L3
	FactNUMA     Fact = "numa"     // CPU.NUMANode
	FactMemory   Fact = "memory"   // NUMANode.MemoryMiB
)

// Source names the origin of a fact.
type Source string

// The sources, in order of precedence.
const (
	SourceSettings  Source = "settings"  // nodes-settings.json
	SourceAgent     Source = "agent"     // numaform-agent on the host
	SourceCollected Source = "collected" // numaform topology collect
	SourceCapacity  Source = "node-capacity"
	SourceReport    Source = "report" // lscpu block of /nodes/{n}/report
	SourceStatus    Source = "status" // counts of /nodes/{n}/status or /cluster/resources
	SourceAssumed   Source = "assumed"
)

// Unknown marks an ID or amount that no source provides.
const Unknown = -1

// CPU is one logical CPU of a host.
type CPU struct {
	ID     int  `json:"id"`
	Online bool `json:"online"`
	// NUMANode is the ID of the CPU's NUMA node, or Unknown.
	NUMANode int `json:"numa_node"`
	// Socket is the ID of the CPU's socket, or Unknown.
	Socket int `json:"socket"`
	// Core is the ID of the CPU's core: unique on the host, the same for all sibling threads,
	// and Unknown if the siblings are unknown.
	Core int `json:"core"`
	// L3 is the ID of the CPU's last-level cache: unique on the host, the same for all CPUs
	// that share the cache, and Unknown if the caches are unknown.
	L3 int `json:"l3"`
	// CacheLevel is 2 if that cache is an L2 cache, as on cores without an L3; 0 means 3.
	CacheLevel int  `json:"cache_level,omitempty"`
	Kind       Kind `json:"kind,omitempty"`
}

// Kind is the kind of a core of a hybrid machine. It is empty on other machines.
type Kind string

// The core kinds.
const (
	KindPerformance Kind = "performance"
	KindEfficiency  Kind = "efficiency"
	// KindLowPower cores are slower than both: Intel's LP-E cores, or the slowest of
	// three kinds of Arm cores.
	KindLowPower Kind = "low-power"
)

// NUMANode is a NUMA node of a host. It may have no CPUs or no memory.
type NUMANode struct {
	ID int `json:"id"`
	// MemoryMiB is the node's memory, 0 if it has none, or Unknown.
	MemoryMiB int64 `json:"memory_mib"`
	// HugePages is the number of reserved huge pages by page size in KiB.
	HugePages map[int]int64 `json:"huge_pages,omitempty"`
	// Distances maps the ID of each NUMA node to the distance to it; nil means unknown.
	Distances map[int]int `json:"distances,omitempty"`
}

// GuestKind is VM or container.
type GuestKind string

// The kinds of guest.
const (
	GuestVM        GuestKind = "qemu"
	GuestContainer GuestKind = "lxc"
)

// Guest is an existing VM or container on a host, whether numaform created it or not.
// Templates are also guests: they use a VMID and disk space, but no CPUs or memory.
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
	// ordinary memory, and Unknown if Proxmox chooses the size.
	HugePagesKiB int `json:"huge_pages_kib,omitempty"`
	// Pins is the set of host CPUs that the guest is pinned to, by its running affinity
	// or by the host agent; empty means not pinned.
	Pins CPUSet `json:"pins,omitzero"`
	// NUMA is the running guest's numa0, numa1, ….
	NUMA []NUMACell `json:"numa,omitempty"`
	// PCIDevices are the devices passed through to the guest.
	PCIDevices []PassedDevice `json:"pci_devices,omitempty"`
	// Disks are the disk slots of a VM with numaform's marker, sorted.
	Disks []string `json:"disks,omitempty"`
	Tags  []string `json:"tags,omitempty"`
	// ClusterID and Key come from numaform's marker, and are empty without one.
	ClusterID string `json:"cluster_id,omitempty"`
	Key       string `json:"key,omitempty"`
	// Lock is the guest's lock in Proxmox, such as "clone" or "migrate", or empty.
	Lock string `json:"lock,omitempty"`
	// MadeFor is the ProxmoxTemplate that a template was created for; zero for other
	// guests. A guest that is not a template yet has it, too, while it is created.
	MadeFor MadeFor `json:"made_for,omitzero"`
	// Addresses are the static addresses in the guest's configuration.
	Addresses []string `json:"addresses,omitempty"`
}

// MadeFor identifies a template that numaform created: the installation, the name of the
// ProxmoxTemplate, and the template's serial, which is higher for a later template.
type MadeFor struct {
	ClusterID string `json:"cluster_id"`
	Template  string `json:"template"`
	Serial    int    `json:"serial"`
}

// NUMACell is a VM's numaN option: a NUMA node of the guest, and the NUMA nodes of the
// host that back its memory.
type NUMACell struct {
	GuestCPUs CPUSet `json:"guest_cpus"`
	// HostNodes are IDs of the host's NUMA nodes.
	HostNodes CPUSet     `json:"host_nodes"`
	MemoryMiB int64      `json:"memory_mib"`
	Policy    NUMAPolicy `json:"policy"`
}

// NUMAPolicy is how Linux allocates a NUMACell's memory from its HostNodes.
type NUMAPolicy string

// The NUMA policies that Proxmox supports.
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
	// TotalMiB and FreeMiB are 0 if the host does not report them.
	TotalMiB int64 `json:"total_mib,omitempty"`
	FreeMiB  int64 `json:"free_mib,omitempty"`
}

// Template is a VM template on a host, with the options that a clone inherits and that
// HCL must repeat so that an import changes nothing.
type Template struct {
	VMID int      `json:"vmid"`
	Name string   `json:"name"`
	Tags []string `json:"tags,omitempty"`
	// DiskInterface is the slot of the boot disk, such as "scsi0".
	DiskInterface string `json:"disk_interface"`
	DiskGiB       int64  `json:"disk_gib"`
	Storage       string `json:"storage"`
	// Drives are the slots of the template's other drives, sorted. A clone has the same
	// drives.
	Drives []string `json:"drives,omitempty"`
	// OtherStorages are the storages of the template's other drives, including CD images,
	// EFI disk and TPM state, sorted and without Storage.
	OtherStorages []string `json:"other_storages,omitempty"`
	// CloudInit reports whether one of the Drives is a cloud-init drive.
	CloudInit bool `json:"cloud_init,omitempty"`
	// Options are the template's config keys that a clone inherits: scsihw, ostype,
	// machine, bios, serial0 to serial3, vga, agent, boot and cpu. The key of the boot disk
	// contains its options without volume and size.
	Options map[string]string `json:"options,omitempty"`
	// Problem is the reason why the template cannot be cloned, or empty: for example a
	// hookscript or an affinity, which an API token cannot remove.
	Problem string `json:"problem,omitempty"`
	// Commands are the command lines in Problem that fix it, for root on the host.
	Commands []string `json:"commands,omitempty"`
	// MadeFor is the ProxmoxTemplate that the template was created for; zero for templates
	// that users created.
	MadeFor MadeFor `json:"made_for,omitzero"`
}

// Host returns the host with the ID, or nil.
func (s *Snapshot) Host(id HostID) *Host {
	i, ok := slices.BinarySearchFunc(s.Hosts, id, func(h Host, id HostID) int { return h.ID().Compare(id) })
	if !ok {
		return nil
	}
	return &s.Hosts[i]
}

// Left reports whether a host certainly left its Proxmox cluster: the cluster was read
// completely, and has neither the host nor the configuration of guests on it. A host that is only
// down has not left.
func (s *Snapshot) Left(id HostID) bool {
	reliable := slices.ContainsFunc(s.Regions, func(r Region) bool { return r.Name == id.Region && r.Clustered && r.Quorate && !r.HidesGuests })
	if host := s.Host(id); !reliable || host != nil && (!host.Absent || len(host.Guests) > 0) {
		return false
	}
	return slices.ContainsFunc(s.Hosts, func(h Host) bool { return h.Region == id.Region && h.Online })
}

// LendsMemory reports whether VMs may use the memory of a NUMA node without CPUs, such as
// persistent or CXL memory. On architectures other than amd64 the settings must allow
// it, because the memory may belong to a GPU, as on Grace Hopper and POWER9.
func (h *Host) LendsMemory(node int) bool {
	if h.MemoryNodes != nil {
		return h.MemoryNodes.Contains(node)
	}
	return h.Arch == ""
}

// OnlineCPUs returns the online CPUs, including reserved ones.
func (m *Machine) OnlineCPUs() CPUSet {
	var ids []int
	for _, c := range m.CPUs {
		if c.Online {
			ids = append(ids, c.ID)
		}
	}
	return CPUs(ids...)
}
