package v1alpha1

import "github.com/awslabs/operatorpkg/status"

// ProxmoxNodeClassStatus is the observed state of a ProxmoxNodeClass.
type ProxmoxNodeClassStatus struct {
	// Hosts are the hosts that can take nodes of this class, as region/name.
	// +optional
	// +listType=set
	Hosts []string `json:"hosts,omitempty"`

	// HostCount is how many these are.
	// +optional
	HostCount int32 `json:"hostCount,omitempty"`

	// Excluded are the hosts that the class allows but that cannot take its nodes.
	// +optional
	// +listType=map
	// +listMapKey=host
	Excluded []ExcludedHost `json:"excluded,omitempty"`

	// Hash is the hash of those fields whose change replaces nodes.
	// +optional
	Hash string `json:"hash,omitempty"`

	// Conditions say whether nodes can be created from this class.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []status.Condition `json:"conditions,omitempty"`
}

// ExcludedHost says why a host cannot take nodes of a class.
type ExcludedHost struct {
	// Host is the host's name as region/name.
	Host string `json:"host"`
	// Reason says what is wrong with it.
	Reason string `json:"reason"`
}

// The conditions of a ProxmoxNodeClass that make it Ready.
const (
	// ConditionValid is true when the spec is valid under the definition of this release,
	// which the cluster's may be older than.
	ConditionValid = "Valid"
	// ConditionTemplateReady is true when at least one host has the template.
	ConditionTemplateReady = "TemplateReady"
	// ConditionPlacementReady is true when at least one host can place nodes as the
	// class requires, and numaform may do so.
	ConditionPlacementReady = "PlacementReady"
	// ConditionMetadataReady is true when the join data of nodes can be created.
	ConditionMetadataReady = "MetadataReady"
)

// The reasons of conditions that are not true. Each is something that an operator
// fixes; the condition's message says where.
const (
	// ReasonInvalid: the spec contradicts itself.
	ReasonInvalid = "Invalid"
	// ReasonProxmoxUnread: Proxmox did not answer, so nothing is known.
	ReasonProxmoxUnread = "ProxmoxUnread"

	// ReasonTemplateNotFound: no host has a template that meets the reference.
	ReasonTemplateNotFound = "TemplateNotFound"
	// ReasonTemplateAmbiguous: hosts have several such templates each.
	ReasonTemplateAmbiguous = "TemplateAmbiguous"
	// ReasonTemplateUnusable: the template has settings that a clone cannot keep.
	ReasonTemplateUnusable = "TemplateUnusable"

	// ReasonHostUnknown: spec.region and spec.hosts select no host of Proxmox.
	ReasonHostUnknown = "HostUnknown"
	// ReasonHostUnavailable: the hosts are offline, faulty or without quorum.
	ReasonHostUnavailable = "HostUnavailable"
	// ReasonStorageNotFound: the storage of the boot device is not on the hosts.
	ReasonStorageNotFound = "StorageNotFound"
	// ReasonStorageFull: the storage of the boot device has no room for a node's disk.
	ReasonStorageFull = "StorageFull"
	// ReasonPoolNotFound: the region has no such resource pool.
	ReasonPoolNotFound = "PoolNotFound"
	// ReasonNoHost: each host lacks something, and none has it all.
	ReasonNoHost = "NoHost"
	// ReasonPlacementImpossible: the policy needs facts that the hosts do not report.
	ReasonPlacementImpossible = "PlacementImpossible"
	// ReasonHugePagesMissing: the hosts have no huge pages of the size, or do not report them.
	ReasonHugePagesMissing = "HugePagesMissing"
	// ReasonPCIDeviceMissing: the hosts have no PCI device of a mapping, or none is seen.
	ReasonPCIDeviceMissing = "PCIDeviceMissing"
	// ReasonHostAgentNotReady: no host agent that pins for this cluster runs on the hosts.
	ReasonHostAgentNotReady = "HostAgentNotReady"
	// ReasonCredentialTooWeak: numaform's Proxmox credential lacks a privilege.
	ReasonCredentialTooWeak = "CredentialTooWeak" //nolint:gosec // the name of a reason
	// ReasonFamilyUnknown: spec.sizing.families leaves no instance type.
	ReasonFamilyUnknown = "FamilyUnknown"

	// ReasonSeedStorageNotFound: the hosts have no storage for seeds.
	ReasonSeedStorageNotFound = "SeedStorageNotFound"
	// ReasonSecretNotFound: a Secret of spec.metadata does not exist.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonSecretForbidden: numaform may not read it.
	ReasonSecretForbidden = "SecretForbidden"
	// ReasonTemplatesInvalid: what is in the Secret does not render or parse.
	ReasonTemplatesInvalid = "TemplatesInvalid"
	// ReasonBootstrapTokenNeeded: the templates name .Kubernetes.BootstrapToken, and
	// spec.metadata.token does not ask for one.
	ReasonBootstrapTokenNeeded = "BootstrapTokenNeeded"
	// ReasonBootstrapTokensOff: spec.metadata.token asks for a bootstrap token, and
	// numaform was installed without the right to make them.
	ReasonBootstrapTokensOff = "BootstrapTokensOff"
	// ReasonServiceAccountNotFound: the ServiceAccount that nodes join as does not exist.
	ReasonServiceAccountNotFound = "ServiceAccountNotFound"
)

// StatusConditions returns the class' conditions; Ready is their root.
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

// SetHosts replaces the hosts of the status, given in order.
func (in *ProxmoxNodeClass) SetHosts(hosts []string) {
	in.Status.Hosts, in.Status.HostCount = hosts, int32(len(hosts)) //nolint:gosec // hosts are few
}
