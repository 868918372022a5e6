// Package fleet holds the nouns of the desired state: a Spec is a VM that is
// wanted, a Placement says where it goes, and a VM is both with a name and a
// number. It also knows the names, VMIDs, markers and provider ids by which a
// VM is found again. It does no I/O: start at Fleet.
package fleet

import (
	"cmp"
	"slices"

	"github.com/numaform/numaform/topology"
)

// Fleet is the desired set of VMs of one numaform, in all regions.
type Fleet struct {
	// ClusterID tells this numaform's VMs from those of others on the same Proxmox.
	ClusterID string   `json:"cluster_id"`
	Backend   Backend  `json:"backend"`
	Regions   []Region `json:"regions"`
	// Hosts are those that have a shard, sorted. One whose last VM was removed
	// keeps its shard, so that the removal can be applied. Hosts of VMs need not
	// stand here.
	Hosts []topology.HostID `json:"hosts,omitempty"`
	// VMs are sorted by region, host and VMID.
	VMs []VM `json:"vms"`
}

// Backend is where Terraform keeps the states. Config holds no credentials.
type Backend struct {
	Type   string            `json:"type"`
	Config map[string]string `json:"config,omitempty"`
}

// Region is a Proxmox cluster that the fleet runs on.
type Region struct {
	Name topology.RegionName `json:"name"`
	// Endpoint is the URL of the Proxmox API without a path: https://pve-1:8006/. It is
	// empty where there are several; the environment of the engine names one then.
	Endpoint string `json:"endpoint"`
	Insecure bool   `json:"insecure,omitempty"`
}

// VMID is Proxmox' number of a guest.
type VMID int

// Key identifies one reservation of a VM for ever. VMIDs come back, keys do not.
type Key string

// Policy says how a VM's vCPUs and memory are placed on its host.
type Policy string

// The placement policies of a ProxmoxNodeClass.
const (
	// PolicyShared sets no pins; the vCPUs of such VMs share what is not pinned.
	PolicyShared Policy = "Shared"
	// PolicyNUMA binds memory to NUMA nodes; CPUs are neither pinned nor shared out.
	PolicyNUMA Policy = "NUMA"
	// PolicyDedicated gives whole cores that no other guest of ours uses.
	PolicyDedicated Policy = "Dedicated"
	// PolicyIsolated gives one thread of each core and leaves its siblings idle.
	PolicyIsolated Policy = "Isolated"
)

// Pinned reports whether VMs of this policy own host CPUs.
func (p Policy) Pinned() bool { return p == PolicyDedicated || p == PolicyIsolated }

// PinWith says who makes pins effective.
type PinWith string

// The ways to pin.
const (
	// PinWithAffinity writes the VM's affinity, which only a root@pam ticket may.
	PinWithAffinity PinWith = "Affinity"
	// PinWithHostAgent writes the pins into the VM's description, which a token
	// may; numaform-agent on the host keeps them.
	PinWithHostAgent PinWith = "HostAgent"
)

// HugePages is the size of the huge pages of the host that back a VM's memory; empty
// means ordinary memory.
type HugePages string

// The sizes that Proxmox knows.
const (
	HugePages2Mi HugePages = "2Mi"
	HugePages1Gi HugePages = "1Gi"
)

// MiB returns the size of one page, or 0 where the size is none that Proxmox knows.
func (p HugePages) MiB() int64 {
	switch p {
	case HugePages2Mi:
		return 2
	case HugePages1Gi:
		return 1024
	}
	return 0
}

// Spread says over what the VMs of a pool are spread; empty means nothing.
type Spread string

// SpreadHosts spreads over the allowed hosts: the one with the fewest VMs of the pool
// comes first.
const SpreadHosts Spread = "Hosts"

// CloneKind says how a VM's disk is made from its template's.
type CloneKind string

// The clone kinds.
const (
	CloneLinked CloneKind = "linked"
	CloneFull   CloneKind = "full"
)

