package operator

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"

	"github.com/numaform/numaform/internal/controllers/provisioning"
)

// reasonTooManyReplicas is the reason of the condition ReadyForProvisioning of a CapacityBuffer
// that is too large.
const reasonTooManyReplicas = "TooManyReplicas"

// bufferLimit is the client for Karpenter's code for CapacityBuffers, which creates a pod in
// memory for each replica, without a maximum. So that no CapacityBuffer uses all memory of the
// controller, it hides the replicas of CapacityBuffers that are too large, and sets their
// condition ReadyForProvisioning to false.
type bufferLimit struct{ client.Client }

// Get hides the replicas of a CapacityBuffer that is too large.
func (b bufferLimit) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	err := b.Client.Get(ctx, key, object, opts...)
	if buffer, ok := object.(*autoscalingv1beta1.CapacityBuffer); ok && err == nil {
		hideReplicas(buffer)
	}
	return err
}

// List hides the replicas of CapacityBuffers that are too large.
func (b bufferLimit) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := b.Client.List(ctx, list, opts...)
	if buffers, ok := list.(*autoscalingv1beta1.CapacityBufferList); ok && err == nil {
		for i := range buffers.Items {
			hideReplicas(&buffers.Items[i])
		}
	}
	return err
}

func hideReplicas(buffer *autoscalingv1beta1.CapacityBuffer) {
	if provisioning.TooLarge(buffer) {
		buffer.Status.Replicas = nil
	}
}

// Status returns a writer of statuses.
func (b bufferLimit) Status() client.SubResourceWriter {
	return bufferStatus{SubResourceWriter: b.Client.Status(), stored: b.Client}
}

// bufferStatus writes statuses.
type bufferStatus struct {
	client.SubResourceWriter
	stored client.Reader
}

// Patch patches the status that Karpenter has calculated. If a CapacityBuffer is too large, its
// condition ReadyForProvisioning becomes false, here and for the caller.
func (b bufferStatus) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if buffer, ok := object.(*autoscalingv1beta1.CapacityBuffer); ok && provisioning.TooLarge(buffer) {
		var stored autoscalingv1beta1.CapacityBuffer
		if err := b.stored.Get(ctx, client.ObjectKeyFromObject(buffer), &stored); err != nil {
			return err
		}
		// Karpenter has set the condition to true with a new transition time. If that were
		// written, each reconciliation would change the object, and so cause the next one.
		buffer.Status.Conditions = slices.Clone(stored.Status.Conditions)
		buffer.SetCondition(autoscalingv1beta1.ReadyForProvisioningCondition, metav1.ConditionFalse, reasonTooManyReplicas, fmt.Sprintf(
			"%d replicas are requested, but a CapacityBuffer can have at most %d: lower replicas, percentage or limits, or create several CapacityBuffers",
			*buffer.Status.Replicas, provisioning.MaxReplicas,
		))
		if equality.Semantic.DeepEqual(stored.Status, buffer.Status) {
			return nil
		}
	}
	return b.SubResourceWriter.Patch(ctx, object, patch, opts...)
}
