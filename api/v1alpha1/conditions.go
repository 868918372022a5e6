package v1alpha1

import "github.com/awslabs/operatorpkg/status"

// ProxmoxNodeClassStatus is the observed state of a ProxmoxNodeClass.
type ProxmoxNodeClassStatus struct {
	// Hosts are the hosts on which nodes of this class can be placed, as region/name.
	// +optional
	// +listType=set
	Hosts []string `json:"hosts,omitempty"`

	// HostCount is the number of hosts.
	// +optional
	HostCount int32 `json:"hostCount,omitempty"`

	// Excluded are hosts that the class allows but on which its nodes cannot be placed.
	// +optional
	// +listType=map
	// +listMapKey=host
	Excluded []ExcludedHost `json:"excluded,omitempty"`

	// Hash is the hash of the fields whose change replaces nodes.
	// +optional
	Hash string `json:"hash,omitempty"`

	// Conditions report whether nodes can be created from this class.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []status.Condition `json:"conditions,omitempty"`
}

// ExcludedHost is a host on which nodes of a class cannot be placed, and the reason.
type ExcludedHost struct {
	// Host is the name of the host, as region/name.
	Host string `json:"host"`
	// Reason is the reason why nodes cannot be placed on the host.
	Reason string `json:"reason"`
}

// The conditions of a ProxmoxNodeClass that make it Ready.
const (
	// ConditionValid is true when the spec is valid under the CRD of this release. The CRD in
	// the cluster may be older.
	ConditionValid = "Valid"
	// ConditionTemplateReady is true when at least one host has exactly one template that
	// matches spec.template, and its clones can be used as nodes.
	ConditionTemplateReady = "TemplateReady"
	// ConditionPlacementReady is true when nodes can be placed on at least one host as the
	// class requires, and numaform is authorized to create them.
	ConditionPlacementReady = "PlacementReady"
	// ConditionMetadataReady is true when the join data of nodes can be created.
	ConditionMetadataReady = "MetadataReady"
)

// The reasons of conditions that are not true. An operator can fix each of them; the
// condition's message contains the fix.
const (
	// ReasonInvalid: the spec is invalid.
	ReasonInvalid = "Invalid"
	// ReasonProxmoxUnread: Proxmox did not respond, so the condition is unknown.
	ReasonProxmoxUnread = "ProxmoxUnread"

	// ReasonTemplateNotFound: the hosts have no template that matches the reference.
	ReasonTemplateNotFound = "TemplateNotFound"
	// ReasonTemplateAmbiguous: several templates on a host match the reference.
	ReasonTemplateAmbiguous = "TemplateAmbiguous"
	// ReasonTemplateUnusable: the template has settings with which a clone cannot be used.
	ReasonTemplateUnusable = "TemplateUnusable"

	// ReasonHostUnknown: no Proxmox host matches spec.region and spec.hosts.
	ReasonHostUnknown = "HostUnknown"
	// ReasonHostUnavailable: the hosts are offline, faulty, in maintenance or without quorum.
	ReasonHostUnavailable = "HostUnavailable"
	// ReasonStorageNotFound: the hosts do not have the storage of a disk.
	ReasonStorageNotFound = "StorageNotFound"
	// ReasonStorageFull: a storage has too little space for a node's disks.
	ReasonStorageFull = "StorageFull"
	// ReasonPoolNotFound: the region has no such resource pool.
	ReasonPoolNotFound = "PoolNotFound"
	// ReasonAddressPoolNotFound: the region has no such address pool, or not one that the
	// network device can use.
	ReasonAddressPoolNotFound = "AddressPoolNotFound"
	// ReasonVMIDsOutside: vmidRange of the class is not within vmid_range of the host's region.
	ReasonVMIDsOutside = "VMIDsOutside"
	// ReasonNoHost: no host meets all requirements.
	ReasonNoHost = "NoHost"
	// ReasonPlacementImpossible: the policy requires facts that the hosts do not report.
	ReasonPlacementImpossible = "PlacementImpossible"
	// ReasonHugePagesMissing: the hosts have no huge pages of the size, or do not report them.
	ReasonHugePagesMissing = "HugePagesMissing"
	// ReasonPCIDeviceMissing: the hosts have no PCI device of a mapping, or numaform cannot
	// read the mapping.
	ReasonPCIDeviceMissing = "PCIDeviceMissing"
	// ReasonHostAgentNotReady: no host agent that pins for this cluster runs on the hosts.
	ReasonHostAgentNotReady = "HostAgentNotReady"
	// ReasonCredentialTooWeak: numaform's Proxmox credential lacks a privilege.
	ReasonCredentialTooWeak = "CredentialTooWeak" //nolint:gosec // the name of a reason
	// ReasonFamilyUnknown: no instance type matches spec.sizing.families.
	ReasonFamilyUnknown = "FamilyUnknown"

	// ReasonSeedStorageNotFound: the hosts have no storage for seeds.
	ReasonSeedStorageNotFound = "SeedStorageNotFound"
	// ReasonSecretNotFound: a Secret of spec.metadata does not exist.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonSecretForbidden: numaform is not allowed to read the Secret.
	ReasonSecretForbidden = "SecretForbidden"
	// ReasonTemplatesInvalid: a template in the Secret does not parse or render.
	ReasonTemplatesInvalid = "TemplatesInvalid"
	// ReasonBootstrapTokenNeeded: the templates use .Kubernetes.BootstrapToken, but
	// spec.metadata.token is not Bootstrap.
	ReasonBootstrapTokenNeeded = "BootstrapTokenNeeded"
	// ReasonBootstrapTokensOff: spec.metadata.token is Bootstrap, but numaform is installed
	// without permission to create bootstrap tokens.
	ReasonBootstrapTokensOff = "BootstrapTokensOff"
	// ReasonServiceAccountNotFound: the ServiceAccount with which nodes join does not exist.
	ReasonServiceAccountNotFound = "ServiceAccountNotFound"
)

// StatusConditions returns the conditions of the class; Ready is their root.
func (in *ProxmoxNodeClass) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions(
		ConditionValid, ConditionTemplateReady, ConditionPlacementReady, ConditionMetadataReady,
	).For(in, opts...)
}

// GetConditions returns the conditions of the status.
func (in *ProxmoxNodeClass) GetConditions() []status.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (in *ProxmoxNodeClass) SetConditions(conditions []status.Condition) {
	in.Status.Conditions = conditions
}

// SetHosts replaces the hosts of the status and their number. hosts must be sorted.
func (in *ProxmoxNodeClass) SetHosts(hosts []string) {
	in.Status.Hosts, in.Status.HostCount = hosts, int32(len(hosts)) //nolint:gosec // there are few hosts
}
