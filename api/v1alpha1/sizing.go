package v1alpha1

import (
	"cmp"
	"slices"
)

// Sizing says which sizes of node are offered.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.policy) && self.policy == 'Flexible') || !has(self.families) || self.families.size() == 0",message="means nothing to policy Flexible, whose nodes are of no instance type: remove it, or choose Types",fieldPath=".families"
// +kubebuilder:validation:XValidation:rule="has(self.policy) && self.policy == 'Flexible' || !has(self.minVCPUs)",message="means nothing to policy Types: remove it, or choose Flexible",fieldPath=".minVCPUs"
// +kubebuilder:validation:XValidation:rule="has(self.policy) && self.policy == 'Flexible' || !has(self.maxVCPUs)",message="means nothing to policy Types: remove it, or choose Flexible",fieldPath=".maxVCPUs"
// +kubebuilder:validation:XValidation:rule="has(self.policy) && self.policy == 'Flexible' || !has(self.minMemoryMiB)",message="means nothing to policy Types: remove it, or choose Flexible",fieldPath=".minMemoryMiB"
// +kubebuilder:validation:XValidation:rule="has(self.policy) && self.policy == 'Flexible' || !has(self.maxMemoryMiB)",message="means nothing to policy Types: remove it, or choose Flexible",fieldPath=".maxMemoryMiB"
// +kubebuilder:validation:XValidation:rule="(has(self.minVCPUs) ? self.minVCPUs : 1) <= (has(self.maxVCPUs) ? self.maxVCPUs : 16)",message="is less than minVCPUs: raise it (16 if it is not written), or lower minVCPUs",fieldPath=".maxVCPUs"
// +kubebuilder:validation:XValidation:rule="(has(self.minMemoryMiB) ? self.minMemoryMiB : 2048) <= (has(self.maxMemoryMiB) ? self.maxMemoryMiB : 131072)",message="is less than minMemoryMiB: raise it (131072 if it is not written), or lower minMemoryMiB",fieldPath=".maxMemoryMiB"
type Sizing struct {
	// Policy is Types (nodes are of the operator's instance types) or Flexible (each
	// node is made for its pods, within the bounds below).
	// +optional
	// +kubebuilder:default=Types
	Policy SizingPolicy `json:"policy,omitempty"`

	// Families are the families of instance types to offer: what stands before the
	// dot of their names, such as c1 or m1. Empty means all. The types themselves
	// are the operator's instance_types_file.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$`
	// +listType=set
	Families []string `json:"families,omitempty"`

	// MinVCPUs is the least that a Flexible node has. Unset means 1. Dedicated nodes
	// have whole cores, of two threads, so theirs are even numbers.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	MinVCPUs int32 `json:"minVCPUs,omitempty"`

	// MaxVCPUs is the most that a Flexible node has. Unset means 16.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	MaxVCPUs int32 `json:"maxVCPUs,omitempty"`

	// MinMemoryMiB is the least that a Flexible node has. Unset means 2048.
	// +optional
	// +kubebuilder:validation:Minimum=512
	// +kubebuilder:validation:Maximum=4194304
	// +kubebuilder:validation:MultipleOf=512
	MinMemoryMiB int32 `json:"minMemoryMiB,omitempty"`

	// MaxMemoryMiB is the most that a Flexible node has. Unset means 131072.
	// +optional
	// +kubebuilder:validation:Minimum=512
	// +kubebuilder:validation:Maximum=4194304
	// +kubebuilder:validation:MultipleOf=512
	MaxMemoryMiB int32 `json:"maxMemoryMiB,omitempty"`
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

// The bounds of Flexible nodes where a class says nothing, and what both are
// multiples of.
const (
	defaultMinVCPUs     = 1
	defaultMaxVCPUs     = 16
	defaultMinMemoryMiB = 2048
	defaultMaxMemoryMiB = 131072

	// FlexibleMemoryStepMiB is what the memory of Flexible nodes is a multiple of at least.
	FlexibleMemoryStepMiB = 512
	// threadsPerCore is that of a host's cores; a core of one thread is a whole one, too.
	threadsPerCore = 2
)

// FlexibleBounds are the sizes that Flexible nodes of a class may have.
type FlexibleBounds struct {
	// MinVCPUs and MaxVCPUs are multiples of StepVCPUs.
	MinVCPUs, MaxVCPUs, StepVCPUs int
	// MinMemoryMiB and MaxMemoryMiB are multiples of StepMemoryMiB.
	MinMemoryMiB, MaxMemoryMiB, StepMemoryMiB int64
}

// Flexible returns the bounds of a class whose nodes are sized for their pods, and
// false if they are of instance types. Dedicated nodes have whole cores, and those in
// huge pages whole pages.
func (in *ProxmoxNodeClassSpec) Flexible() (FlexibleBounds, bool) {
	s := in.Sizing
	if s == nil || s.Policy != SizingFlexible {
		return FlexibleBounds{}, false
	}
	step := 1
	if in.Placement.EffectivePolicy() == PlacementDedicated {
		step = threadsPerCore
	}
	page := int64(FlexibleMemoryStepMiB)
	if in.Placement.HugePages == HugePages1Gi {
		page = 1024
	}
	lower, upper := int(cmp.Or(s.MinVCPUs, defaultMinVCPUs)), int(cmp.Or(s.MaxVCPUs, defaultMaxVCPUs))
	return FlexibleBounds{
		MinVCPUs: (lower + step - 1) / step * step, MaxVCPUs: upper / step * step, StepVCPUs: step,
		MinMemoryMiB:  (int64(cmp.Or(s.MinMemoryMiB, defaultMinMemoryMiB)) + page - 1) / page * page,
		MaxMemoryMiB:  int64(cmp.Or(s.MaxMemoryMiB, defaultMaxMemoryMiB)) / page * page,
		StepMemoryMiB: page,
	}, true
}

func validateSizing(spec *ProxmoxNodeClassSpec, report reporter) {
	s := spec.Sizing
	if s == nil {
		return
	}
	validateNames("sizing.families", s.Families, names{
		`^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$`, "what stands before the point in the names of instance types, such as c1", 32,
	}, report)
	if !slices.Contains([]SizingPolicy{"", SizingTypes, SizingFlexible}, s.Policy) {
		report("sizing.policy", "%q is not a policy: write Types or Flexible", s.Policy)
		return
	}
	bounds, flexible := spec.Flexible()
	s.validateBounds(flexible, report)
	if !flexible {
		return
	}
	if len(s.Families) > 0 {
		report("sizing.families", "means nothing to policy Flexible, whose nodes are of no instance type: remove it, or choose Types")
	}
	bounds.validate(report)
}

// validateBounds judges each bound by itself.
func (in *Sizing) validateBounds(flexible bool, report reporter) {
	for _, bound := range []struct {
		field                    string
		value, least, most, step int32
	}{
		{"minVCPUs", in.MinVCPUs, 1, 512, 1},
		{"maxVCPUs", in.MaxVCPUs, 1, 512, 1},
		{"minMemoryMiB", in.MinMemoryMiB, 512, 1 << 22, FlexibleMemoryStepMiB},
		{"maxMemoryMiB", in.MaxMemoryMiB, 512, 1 << 22, FlexibleMemoryStepMiB},
	} {
		switch {
		case bound.value == 0:
		case !flexible:
			report("sizing."+bound.field, "means nothing to policy Types: remove it, or choose Flexible")
		case bound.value < bound.least || bound.value > bound.most || bound.value%bound.step != 0:
			report("sizing."+bound.field, "%d is not from %d to %d in steps of %d", bound.value, bound.least, bound.most, bound.step)
		}
	}
}

func (b FlexibleBounds) validate(report reporter) {
	switch {
	case b.MinVCPUs > b.MaxVCPUs && b.StepVCPUs > 1:
		report("sizing.maxVCPUs", "leaves no size: Dedicated nodes have whole cores, so an even number of vCPUs from %d to %d: "+
			"raise maxVCPUs, or lower minVCPUs", b.MinVCPUs, b.MaxVCPUs)
	case b.MinVCPUs > b.MaxVCPUs:
		report("sizing.maxVCPUs", "%d is less than minVCPUs, %d: raise it, or lower minVCPUs", b.MaxVCPUs, b.MinVCPUs)
	}
	switch {
	case b.MinMemoryMiB > b.MaxMemoryMiB && b.StepMemoryMiB > FlexibleMemoryStepMiB:
		report("sizing.maxMemoryMiB", "leaves no size: with huge pages of 1Gi, nodes have whole GiB from %d to %d MiB: "+
			"raise maxMemoryMiB, or lower minMemoryMiB", b.MinMemoryMiB, b.MaxMemoryMiB)
	case b.MinMemoryMiB > b.MaxMemoryMiB:
		report("sizing.maxMemoryMiB", "%d is less than minMemoryMiB, %d: raise it, or lower minMemoryMiB", b.MaxMemoryMiB, b.MinMemoryMiB)
	}
}
