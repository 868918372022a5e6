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

// Kubelet's defaults for disks, which no longer apply once any threshold is set.
const (
	nodefsPercent  = 10
	imagefsPercent = 15
	inodesPercent  = 5
)

// The eviction signals whose thresholds pods cannot use.
const (
	signalMemory = "memory.available"
	signalNodefs = "nodefs.available"
)

// Reserved is a node's kubelet configuration for which pods have the predicted resources,
// in the terms of that configuration.
type Reserved struct {
	KubeReserved, SystemReserved, EvictionHard map[string]string
	MaxPods                                    int64
}

// ReservedFor returns the kubelet reservations for a VM of the class. If types is nil, it
// uses DefaultInstanceTypes.
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
		overlay(r.KubeReserved, k.KubeReserved) // including pid, which no pod requests
		overlay(r.SystemReserved, k.SystemReserved)
		overlay(r.EvictionHard, k.EvictionHard)
	}
	return r
}

// ForClass returns the instance types as nodes of the class have them: with its kubelet
// reservations and its memory overhead. It ignores families.
func ForClass(nc *v1alpha1.ProxmoxNodeClass, types []InstanceType) []InstanceType {
	made := make([]InstanceType, len(types))
	for i := range types {
		made[i] = types[i].forClass(&nc.Spec)
	}
	return made
}

// OfferedBy returns the instance types that the class offers, as its nodes have them:
// none if spec.sizing.families contains no existing family, see offeredBy. For a Flexible
// class, these are the sizes onto which pods are packed.
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

// replace returns the list with quantities replaced by the ones in by. Validate has
// checked that they parse.
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

// replaceThresholds does the same for eviction thresholds, some of which are percentages.
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

// evictionSignals returns the signals of the resources that pods request.
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

// TypeOf returns a VM's type as nodes of the class have it. If types is nil, it uses
// DefaultInstanceTypes.
func TypeOf(nc *v1alpha1.ProxmoxNodeClass, vm *fleet.VM, types []InstanceType) InstanceType {
	if types == nil {
		types = DefaultInstanceTypes()
	}
	t := sizeOf(vm, types)
	return t.forClass(&nc.Spec)
}

// typeOf returns a VM's type, or one with its size if the type no longer exists.
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
