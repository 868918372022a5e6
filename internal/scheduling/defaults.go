package scheduling

import (
	"maps"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
)

// writtenAt is the creation time of objects without one, 2020-01-01. It is fixed because
// Karpenter schedules pods of the same size by age.
const writtenAt = 1577836800

// setDefaults sets the fields that an API server and Karpenter's controllers would have
// set. UIDs derive from the objects' names, so pods of the same size and age are
// scheduled in the order of their names.
func setDefaults(object client.Object) {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if slices.Contains(clusterKinds(), kind) {
		object.SetNamespace("")
	} else if object.GetNamespace() == "" {
		object.SetNamespace(corev1.NamespaceDefault)
	}
	if object.GetName() == "" {
		object.SetName(object.GetGenerateName() + "0")
	}
	if object.GetUID() == "" {
		object.SetUID(types.UID(strings.ToLower(kind) + "/" + object.GetNamespace() + "/" + object.GetName()))
	}
	if stamp := object.GetCreationTimestamp(); stamp.IsZero() {
		object.SetCreationTimestamp(metav1.Unix(writtenAt, 0))
	}
	switch o := object.(type) {
	case *corev1.Pod:
		defaultPod(o)
	case *corev1.Node:
		defaultNode(o)
	case *corev1.PersistentVolumeClaim:
		if o.Spec.VolumeName != "" && o.Status.Phase == "" {
			// Karpenter looks for the annotation that the volume controller sets when
			// binding.
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
			o.Status.Phase = corev1.ClaimBound
		}
	case *karpv1.NodePool:
		setTrue(o.StatusConditions(), karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady)
	case *v1alpha1.ProxmoxNodeClass:
		setTrue(o.StatusConditions(), v1alpha1.ConditionValid, v1alpha1.ConditionTemplateReady,
			v1alpha1.ConditionPlacementReady, v1alpha1.ConditionMetadataReady)
	}
}

// clusterKinds returns the kinds that are in no namespace.
func clusterKinds() []string {
	return []string{
		"Node", "Namespace", "PersistentVolume", "StorageClass", "CSINode", "VolumeAttachment",
		"NodePool", "NodeClaim", v1alpha1.KindProxmoxNodeClass,
	}
}

// setTrue sets unknown conditions to true.
func setTrue(conditions status.ConditionSet, names ...string) {
	for _, name := range names {
		if c := conditions.Get(name); c == nil || c.IsUnknown() {
			conditions.SetTrue(name)
		}
	}
}

func defaultPod(pod *corev1.Pod) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			// A resource with only a limit requests its limit.
			resources := &containers[i].Resources
			if len(resources.Limits) > 0 {
				requests := maps.Clone(resources.Limits)
				maps.Copy(requests, resources.Requests)
				resources.Requests = requests
			}
		}
	}

	if pod.Status.Phase == "" {
		pod.Status.Phase = corev1.PodPending
		if pod.Spec.NodeName != "" {
			pod.Status.Phase = corev1.PodRunning
		}
	}
	evaluated := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	if pod.Spec.NodeName == "" && pod.Status.Phase == corev1.PodPending && !evaluated && len(pod.Spec.SchedulingGates) == 0 {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		})
	}
}

// defaultNode completes a node with only a capacity, and sets the labels that kubelet
// sets.
func defaultNode(node *corev1.Node) {
	if len(node.Status.Capacity) == 0 {
		node.Status.Capacity = node.Status.Allocatable
	}
	if len(node.Status.Capacity) > 0 {
		node.Status.Capacity = maps.Clone(node.Status.Capacity)
		if _, ok := node.Status.Capacity[corev1.ResourcePods]; !ok {
			node.Status.Capacity[corev1.ResourcePods] = *resource.NewQuantity(110, resource.DecimalSI)
		}
	}
	allocatable := maps.Clone(node.Status.Capacity)
	maps.Copy(allocatable, node.Status.Allocatable)
	node.Status.Allocatable = allocatable
	labels := map[string]string{
		corev1.LabelHostname: node.Name, corev1.LabelOSStable: string(corev1.Linux), corev1.LabelArchStable: karpv1.ArchitectureAmd64,
	}
	maps.Copy(labels, node.Labels)
	node.Labels = labels
}
