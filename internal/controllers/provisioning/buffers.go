package provisioning

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"

	"github.com/numaform/numaform/internal/scheduling"
)

// The reasons of a CapacityBuffer's Provisioning condition, which are Karpenter's.
const (
	reasonNotReady = "NotReadyForProvisioning"
	reasonEmpty    = "BufferEmpty"
	reasonFits     = "FitsExistingCapacity"
	reasonRequires = "RequiresNewCapacity"
)

// buffered is the result for a CapacityBuffer's pods.
type buffered struct {
	standing, made, refused int
	// reason is the reason of the first refused pod.
	reason string
}

// leaveRoom reports the result for CapacityBuffers' pods: to Karpenter's disruption,
// because a node with room for such pods is not empty, and to the CapacityBuffers.
func (c *Controller) leaveRoom(ctx context.Context, d *scheduling.Decision, virtual []*corev1.Pod) {
	if c.config.Virtual == nil {
		return
	}
	buffers := map[types.NamespacedName]types.NamespacedName{} // by pod
	for _, pod := range virtual {
		buffers[client.ObjectKeyFromObject(pod)] = types.NamespacedName{
			Namespace: pod.Annotations[autoscalingv1beta1.BufferNamespaceAnnotation], Name: pod.Annotations[autoscalingv1beta1.BufferNameAnnotation],
		}
	}
	on := map[string]int{}
	for _, landing := range slices.Concat(d.Existing, d.InFlight) {
		node, held := c.find(landing.Name), len(virtualOf(landing.Pods, buffers))
		if node != nil && held > 0 {
			on[node.ProviderID()] = held
		}
	}
	c.config.State.UpdateBufferPodCounts(on)
	if err := c.tellBuffers(ctx, count(d, buffers)); err != nil {
		// The room is still reserved; the next decision reports it again.
		log.FromContext(ctx).Error(err, "telling capacitybuffers was put off")
	}
}

// virtualOf returns the CapacityBuffers of the pods that belong to one.
func virtualOf(pods []types.NamespacedName, buffers map[types.NamespacedName]types.NamespacedName) []types.NamespacedName {
	var of []types.NamespacedName
	for _, pod := range pods {
		if buffer, virtual := buffers[pod]; virtual {
			of = append(of, buffer)
		}
	}
	return of
}

// count returns the result for the pods of each CapacityBuffer.
func count(d *scheduling.Decision, buffers map[types.NamespacedName]types.NamespacedName) map[types.NamespacedName]*buffered {
	counts := map[types.NamespacedName]*buffered{}
	for _, buffer := range buffers {
		counts[buffer] = &buffered{}
	}
	for _, landing := range slices.Concat(d.Existing, d.InFlight) {
		for _, buffer := range virtualOf(landing.Pods, buffers) {
			counts[buffer].standing++
		}
	}
	for i := range d.New {
		for _, buffer := range virtualOf(d.New[i].Pods, buffers) {
			counts[buffer].made++
		}
	}
	for _, refusal := range d.Refused {
		for _, buffer := range virtualOf([]types.NamespacedName{refusal.Pod}, buffers) {
			if counts[buffer].refused++; counts[buffer].reason == "" {
				counts[buffer].reason = refusal.Reason
			}
		}
	}
	return counts
}

// tellBuffers sets the Provisioning condition of the CapacityBuffers.
func (c *Controller) tellBuffers(ctx context.Context, counts map[types.NamespacedName]*buffered) error {
	var list autoscalingv1beta1.CapacityBufferList
	if err := c.config.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("listing capacitybuffers: %w", err)
	}
	for i := range list.Items {
		buffer := &list.Items[i]
		stored := buffer.DeepCopy()
		condition := standing(buffer, counts[client.ObjectKeyFromObject(buffer)])
		if condition == nil {
			continue
		}
		condition.Type, condition.ObservedGeneration = autoscalingv1beta1.ProvisioningCondition, buffer.Generation
		apimeta.SetStatusCondition(&buffer.Status.Conditions, *condition)
		if equality.Semantic.DeepEqual(stored.Status, buffer.Status) {
			continue
		}
		patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
		if err := c.config.Client.Status().Patch(ctx, buffer, patch); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("patching capacitybuffer %s/%s: %w", buffer.Namespace, buffer.Name, err)
		}
	}
	return nil
}

// standing returns the Provisioning condition of a CapacityBuffer, or nil if the decision
// did not cover it.
func standing(buffer *autoscalingv1beta1.CapacityBuffer, b *buffered) *metav1.Condition {
	switch {
	case !apimeta.IsStatusConditionTrue(buffer.Status.Conditions, autoscalingv1beta1.ReadyForProvisioningCondition):
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonNotReady, Message: "the condition ReadyForProvisioning says why"}
	case buffer.Status.Replicas == nil || *buffer.Status.Replicas == 0:
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonEmpty, Message: "it comes to no replicas: raise replicas, percentage or limits"}
	case b == nil:
		return nil
	case b.refused > 0:
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonRequires, Message: fmt.Sprintf(
			"%d of %d replicas have no room: %s", b.refused, b.standing+b.made+b.refused, b.reason,
		)}
	case b.made > 0:
		return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonRequires, Message: fmt.Sprintf(
			"%d of %d replicas need nodes that have to be made", b.made, b.standing+b.made,
		)}
	}
	return &metav1.Condition{Status: metav1.ConditionTrue, Reason: reasonFits, Message: fmt.Sprintf(
		"there is room for all %d replicas, on nodes or on those on their way", b.standing,
	)}
}
