package v1alpha1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxmoxNodeClass configures the VMs of the NodePools that refer to it: their hosts and
// template, how they are placed on a host's CPUs, and how they join the cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=proxmoxnodeclasses,scope=Cluster,categories=karpenter,shortName={pnc,pncs}
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Template",type="string",JSONPath=".spec.template.name"
// +kubebuilder:printcolumn:name="Placement",type="string",JSONPath=".spec.placement.policy"
// +kubebuilder:printcolumn:name="Hosts",type="integer",JSONPath=".status.hostCount"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Region",type="string",JSONPath=".spec.region",priority=1
// +kubebuilder:printcolumn:name="Metadata",type="string",JSONPath=".spec.metadata.type",priority=1
// +kubebuilder:printcolumn:name="Problem",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",priority=1
type ProxmoxNodeClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ProxmoxNodeClassSpec `json:"spec"`
	// +optional
	Status ProxmoxNodeClassStatus `json:"status,omitempty"`
}

// ProxmoxNodeClassList is a list of ProxmoxNodeClasses.
//
// +kubebuilder:object:root=true
type ProxmoxNodeClassList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ProxmoxNodeClass `json:"items"`
}

// ProxmoxNodeClassSpec is the desired state of a ProxmoxNodeClass.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.clone) && self.clone == 'linked' && has(self.bootDevice) && has(self.bootDevice.storage) && self.bootDevice.storage.size() > 0)",message="has no effect on a linked clone, which stays on its template's storage: remove it, or set clone to full",fieldPath=".bootDevice.storage"
// +kubebuilder:validation:XValidation:rule="!has(self.region) || self.region.size() == 0 || !has(self.hosts) || self.hosts.all(h, !h.contains('/') || h.startsWith(self.region + '/'))",message="contains a host outside spec.region: remove the host or spec.region",fieldPath=".hosts"
// +kubebuilder:validation:XValidation:rule="!(has(self.placement) && has(self.placement.policy) && self.placement.policy == 'Dedicated' && has(self.sizing) && has(self.sizing.policy) && self.sizing.policy == 'Flexible') || (has(self.sizing.maxVCPUs) ? self.sizing.maxVCPUs : 16) / 2 * 2 >= (has(self.sizing.minVCPUs) ? self.sizing.minVCPUs : 1)",message="allows no size: Dedicated nodes have whole cores, so an even number of vCPUs: raise maxVCPUs or lower minVCPUs",fieldPath=".sizing.maxVCPUs"
// +kubebuilder:validation:XValidation:rule="!(has(self.placement) && has(self.placement.hugePages) && self.placement.hugePages == '1Gi' && has(self.sizing) && has(self.sizing.policy) && self.sizing.policy == 'Flexible') || (has(self.sizing.maxMemoryMiB) ? self.sizing.maxMemoryMiB : 131072) / 1024 >= ((has(self.sizing.minMemoryMiB) ? self.sizing.minMemoryMiB : 2048) + 1023) / 1024",message="allows no size: with huge pages of 1Gi, nodes have whole GiB: raise maxMemoryMiB or lower minMemoryMiB",fieldPath=".sizing.maxMemoryMiB"
// +kubebuilder:validation:XValidation:rule="!has(self.joinTimeout) || !has(self.tokenTTL) || duration(self.tokenTTL) >= duration(self.joinTimeout)",message="is shorter than joinTimeout, so a node's join token would expire before its time is over: raise it, or lower joinTimeout",fieldPath=".tokenTTL"
// +kubebuilder:validation:XValidation:rule="!has(self.networks) || !self.networks.exists(n, has(n.addressPools) && n.addressPools.size() > 0) || (has(self.metadata) && has(self.metadata.type) && self.metadata.type == 'cdrom')",message="contains addressPools, but nodes read their addresses from the seed of metadata.type cdrom: set that type, or remove addressPools",fieldPath=".networks"
type ProxmoxNodeClassSpec struct {
	// Region is the Proxmox cluster to use. Empty means all clusters.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9][A-Za-z0-9_.-]*)?$')",message="is not a region name: use the region of a cluster in numaform.yaml"
	Region string `json:"region,omitempty"`

	// Hosts are the Proxmox hosts to use, by name or as region/name. Empty means all hosts
	// that have the template.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=127
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([A-Za-z0-9][A-Za-z0-9_.-]{0,62}/)?[A-Za-z0-9][A-Za-z0-9-]{0,62}$')",message="is not a host: write its name, or region/name"
	// +listType=set
	Hosts []string `json:"hosts,omitempty"`

	// Template is the VM template from which nodes are cloned.
	Template TemplateReference `json:"template"`

	// Clone selects whether a node's disk is linked to the template's disk or a full copy of
	// it.
	// +optional
	// +kubebuilder:default=full
	Clone CloneKind `json:"clone,omitempty"`

	// BootDevice is the disk from which a node boots.
	// +optional
	BootDevice *BootDevice `json:"bootDevice,omitempty"`

	// DataDisks are empty disks in addition to the boot disk, on SCSI slots that the
	// template does not use. They are deleted with the node.
	// +optional
	// +kubebuilder:validation:MaxItems=6
	// +listType=atomic
	DataDisks []DataDisk `json:"dataDisks,omitempty"`

	// CPUType is the CPU type of nodes, as Proxmox names it.
	// +optional
	// +kubebuilder:default=host
	CPUType CPUModel `json:"cpuType,omitempty"`

	// Hardware overrides virtual hardware of the template, such as the machine type.
	// +optional
	Hardware *Hardware `json:"hardware,omitempty"`

	// Placement configures how nodes are placed on their host's CPUs and memory.
	// +optional
	// +kubebuilder:default={policy: Shared}
	Placement Placement `json:"placement,omitempty"`

	// Sizing selects the sizes of nodes: instance types, or the requests of each node's
	// pods. Unset means all instance types.
	// +optional
	Sizing *Sizing `json:"sizing,omitempty"`

	// MemoryOverheadMiB is the part of a VM's memory that its Node does not report, because
	// the guest's firmware and kernel use it. Unset means 2 % plus 96 MiB. Pods are scheduled
	// onto the rest, so a value that is too high is safer than one that is too low.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1048576
	MemoryOverheadMiB *int32 `json:"memoryOverheadMiB,omitempty"`

	// Networks are net0, net1, and so on. Empty means the template's network devices.
	// +optional
	// +kubebuilder:validation:MaxItems=6
	// +listType=atomic
	Networks []Network `json:"networks,omitempty"`

	// PCIDevices are devices of the host that are passed through to a node, hostpci0 first. A
	// host without a free device of each mapping gets no more nodes.
	// +optional
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:XValidation:rule="self.filter(d, has(d.xvga) && d.xvga).size() <= 1",message="contains several primary graphics cards: set xvga for one device only"
	// +listType=atomic
	PCIDevices []PCIDevice `json:"pciDevices,omitempty"`

	// Tags are added to the VMs, in addition to numaform's tags.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9_][a-z0-9_.+-]*$')",message="is not a tag: use a-z, 0-9, _, ., + and -, and begin with a letter, a digit or _"
	// +listType=set
	Tags []string `json:"tags,omitempty"`

	// Pool is the Proxmox resource pool of the VMs.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9][A-Za-z0-9_./-]*)?$')",message="is not a resource pool: use A-Z, a-z, 0-9, _, ., - and /, and begin with a letter or digit"
	Pool string `json:"pool,omitempty"`

	// VMIDRange is the part of the vmid_range of the Proxmox cluster from which new VMs get
	// their VMIDs, for example one part for each project. Unset means all of vmid_range except
	// the parts of other classes. Hosts of a cluster whose vmid_range does not contain it are
	// not used.
	// +optional
	VMIDRange *VMIDRange `json:"vmidRange,omitempty"`

	// SecurityGroups are Proxmox firewall groups that apply to all network devices with
	// firewall.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=18
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9_-]+$')",message="is not a security group: use 2 to 18 of A-Z, a-z, 0-9, _ and -, and begin with a letter"
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// Metadata configures how a node gets its join data.
	// +optional
	// +kubebuilder:default={type: none}
	Metadata Metadata `json:"metadata,omitempty"`

	// Kubelet is the kubelet configuration of the nodes. It takes effect with metadata of
	// type cdrom, and with type agent if the templates use it.
	// +optional
	Kubelet *KubeletConfiguration `json:"kubelet,omitempty"`

	// TokenTTL is the lifetime of a node's join token, from 5 minutes to a day. Unset means 15
	// minutes.
	// +optional
	// +kubebuilder:default="15m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('5m') && duration(self) <= duration('24h')",message="is not a duration from 5m to 24h"
	TokenTTL *metav1.Duration `json:"tokenTTL,omitempty"`

	// JoinTimeout limits the time from the creation of a NodeClaim until its Node registers,
	// clone and boot included, and then until the Node is ready, from 1 minute to 15 minutes.
	// A NodeClaim that exceeds it is deleted with its VM. Unset means 15 minutes, the timeout
	// of Karpenter, which cannot be longer.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('15m')",message="is not a duration from 1m to 15m, after which Karpenter deletes the NodeClaim in any case"
	JoinTimeout *metav1.Duration `json:"joinTimeout,omitempty"`
}

