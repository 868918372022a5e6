package provisioning

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
)

// The reasons of a CapacityBuffer's Provisioning condition, which are Karpenter's.
const (
	reasonNotReady = "NotReadyForProvisioning"
	reasonEmpty    = "BufferEmpty"
	reasonFits     = "FitsExistingCapacity"
	reasonRequires = "RequiresNewCapacity"
)

// buffered counts a CapacityBuffer's pods: pods with room on existing nodes or VMs, pods
// with room on new ones, and pods without room.
type buffered struct {
	existing, created, refused int
	// reason is why the first refused pod has no room.
	reason string
	// unusable are the pods among existing whose standby VM cannot be started, and problem is
	// the first such VM with the reason.
	unusable int
	problem  string
	// pinned is set if standby VMs with pinned CPUs hold some of the pods.
	pinned bool
}

// newBuffered returns an empty count for each CapacityBuffer with pods, by name, and of,
// which maps each pod's name to the count of its CapacityBuffer.
func newBuffered(virtual []*corev1.Pod) (counts, of map[types.NamespacedName]*buffered) {
	counts, of = map[types.NamespacedName]*buffered{}, map[types.NamespacedName]*buffered{}
	for _, pod := range virtual {
		name := bufferOf(pod)
		if counts[name] == nil {
			counts[name] = &buffered{}
		}
		of[client.ObjectKeyFromObject(pod)] = counts[name]
	}
	return counts, of
}

// reportBuffers reports the result for CapacityBuffers' pods: to Karpenter's disruption
// controller, because a node with room for such pods is not empty, and to the
// CapacityBuffers.
func (c *Controller) reportBuffers(ctx context.Context, d *scheduling.Decision, virtual []*corev1.Pod) {
	if c.config.Virtual == nil {
		return
	}
	counts, of := newBuffered(virtual)

	onNode := map[string]int{}
	nodes := c.nodesByName()
	for _, landing := range slices.Concat(d.Existing, d.InFlight) {
		landed := 0
		for _, pod := range landing.Pods {
			if buffer := of[pod]; buffer != nil {
				buffer.existing++
				landed++
			}
		}
		if landed > 0 {
			if node := nodes[landing.Name]; node != nil {
				onNode[node.ProviderID()] = landed
			}
		}
	}
	for i := range d.Standby {
		for _, pod := range d.Standby[i].Pods {
			if buffer := of[pod]; buffer != nil {
				buffer.existing++
				buffer.pinned = buffer.pinned || d.Standby[i].VM.Policy.Pinned()
				if why := d.Standby[i].Unusable; why != "" {
					buffer.unusable++
					buffer.problem = cmp.Or(buffer.problem, fmt.Sprintf("VM %s: %s", d.Standby[i].VM.Name, why))
				}
			}
		}
	}
	for i := range d.New {
		for _, pod := range d.New[i].Pods {
			if buffer := of[pod]; buffer != nil {
				buffer.created++
				buffer.pinned = buffer.pinned || d.New[i].Standby && d.New[i].Spec.Policy.Pinned()
			}
		}
	}
	for _, refusal := range d.Refused {
		if buffer := of[refusal.Pod]; buffer != nil {
			buffer.refused++
			buffer.reason = cmp.Or(buffer.reason, refusal.Reason)
		}
	}

	c.config.State.UpdateBufferPodCounts(onNode)
	if err := c.patchBuffers(ctx, counts); err != nil {
		// The room is still reserved; the next decision reports it again.
		log.FromContext(ctx).Error(err, "patching capacitybuffers failed: the next decision tries again")
	}
}

// patchBuffers sets the Provisioning condition of the CapacityBuffers.
func (c *Controller) patchBuffers(ctx context.Context, counts map[types.NamespacedName]*buffered) error {
	var list autoscalingv1beta1.CapacityBufferList
	if err := c.config.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("listing CapacityBuffers: %w", err)
	}
	for i := range list.Items {
		buffer := &list.Items[i]
		stored := buffer.DeepCopy()
		condition := provisioningCondition(buffer, counts[client.ObjectKeyFromObject(buffer)])
		if condition == nil {
			continue
		}
		condition.Type = autoscalingv1beta1.ProvisioningCondition
		condition.ObservedGeneration = buffer.Generation
		apimeta.SetStatusCondition(&buffer.Status.Conditions, *condition)
		if equality.Semantic.DeepEqual(stored.Status, buffer.Status) {
			continue
		}
		patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
		if err := c.config.Client.Status().Patch(ctx, buffer, patch); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("patching CapacityBuffer %s/%s: %w", buffer.Namespace, buffer.Name, err)
		}
	}
	return nil
}

// provisioningCondition returns the Provisioning condition of a CapacityBuffer, or nil if
// the decision did not cover it.
func provisioningCondition(buffer *autoscalingv1beta1.CapacityBuffer, b *buffered) *metav1.Condition {
	switch {
	case !apimeta.IsStatusConditionTrue(buffer.Status.Conditions, autoscalingv1beta1.ReadyForProvisioningCondition):
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonNotReady, Message: "not ready: see condition ReadyForProvisioning"}
	case buffer.Status.Replicas == nil || *buffer.Status.Replicas == 0:
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonEmpty, Message: "it has 0 replicas: raise replicas, percentage or limits"}
	case b == nil:
		return nil
	case b.refused > 0:
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonRequires, Message: fmt.Sprintf(
			"%d of %d replicas have no room: %s", b.refused, b.existing+b.created+b.refused, b.reason,
		)}
	case b.created > 0 && IsStandby(buffer):
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonRequires, Message: fmt.Sprintf(
			"%d of %d replicas need new standby VMs%s", b.created, b.existing+b.created, ignoredReserve(buffer, b),
		)}
	case b.unusable > 0:
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonRequires, Message: fmt.Sprintf(
			"%d of %d replicas have standby VMs that cannot be started: %s", b.unusable, b.existing, b.problem,
		)}
	case IsStandby(buffer):
		return &metav1.Condition{Status: metav1.ConditionTrue, Reason: reasonFits, Message: fmt.Sprintf(
			"all %d replicas have standby VMs, created or in progress%s", b.existing, ignoredReserve(buffer, b),
		)}
	case b.created > 0:
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonRequires, Message: fmt.Sprintf(
			"%d of %d replicas need new nodes", b.created, b.existing+b.created,
		)}
	}
	return &metav1.Condition{Status: metav1.ConditionTrue, Reason: reasonFits, Message: fmt.Sprintf(
		"all %d replicas have room, on nodes or on VMs that are joining", b.existing,
	)}
}

// ignoredReserve returns the part of a condition's message for an annotation of the buffer
// that is ignored, or "".
func ignoredReserve(buffer *autoscalingv1beta1.CapacityBuffer, b *buffered) string {
	reserve, err := strconv.ParseBool(buffer.Annotations[v1alpha1.AnnotationReserve])
	if err != nil || reserve || !b.pinned {
		return ""
	}
	return fmt.Sprintf("; annotation %s: %q is ignored, because the standby VMs have pinned CPUs: remove the annotation, or use a class with the policy Shared or NUMA",
		v1alpha1.AnnotationReserve, buffer.Annotations[v1alpha1.AnnotationReserve])
}
