package guestsim

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// leaseSeconds is kubelet's default for nodeLeaseDurationSeconds.
const leaseSeconds = 40

// renewLease renews the node's lease, by which the controllers detect that the node is
// alive.
func (k *kubelet) renewLease(ctx context.Context) error {
	now := metav1.NewMicroTime(k.clock.Now())
	lease, err := k.writeLease(ctx, now)
	if err != nil {
		k.lease = nil // the next renewal reads the lease again
		return err
	}
	k.lease = lease
	return nil
}

func (k *kubelet) writeLease(ctx context.Context, now metav1.MicroTime) (*coordinationv1.Lease, error) {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	known := k.lease
	if known == nil {
		found, err := leases.Get(ctx, k.NodeName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return k.newLease(ctx, now)
		case err != nil:
			return nil, err
		}
		known = found
	}
	lease := known.DeepCopy()
	lease.Spec.RenewTime = &now
	return leases.Update(ctx, lease, metav1.UpdateOptions{})
}

// newLease creates the lease, which is deleted with its Node.
func (k *kubelet) newLease(ctx context.Context, now metav1.MicroTime) (*coordinationv1.Lease, error) {
	node, err := k.client.CoreV1().Nodes().Get(ctx, k.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: k.NodeName, Namespace: corev1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &k.NodeName, LeaseDurationSeconds: ptr.To[int32](leaseSeconds), RenewTime: &now,
		},
	}, metav1.CreateOptions{})
}
