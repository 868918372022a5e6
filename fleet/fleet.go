// Package fleet defines the types of the desired state: a Spec is a requested VM, a
// Placement is the host, CPUs and NUMA nodes chosen for it, and a VM is both, with a name
// and a VMID. The package also defines the names, VMIDs, markers and provider IDs that
// identify a VM. It does no I/O: start at Fleet.
package fleet

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// Fleet is the desired set of VMs of one numaform installation, in all regions.
type Fleet struct {
	// ClusterID distinguishes this installation's VMs from other installations' on the
	// same Proxmox cluster.
	ClusterID string   `json:"cluster_id"`
	Backend   Backend  `json:"backend"`
	Regions   []Region `json:"regions"`
	// Hosts are the hosts that have a Terraform root, sorted. A host whose last VM was
	// removed keeps its root, because the removal must be applied. Hosts of VMs may be
	// missing.
	Hosts []topology.HostID `json:"hosts,omitempty"`
	// VMs are sorted by region, host and VMID.
	VMs []VM `json:"vms"`
}

// Backend is the Terraform backend that stores the states. Config contains no credentials.
type Backend struct {
	Type   string            `json:"type"`
	Config map[string]string `json:"config,omitempty"`
}

// Region is a Proxmox cluster that the fleet runs on.
type Region struct {
	Name topology.RegionName `json:"name"`
	// Endpoint is the URL of the Proxmox API without a path: https://pve-1:8006/. It is
	// empty if the region has several endpoints; the engine's environment then names one.
	Endpoint string `json:"endpoint"`
	Insecure bool   `json:"insecure,omitempty"`
}

// VMID is the number of a guest in Proxmox.
type VMID int

// Key identifies one reservation of a VM permanently. VMIDs are reused, keys are not.
type Key string

// Policy determines how a VM's vCPUs and memory are placed on its host.
type Policy string

// The placement policies of a ProxmoxNodeClass.
const (
	// PolicyShared sets no pins; its VMs share the CPUs that are not pinned.
	PolicyShared Policy = "Shared"
	// PolicyNUMA binds memory to NUMA nodes and sets no pins.
	PolicyNUMA Policy = "NUMA"
	// PolicyDedicated pins each vCPU to its own CPU, on whole cores to which no other VM is
	// pinned if enough are free; see Spec.WholeCores.
	PolicyDedicated Policy = "Dedicated"
	// PolicyIsolated pins each vCPU to a thread of its own core, and pins no VM to the
	// siblings.
	PolicyIsolated Policy = "Isolated"
)

// Pinned reports whether VMs of this policy own host CPUs.
func (p Policy) Pinned() bool { return p == PolicyDedicated || p == PolicyIsolated }

// PinWith selects the mechanism that applies pins.
type PinWith string

// The mechanisms.
const (
	// PinWithAffinity sets the VM's affinity, which requires a root@pam ticket.
	PinWithAffinity PinWith = "Affinity"
	// PinWithHostAgent writes the pins to the VM's description, which an API token may
	// do; numaform-agent on the host applies them.
	PinWithHostAgent PinWith = "HostAgent"
)

// MaxMemoryOvercommit is the maximum of Spec.MemoryOvercommit.
const MaxMemoryOvercommit = 2

// HugePages is the size of the host's huge pages that back a VM's memory; empty means
// ordinary memory.
type HugePages string

// The huge page sizes that Proxmox supports.
const (
	HugePages2Mi HugePages = "2Mi"
	HugePages1Gi HugePages = "1Gi"
)

// MiB returns the size of one page in MiB, or 0 if Proxmox does not support the size.
func (p HugePages) MiB() int64 {
	switch p {
	case HugePages2Mi:
		return 2
	case HugePages1Gi:
		return 1024
	}
	return 0
}

// Spread selects the failure domain over which a pool's VMs are spread; empty means no
// spreading.
type Spread string

// SpreadHosts spreads over the allowed hosts, preferring the host with the fewest VMs of
// the pool.
const SpreadHosts Spread = "Hosts"

// HostSelection selects one of several hosts on which a VM would be placed equally well.
// Empty means the default of the VM's policy: LeastAllocated for Shared, MostAllocated for
// the others.
type HostSelection string

