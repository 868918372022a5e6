package cluster_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/enginetest"
)

// TestCopiedNodeClaim checks that a user who may only create NodeClaims cannot delete a Node
// and its VM by a copy of their NodeClaim that expires at once.
func TestCopiedNodeClaim(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{hosts: largeHosts(t)})
	w.start()
	w.pool(poolConfig{name: "workers", budgets: "0"})
	w.deployment("web", 1, "300m")
	w.comesTo("web", 1, 1, 3*time.Minute)
	w.initialized(time.Minute)
	original, node, vms := w.onlyClaim("workers"), &corev1.Node{}, w.vmids()
	if err := w.api.Get(t.Context(), client.ObjectKey{Name: original.Status.NodeName}, node); err != nil {
		t.Fatal(err)
	}

	second := time.Second
	forged := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "one-more", Labels: original.Labels, Annotations: original.Annotations},
		Spec:       *original.Spec.DeepCopy(),
	}
	forged.Spec.ExpireAfter = karpv1.NillableDuration{Duration: &second}
	if err := w.api.Create(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	w.eventually(time.Minute, func(ctx context.Context) string {
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(forged), &karpv1.NodeClaim{}); !apierrors.IsNotFound(err) {
			return "the copy still exists"
		}
		return ""
	})
	w.remains(5*time.Second, func(ctx context.Context) string {
		now := &corev1.Node{}
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(node), now); err != nil || now.UID != node.UID || !now.DeletionTimestamp.IsZero() {
			return "the Node is deleted"
		}
		claim := w.onlyClaim("workers")
		if claim.UID != original.UID || !claim.DeletionTimestamp.IsZero() {
			return "the original NodeClaim is deleted"
		}
		return w.same(vms)(ctx)
	})
}
