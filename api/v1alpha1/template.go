package v1alpha1

import (
	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxmoxTemplate describes a VM template that numaform creates from a disk image on each of
// its hosts. Another image or other hardware is another template: nodes of a
// ProxmoxNodeClass that refers to the ProxmoxTemplate are then replaced, and the old template
// is deleted when no node uses it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=proxmoxtemplates,scope=Cluster,categories=karpenter,shortName={ptpl}
// +kubebuilder:subresource:status
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 54 && self.metadata.name.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",message="metadata.name: the names of its templates begin with this name, so it must have at most 54 characters a-z, 0-9 and -, and begin and end with a letter or digit"
// +kubebuilder:printcolumn:name="Current",type="string",JSONPath=".status.current"
// +kubebuilder:printcolumn:name="Hosts",type="integer",JSONPath=".status.hostCount"
// +kubebuilder:printcolumn:name="Available",type="integer",JSONPath=".status.readyCount"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Image",type="string",JSONPath=".spec.image.url",priority=1
// +kubebuilder:printcolumn:name="Problem",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",priority=1
type ProxmoxTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ProxmoxTemplateSpec `json:"spec"`
	// +optional
	Status ProxmoxTemplateStatus `json:"status,omitempty"`
}

// ProxmoxTemplateList is a list of ProxmoxTemplates.
//
// +kubebuilder:object:root=true
type ProxmoxTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ProxmoxTemplate `json:"items"`
}

// ProxmoxTemplateSpec is the desired state of a ProxmoxTemplate.
//
// +kubebuilder:validation:XValidation:rule="!has(self.region) || self.region.size() == 0 || !has(self.hosts) || self.hosts.all(h, !h.contains('/') || h.startsWith(self.region + '/'))",message="contains a host outside spec.region: remove the host or spec.region",fieldPath=".hosts"
// +kubebuilder:validation:XValidation:rule="!has(self.secureBoot) || !self.secureBoot || (has(self.bios) && self.bios == 'ovmf')",message="requires bios ovmf",fieldPath=".secureBoot"
type ProxmoxTemplateSpec struct {
	// Region is the Proxmox cluster to use. Empty means all clusters.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9][A-Za-z0-9_.-]*)?$')",message="is not a region name: use the region of a cluster in numaform.yaml"
	Region string `json:"region,omitempty"`

	// Hosts are the Proxmox hosts that get the template, by name or as region/name. Empty
	// means all hosts.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=127
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([A-Za-z0-9][A-Za-z0-9_.-]{0,62}/)?[A-Za-z0-9][A-Za-z0-9-]{0,62}$')",message="is not a host: write its name, or region/name"
	// +listType=set
	Hosts []string `json:"hosts,omitempty"`

	// Image is the disk image.
	Image TemplateImage `json:"image"`

	// Disk is the boot disk of the template.
	Disk TemplateDisk `json:"disk"`

	// Machine is the machine type: pc, or q35, which PCIe devices require.
	// +optional
	// +kubebuilder:default=pc
	// +kubebuilder:validation:Enum=pc;q35
	Machine string `json:"machine,omitempty"`

	// BIOS is the firmware: seabios, or ovmf, which adds an EFI disk.
	// +optional
	// +kubebuilder:default=seabios
	// +kubebuilder:validation:Enum=seabios;ovmf
	BIOS string `json:"bios,omitempty"`

	// SecureBoot enrolls the keys of Microsoft and of the distributions in the EFI disk.
	// +optional
	SecureBoot bool `json:"secureBoot,omitempty"`

	// TPM is the version of a TPM; empty means none.
	// +optional
	// +kubebuilder:validation:Enum="";v1.2;v2.0
	TPM string `json:"tpm,omitempty"`

	// CPU is the CPU of the template itself. Nodes have the cpuType of their class.
	// +optional
	CPU TemplateCPU `json:"cpu,omitempty"`

	// Agent is the QEMU guest agent, which the image must contain. It is always enabled.
	// +optional
	Agent TemplateAgent `json:"agent,omitempty"`

	// VGA is the display. Unset means the serial console.
	// +optional
	VGA TemplateVGA `json:"vga,omitempty"`

	// Networks are the network devices, net0 first. Nodes of a class without networks keep
	// them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=6
	// +listType=atomic
	Networks []TemplateNetwork `json:"networks"`

	// Tags are the tags of the template in Proxmox. They change in place.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9_][a-z0-9_.+-]*$')",message="is not a tag: use a-z, 0-9, _, ., + and -, and begin with a letter, a digit or _"
	// +listType=set
	Tags []string `json:"tags,omitempty"`

	// Pool is the Proxmox resource pool of the template. It changes in place.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,2})?$')",message="is not a resource pool: write its name, such as kubernetes"
	Pool string `json:"pool,omitempty"`

	// Approval is Manual if each change of templates requires an approval: the annotation
	// numaform.dev/approve-templates with the digests in the status. Automatic leaves the
	// decision to the policy.
	// +optional
	// +kubebuilder:default=Automatic
	Approval TemplateApproval `json:"approval,omitempty"`
}

