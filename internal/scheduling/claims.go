package scheduling

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// WellKnownLabels returns the labels of numaform that an instance type decides and
// that pods may select by. Karpenter's own simulations refuse such pods unless it
// counts the labels among its well-known ones: add them before anything of it runs.
func WellKnownLabels() []string {
	return []string{v1alpha1.LabelInstanceFamily, v1alpha1.LabelNodeClass, v1alpha1.LabelPlacement, v1alpha1.LabelCPUType}
}

// NewNodeClaim returns the NodeClaim that stands for a placed VM, as Karpenter would
// create it for the pool, narrowed to what was placed and without a status. The
// pods are those that go there, DaemonSets' ones included. It has the VM's name, so
// that an API server takes only one for each VM; the VM is found by its annotations
// all the same.
func NewNodeClaim(vm fleet.VM, pool *karpv1.NodePool, pods ...*corev1.Pod) *karpv1.NodeClaim {
	template := karpscheduling.NewNodeClaimTemplate(pool)
	// Karpenter would add types and capacity types that it chose itself.
	template.IsStaticNodeClaim = true
	template.Labels = maps.Clone(template.Labels)
	labels := vmLabels(&vm)
	for key, requirement := range template.Requirements {
		// Karpenter draws a label by lot where the pool allows several values. A pool
		// that changed since has the VM replaced, if its nodes now miss a label.
		if _, known := labels[key]; !known && requirement.Len() != 1 && !karpv1.WellKnownLabels.Has(key) {
			delete(template.Requirements, key)
		}
	}
	for key, value := range labels {
		if key != corev1.LabelHostname {
			template.Requirements[key] = scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, value)
		}
	}
	maps.Copy(template.Labels, labels)
	template.Spec.Resources.Requests = resources.RequestsForPods(pods...)
	claim := template.ToNodeClaim()
	slices.SortFunc(claim.Spec.Requirements, compareRequirements)
	claim.GenerateName, claim.Name = "", vm.Name
	claim.Annotations = maps.Clone(claim.Annotations)
	maps.Copy(claim.Annotations, identity(&vm))
	return claim
}

// identity returns the annotations by which a NodeClaim's VM is found.
func identity(vm *fleet.VM) map[string]string {
	return map[string]string{v1alpha1.AnnotationVM: vm.Name, v1alpha1.AnnotationKey: string(vm.Key)}
}

// namedBy returns the provider id of a NodeClaim's VM. A claim that has not been
// launched names its VM, whose name is what the claim itself is called.
func namedBy(claim *karpv1.NodeClaim) string {
	if claim.Status.ProviderID != "" {
		return claim.Status.ProviderID
	}
	name, region := claim.Annotations[v1alpha1.AnnotationVM], claim.Labels[corev1.LabelTopologyRegion]
	return fmt.Sprintf("proxmox://%s/%s", region, name[strings.LastIndex(name, "-")+1:])
}

// Launched returns what is known of a VM's node from its reservation on: name,
// labels, provider id, image, capacity and what of it pods can have. The host's
// architecture is not known here.
func Launched(vm fleet.VM, types []InstanceType) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	claim.Name = vm.Name
	claim.Labels = vmLabels(&vm)
	claim.Annotations = identity(&vm)
	claim.Status.ProviderID = providerID(&vm)
	claim.Status.ImageID = ImageID(&vm)
	if types == nil {
		types = DefaultInstanceTypes()
	}
	claim.Status.Capacity, claim.Status.Allocatable = vmResources(&vm, types)
	return claim
}

// ImageID names the template that a VM is cloned from, region/host/vmid, or is
// empty if that is not known.
func ImageID(vm *fleet.VM) string {
	if vm.Source.VMID == 0 {
		return ""
	}
	return fmt.Sprintf("%s/%d", vm.Host, vm.Source.VMID)
}
