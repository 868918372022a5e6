package scheduling

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// nodefsPercent is the free share of the disk below which kubelet evicts pods. Kubelet's own
// defaults for disks no longer apply once any threshold is set.
const nodefsPercent = 10

// The eviction signals of the resources that pods request; see evictionSignals.
const (
	signalMemory = "memory.available"
	signalNodefs = "nodefs.available"
)

// Reserved is the part of a node's kubelet configuration that leaves the predicted resources
// to pods.
type Reserved struct {
	KubeReserved, SystemReserved, EvictionHard map[string]string
	MaxPods                                    int64
}

// ReservedFor returns the kubelet reservations for a VM of the class. If types is nil, it
// uses DefaultInstanceTypes.
func ReservedFor(nc *v1alpha1.ProxmoxNodeClass, vm *fleet.VM, types []InstanceType) Reserved {
	t := TypeOf(nc, vm, types)
	r := Reserved{
		KubeReserved:   map[string]string{},
		SystemReserved: map[string]string{},
		EvictionHard: map[string]string{
			signalNodefs:         fmt.Sprintf("%d%%", nodefsPercent),
			"nodefs.inodesFree":  "5%",
			"imagefs.available":  "15%",
			"imagefs.inodesFree": "5%",
		},
		MaxPods: t.Pods,
	}
	for name, amount := range t.Overhead.KubeReserved {
		r.KubeReserved[string(name)] = amount.String()
	}
	for name, amount := range t.Overhead.SystemReserved {
		r.SystemReserved[string(name)] = amount.String()
	}
	for name, signal := range evictionSignals() {
		if amount, ok := t.Overhead.EvictionThreshold[name]; ok {
			r.EvictionHard[signal] = amount.String()
		}
	}
	if k := nc.Spec.Kubelet; k != nil {
		override(r.KubeReserved, k.KubeReserved) // including pid, which no pod requests
		override(r.SystemReserved, k.SystemReserved)
		override(r.EvictionHard, k.EvictionHard)
	}
	return r
}

func override(m map[string]string, by map[string]v1alpha1.ReservedQuantity) {
	for key, value := range by {
		m[key] = string(value)
	}
}

// ForClass returns the instance types as nodes of the class have them: with its kubelet
// reservations, maximum number of pods and memory overhead. It ignores families.
func ForClass(nc *v1alpha1.ProxmoxNodeClass, types []InstanceType) []InstanceType {
	made := make([]InstanceType, len(types))
	for i := range types {
		made[i] = types[i].forClass(&nc.Spec)
	}
	return made
}

// OfferedBy returns the instance types that the class offers, as its nodes have them. For
// a Flexible class, these are the sizes onto which pods are packed. Otherwise, if the
// class lists families, the type's family must be listed. A type with extended resources
// needs devices, so it is offered by a class that passes devices through, or that lists
// its family.
func OfferedBy(nc *v1alpha1.ProxmoxNodeClass, types []InstanceType) []InstanceType {
	if bounds, flexible := nc.Spec.Flexible(); flexible {
		return ForClass(nc, ladder(bounds))
	}
	return slices.DeleteFunc(ForClass(nc, types), func(t InstanceType) bool {
		if s := nc.Spec.Sizing; s != nil && len(s.Families) > 0 {
			return !slices.Contains(s.Families, t.Family())
		}
		return len(nc.Spec.PCIDevices) == 0 && slices.ContainsFunc(slices.Collect(maps.Keys(t.Extra)), isExtended)
	})
}

// OnlyExtended explains why a class that lists no families offers no instance type.
const OnlyExtended = "all instance types have extended resources, which come from devices: " +
	"set spec.pciDevices, list their families in spec.sizing.families, or add a type without extended resources"

// forClass returns the type as nodes of the class have it.
func (t InstanceType) forClass(fields *v1alpha1.ProxmoxNodeClassSpec) InstanceType {
	if overhead := fields.MemoryOverheadMiB; overhead != nil {
		t.ReportedMiB = max(1, t.MemoryMiB-int64(*overhead))
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

	// Some eviction thresholds are percentages.
	amounts := map[string]v1alpha1.ReservedQuantity{}
	t.Overhead.EvictionPercent = map[corev1.ResourceName]float64{}
	for name, signal := range evictionSignals() {
		text, set := k.EvictionHard[signal]
		if part, ok := strings.CutSuffix(string(text), "%"); ok {
			t.Overhead.EvictionPercent[name], _ = strconv.ParseFloat(part, 64)
		} else if set {
			amounts[string(name)] = text
		}
	}
	t.Overhead.EvictionThreshold = replace(t.Overhead.EvictionThreshold, amounts)
	for name := range t.Overhead.EvictionPercent {
		delete(t.Overhead.EvictionThreshold, name)
	}
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

// evictionSignals returns the signals of the resources that pods request.
func evictionSignals() map[corev1.ResourceName]string {
	return map[corev1.ResourceName]string{corev1.ResourceMemory: signalMemory, corev1.ResourceEphemeralStorage: signalNodefs}
}

// overhead returns what pods cannot use. By default, kubelet evicts pods when a tenth of
// the disk is left, so pods cannot use that tenth.
func (t *InstanceType) overhead(diskGiB int64) *cloudprovider.InstanceTypeOverhead {
	eviction := t.Overhead.EvictionThreshold.DeepCopy()
	if eviction == nil {
		eviction = corev1.ResourceList{}
	}
	capacity := t.capacity(diskGiB)
	for name, part := range t.Overhead.EvictionPercent {
		whole := capacity[name]
		eviction[name] = quantity(int64(part / 100 * float64(whole.Value())))
	}
	if _, ok := eviction[corev1.ResourceEphemeralStorage]; !ok {
		eviction[corev1.ResourceEphemeralStorage] = quantity(guestDiskMiB(diskGiB) * mebibyte * nodefsPercent / 100)
	}
	return &cloudprovider.InstanceTypeOverhead{
		KubeReserved:      t.Overhead.KubeReserved.DeepCopy(),
		SystemReserved:    t.Overhead.SystemReserved.DeepCopy(),
		EvictionThreshold: eviction,
	}
}