// TemplateApproval selects which changes of templates require an approval.
//
// +kubebuilder:validation:Enum=Automatic;Manual
type TemplateApproval string

// The approvals.
const (
	ApprovalAutomatic TemplateApproval = "Automatic"
	ApprovalManual    TemplateApproval = "Manual"
)

// TemplateImage is a disk image that the hosts download.
//
// +kubebuilder:validation:XValidation:rule="self.checksum.matches('^[0-9A-Fa-f]+$') && self.checksum.size() == {'md5': 32, 'sha1': 40, 'sha224': 56, 'sha256': 64, 'sha384': 96, 'sha512': 128}[has(self.checksumAlgorithm) ? self.checksumAlgorithm : 'sha256']",message="is not a checksum of checksumAlgorithm in hexadecimal: copy it from the file SHA256SUMS or SHA512SUMS next to the image",fieldPath=".checksum"
type TemplateImage struct {
	// URL is the http or https URL of the image. Proxmox does not unpack compressed images.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.matches('^https?://[^/@ ]+/[^ ]+$')",message="is not an http or https URL of a file without a user: write one such as https://images.example/debian-13.qcow2"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[.](xz|zst|gz|bz2|lzo)$')",message="is a compressed image, and Proxmox unpacks only ISO images: unpack it, and serve the result from a web server"
	URL string `json:"url"`

	// Checksum is the checksum of the image.
	// +kubebuilder:validation:MaxLength=128
	Checksum string `json:"checksum"`

	// ChecksumAlgorithm is the algorithm of the checksum.
	// +optional
	// +kubebuilder:default=sha256
	// +kubebuilder:validation:Enum=md5;sha1;sha224;sha256;sha384;sha512
	ChecksumAlgorithm string `json:"checksumAlgorithm,omitempty"`

	// Format is the format of the image. The format of Ubuntu's .img images is qcow2.
	// +optional
	// +kubebuilder:default=qcow2
	// +kubebuilder:validation:Enum=qcow2;raw;vmdk
	Format string `json:"format,omitempty"`

	// Storage is the storage that keeps the image. It requires the content type import.
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9._-]*$')",message="is not a storage: write its name, such as local"
	Storage string `json:"storage"`

	// Insecure does not verify the certificate of the server. The checksum is still verified.
	// +optional
	Insecure bool `json:"insecure,omitempty"`
}

// TemplateDisk is the boot disk of a template.
type TemplateDisk struct {
	// Storage is the storage of the template's disks, and of linked clones.
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9._-]*$')",message="is not a storage: write its name, such as local-lvm"
	Storage string `json:"storage"`

	// SizeGiB is the size of the disk, at least the size of the disk in the image.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=131072
	SizeGiB int32 `json:"sizeGiB"`

	// Cache is the cache mode. Empty means none.
	// +optional
	// +kubebuilder:validation:Enum="";none;directsync;writethrough;writeback;unsafe
	Cache string `json:"cache,omitempty"`

	// Discard returns freed blocks to the storage. Unset means true.
	// +optional
	Discard *bool `json:"discard,omitempty"`

	// SSD presents the disk as an SSD to the guest.
	// +optional
	SSD bool `json:"ssd,omitempty"`
}

// TemplateCPU is the CPU of a template.
type TemplateCPU struct {
	// Type is the CPU type. Empty means host.
	// +optional
	Type CPUModel `json:"type,omitempty"`

	// Flags are CPU flags, each with + or -, such as +aes.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[+-](aes|amd-no-ssb|amd-ssbd|hv-evmcs|hv-tlbflush|ibpb|md-clear|nested-virt|pcid|pdpe1gb|spec-ctrl|ssbd|virt-ssbd)$')",message="is not a CPU flag that Proxmox accepts for a VM: write + or - and one of aes, amd-no-ssb, amd-ssbd, hv-evmcs, hv-tlbflush, ibpb, md-clear, nested-virt, pcid, pdpe1gb, spec-ctrl, ssbd, virt-ssbd; for other flags, define a custom CPU model"
	// +listType=atomic
	Flags []string `json:"flags,omitempty"`
}

