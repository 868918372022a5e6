package v1alpha1

// Placement says how VMs sit on a host's CPUs and memory.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.policy) && self.policy in ['Dedicated', 'Isolated']) || has(self.pinWith)",message="is needed by policies Dedicated and Isolated: write HostAgent if numaform-agent runs on the hosts, or Affinity if numaform logs in as root@pam",fieldPath=".pinWith"
// +kubebuilder:validation:XValidation:rule="!has(self.pinWith) || (has(self.policy) && self.policy in ['Dedicated', 'Isolated'])",message="means nothing to policies Shared and NUMA: remove it, or choose Dedicated or Isolated",fieldPath=".pinWith"
// +kubebuilder:validation:XValidation:rule="!(has(self.overcommit) && self.overcommit.size() > 0) || !has(self.policy) || self.policy == 'Shared'",message="means nothing to policies NUMA, Dedicated and Isolated: remove it, or choose Shared",fieldPath=".overcommit"
// +kubebuilder:validation:XValidation:rule="!has(self.emulator) || (has(self.pinWith) && self.pinWith == 'HostAgent')",message="is numaform-agent's to obey: remove it, or choose pinWith HostAgent",fieldPath=".emulator"
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

	// Emulator is where numaform-agent puts the threads of a VM that are no vCPUs, those
	// of QEMU itself and of disks: on the CPUs of the guest, or on those that are shared
	// by all that is not pinned. Left out, the host's administrator decides. It changes
	// on VMs that run.
	// +optional
	Emulator Emulator `json:"emulator,omitempty"`

	// Overcommit is how many vCPUs of Shared VMs stand on one host CPU, from 1 to
	// 16, such as "1.5". Empty means 1.
	// +optional
	// +kubebuilder:validation:Pattern=`^(([1-9]|1[0-5])(\.[0-9]{1,2})?|16(\.0{1,2})?)?$`
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

// Emulator says where the threads of a VM go that are no vCPUs.
//
// +kubebuilder:validation:Enum=guest;shared
type Emulator string

// The places of those threads.
const (
	EmulatorGuest  Emulator = "guest"
	EmulatorShared Emulator = "shared"
)
