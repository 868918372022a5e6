package scheduling

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// Kubelet's own defaults for disks, which it forgets once a threshold is set.
const (
	nodefsPercent  = 10
	imagefsPercent = 15
	inodesPercent  = 5
)

// The eviction signals whose threshold pods cannot have.
const (
	signalMemory = "memory.available"
	signalNodefs = "nodefs.available"
)

// Reserved is what the kubelet of a node must be told so that pods can have what
// was predicted, in the words of its configuration.
type Reserved struct {
	KubeReserved, SystemReserved, EvictionHard map[string]string
	MaxPods                                    int64
}

// ReservedFor returns what the kubelet of a VM of the class must be told. Types nil
// means DefaultInstanceTypes.
func ReservedFor(nc *v1alpha1.ProxmoxNodeClass, vm *fleet.VM, types []InstanceType) Reserved {
	t := TypeOf(nc, vm, types)
	r := Reserved{
		KubeReserved: texts(t.Overhead.KubeReserved), SystemReserved: texts(t.Overhead.SystemReserved),
		EvictionHard: map[string]string{
			signalNodefs: percent(nodefsPercent), "nodefs.inodesFree": percent(inodesPercent),
			"imagefs.available": percent(imagefsPercent), "imagefs.inodesFree": percent(inodesPercent),
		},
		MaxPods: t.Pods,
	}
	for name, signal := range evictionSignals() {
		if amount, ok := t.Overhead.EvictionThreshold[name]; ok {
			r.EvictionHard[signal] = amount.String()
		}
	}
	if k := nc.Spec.Kubelet; k != nil {
		overlay(r.KubeReserved, k.KubeReserved) // pid too, which no pod asks for
		overlay(r.SystemReserved, k.SystemReserved)
		overlay(r.EvictionHard, k.EvictionHard)
	}
	return r
}

// ForClass returns the instance types as nodes of the class have them: with its
// kubelet's reservations and its memory overhead. Families are not looked at.
func ForClass(nc *v1alpha1.ProxmoxNodeClass, types []InstanceType) []InstanceType {
	made := make([]InstanceType, len(types))
	for i := range types {
		made[i] = types[i].forClass(&nc.Spec)
	}
	return made
}

// OfferedBy returns the instance types that the class offers, as its nodes have
// them: none if spec.sizing.families names no family that there is, see offeredBy. Of a class whose
// nodes are Flexible, these are sizes on which pods are packed.
func OfferedBy(nc *v1alpha1.ProxmoxNodeClass, types []InstanceType) []InstanceType {
	if bounds, flexible := nc.Spec.Flexible(); flexible {
		return ForClass(nc, ladder(bounds))
	}
	return slices.DeleteFunc(ForClass(nc, types), func(t InstanceType) bool { return !t.offeredBy(&nc.Spec) })
}

func (t InstanceType) forClass(fields *v1alpha1.ProxmoxNodeClassSpec) InstanceType {
	if kept := fields.MemoryOverheadMiB; kept != nil {
		t.ReportedMiB = max(1, t.MemoryMiB-int64(*kept))
	}
	k := fields.Kubelet
	if k == nil {
		return t
	}
	if k.MaxPods != nil {
		t.Pods = int64(*k.MaxPods)
	}
	t.Overhead.KubeReserved = replace(t.Overhead.KubeReserved, k.KubeReserved)
	t.Overhead.SystemReserved = replace(t.Overhead.SystemReserved, k.SystemReserved)
	t.Overhead.EvictionThreshold, t.Overhead.EvictionPercent = replaceThresholds(t.Overhead.EvictionThreshold, k.EvictionHard)
	return t
}

// replace returns the list with the quantities of resources that nodes have taken
// from the other. Validate has seen these, so they parse.
func replace(list corev1.ResourceList, by map[string]v1alpha1.ReservedQuantity) corev1.ResourceList {
	replaced := list.DeepCopy()
	for name, text := range by {
		amount, err := resource.ParseQuantity(string(text))
		if err != nil || name == "pid" {
			continue
		}
		if replaced == nil {
			replaced = corev1.ResourceList{}
		}
		replaced[corev1.ResourceName(name)] = amount
	}
	return replaced
}

// replaceThresholds does the same for eviction thresholds, of which some are parts
// of what the node has.
func replaceThresholds(list corev1.ResourceList, by map[string]v1alpha1.ReservedQuantity) (corev1.ResourceList, map[corev1.ResourceName]float64) {
	amounts, percents := map[string]v1alpha1.ReservedQuantity{}, map[corev1.ResourceName]float64{}
	for name, signal := range evictionSignals() {
		text, set := by[signal]
		if part, ok := strings.CutSuffix(string(text), "%"); ok {
			percents[name], _ = strconv.ParseFloat(part, 64)
		} else if set {
			amounts[string(name)] = text
		}
	}
	list = replace(list, amounts)
	for name := range percents {
		delete(list, name)
	}
	return list, percents
}

// evictionSignals are the signals of the resources that pods ask for.
func evictionSignals() map[corev1.ResourceName]string {
	return map[corev1.ResourceName]string{corev1.ResourceMemory: signalMemory, corev1.ResourceEphemeralStorage: signalNodefs}
}

func texts(list corev1.ResourceList) map[string]string {
	m := map[string]string{}
	for name, amount := range list {
		m[string(name)] = amount.String()
	}
	return m
}

func overlay(m map[string]string, by map[string]v1alpha1.ReservedQuantity) {
	for _, key := range slices.Sorted(maps.Keys(by)) {
		m[key] = string(by[key])
	}
}

func percent(n int) string { return strconv.Itoa(n) + "%" }

// TypeOf returns a VM's type as nodes of the class have it. Types nil means
// DefaultInstanceTypes.
func TypeOf(nc *v1alpha1.ProxmoxNodeClass, vm *fleet.VM, types []InstanceType) InstanceType {
	if types == nil {
		types = DefaultInstanceTypes()
	}
	t := sizeOf(vm, types)
	return t.forClass(&nc.Spec)
}

// typeOf returns a VM's type, or one made of its size if that type is no more.
func typeOf(vm *fleet.VM, types []InstanceType) InstanceType {
	i := slices.IndexFunc(types, func(t InstanceType) bool {
		return t.Name == vm.InstanceType && t.VCPUs == vm.VCPUs && t.MemoryMiB == vm.MemoryMiB
	})
	if i >= 0 {
		return types[i]
	}
	return InstanceType{
		VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, Pods: defaultPods(vm.MemoryMiB / 1024),
		Overhead: defaultOverhead(vm.VCPUs, vm.MemoryMiB/1024),
	}
}
