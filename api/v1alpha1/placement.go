package v1alpha1

import (
	"cmp"
	"fmt"
	"strconv"
)

// Placement configures how VMs are placed on a host's CPUs and memory.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.policy) && self.policy in ['Dedicated', 'Isolated']) || has(self.pinWith)",message="is required by policies Dedicated and Isolated: set it to HostAgent if numaform-agent runs on the hosts, or to Affinity if numaform logs in as root@pam",fieldPath=".pinWith"
// +kubebuilder:validation:XValidation:rule="!has(self.pinWith) || (has(self.policy) && self.policy in ['Dedicated', 'Isolated'])",message="has no effect with policies Shared and NUMA: remove it, or set policy to Dedicated or Isolated",fieldPath=".pinWith"
// +kubebuilder:validation:XValidation:rule="!(has(self.overcommit) && self.overcommit.size() > 0) || !has(self.policy) || self.policy == 'Shared'",message="has no effect with policies NUMA, Dedicated and Isolated: remove it, or set policy to Shared",fieldPath=".overcommit"
// +kubebuilder:validation:XValidation:rule="!(has(self.memoryOvercommit) && self.memoryOvercommit.size() > 0) || !has(self.policy) || self.policy == 'Shared'",message="has no effect with policies NUMA, Dedicated and Isolated, whose memory is never overcommitted: remove it, or set policy to Shared",fieldPath=".memoryOvercommit"
// +kubebuilder:validation:XValidation:rule="!has(self.hugePages) || (has(self.policy) && self.policy != 'Shared')",message="has no effect with policy Shared, which binds memory to no NUMA node: remove it, or set policy to NUMA, Dedicated or Isolated",fieldPath=".hugePages"
// +kubebuilder:validation:XValidation:rule="!has(self.emulator) || (has(self.pinWith) && self.pinWith == 'HostAgent')",message="has no effect without numaform-agent: remove it, or set pinWith to HostAgent",fieldPath=".emulator"
// +kubebuilder:validation:XValidation:rule="!has(self.wholeCores) || (has(self.policy) && self.policy == 'Dedicated')",message="has no effect with policies Shared, NUMA and Isolated: remove it, or set policy to Dedicated",fieldPath=".wholeCores"
type Placement struct {
	// Policy is Shared (no pins), NUMA (memory bound to NUMA nodes), Dedicated (whole cores to
	// which no other VM is pinned) or Isolated (one thread of each core; no VM is pinned to
	// the others). Guests without pins can still run on these cores, unless numaform-agent on
	// the host has isolation: enforce.
	// +optional
	// +kubebuilder:default=Shared
	Policy PlacementPolicy `json:"policy,omitempty"`

	// PinWith selects what applies the pins of Dedicated and Isolated VMs: the VM's affinity,
	// which requires a root@pam ticket, or numaform-agent on the hosts.
	// +optional
	PinWith PinWith `json:"pinWith,omitempty"`

	// Emulator selects the CPUs on which numaform-agent runs the threads of a VM that are not
	// vCPUs, such as QEMU's main and I/O threads: with guest, the CPUs to which the VM is
	// pinned; with shared, the CPUs that are neither pinned nor siblings of pinned CPUs. Empty
	// means that the host's administrator decides. A change also applies to running VMs.
	// +optional
	Emulator Emulator `json:"emulator,omitempty"`

	// Overcommit is the maximum number of vCPUs without pins for each CPU of the host that is
	// neither reserved nor pinned, from 1 to 16, such as "1.5". Empty means 1.
	// +optional
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:XValidation:rule="self.matches('^(([1-9]|1[0-5])([.][0-9]{1,2})?|16([.]0{1,2})?)?$')",message="is not a ratio from 1 to 16, such as 1.5"
	Overcommit string `json:"overcommit,omitempty"`

	// MemoryOvercommit is the maximum memory of all guests of a host, as a multiple of the
	// memory that the host has for them, from 1 to 2, such as "1.2". If guests use more than
	// the host has, the host swaps or its kernel kills a guest. On a host that has a VM whose
	// class does not set it, memory is not overcommitted. Empty means 1.
	// +optional
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="self.matches('^(1([.][0-9]{1,2})?|2([.]0{1,2})?)?$')",message="is not a ratio from 1 to 2, such as 1.2"
	MemoryOvercommit string `json:"memoryOvercommit,omitempty"`

	// HugePages is the size of the huge pages, 2Mi or 1Gi, that back the memory of
	// NUMA, Dedicated and Isolated VMs. They must be reserved on the hosts, and they
	// require a root@pam ticket. Empty means ordinary memory.
	// +optional
	HugePages HugePages `json:"hugePages,omitempty"`

	// Spread is Hosts to prefer the allowed host with the fewest VMs of the NodePool, and None
	// to ignore how many of them a host has.
	// +optional
	// +kubebuilder:default=None
	Spread Spread `json:"spread,omitempty"`

	// HostSelection selects one of several hosts on which a VM would be placed equally well.
	// LeastAllocated prefers the host of which the smallest share of CPUs and memory is
	// allocated to guests, including guests that numaform does not manage; Balanced also
	// considers the measured load of hosts; MostAllocated fills hosts one after another, which
	// keeps room for large VMs. Empty means LeastAllocated with policy Shared, and
	// MostAllocated with the other policies. A change only applies to new VMs.
	// +optional
	HostSelection HostSelection `json:"hostSelection,omitempty"`

	// MaxHostLoad is the measured CPU load of a host, in percent, from which the host gets no
	// new VM. 100 means no limit, and unset means 95. The limit does not apply to a host whose
	// load the credential may not see.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxHostLoad *int32 `json:"maxHostLoad,omitempty"`

	// WholeCores selects whether a Dedicated VM may share cores with other VMs. With Prefer,
	// the default, the VM uses free siblings of CPUs to which other VMs are pinned if no host
	// has enough whole cores, or if whole cores would span several NUMA nodes. The reason of
	// its placement reports this. With Require, the VM gets whole cores, if necessary on
	// several NUMA nodes, or waits. With both, the last vCPU of an odd number may share a
	// core.
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

// PinWith selects the mechanism that applies pins.
//
// +kubebuilder:validation:Enum=Affinity;HostAgent
type PinWith string

// The mechanisms that apply pins.
const (
	PinWithAffinity  PinWith = "Affinity"
	PinWithHostAgent PinWith = "HostAgent"
)

// WholeCores selects whether Dedicated VMs may share cores.
//
// +kubebuilder:validation:Enum=Prefer;Require
type WholeCores string

// The values of WholeCores.
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

// Spread selects how the VMs of a NodePool are spread.
//
// +kubebuilder:validation:Enum=None;Hosts
type Spread string

// The values of Spread.
const (
	SpreadNone  Spread = "None"
	SpreadHosts Spread = "Hosts"
)

// HostSelection is a way to select a host.
//
// +kubebuilder:validation:Enum=LeastAllocated;MostAllocated;Balanced
type HostSelection string

// The ways to select a host.
const (
	LeastAllocated HostSelection = "LeastAllocated"
	MostAllocated  HostSelection = "MostAllocated"
	Balanced       HostSelection = "Balanced"
)

// DefaultMaxHostLoad is the default of MaxHostLoad.
const DefaultMaxHostLoad = 95

// Emulator selects the CPUs for the threads of a VM that are not vCPUs.
//
// +kubebuilder:validation:Enum=guest;shared
type Emulator string

// The values of Emulator.
const (
	EmulatorGuest  Emulator = "guest"
	EmulatorShared Emulator = "shared"
)

// HostLoadLimit returns MaxHostLoad with its default applied, or 0 if there is no limit.
func (p Placement) HostLoadLimit() int {
	switch {
	case p.MaxHostLoad == nil:
		return DefaultMaxHostLoad
	case *p.MaxHostLoad >= 100:
		return 0
	}
	return int(*p.MaxHostLoad)
}

// EffectivePolicy returns the policy; the default is Shared.
func (p Placement) EffectivePolicy() PlacementPolicy { return cmp.Or(p.Policy, PlacementShared) }

// MemoryOvercommitRatio returns MemoryOvercommit as a number, or 0 if memory is not
// overcommitted. The CRD allows only ratios that parse.
func (p Placement) MemoryOvercommitRatio() float64 {
	ratio, err := strconv.ParseFloat(p.MemoryOvercommit, 64)
	if err != nil || ratio <= 1 {
		return 0
	}
	return ratio
}

// OvercommitRatio returns Overcommit as a number, or 1 if it is empty. It returns an error
// if Overcommit is not a number from 1 to 16.
func (p Placement) OvercommitRatio() (float64, error) {
	ratio, err := strconv.ParseFloat(cmp.Or(p.Overcommit, "1"), 64)
	if err != nil || !(ratio >= 1 && ratio <= 16) {
		return 0, fmt.Errorf("%q is not a ratio from 1 to 16, such as 1.5", p.Overcommit)
	}
	return ratio, nil
}