// TemplateReference selects a VM template on each host. The template must match all fields.
// A host without exactly one such template is not used.
//
// +kubebuilder:validation:XValidation:rule="(has(self.ref) && self.ref.size() > 0) || (has(self.name) && self.name.size() > 0) || (has(self.tags) && self.tags.size() > 0) || (has(self.vmid) && self.vmid > 0)",message="is empty: set the name, the tags or the vmid of the VM template that nodes are cloned from, or ref"
// +kubebuilder:validation:XValidation:rule="!(has(self.ref) && self.ref.size() > 0) || !((has(self.name) && self.name.size() > 0) || (has(self.tags) && self.tags.size() > 0) || (has(self.vmid) && self.vmid > 0))",message="selects the template alone: remove name, tags and vmid, or remove ref",fieldPath=".ref"
type TemplateReference struct {
	// Ref is the name of a ProxmoxTemplate. On each host, the newest of its templates that
	// is ready is used.
	// +optional
	// +kubebuilder:validation:MaxLength=54
	Ref string `json:"ref,omitempty"`

	// Name is the template's name on each host.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name,omitempty"`

	// Tags are tags that the template must have; it may have more.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9_][a-z0-9_.+-]*$')",message="is not a tag: use a-z, 0-9, _, ., + and -, and begin with a letter, a digit or _"
	// +listType=set
	Tags []string `json:"tags,omitempty"`

	// VMID is the VMID of the template. A VMID is unique in a region, so only the host with
	// that template is used.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	VMID int32 `json:"vmid,omitempty"`
}