// TemplateAgent configures the QEMU guest agent.
type TemplateAgent struct {
	// Type is the type of the agent's device. Empty means virtio.
	// +optional
	// +kubebuilder:validation:Enum="";virtio;isa
	Type string `json:"type,omitempty"`

	// FSTrimClonedDisks frees unused blocks after a clone.
	// +optional
	FSTrimClonedDisks bool `json:"fsTrimClonedDisks,omitempty"`
}

// TemplateVGA is the display of a template.
type TemplateVGA struct {
	// Type is the display's type. Empty means serial0, the serial console.
	// +optional
	// +kubebuilder:validation:Enum="";serial0;std;virtio;qxl;vmware;cirrus;none
	Type string `json:"type,omitempty"`

	// MemoryMiB is the display's memory. Unset means the default of Proxmox.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=512
	MemoryMiB int32 `json:"memoryMiB,omitempty"`
}

// TemplateNetwork is a network device of a template.
type TemplateNetwork struct {
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
}

// ProxmoxTemplateStatus is the observed state of a ProxmoxTemplate.
type ProxmoxTemplateStatus struct {
	// Current is the name of the desired template in Proxmox.
	// +optional
	Current string `json:"current,omitempty"`

	// HostCount is the number of selected hosts, and ReadyCount the number of these hosts on
	// which the current template is ready.
	// +optional
	HostCount int32 `json:"hostCount,omitempty"`
	// +optional
	ReadyCount int32 `json:"readyCount,omitempty"`

	// Templates are the templates of this object, including templates of earlier images
	// that nodes still use.
	// +optional
	// +listType=atomic
	Templates []TemplateStatus `json:"templates,omitempty"`

	// Conditions report whether the current template is ready on each host.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []status.Condition `json:"conditions,omitempty"`
}

// TemplateStatus is one template on one host.
type TemplateStatus struct {
	// Host is the host, as region/name.
	Host string `json:"host"`
	// Name is the template's name in Proxmox.
	Name string `json:"name"`
	// VMID is the template's VMID; 0 if it has none yet.
	// +optional
	VMID int32 `json:"vmid,omitempty"`
	// State is Pending, Downloading, Ready, Failed or Superseded.
	State TemplateState `json:"state"`
	// Message explains the state.
	// +optional
	Message string `json:"message,omitempty"`
	// Digest identifies the plan that is pending approval.
	// +optional
	Digest string `json:"digest,omitempty"`
}

// TemplateState is the state of a template.
type TemplateState string

// The states. Superseded is a template of an earlier image or of a host that is no longer
// selected: it is deleted when no VM uses it.
const (
	TemplatePending     TemplateState = "Pending"
	TemplateDownloading TemplateState = "Downloading"
	TemplateReady       TemplateState = "Ready"
	TemplateFailed      TemplateState = "Failed"
	TemplateSuperseded  TemplateState = "Superseded"
)

// KindProxmoxTemplate is the kind of templates.
const KindProxmoxTemplate = "ProxmoxTemplate"

// FinalizerTemplate keeps a ProxmoxTemplate until its templates are deleted.
const FinalizerTemplate = Group + "/templates"

// AnnotationApproveTemplates contains the digests of the plans of a ProxmoxTemplate's templates
// that a user approves, separated by commas.
const AnnotationApproveTemplates = Group + "/approve-templates"

// The condition of a ProxmoxTemplate that makes it Ready, and its reasons, besides
// ReasonPendingApproval.
const (
	// ConditionTemplatesReady is true when the current template is ready on each host.
	ConditionTemplatesReady = "TemplatesReady"
	// ReasonTemplatesPending: templates are being created.
	ReasonTemplatesPending = "TemplatesPending"
	// ReasonTemplatesFailed: templates could not be created.
	ReasonTemplatesFailed = "TemplatesFailed"
	// ReasonNoHosts: no host matches spec.region and spec.hosts.
	ReasonNoHosts = "NoHosts"
	// ReasonTemplateInUse: the templates of a ProxmoxTemplate that is being deleted are in
	// use.
	ReasonTemplateInUse = "TemplateInUse"
)

// StatusConditions returns the conditions of the template; Ready is their root.
func (in *ProxmoxTemplate) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions(ConditionTemplatesReady).For(in, opts...)
}

// GetConditions returns the conditions of the status.
func (in *ProxmoxTemplate) GetConditions() []status.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (in *ProxmoxTemplate) SetConditions(conditions []status.Condition) {
	in.Status.Conditions = conditions
}
