package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// newVMIDs is the first temporary VMID of a decision's new VMs: these VMIDs only
// distinguish them until the fleet assigns real ones.
const newVMIDs = 1_000_000_000

// inflight is a VM that has no Node yet, or whose Node is not ready.
type inflight struct {
	fleet.VM
	claim *karpv1.NodeClaim
	// phase is the phase that requested the VM, if this decision adds it.
	phase int
	// lost is set if the VM's host is not running: no pod is placed there.
	lost bool
	// absent is set if the VM certainly does not exist: it will be created.
	absent bool
	// online is set if its host is up, usable or not.
	online bool
}

// providerID returns the ID by which Karpenter finds the VM.
func providerID(vm *fleet.VM) string { return fleet.ProviderID(vm.Host.Region, vm.VMID) }

// newInflight returns the VM with the NodeClaim that Karpenter sees for it.
func newInflight(vm fleet.VM, pools []*pool, sizes []InstanceType) *inflight {
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			UID:               types.UID(providerID(&vm)),
			CreationTimestamp: metav1.Unix(writtenAt, 0),
			Labels:            vmLabels(&vm),
			Annotations:       map[string]string{v1alpha1.AnnotationVM: vm.Name},
		},
		Spec: karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{
			Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: vm.NodeClass,
		}},
	}
	claim.Status.ProviderID = providerID(&vm)
	size := typeOf(&vm, sizes)
	if i := slices.IndexFunc(pools, func(p *pool) bool { return p.Name == vm.Pool }); i >= 0 {
		if class := pools[i].class; class != nil {
			size = size.forClass(class.fields)
			claim.Labels[corev1.LabelArchStable] = cmp.Or(class.arch[vm.Host], karpv1.ArchitectureAmd64)
		}
		template := &pools[i].Spec.Template
		claim.Spec.Taints = slices.Clone(template.Spec.Taints)
		claim.Spec.StartupTaints = slices.Clone(template.Spec.StartupTaints)
		claim.Labels = poolLabels(pools[i], claim.Labels)
		size = size.with(pools[i].overlays.extra(claim.Labels))
	} else {
		// Karpenter deletes the nodes of a pool that no longer exists: place nothing
		// there.
		claim.Spec.Taints = []corev1.Taint{karpv1.DisruptedNoScheduleTaint}
	}
	claim.Status.Capacity, claim.Status.Allocatable = size.resources(&vm)
	return &inflight{VM: vm, claim: claim}
}