// CloneKind selects how a VM's disk is cloned from its template's disk.
//
// +kubebuilder:validation:Enum=linked;full
type CloneKind string

// The clone kinds.
const (
	CloneLinked CloneKind = "linked"
	CloneFull   CloneKind = "full"
)

// BootDevice is the disk from which a VM boots.
type BootDevice struct {
	// Size is the disk's size, such as 40G; G and Gi are both 2^30 bytes, as in
	// Proxmox. Empty means the instance type's size, or else 30G. The disk is never smaller
	// than the template's or the instance type's.
	// +optional
	// +kubebuilder:validation:MaxLength=11
	// +kubebuilder:validation:XValidation:rule="self.matches('^([1-9][0-9]{0,7}[GT]i?)?$')",message="is not a disk size: write one such as 40G or 1T"
	Size string `json:"size,omitempty"`

	// Storage is the storage for the disks of full clones. Empty means the template's storage.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z][A-Za-z0-9_.-]*)?$')",message="is not a storage name: list them with pvesm status"
	Storage string `json:"storage,omitempty"`
}

// DataDisk is an empty disk in addition to the boot disk. It is created and deleted with the
// node's VM.
type DataDisk struct {
	// Size is the disk's size, such as 100Gi; G and Gi are both 2^30 bytes, as in
	// Proxmox.
	// +kubebuilder:validation:MaxLength=11
	// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]{0,7}[GT]i?$')",message="is not a disk size: write one such as 40G or 1T"
	Size string `json:"size"`

	// Storage is the storage for the disk. Empty means the storage of the boot disk.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z][A-Za-z0-9_.-]*)?$')",message="is not a storage name: list them with pvesm status"
	Storage string `json:"storage,omitempty"`
}

// VMIDRange is the VMIDs from lower to upper.
//
// +kubebuilder:validation:XValidation:rule="self.lower <= self.upper",message="is lower than lower: swap the two",fieldPath=".upper"
type VMIDRange struct {
	// Lower is the first VMID.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	Lower int32 `json:"lower"`

	// Upper is the last VMID.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	Upper int32 `json:"upper"`
}