// The ways to select a host.
const (
	// LeastAllocated prefers the host of which the smallest share of CPUs and memory is
	// allocated to guests, once the VM is there.
	LeastAllocated HostSelection = "LeastAllocated"
	// MostAllocated packs: it keeps room for large VMs on few hosts.
	MostAllocated HostSelection = "MostAllocated"
	// Balanced is like LeastAllocated, but also considers the measured load of hosts.
	Balanced HostSelection = "Balanced"
)

// CloneKind determines how a VM's disk is cloned from its template's.
type CloneKind string

// The clone kinds.
const (
	CloneLinked CloneKind = "linked"
	CloneFull   CloneKind = "full"
)

// Spec is a requested VM without its placement.
type Spec struct {
	Pool         string `json:"pool"`
	NodeClass    string `json:"node_class"`
	InstanceType string `json:"instance_type"`
	// CapacityType is Karpenter's: on-demand, spot or reserved.
	CapacityType string `json:"capacity_type"`
	VCPUs        int    `json:"vcpus"`
	MemoryMiB    int64  `json:"memory_mib"`

	Policy  Policy  `json:"policy"`
	PinWith PinWith `json:"pin_with,omitempty"`
	// Emulator selects the CPUs for the threads that are not vCPUs; empty leaves the
	// choice to the host's administrator. It applies to PinWithHostAgent only.
	Emulator Emulator `json:"emulator,omitempty"`
	// Overcommit is the maximum number of floating vCPUs per CPU that is neither reserved nor
	// pinned; 0 means 1.
	Overcommit float64 `json:"overcommit,omitempty"`
	// MemoryOvercommit is the maximum memory of all guests of the host, as a multiple of the
	// memory that it has for them, without huge pages. Only Shared VMs have one; 0 means 1.
	MemoryOvercommit float64 `json:"memory_overcommit,omitempty"`
	// HugePages back the memory, which requires a root@pam ticket. Shared VMs have none.
	HugePages HugePages `json:"huge_pages,omitempty"`
	Spread    Spread    `json:"spread,omitempty"`
	// HostSelection and MaxHostLoad only concern the choice of a host, so neither the files of
	// VMs nor records contain them. MaxHostLoad is the measured CPU load, in percent, from
	// which a host gets no new VM; 0 means no limit.
	HostSelection HostSelection `json:"-"`
	MaxHostLoad   int           `json:"-"`
	// WholeCores prevents a Dedicated VM from using threads of partially allocated cores,
	// except for the remainder of its vCPUs that does not fill a core, even if no other
	// placement exists.
	WholeCores bool `json:"whole_cores,omitempty"`
	// Hosts are the hosts allowed for the VM, in no order; empty means none.
	Hosts []topology.HostID `json:"hosts"`

	// Template is the name of the template on each host.
	Template string `json:"template"`
	// TemplateVMID identifies the template among templates of the same name on the VM's
	// host, or the template of another host; 0 if the name is unique on the VM's host.
	TemplateVMID VMID      `json:"template_vmid,omitempty"`
	Clone        CloneKind `json:"clone"`
	// CPUType is the Proxmox CPU type, such as "host" or "x86-64-v2-AES".
	CPUType string `json:"cpu_type"`
	// Hardware is what the class overrides of the template; nil means nothing.
	Hardware *Hardware `json:"hardware,omitempty"`
	// DiskGiB is the boot disk's size; 0 means the template's.
	DiskGiB int64 `json:"disk_gib,omitempty"`
	// Storage is the storage for a full clone's disks; empty means the template's
	// storage.
	Storage string `json:"storage,omitempty"`
	// DataDisks are the disks in addition to the boot disk.
	DataDisks []DataDisk `json:"data_disks,omitempty"`
	// SeedStorage is the storage of the ISO image that the guest reads at its first boot:
	// a storage's name, AnySeedStorage, or "" for a guest without one.
	SeedStorage string    `json:"seed_storage,omitempty"`
	Networks    []Network `json:"networks,omitempty"`
	// PCIDevices are hostpci0, hostpci1, ….
	PCIDevices   []PCIDevice `json:"pci_devices,omitempty"`
	Tags         []string    `json:"tags,omitempty"`
	ResourcePool string      `json:"resource_pool,omitempty"`
	// SecurityGroups are the VM's firewall groups in their order: a name, or, for a group of
	// one network device, a name and the device as returned by DeviceGroup.
	SecurityGroups []string `json:"security_groups,omitempty"`
	// VMIDs is the range of the class from which the VM gets its VMID; zero means the range of
	// its region.
	VMIDs VMIDRange `json:"vmids,omitzero"`
	// Labels are the Node labels whose values the pods selected. Labels that all nodes of
	// the pool have are not included.
	Labels map[string]string `json:"labels,omitempty"`

	Demand Demand `json:"demand"`
}