// vmLabels returns a node's labels that derive from its VM.
func vmLabels(vm *fleet.VM) map[string]string {
	labels := maps.Clone(vm.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	family := (&InstanceType{Name: vm.InstanceType}).Family()
	maps.Copy(labels, map[string]string{
		corev1.LabelHostname:           vm.Name,
		corev1.LabelOSStable:           string(corev1.Linux),
		corev1.LabelTopologyRegion:     string(vm.Host.Region),
		corev1.LabelTopologyZone:       string(vm.Host.Host),
		corev1.LabelInstanceTypeStable: vm.InstanceType,
		karpv1.CapacityTypeLabelKey:    cmp.Or(vm.CapacityType, karpv1.CapacityTypeOnDemand),
		karpv1.NodePoolLabelKey:        vm.Pool,
		karpv1.NodeClassLabelKey(v1alpha1.GroupVersion().WithKind(v1alpha1.KindProxmoxNodeClass).GroupKind()): vm.NodeClass,
		v1alpha1.LabelInstanceFamily: family,
		v1alpha1.LabelNodeClass:      vm.NodeClass,
		v1alpha1.LabelPlacement:      string(vm.Policy),
		v1alpha1.LabelNUMANodes:      strconv.Itoa(max(1, len(vm.Cells))),
	})
	for key, name := range map[string]string{v1alpha1.LabelCPUType: vm.CPUType, v1alpha1.LabelTemplate: vm.Template} {
		if value := labelValue(name); value != "" {
			labels[key] = value
		}
	}
	return labels
}

// poolLabels adds the labels that the pool gives all of its nodes: its labels, and its
// requirements with a single value.
func poolLabels(p *pool, labels map[string]string) map[string]string {
	all := map[string]string{}
	for _, r := range p.Spec.Template.Spec.Requirements {
		if r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 {
			all[r.Key] = r.Values[0]
		}
	}
	maps.Copy(all, p.Spec.Template.Labels)
	maps.Copy(all, labels)
	return all
}

// vmResources returns the capacity and the allocatable resources of a VM's node.
func vmResources(vm *fleet.VM, sizes []InstanceType) (capacity, allocatable corev1.ResourceList) {
	return typeOf(vm, sizes).resources(vm)
}

// resources returns the capacity and the allocatable resources of a VM's node with that
// type.
func (t InstanceType) resources(vm *fleet.VM) (capacity, allocatable corev1.ResourceList) {
	disk := cmp.Or(vm.DiskGiB, vm.Source.DiskGiB, defaultDiskGiB)
	return t.capacity(disk), t.allocatable(disk)
}

// allocatable returns what pods can use: kubelet subtracts huge pages from the memory,
// and so does Karpenter.
func (t *InstanceType) allocatable(diskGiB int64) corev1.ResourceList {
	list := resources.Subtract(t.capacity(diskGiB), t.overhead(diskGiB).Total())
	if pages := t.pages(); pages > 0 {
		list[corev1.ResourceMemory] = quantity(max(0, list.Memory().Value()-pages))
	}
	return list
}

// compareInflight orders VMs by what pods see of them, small ones first: pods are tried
// largest first, so each ends on the smallest VM that has room. Flexible VMs come last.
// Equal VMs are alike to every pod, so the order, and the whole decision, stays the same
// when new VMs have become kept ones.
func compareInflight(a, b *inflight) int {
	return cmp.Or(
		compareFlexible(a, b), cmp.Compare(a.VCPUs, b.VCPUs), cmp.Compare(a.MemoryMiB, b.MemoryMiB), cmp.Compare(a.Pool, b.Pool),
		cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.CapacityType, b.CapacityType),
		a.Host.Compare(b.Host), cmp.Compare(a.DiskGiB, b.DiskGiB), cmp.Compare(len(a.Cells), len(b.Cells)),
		slices.Compare(sortedPairs(a.Labels), sortedPairs(b.Labels)),
		cmp.Compare(a.VMID, b.VMID), cmp.Compare(a.Name, b.Name),
	)
}

// compareFlexible orders Flexible VMs after all others, large ones first: the last VM is
// the one that has room left, and it remains the last after it is shrunk.
func compareFlexible(a, b *inflight) int {
	flexible := isFlexible(a.InstanceType)
	switch {
	case flexible && isFlexible(b.InstanceType):
		return cmp.Or(cmp.Compare(b.VCPUs, a.VCPUs), cmp.Compare(b.MemoryMiB, a.MemoryMiB))
	case flexible:
		return 1
	case isFlexible(b.InstanceType):
		return -1
	}
	return 0
}

func sortedPairs(labels map[string]string) []string {
	var pairs []string
	for key, value := range labels {
		pairs = append(pairs, key+"="+value)
	}
	slices.Sort(pairs)
	return pairs
}

// nameClaims names the NodeClaims in the order of the VMs, because Karpenter fills nodes
// in the order of their names.
func nameClaims(vms []*inflight) {
	slices.SortFunc(vms, compareInflight)
	for i, vm := range vms {
		vm.claim.Name = fmt.Sprintf("inflight-%06d", i)
	}
}

// hostsOf returns the hosts of the VMs that can take pods.
func hostsOf(vms []*inflight) []topology.HostID {
	var hosts []topology.HostID
	for _, vm := range vms {
		if !vm.lost {
			hosts = append(hosts, vm.Host)
		}
	}
	slices.SortFunc(hosts, topology.HostID.Compare)
	return slices.Compact(hosts)
}
