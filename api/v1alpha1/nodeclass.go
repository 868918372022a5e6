package v1alpha1

import (
	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxmoxNodeClass says how the VMs of the NodePools that refer to it are made:
// on which hosts, from which template, and how they sit on a host's CPUs.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=proxmoxnodeclasses,scope=Cluster,categories=karpenter,shortName={pnc,pncs}
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Template",type="string",JSONPath=".spec.template.name"
// +kubebuilder:printcolumn:name="Placement",type="string",JSONPath=".spec.placement.policy"
// +kubebuilder:printcolumn:name="Region",type="string",JSONPath=".spec.region",priority=1
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
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

// ProxmoxNodeClassSpec is the wanted state of a ProxmoxNodeClass.
type ProxmoxNodeClassSpec struct {
	// Region is the Proxmox cluster to use. Empty means all of them.
	// +optional
	Region string `json:"region,omitempty"`
	// Hosts are the Proxmox hosts to use, by name or as region/name. Empty means
	// all that have the template.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=set
	Hosts []string `json:"hosts,omitempty"`
	// Template is the VM template that nodes are cloned from.
	Template TemplateReference `json:"template"`
	// Clone says how a node's disk is made: linked to the template's disk, or a
	// full copy of it.
	// +optional
	// +kubebuilder:default=full
	Clone CloneKind `json:"clone,omitempty"`
	// BootDevice is the disk that a node starts from.
	// +optional
	BootDevice *BootDevice `json:"bootDevice,omitempty"`
	// CPUType is the CPU model that nodes see, as Proxmox names it.
	// +optional
	// +kubebuilder:default=host
	// +kubebuilder:validation:MaxLength=64
	CPUType string `json:"cpuType,omitempty"`
	// Placement says how nodes sit on their host's CPUs and memory.
	// +optional
	// +kubebuilder:default={policy: Shared}
	Placement Placement `json:"placement,omitempty"`
	// Networks are net0, net1, and so on. Empty leaves the template's.
	// +optional
	// +kubebuilder:validation:MaxItems=6
	// +listType=atomic
	Networks []Network `json:"networks,omitempty"`
	// Tags are set on the VMs beside numaform's own.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +listType=set
	Tags []string `json:"tags,omitempty"`
	// Pool is the Proxmox resource pool of the VMs.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Pool string `json:"pool,omitempty"`
	// SecurityGroups are Proxmox firewall groups that apply to the VMs.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
}

// TemplateReference names a VM template.
type TemplateReference struct {
	// Name is the template's name on each host.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`
}

// CloneKind says how a VM's disk is made from its template's.
//
// +kubebuilder:validation:Enum=linked;full
type CloneKind string

// The clone kinds.
const (
	CloneLinked CloneKind = "linked"
	CloneFull   CloneKind = "full"
)

// BootDevice is the disk that a VM starts from.
type BootDevice struct {
	// Size is the disk's size, such as 40G; G and Gi are both 2^30 bytes, as in
	// Proxmox. Empty means as large as the template's, and 30G at least.
	// +optional
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]*[GT]i?$`
	Size string `json:"size,omitempty"`
	// Storage takes the disks of full clones. Empty means the template's storage.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Storage string `json:"storage,omitempty"`
}

// Placement says how VMs sit on a host's CPUs and memory.
type Placement struct {
	// Policy is Shared (no pins), NUMA (memory bound to NUMA nodes), Dedicated
	// (whole cores of its own) or Isolated (cores whose other threads stay idle).
	// +optional
	// +kubebuilder:default=Shared
	Policy PlacementPolicy `json:"policy,omitempty"`
	// PinWith says who makes the pins of Dedicated and Isolated effective: the
	// VM's affinity, which needs a root@pam ticket, or numaform-agent on the hosts.
	// +optional
	PinWith PinWith `json:"pinWith,omitempty"`
	// Overcommit is how many vCPUs of Shared VMs stand on one host CPU, from 1 to
	// 16, such as "1.5".
	// +optional
	// +kubebuilder:validation:Pattern=`^([1-9]|1[0-6])(\.[0-9]{1,2})?$`
	Overcommit string `json:"overcommit,omitempty"`
}

// PlacementPolicy names a placement policy.
//
// +kubebuilder:validation:Enum=Shared;NUMA;Dedicated;Isolated
type PlacementPolicy string

// The placement policies.
const (
	PlacementShared    PlacementPolicy = "Shared"
	PlacementNUMA      PlacementPolicy = "NUMA"
	PlacementDedicated PlacementPolicy = "Dedicated"
	PlacementIsolated  PlacementPolicy = "Isolated"
)

// PinWith says who makes pins effective.
//
// +kubebuilder:validation:Enum=Affinity;HostAgent
type PinWith string

// The ways to pin.
const (
	PinWithAffinity  PinWith = "Affinity"
	PinWithHostAgent PinWith = "HostAgent"
)

// Network is a network device.
type Network struct {
	// Bridge is the host's bridge or SDN network.
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9_.-]{0,14}$`
	Bridge string `json:"bridge"`
	// Model is the device's model. Empty means virtio.
	// +optional
	// +kubebuilder:validation:Enum=virtio;e1000;e1000e;rtl8139;vmxnet3
	Model string `json:"model,omitempty"`
	// VLAN is the VLAN tag; 0 means none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4094
	VLAN int32 `json:"vlan,omitempty"`
	// MTU is the device's MTU; 1 takes the bridge's, 0 leaves it to Proxmox.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65520
	MTU int32 `json:"mtu,omitempty"`
	// Firewall turns Proxmox' firewall on for the device.
	// +optional
	Firewall bool `json:"firewall,omitempty"`
}

// ProxmoxNodeClassStatus is the observed state of a ProxmoxNodeClass.
type ProxmoxNodeClassStatus struct {
	// Hosts are the hosts that can take nodes of this class, as region/name.
	// +optional
	// +listType=set
	Hosts []string `json:"hosts,omitempty"`
	// Conditions say whether nodes can be made of this class.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []status.Condition `json:"conditions,omitempty"`
}

// The conditions of a ProxmoxNodeClass that make it Ready.
const (
	// ConditionValid is true when Validate accepts the spec.
	ConditionValid = "Valid"
	// ConditionTemplateReady is true when at least one host has the template.
	ConditionTemplateReady = "TemplateReady"
)

// StatusConditions returns the class' conditions; Ready is their root.
func (in *ProxmoxNodeClass) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions(ConditionValid, ConditionTemplateReady).For(in, opts...)
}

// GetConditions returns the conditions of the status.
func (in *ProxmoxNodeClass) GetConditions() []status.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (in *ProxmoxNodeClass) SetConditions(conditions []status.Condition) {
	in.Status.Conditions = conditions
}
