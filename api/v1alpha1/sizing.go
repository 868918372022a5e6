package v1alpha1

import "cmp"

// Sizing selects the sizes of nodes.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.policy) && self.policy == 'Flexible') || !has(self.families) || self.families.size() == 0",message="has no effect with policy Flexible, which uses no instance types: remove it, or set policy to Types",fieldPath=".families"
// +kubebuilder:validation:XValidation:rule="has(self.policy) && self.policy == 'Flexible' || !has(self.minVCPUs)",message="has no effect with policy Types: remove it, or set policy to Flexible",fieldPath=".minVCPUs"
// +kubebuilder:validation:XValidation:rule="has(self.policy) && self.policy == 'Flexible' || !has(self.maxVCPUs)",message="has no effect with policy Types: remove it, or set policy to Flexible",fieldPath=".maxVCPUs"
// +kubebuilder:validation:XValidation:rule="has(self.policy) && self.policy == 'Flexible' || !has(self.minMemoryMiB)",message="has no effect with policy Types: remove it, or set policy to Flexible",fieldPath=".minMemoryMiB"
// +kubebuilder:validation:XValidation:rule="has(self.policy) && self.policy == 'Flexible' || !has(self.maxMemoryMiB)",message="has no effect with policy Types: remove it, or set policy to Flexible",fieldPath=".maxMemoryMiB"
// +kubebuilder:validation:XValidation:rule="has(self.policy) && self.policy == 'Flexible' || !has(self.maxDiskGiB)",message="has no effect with policy Types: remove it, or set policy to Flexible",fieldPath=".maxDiskGiB"
// +kubebuilder:validation:XValidation:rule="(has(self.minVCPUs) ? self.minVCPUs : 1) <= (has(self.maxVCPUs) ? self.maxVCPUs : 16)",message="is less than minVCPUs: raise it (the default is 16), or lower minVCPUs",fieldPath=".maxVCPUs"
// +kubebuilder:validation:XValidation:rule="(has(self.minMemoryMiB) ? self.minMemoryMiB : 2048) <= (has(self.maxMemoryMiB) ? self.maxMemoryMiB : 131072)",message="is less than minMemoryMiB: raise it (the default is 131072), or lower minMemoryMiB",fieldPath=".maxMemoryMiB"
type Sizing struct {
	// Policy is Types (nodes have one of the configured instance types) or Flexible (each
	// node is sized for its pods, within the bounds below).
	// +optional
	// +kubebuilder:default=Types
	Policy SizingPolicy `json:"policy,omitempty"`

	// Families are the families of instance types to use: the part of their names before the
	// dot, such as c1 or m1. Empty means all. The key instance_types_file of numaform.yaml
	// names the file with the types.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$')",message="is not a family of instance types: write the part of their names before the dot, such as c1"
	// +listType=set
	Families []string `json:"families,omitempty"`

	// MinVCPUs is the minimum number of vCPUs of a Flexible node. Unset means 1. Dedicated
	// nodes have whole cores with two threads, so their numbers of vCPUs are even.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	MinVCPUs int32 `json:"minVCPUs,omitempty"`

	// MaxVCPUs is the maximum number of vCPUs of a Flexible node. Unset means 16.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	MaxVCPUs int32 `json:"maxVCPUs,omitempty"`

	// MinMemoryMiB is the minimum memory of a Flexible node. Unset means 2048.
	// +optional
	// +kubebuilder:validation:Minimum=512
	// +kubebuilder:validation:Maximum=4194304
	// +kubebuilder:validation:MultipleOf=512
	MinMemoryMiB int32 `json:"minMemoryMiB,omitempty"`

	// MaxMemoryMiB is the maximum memory of a Flexible node. Unset means 131072.
	// +optional
	// +kubebuilder:validation:Minimum=512
	// +kubebuilder:validation:Maximum=4194304
	// +kubebuilder:validation:MultipleOf=512
	MaxMemoryMiB int32 `json:"maxMemoryMiB,omitempty"`

	// MaxDiskGiB is the maximum size of the boot disk of a Flexible node. If its pods request
	// more ephemeral storage than the disk of bootDevice has, the node gets a larger disk, in
	// steps of 10. Unset means 256. It has no effect if bootDevice.size is as large.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	MaxDiskGiB int32 `json:"maxDiskGiB,omitempty"`
}

// SizingPolicy names a way to size nodes.
//
// +kubebuilder:validation:Enum=Types;Flexible
type SizingPolicy string

// The sizing policies.
const (
	SizingTypes    SizingPolicy = "Types"
	SizingFlexible SizingPolicy = "Flexible"
)

// The default bounds of Flexible nodes, and the steps between sizes.
const (
	defaultMinVCPUs     = 1
	defaultMaxVCPUs     = 16
	defaultMinMemoryMiB = 2048
	defaultMaxMemoryMiB = 131072
	defaultMaxDiskGiB   = 256

	// flexibleMemoryStepMiB is the smallest step between memory sizes of Flexible nodes.
	flexibleMemoryStepMiB = 512
	// flexibleDiskStepGiB is the step between disk sizes of Flexible nodes.
	flexibleDiskStepGiB = 10
	// threadsPerCore is the number of threads per core of most hosts. A multiple of it also
	// fills whole cores on hosts with one thread per core.
	threadsPerCore = 2
)

// FlexibleBounds are the allowed sizes of Flexible nodes of a class.
type FlexibleBounds struct {
	// MinVCPUs and MaxVCPUs are multiples of StepVCPUs.
	MinVCPUs, MaxVCPUs, StepVCPUs int
	// MinMemoryMiB and MaxMemoryMiB are multiples of StepMemoryMiB.
	MinMemoryMiB, MaxMemoryMiB, StepMemoryMiB int64
	// MaxDiskGiB is a multiple of StepDiskGiB. A disk is the class's, or larger and a multiple
	// of StepDiskGiB.
	MaxDiskGiB, StepDiskGiB int64
}

// Flexible returns the bounds of a class whose nodes are sized for their pods, and false if
// nodes have instance types. Dedicated nodes have whole cores, and nodes with huge pages have
// whole pages.
func (in *ProxmoxNodeClassSpec) Flexible() (FlexibleBounds, bool) {
	s := in.Sizing
	if s == nil || s.Policy != SizingFlexible {
		return FlexibleBounds{}, false
	}
	step := 1
	if in.Placement.EffectivePolicy() == PlacementDedicated {
		step = threadsPerCore
	}
	page := int64(flexibleMemoryStepMiB)
	if in.Placement.HugePages == HugePages1Gi {
		page = 1024
	}
	lower, upper := int(cmp.Or(s.MinVCPUs, defaultMinVCPUs)), int(cmp.Or(s.MaxVCPUs, defaultMaxVCPUs))
	return FlexibleBounds{
		MinVCPUs: (lower + step - 1) / step * step, MaxVCPUs: upper / step * step, StepVCPUs: step,
		MinMemoryMiB:  (int64(cmp.Or(s.MinMemoryMiB, defaultMinMemoryMiB)) + page - 1) / page * page,
		MaxMemoryMiB:  int64(cmp.Or(s.MaxMemoryMiB, defaultMaxMemoryMiB)) / page * page,
		StepMemoryMiB: page,
		MaxDiskGiB:    int64(cmp.Or(s.MaxDiskGiB, defaultMaxDiskGiB)) / flexibleDiskStepGiB * flexibleDiskStepGiB,
		StepDiskGiB:   flexibleDiskStepGiB,
	}, true
}