// Network is a network device.
//
// +kubebuilder:validation:XValidation:rule="!has(self.securityGroups) || self.securityGroups.size() == 0 || (has(self.firewall) && self.firewall)",message="have no effect without the firewall: set firewall to true, or remove them",fieldPath=".securityGroups"
// +kubebuilder:validation:XValidation:rule="!has(self.queues) || !has(self.model) || self.model.size() == 0 || self.model == 'virtio'",message="has no effect on other models than virtio: remove it",fieldPath=".queues"
type Network struct {
	// Bridge is a bridge of the host, or an SDN vnet.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-zA-Z][a-zA-Z0-9_.-]*$')",message="is not a bridge: write its name, such as vmbr0"
	Bridge string `json:"bridge"`

	// Model is the device's model. Empty means virtio.
	// +optional
	// +kubebuilder:validation:Enum="";virtio;e1000;e1000e;rtl8139;vmxnet3
	Model string `json:"model,omitempty"`

	// VLAN is the VLAN tag; 0 means none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4094
	VLAN int32 `json:"vlan,omitempty"`

	// MTU is the device's MTU; 1 means the bridge's MTU, and 0 the default of Proxmox.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65520
	MTU int32 `json:"mtu,omitempty"`

	// Firewall enables the Proxmox firewall for the device.
	// +optional
	Firewall bool `json:"firewall,omitempty"`

	// SecurityGroups are Proxmox firewall groups that apply to this device only, before the
	// groups in spec.securityGroups.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=18
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9_-]+$')",message="is not a security group: use 2 to 18 of A-Z, a-z, 0-9, _ and -, and begin with a letter"
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// RateMBps limits the device to that many megabytes (10^6 bytes) per second in each
	// direction, such as "12.5"; a string, because the value can be fractional. Empty means
	// no limit.
	// +optional
	// +kubebuilder:validation:MaxLength=12
	// +kubebuilder:validation:XValidation:rule="self.matches('^([1-9][0-9]{0,6}([.][0-9]{1,3})?|0[.][0-9]{0,2}[1-9])?$')",message="is not a rate in megabytes per second: write a positive number such as 12.5"
	RateMBps string `json:"rateMBps,omitempty"`

	// Queues is the number of queues of a virtio device. Unset means one per vCPU, at most 64.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Queues int32 `json:"queues,omitempty"`

	// Trunks are the VLANs that the device passes with their tags, on a bridge that is aware
	// of VLANs. Empty means all, unless vlan is set.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=4094
	// +listType=set
	Trunks []int32 `json:"trunks,omitempty"`

	// Disconnected creates the device without its link.
	// +optional
	Disconnected bool `json:"disconnected,omitempty"`

	// MACPrefix is the first half of the device's MAC address, such as BC:24:11. numaform
	// derives the second half from the VM. Empty means that Proxmox generates the address.
	// +optional
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){2})?$')",message="is not the first half of a unicast MAC address: write three octets such as BC:24:11, the first one even"
	MACPrefix string `json:"macPrefix,omitempty"`

	// AddressPools are the pools from which numaform gives the device static addresses: at most
	// one pool with IPv4 and one with IPv6 addresses. They are configured for each Proxmox
	// cluster under address_pools in numaform.yaml. Empty means DHCP.
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="is not an address pool: use the name of one of address_pools in numaform.yaml"
	// +listType=set
	AddressPools []string `json:"addressPools,omitempty"`
}

// PCIDevice is a PCI device of the host, identified by its resource mapping: Datacenter,
// Resource Mappings in Proxmox. It requires the privilege Mapping.Use on the mapping.
type PCIDevice struct {
	// Mapping is the name of the resource mapping. If it has several devices on a host,
	// Proxmox uses the first free one.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9_-]+$')",message="is not a resource mapping: see Datacenter > Resource Mappings in Proxmox"
	Mapping string `json:"mapping"`

	// MDev is the type of the mediated device, such as nvidia-63. Empty means that the node
	// gets the whole device.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9][A-Za-z0-9_-]*)?$')",message="is not a type of mediated device: write one such as nvidia-63"
	MDev string `json:"mdev,omitempty"`

	// PCIe puts the device on a PCI Express port. The template's machine must be q35.
	// +optional
	PCIe bool `json:"pcie,omitempty"`

	// XVGA makes the device the node's primary graphics card.
	// +optional
	XVGA bool `json:"xvga,omitempty"`
}

// Addressed reports whether nodes of the class get static addresses.
func (in *ProxmoxNodeClass) Addressed() bool {
	return slices.ContainsFunc(in.Spec.Networks, func(n Network) bool { return len(n.AddressPools) > 0 })
}

// HasSecurityGroups reports whether nodes of the class have firewall groups.
func (in *ProxmoxNodeClass) HasSecurityGroups() bool {
	return len(in.Spec.SecurityGroups) > 0 || slices.ContainsFunc(in.Spec.Networks, func(n Network) bool { return len(n.SecurityGroups) > 0 })
}

// SizeGiB returns the size in GiB, or 0 if there is none.
func (b *BootDevice) SizeGiB() (int64, error) {
	if b == nil || b.Size == "" {
		return 0, nil
	}
	return sizeGiB(b.Size)
}

// SizeGiB returns the size in GiB.
func (d *DataDisk) SizeGiB() (int64, error) { return sizeGiB(d.Size) }

func sizeGiB(text string) (int64, error) {
	digits := strings.TrimRight(text, "GTi")
	size, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || size < 1 || !slices.Contains([]string{"G", "Gi", "T", "Ti"}, text[len(digits):]) {
		return 0, fmt.Errorf("%q is not a disk size: write one such as 40G or 1T", text)
	}
	if strings.HasPrefix(text[len(digits):], "T") {
		size *= 1024
	}
	return size, nil
}