// Spec is a VM that is wanted, fully resolved except for its place.
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
	// Emulator is where the host agent puts the threads that are no vCPUs; empty leaves
	// that to the host's administrator. Only PinWithHostAgent knows it.
	Emulator Emulator `json:"emulator,omitempty"`
	// Overcommit is how many vCPUs of Shared VMs stand on one host CPU; 0 means 1.
	Overcommit float64 `json:"overcommit,omitempty"`
	// HugePages back the memory, which only a root@pam ticket may ask for. Shared VMs
	// have none.
	HugePages HugePages `json:"huge_pages,omitempty"`
	Spread    Spread    `json:"spread,omitempty"`
	// WholeCores keeps a Dedicated VM off threads of several broken cores, even where it
	// finds no other place.
	WholeCores bool `json:"whole_cores,omitempty"`
	// Hosts are those that may take the VM, in no order; empty means none may.
	Hosts []topology.HostID `json:"hosts"`

	// Template is the name of the template on each host.
	Template string `json:"template"`
	// TemplateVMID tells the template from others of its name on the VM's host; 0
	// where there are none.
	TemplateVMID VMID      `json:"template_vmid,omitempty"`
	Clone        CloneKind `json:"clone"`
	// CPUType is Proxmox' cpu type, such as "host" or "x86-64-v2-AES".
	CPUType string `json:"cpu_type"`
	// DiskGiB is the boot disk's size; 0 means the template's.
	DiskGiB int64 `json:"disk_gib,omitempty"`
	// Storage takes a full clone's disks; empty means the template's storage.
	Storage string `json:"storage,omitempty"`
	// DataDisks are those beside the boot disk.
	DataDisks []DataDisk `json:"data_disks,omitempty"`
	// SeedStorage keeps the ISO image that the guest reads at its first boot: a
	// storage's name, AnySeedStorage, or "" for a guest that gets none.
	SeedStorage string    `json:"seed_storage,omitempty"`
	Networks    []Network `json:"networks,omitempty"`
	// PCIDevices are hostpci0, hostpci1, ….
	PCIDevices     []PCIDevice `json:"pci_devices,omitempty"`
	Tags           []string    `json:"tags,omitempty"`
	ResourcePool   string      `json:"resource_pool,omitempty"`
	SecurityGroups []string    `json:"security_groups,omitempty"`
	// Labels are labels of the Node that its pods chose among what the pool
	// allows; those that all nodes of the pool have are not repeated.
	Labels map[string]string `json:"labels,omitempty"`

	Demand Demand `json:"demand"`
}

// Demand is what asked for a VM, for the reader of the diff.
type Demand struct {
	Pods      int   `json:"pods"`
	CPUMilli  int64 `json:"cpu_milli"`
	MemoryMiB int64 `json:"memory_mib"`
}

// Network is a network device. Empty fields leave Proxmox' default.
type Network struct {
	Bridge   string `json:"bridge"`
	Model    string `json:"model,omitempty"`
	VLAN     int    `json:"vlan,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	Firewall bool   `json:"firewall,omitempty"`
	// MAC is the device's address, and in a Spec its first three octets.
	MAC string `json:"mac,omitempty"`
}

// Placement is where a VM goes on which host.
type Placement struct {
	Host topology.HostID `json:"host"`
	// CPUs are the host CPUs that the VM owns; empty if its policy does not pin.
	CPUs topology.CPUSet `json:"cpus,omitzero"`
	// VCPUPins is, for pinned VMs, the host CPU of each vCPU: a permutation of
	// CPUs in which cells' guest CPUs stand on CPUs of the cells' host nodes.
	VCPUPins []int `json:"vcpu_pins,omitempty"`
	// Cells are numa0, numa1, …; empty if the policy binds no memory.
	Cells []topology.NUMACell `json:"cells,omitempty"`
	// L3 are the L3 caches that CPUs lie in, ascending; nil if one is unknown or has none.
	L3 []int `json:"l3,omitempty"`
	// Reason says why this place, in one line for a reviewer.
	Reason string `json:"reason"`
}

// VM is a node of the desired state.
type VM struct {
	Key  Key    `json:"key"`
	VMID VMID   `json:"vmid"`
	Name string `json:"name"`
	Spec
	Placement
	// Source is the template on the VM's host that it is cloned from.
	Source Source `json:"source"`
	// Seed is the volume of the ISO image that the guest reads at its first boot, as
	// SeedVolume names it; "" if it reads none.
	Seed string `json:"seed,omitempty"`
	// Timeouts are how long the provider waits for Proxmox.
	Timeouts Timeouts `json:"timeouts,omitzero"`
	// Module is the content hash of the module that the VM's file calls; empty
	// means the one that this numaform carries.
	Module string `json:"module"`
}

// Timeouts are the seconds that operations of Proxmox on a VM may take; 0 means what
// the module says.
type Timeouts struct {
	// Create covers everything from the clone to a VM that runs, its start included.
	Create int `json:"create,omitempty"`
	Start  int `json:"start,omitempty"`
	// Delete covers the stop and the removal of the disks.
	Delete int `json:"delete,omitempty"`
}

// Source is what a VM takes over from its template.
type Source struct {
	VMID          VMID              `json:"vmid"`
	DiskInterface string            `json:"disk_interface"`
	DiskGiB       int64             `json:"disk_gib"`
	Storage       string            `json:"storage"`
	Options       map[string]string `json:"options,omitempty"`
}

// Shard is the unit that is planned and applied on its own: one Proxmox host.
type Shard = topology.HostID

// Shards returns the hosts that have VMs, and those that had, sorted.
func (f *Fleet) Shards() []Shard {
	shards := slices.Clone(f.Hosts)
	for i := range f.VMs {
		shards = append(shards, f.VMs[i].Host)
	}
	slices.SortFunc(shards, topology.HostID.Compare)
	return slices.Compact(shards)
}

// Sort puts the fleet into its canonical order.
func (f *Fleet) Sort() {
	slices.SortFunc(f.Regions, func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(f.VMs, func(a, b VM) int {
		return cmp.Or(a.Host.Compare(b.Host), cmp.Compare(a.VMID, b.VMID))
	})
}
