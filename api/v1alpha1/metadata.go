package v1alpha1

import "cmp"

// Metadata configures how a node gets its join data.
//
// +kubebuilder:validation:XValidation:rule="(has(self.type) && self.type == 'cdrom') || !has(self.storage) || self.storage.size() == 0",message="has no effect without a seed: remove it, or set type to cdrom",fieldPath=".storage"
// +kubebuilder:validation:XValidation:rule="(has(self.type) && self.type in ['cdrom', 'agent']) || !has(self.templatesRef)",message="has no effect with this type: remove it, or set type to cdrom or agent",fieldPath=".templatesRef"
// +kubebuilder:validation:XValidation:rule="(has(self.type) && self.type in ['cdrom', 'agent']) || !has(self.valuesRef)",message="has no effect with this type: remove it, or set type to cdrom or agent",fieldPath=".valuesRef"
// +kubebuilder:validation:XValidation:rule="(has(self.type) && self.type in ['cdrom', 'agent']) || !has(self.sshAuthorizedKeys) || self.sshAuthorizedKeys.size() == 0",message="has no effect with this type: set type to cdrom, or put the keys into the template with qm set VMID --sshkeys FILE",fieldPath=".sshAuthorizedKeys"
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'agent' || has(self.templatesRef)",message="is required by type agent: set it to a Secret whose key join-command is the script that the guest agent runs",fieldPath=".templatesRef"
// +kubebuilder:validation:XValidation:rule="(has(self.type) && self.type in ['cdrom', 'agent']) || !has(self.token) || self.token.size() == 0",message="has no effect with this type: remove it, or set type to cdrom or agent",fieldPath=".token"
type Metadata struct {
	// Type is none for templates that join by themselves. With cdrom, each node gets an ISO
	// image with user-data, meta-data and network-config, its seed, which is deleted once the
	// node has joined. With agent, the guest agent runs a join command.
	// +optional
	// +kubebuilder:default=none
	Type MetadataType `json:"type,omitempty"`

	// Storage is the storage of seeds. Empty means the first storage of the host, by name,
	// that is active and supports ISO images.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z][A-Za-z0-9_.-]*)?$')",message="is not a storage name: list them with pvesm status"
	Storage string `json:"storage,omitempty"`

	// TemplatesRef names a Secret with the templates of the seed, under the keys
	// user-data, meta-data, network-config and vendor-data. For a missing key, except
	// vendor-data, numaform uses a template for Debian and Ubuntu with kubelet and containerd.
	// With type agent, the key join-command is a script that the guest's /bin/sh runs.
	// +optional
	TemplatesRef *SecretReference `json:"templatesRef,omitempty"`

	// ValuesRef names a Secret whose keys templates read as .Values.
	// +optional
	ValuesRef *SecretReference `json:"valuesRef,omitempty"`

	// SSHAuthorizedKeys are public keys that may log in to nodes, one key in each entry.
	// numaform's own template passes them to cloud-init, and templates read them as
	// .Values.SSHAuthorizedKeys, one key per line, followed by the keys under that name in
	// valuesRef.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=2048
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)|sk-ssh-ed25519@openssh[.]com|sk-ecdsa-sha2-nistp256@openssh[.]com) AAAA[A-Za-z0-9+/]+={0,3}( [ -~]*)?$')",message="is not a public key: write the one line of a file such as id_ed25519.pub, without options"
	// +listType=set
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`

	// Token is the form of a node's join token: ServiceAccount, which the kubelet accepts, or
	// Bootstrap, an ID.SECRET in kube-system, which kubeadm join, k3s and Talos require.
	// Bootstrap requires an installation with rbac.bootstrapTokens. Empty means
	// ServiceAccount.
	// +optional
	Token TokenForm `json:"token,omitempty"`
}

// TokenForm is the form of a join token.
//
// +kubebuilder:validation:Enum="";ServiceAccount;Bootstrap
type TokenForm string

// The forms of tokens.
const (
	TokenServiceAccount TokenForm = "ServiceAccount"
	TokenBootstrap      TokenForm = "Bootstrap"
)

// MetadataType selects how a node gets its join data.
//
// +kubebuilder:validation:Enum=none;cdrom;agent
type MetadataType string

// The types of metadata.
const (
	MetadataNone  MetadataType = "none"
	MetadataCDROM MetadataType = "cdrom"
	MetadataAgent MetadataType = "agent"
)

// SecretReference names a Secret.
type SecretReference struct {
	// Name is the name of the Secret.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="is not the name of a Secret"
	Name string `json:"name"`

	// Namespace is the namespace of the Secret. Empty means numaform's namespace, the only
	// one whose Secrets numaform can read by default.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$')",message="is not a namespace"
	Namespace string `json:"namespace,omitempty"`
}

// Seeded reports whether nodes of the class get a seed.
func (in *ProxmoxNodeClass) Seeded() bool { return in.Spec.Metadata.Type == MetadataCDROM }

// ByAgent reports whether the guest agents of the class's nodes run a join command.
func (in *ProxmoxNodeClass) ByAgent() bool { return in.Spec.Metadata.Type == MetadataAgent }

// TokenForm returns the form of the join tokens of the class's nodes.
func (in *ProxmoxNodeClass) TokenForm() TokenForm {
	return cmp.Or(in.Spec.Metadata.Token, TokenServiceAccount)
}
