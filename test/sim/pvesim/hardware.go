package pvesim

import (
	"encoding/json"
	"slices"
	"strings"
)

// Unknown is the value of an ID or an amount that is not given.
const Unknown = -1

// Host describes a Proxmox VE node: its hardware, and the objects on it at the start.
type Host struct {
	Name string `json:"name"`
	// Region names the cluster of a Config without a name.
	Region string `json:"region,omitempty"`
	// Problem, unless empty, takes the host off the network.
	Problem string `json:"problem,omitempty"`
	// Maintenance is the maintenance mode of Proxmox's HA.
	Maintenance bool `json:"maintenance,omitempty"`
	// Load is the measured load; nil means an idle host.
	Load *Load `json:"load,omitempty"`

	Machine

	// PCIDevices are the devices in resource mappings.
	PCIDevices []PCIDevice `json:"pci_devices,omitempty"`
	Guests     []Guest     `json:"guests,omitempty"`
	Storages   []Storage   `json:"storages,omitempty"`
	Templates  []Template  `json:"templates,omitempty"`
}

// Load is the part of a host's CPUs and memory that is in use, in percent.
type Load struct {
	CPUPercent    int `json:"cpu_percent"`
	MemoryPercent int `json:"memory_percent"`
}

// Machine is a host's hardware.
type Machine struct {
	Model string `json:"model,omitempty"`
	// Arch is amd64, the default, or arm64.
	Arch      string     `json:"arch,omitempty"`
	CPUs      []CPU      `json:"cpus,omitempty"`
	NUMANodes []NUMANode `json:"numa_nodes,omitempty"`
	// MemoryMiB is the host's memory; 0 means the sum of its NUMA nodes.
	MemoryMiB int64 `json:"memory_mib,omitempty"`
}

// CPU is one logical CPU of a host. NUMANode, Socket, Core and L3 are the IDs of the
// components that contain or serve the CPU, or Unknown.
type CPU struct {
	ID       int  `json:"id"`
	Online   bool `json:"online"`
	NUMANode int  `json:"numa_node"`
	Socket   int  `json:"socket"`
	Core     int  `json:"core"`
	L3       int  `json:"l3"`
	// CacheLevel is 2 if L3 names a cache of level 2, as on cores without an L3 cache.
	CacheLevel int  `json:"cache_level,omitempty"`
	Kind       Kind `json:"kind,omitempty"`
}

// Kind distinguishes the cores of a hybrid machine. It is empty if all cores are equal.
type Kind string

// The kinds of core.
const (
	KindPerformance Kind = "performance"
	KindEfficiency  Kind = "efficiency"
	KindLowPower    Kind = "low-power"
)

// UnmarshalJSON decodes a CPU. By default it is online and its IDs are unknown.
func (c *CPU) UnmarshalJSON(data []byte) error {
	type plain CPU
	cpu := plain{ID: Unknown, Online: true, NUMANode: Unknown, Socket: Unknown, Core: Unknown, L3: Unknown}
	if err := json.Unmarshal(data, &cpu); err != nil {
		return err
	}
	*c = CPU(cpu)
	return nil
}

// NUMANode is a NUMA node of a host.
type NUMANode struct {
	ID int `json:"id"`
	// MemoryMiB is 0 if the node has no memory, and Unknown if not given.
	MemoryMiB int64 `json:"memory_mib"`
	// HugePages is the number of reserved huge pages by page size in KiB.
	HugePages map[int]int64 `json:"huge_pages,omitempty"`
	// Distances is the distance to each NUMA node by its ID.
	Distances map[int]int `json:"distances,omitempty"`
}

// UnmarshalJSON decodes a NUMA node. By default its ID and memory are unknown.
func (n *NUMANode) UnmarshalJSON(data []byte) error {
	type plain NUMANode
	node := plain{ID: Unknown, MemoryMiB: Unknown}
	if err := json.Unmarshal(data, &node); err != nil {
		return err
	}
	*n = NUMANode(node)
	return nil
}

// OnlineCPUs returns the CPUs that are online.
func (m *Machine) OnlineCPUs() CPUSet {
	var ids []int
	for _, c := range m.CPUs {
		if c.Online {
			ids = append(ids, c.ID)
		}
	}
	return CPUs(ids...)
}

