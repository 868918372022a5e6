package v1alpha1

import (
	"cmp"
	"fmt"
	"strconv"
)

// Placement says how VMs are placed on a host's CPUs and memory.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.policy) && self.policy in ['Dedicated', 'Isolated']) || has(self.pinWith)",message="is required by policies Dedicated and Isolated: write HostAgent if numaform-agent runs on the hosts, or Affinity if numaform logs in as root@pam",fieldPath=".pinWith"
// +kubebuilder:validation:XValidation:rule="!has(self.pinWith) || (has(self.policy) && self.policy in ['Dedicated', 'Isolated'])",message="has no effect with policies Shared and NUMA: remove it, or set policy to Dedicated or Isolated",fieldPath=".pinWith"
// +kubebuilder:validation:XValidation:rule="!(has(self.overcommit) && self.overcommit.size() > 0) || !has(self.policy) || self.policy == 'Shared'",message="has no effect with policies NUMA, Dedicated and Isolated: remove it, or set policy to Shared",fieldPath=".overcommit"
// +kubebuilder:validation:XValidation:rule="!has(self.hugePages) || (has(self.policy) && self.policy != 'Shared')",message="has no effect with policy Shared, whose memory is bound to no NUMA node: remove it, or set policy to NUMA, Dedicated or Isolated",fieldPath=".hugePages"
// +kubebuilder:validation:XValidation:rule="!has(self.emulator) || (has(self.pinWith) && self.pinWith == 'HostAgent')",message="has no effect without numaform-agent: remove it, or set pinWith to HostAgent",fieldPath=".emulator"
// +kubebuilder:validation:XValidation:rule="!has(self.wholeCores) || (has(self.policy) && self.policy == 'Dedicated')",message="has no effect with policies Shared, NUMA and Isolated: remove it, or set policy to Dedicated",fieldPath=".wholeCores"
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

	// Overcommit is the number of vCPUs of Shared VMs for each host CPU, from 1 to
	// 16, such as "1.5". Empty means 1.
	// +optional
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:XValidation:rule="self.matches('^(([1-9]|1[0-5])([.][0-9]{1,2})?|16([.]0{1,2})?)?$')",message="is not a ratio from 1 to 16, such as 1.5"
	Overcommit string `json:"overcommit,omitempty"`

	// HugePages is the size of the huge pages, 2Mi or 1Gi, that back the memory of
	// NUMA, Dedicated and Isolated VMs. They must be reserved on the hosts, and only a
	// root@pam ticket may ask for them. Empty means ordinary memory.
	// +optional
	HugePages HugePages `json:"hugePages,omitempty"`

	// Spread is Hosts where the VMs of a NodePool go to the allowed host with the
	// fewest of them, and None where hosts are filled one after the other.
	// +optional
	// +kubebuilder:default=None
	Spread Spread `json:"spread,omitempty"`

	// WholeCores says whether a Dedicated VM may share cores with others. Prefer, the
	// default, gives it free threads of several cores where no host has whole ones left,
	// or none in one NUMA node, and says so; Require never does: then the VM waits.
	// +optional
	WholeCores WholeCores `json:"wholeCores,omitempty"`
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

// WholeCores says how strictly Dedicated VMs have cores of their own.
//
// +kubebuilder:validation:Enum=Prefer;Require
type WholeCores string

// How strictly cores are owned.
const (
	WholeCoresPrefer  WholeCores = "Prefer"
	WholeCoresRequire WholeCores = "Require"
)

// HugePages is a size of huge pages.
//
// +kubebuilder:validation:Enum="2Mi";"1Gi"
type HugePages string

// The sizes of huge pages.
const (
	HugePages2Mi HugePages = "2Mi"
	HugePages1Gi HugePages = "1Gi"
)

// Spread says over what the VMs of a NodePool are spread.
//
// +kubebuilder:validation:Enum=None;Hosts
type Spread string

// The ways to spread.
const (
	SpreadNone  Spread = "None"
	SpreadHosts Spread = "Hosts"
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

// EffectivePolicy returns the policy, by default Shared.
func (p Placement) EffectivePolicy() PlacementPolicy { return cmp.Or(p.Policy, PlacementShared) }

// OvercommitRatio returns the number of vCPUs for each host CPU, by default 1.
func (p Placement) OvercommitRatio() (float64, error) {
	ratio, err := strconv.ParseFloat(cmp.Or(p.Overcommit, "1"), 64)
	if err != nil || !(ratio >= 1 && ratio <= 16) {
		return 0, fmt.Errorf("%q is not a ratio from 1 to 16, such as 1.5", p.Overcommit)
	}
	return ratio, nil
}
