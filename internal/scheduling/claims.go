package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// WellKnownLabels returns numaform's labels that an instance type determines and that
// pods may select by. Karpenter's own simulations reject such pods unless the labels are
// among its well-known ones: add them before running any part of Karpenter.
func WellKnownLabels() []string {
	return []string{v1alpha1.LabelInstanceFamily, v1alpha1.LabelNodeClass, v1alpha1.LabelPlacement, v1alpha1.LabelCPUType}
}

// NewNodeClaim returns the NodeClaim for a placed VM, as Karpenter would create it for
// the pool, narrowed to the placement and without a status. pods are the pods for that
// node, including DaemonSets' pods. The claim has the VM's name, so that an API server
// accepts only one for each VM; the VM is identified by the annotations.
func NewNodeClaim(vm fleet.VM, pool *karpv1.NodePool, pods ...*corev1.Pod) *karpv1.NodeClaim {
	template := karpscheduling.NewNodeClaimTemplate(pool)
	// Karpenter would add instance types and capacity types of its own choice.
	template.IsStaticNodeClaim = true
	template.Labels = maps.Clone(template.Labels)
	labels := vmLabels(&vm)
	for key, requirement := range template.Requirements {
		// Karpenter chooses a label at random if the pool allows several values. If the
		// pool has changed since and its nodes now lack a label, the VM is replaced.
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
	slices.SortFunc(claim.Spec.Requirements, func(a, b karpv1.NodeSelectorRequirementWithMinValues) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
	})
	claim.GenerateName, claim.Name = "", vm.Name
	claim.Annotations = maps.Clone(claim.Annotations)
	maps.Copy(claim.Annotations, identity(&vm))
	return claim
}

// identity returns the annotations that identify a NodeClaim's VM.
func identity(vm *fleet.VM) map[string]string {
	return map[string]string{v1alpha1.AnnotationVM: vm.Name, v1alpha1.AnnotationKey: string(vm.Key)}
}

// Launched returns what is known about a VM's node from its reservation on: name, labels,
// provider ID, image, capacity and allocatable resources. The host's architecture is not
// known here.
func Launched(vm fleet.VM, types []InstanceType) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	claim.Name = vm.Name
	claim.Labels = vmLabels(&vm)
	claim.Annotations = identity(&vm)
	claim.Status.ProviderID = providerID(&vm)
	claim.Status.ImageID = ImageID(&vm)
	claim.Status.Capacity, claim.Status.Allocatable = typeOf(&vm, typesOrDefault(types)).resources(&vm)
	return claim
}

// ImageID identifies the template from which a VM is cloned, as region/host/vmid; it is
// empty if the template is unknown.
func ImageID(vm *fleet.VM) string {
	if vm.Source.VMID == 0 {
		return ""
	}
	return fmt.Sprintf("%s/%d", vm.Host, vm.Source.VMID)
}