// GuestKind is Proxmox's name of a type of guest.
type GuestKind string

// The kinds of guest.
const (
	GuestVM        GuestKind = "qemu"
	GuestContainer GuestKind = "lxc"
)

// Guest is a guest that exists at the start. It has no disks.
type Guest struct {
	VMID      int       `json:"vmid"`
	Name      string    `json:"name,omitempty"`
	Kind      GuestKind `json:"kind"`
	Running   bool      `json:"running"`
	Template  bool      `json:"template,omitempty"`
	VCPUs     int       `json:"vcpus"`
	MemoryMiB int64     `json:"memory_mib"`
	// Pins is the VM's affinity.
	Pins        CPUSet         `json:"pins,omitzero"`
	NUMA        []NUMACell     `json:"numa,omitempty"`
	PCIDevices  []PassedDevice `json:"pci_devices,omitempty"`
	Tags        []string       `json:"tags,omitempty"`
	Description string         `json:"description,omitempty"`
	Lock        string         `json:"lock,omitempty"`
}

// NUMACell is one numaN of a VM.
type NUMACell struct {
	GuestCPUs CPUSet `json:"guest_cpus"`
	HostNodes CPUSet `json:"host_nodes"`
	MemoryMiB int64  `json:"memory_mib"`
	Policy    string `json:"policy"`
}

// Storage is a storage as seen by one host.
type Storage struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Shared   bool     `json:"shared,omitempty"`
	Active   bool     `json:"active"`
	Content  []string `json:"content,omitempty"`
	TotalMiB int64    `json:"total_mib,omitempty"`
	FreeMiB  int64    `json:"free_mib,omitempty"`
}

// Template is a VM template.
type Template struct {
	VMID int      `json:"vmid"`
	Name string   `json:"name"`
	Tags []string `json:"tags,omitempty"`
	// DiskInterface is the interface of the boot disk; empty means scsi0.
	DiskInterface string `json:"disk_interface"`
	DiskGiB       int64  `json:"disk_gib"`
	Storage       string `json:"storage"`
	// Drives are the slots of the template's other drives: disks, and CD drives on IDE.
	Drives []string `json:"drives,omitempty"`
	// CloudInit makes the CD drive ide2 a cloud-init drive.
	CloudInit bool `json:"cloud_init,omitempty"`
	// Options are added to the template's configuration. The option of the boot disk omits
	// the volume.
	Options map[string]string `json:"options,omitempty"`
}

// PCIDevice is a device in a resource mapping.
type PCIDevice struct {
	Mapping string `json:"mapping"`
	// Path is an address such as 0000:01:00.0, or several joined by ";".
	Path string `json:"path"`
	// NUMANode is the ID of the NUMA node that the device is attached to, or Unknown.
	NUMANode int `json:"numa_node"`
}

// UnmarshalJSON decodes a device. By default its NUMA node is unknown.
func (d *PCIDevice) UnmarshalJSON(data []byte) error {
	type plain PCIDevice
	device := plain{NUMANode: Unknown}
	if err := json.Unmarshal(data, &device); err != nil {
		return err
	}
	*d = PCIDevice(device)
	return nil
}

// Functions returns the addresses of the device.
func (d *PCIDevice) Functions() []string { return strings.Split(d.Path, ";") }

// Overlaps reports whether one of the device's addresses is among the given addresses. A
// given address can omit the domain 0000. Without a function, it matches all functions of
// the device.
func (d *PCIDevice) Overlaps(addresses string) bool {
	for given := range strings.SplitSeq(addresses, ";") {
		if strings.Count(given, ":") == 1 {
			given = "0000:" + given
		}
		if slices.ContainsFunc(d.Functions(), func(own string) bool {
			return own == given || strings.HasPrefix(own, given+".") || strings.HasPrefix(given, own+".")
		}) {
			return true
		}
	}
	return false
}

// PassedDevice is a hostpciN of a VM: a mapping or an address.
type PassedDevice struct {
	Mapping string `json:"mapping,omitempty"`
	Address string `json:"address,omitempty"`
	MDev    string `json:"mdev,omitempty"`
}