// Demand is the total request of the pods that a VM was requested for. Reviewers see it in
// the diff.
type Demand struct {
	Pods      int   `json:"pods"`
	CPUMilli  int64 `json:"cpu_milli"`
	MemoryMiB int64 `json:"memory_mib"`
}

// Network is a network device. An empty field means the default of Proxmox.
type Network struct {
	Bridge   string `json:"bridge"`
	Model    string `json:"model,omitempty"`
	VLAN     int    `json:"vlan,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	Firewall bool   `json:"firewall,omitempty"`
	// RateMBps is the limit in megabytes per second; 0 means none.
	RateMBps float64 `json:"rate_mbps,omitempty"`
	// Queues is the number of queues of a virtio device; 0 means one per vCPU.
	Queues int `json:"queues,omitempty"`
	// Trunks are the VLANs that pass with their tags.
	Trunks       []int `json:"trunks,omitempty"`
	Disconnected bool  `json:"disconnected,omitempty"`
	// MAC is the device's MAC address; in a Spec, its first three octets.
	MAC string `json:"mac,omitempty"`
	// Addresses are the device's static addresses, at most one IPv4 and one IPv6 address. A
	// Spec contains only their pools.
	Addresses []Address `json:"addresses,omitempty"`
}

// PCIDevice is a host device passed through to a VM, named by its Proxmox resource
// mapping. If the mapping names several devices, Proxmox picks one when the VM starts.
type PCIDevice struct {
	Mapping string `json:"mapping"`
	// MDev is the type of the mediated device; empty passes the whole device through.
	MDev string `json:"mdev,omitempty"`
	// PCIe attaches the device to a PCI Express port, which only machine type q35 has.
	PCIe bool `json:"pcie,omitempty"`
	// XVGA makes the device the VM's primary graphics card.
	XVGA bool `json:"xvga,omitempty"`
}

// DataDisk is an empty disk in addition to the boot disk. It is created and deleted with
// the VM.
type DataDisk struct {
	// Interface is the slot, such as scsi1; empty in a Spec, because the free slots
	// depend on the template.
	Interface string `json:"interface,omitempty"`
	SizeGiB   int64  `json:"size_gib"`
	// Storage is the disk's storage; empty in a Spec means the boot disk's storage.
	Storage string `json:"storage,omitempty"`
}

// DeviceGroup returns a security group that applies to one network device only, such as
// web@net1.
func DeviceGroup(name string, device int) string { return name + "@net" + strconv.Itoa(device) }

// scsiSlots is the number of SCSI slots in Proxmox.
const scsiSlots = 31

// FreeSlots returns the first SCSI slots that are not in taken, up to most.
func FreeSlots(taken []string, most int) []string {
	var free []string
	for i := range scsiSlots {
		if slot := "scsi" + strconv.Itoa(i); len(free) < most && !slices.Contains(taken, slot) {
			free = append(free, slot)
		}
	}
	return free
}

// Placement is the host, CPUs and NUMA nodes chosen for a VM.
type Placement struct {
	Host topology.HostID `json:"host"`
	// CPUs are the host CPUs that the VM owns; empty if its policy does not pin.
	CPUs topology.CPUSet `json:"cpus,omitzero"`
	// VCPUPins lists, for pinned VMs, the host CPU of each vCPU: a permutation of CPUs
	// that pins each cell's vCPUs to CPUs of the cell's host NUMA nodes.
	VCPUPins []int `json:"vcpu_pins,omitempty"`
	// Cells are numa0, numa1, …; empty if the policy binds no memory.
	Cells []topology.NUMACell `json:"cells,omitempty"`
	// L3 lists the IDs of the L3 caches of CPUs, ascending; nil if any CPU's cache is
	// unknown or missing.
	L3 []int `json:"l3,omitempty"`
	// Reason explains the placement to a reviewer, in one line.
	Reason string `json:"reason"`
}

// VM is one VM of the desired state, which becomes a Node: at once, or, for a standby VM,
// when it is woken.
type VM struct {
	Key  Key    `json:"key"`
	VMID VMID   `json:"vmid"`
	Name string `json:"name"`
	Spec
	Placement
	// Source is the template from which the VM is cloned.
	Source Source `json:"source"`
	// Standby is set from the creation of a standby VM until it is woken; the VM is
	// stopped meanwhile. It is never set again.
	Standby bool `json:"standby,omitempty"`
	// Reserve is set if the VM reserves its CPUs and its memory while it is a standby VM.
	Reserve bool `json:"reserve,omitempty"`
	// Seed is the volume of the ISO image that the guest reads at its first boot, as
	// returned by SeedVolume; "" if the VM has no seed.
	Seed string `json:"seed,omitempty"`
	// Timeouts limit how long the provider waits for Proxmox.
	Timeouts Timeouts `json:"timeouts,omitzero"`
	// Module is the content hash of the module that the VM's file calls; empty means the
	// module embedded in this numaform.
	Module string `json:"module"`
}

// Reserves reports whether the VM uses CPUs and memory of its host. A standby VM without
// Reserve uses neither until it is woken.
func (vm *VM) Reserves() bool { return !vm.Standby || vm.Reserve }

// IsGuest reports whether a guest on a host of a region in Proxmox is the VM. This requires
// the VM's VMID and its marker: a VMID can be used again for another guest, and a clone that a
// user made of the VM has its marker, but another VMID. The host is not compared, because a
// migrated VM keeps its VMID.
func (vm *VM) IsGuest(clusterID string, region topology.RegionName, guest *topology.Guest) bool {
	return region == vm.Host.Region && guest.VMID == int(vm.VMID) && guest.ClusterID == clusterID && guest.Key == string(vm.Key)
}

// Adopted reports whether another tool created the VM, and numaform imported it: its name
// does not follow the scheme of NodeName, and numaform changes only its description and
// tags.
func (vm *VM) Adopted() bool { return vm.Module == modules.Adopted }

// Timeouts are limits in seconds for Proxmox operations on a VM; 0 means the module's
// default.
type Timeouts struct {
	// Create covers the clone, the configuration and the start.
	Create int `json:"create,omitempty"`
	Start  int `json:"start,omitempty"`
	// Delete covers the stop and the removal of the disks.
	Delete int `json:"delete,omitempty"`
}

// Source is the template of a VM, with the options that the VM inherits.
type Source struct {
	VMID VMID `json:"vmid"`
	// Host is the template's host if it is another host of the VM's Proxmox cluster, or "".
	Host          topology.HostName `json:"host,omitempty"`
	DiskInterface string            `json:"disk_interface"`
	DiskGiB       int64             `json:"disk_gib"`
	Storage       string            `json:"storage"`
	Options       map[string]string `json:"options,omitempty"`
}

// AllHosts returns Hosts and the hosts of all VMs, sorted.
func (f *Fleet) AllHosts() []topology.HostID {
	hosts := slices.Clone(f.Hosts)
	for i := range f.VMs {
		hosts = append(hosts, f.VMs[i].Host)
	}
	slices.SortFunc(hosts, topology.HostID.Compare)
	return slices.Compact(hosts)
}

// On returns the VMs on a host.
func (f *Fleet) On(host topology.HostID) []VM {
	return slices.DeleteFunc(slices.Clone(f.VMs), func(vm VM) bool { return vm.Host != host })
}

// Sort sorts the fleet's regions and VMs. It does not sort Hosts.
func (f *Fleet) Sort() {
	slices.SortFunc(f.Regions, func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(f.VMs, func(a, b VM) int {
		return cmp.Or(a.Host.Compare(b.Host), cmp.Compare(a.VMID, b.VMID))
	})
}
