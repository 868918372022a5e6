package v1alpha1

// Hardware overrides virtual hardware that a node otherwise inherits from its template. An
// unset field keeps the template's.
type Hardware struct {
	// Machine is the machine type: pc, q35, or one with a version, such as pc-q35-9.2. The
	// names of network interfaces in the guest depend on it.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^(pc|q35|pc-(i440fx|q35)-[0-9]+([.][0-9]+)+([+]pve[0-9]+)?)?$')",message="is not a machine type: write pc, q35, or one with a version such as pc-q35-9.2"
	Machine string `json:"machine,omitempty"`

	// VGA is the display.
	// +optional
	VGA *VGA `json:"vga,omitempty"`

	// Watchdog is a virtual watchdog. It has no effect until a program in the guest uses it.
	// +optional
	Watchdog *Watchdog `json:"watchdog,omitempty"`

	// Tablet set to false removes the USB tablet, which only graphical consoles need and
	// which causes timer interrupts.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == false",message="is the default of Proxmox: remove it; numaform cannot add a tablet to a clone of a template without one"
	Tablet *bool `json:"tablet,omitempty"`

	// CPUFlags are added to the CPU type with +, and removed from it with -, such as +aes.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[+-](aes|amd-no-ssb|amd-ssbd|hv-evmcs|hv-tlbflush|ibpb|md-clear|nested-virt|pcid|pdpe1gb|spec-ctrl|ssbd|virt-ssbd)$')",message="is not a CPU flag that Proxmox accepts for a VM: write + or - and one of aes, amd-no-ssb, amd-ssbd, hv-evmcs, hv-tlbflush, ibpb, md-clear, nested-virt, pcid, pdpe1gb, spec-ctrl, ssbd, virt-ssbd; for other flags, define a custom CPU model"
	// +listType=set
	CPUFlags []string `json:"cpuFlags,omitempty"`
}

// VGA is a virtual display.
type VGA struct {
	// Type is the display's type. Empty keeps the template's. The serial port of serial0 to
	// serial3 must exist in the template.
	// +optional
	// +kubebuilder:validation:Enum="";cirrus;none;qxl;qxl2;qxl3;qxl4;serial0;serial1;serial2;serial3;std;virtio;virtio-gl;vmware
	Type string `json:"type,omitempty"`

	// MemoryMiB is the display's memory. Unset means 16.
	// +optional
	// +kubebuilder:validation:Minimum=4
	// +kubebuilder:validation:Maximum=512
	MemoryMiB int32 `json:"memoryMiB,omitempty"`
}

// Watchdog is a virtual watchdog.
type Watchdog struct {
	// Model is the watchdog's model. Empty means i6300esb.
	// +optional
	// +kubebuilder:validation:Enum="";i6300esb;ib700
	Model string `json:"model,omitempty"`

	// Action is what the host does with a guest that no longer responds. Empty means reset.
	// +optional
	// +kubebuilder:validation:Enum="";reset;shutdown;poweroff;pause;debug;none
	Action string `json:"action,omitempty"`
}

// CPUModel is a CPU model, as Proxmox names it: host, a custom model with the prefix custom-, or a
// model that the Terraform provider accepts. The provider does not accept the newest models of
// Proxmox (bpg/proxmox 0.111.1, proxmoxtf/resource/vm/validators.go, CPUTypeValidator).
//
// +kubebuilder:validation:MaxLength=64
// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^custom-[A-Za-z0-9_.-]+$') || self in ['486', 'Broadwell', 'Broadwell-IBRS', 'Broadwell-noTSX', 'Broadwell-noTSX-IBRS', 'Cascadelake-Server', 'Cascadelake-Server-noTSX', 'Cascadelake-Server-v2', 'Cascadelake-Server-v4', 'Cascadelake-Server-v5', 'Conroe', 'Cooperlake', 'Cooperlake-v2', 'EPYC', 'EPYC-Genoa', 'EPYC-IBPB', 'EPYC-Milan', 'EPYC-Rome', 'EPYC-Rome-v2', 'EPYC-Rome-v3', 'EPYC-Rome-v4', 'EPYC-v3', 'EPYC-v4', 'Haswell', 'Haswell-IBRS', 'Haswell-noTSX', 'Haswell-noTSX-IBRS', 'Icelake-Client', 'Icelake-Client-noTSX', 'Icelake-Server', 'Icelake-Server-noTSX', 'Icelake-Server-v3', 'Icelake-Server-v4', 'Icelake-Server-v5', 'Icelake-Server-v6', 'IvyBridge', 'IvyBridge-IBRS', 'KnightsMill', 'Nehalem', 'Nehalem-IBRS', 'Opteron_G1', 'Opteron_G2', 'Opteron_G3', 'Opteron_G4', 'Opteron_G5', 'Penryn', 'SandyBridge', 'SandyBridge-IBRS', 'SapphireRapids', 'Skylake-Client', 'Skylake-Client-IBRS', 'Skylake-Client-noTSX-IBRS', 'Skylake-Client-v4', 'Skylake-Server', 'Skylake-Server-IBRS', 'Skylake-Server-noTSX-IBRS', 'Skylake-Server-v4', 'Skylake-Server-v5', 'Westmere', 'Westmere-IBRS', 'athlon', 'core2duo', 'coreduo', 'host', 'kvm32', 'kvm64', 'max', 'pentium', 'pentium2', 'pentium3', 'phenom', 'qemu32', 'qemu64', 'x86-64-v2', 'x86-64-v2-AES', 'x86-64-v3', 'x86-64-v4']",message="is not a CPU model that the Terraform provider accepts: write one such as host or x86-64-v2-AES; for a newer model, define a custom model with it as reported-model, and write custom-NAME"
type CPUModel string
