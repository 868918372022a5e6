package cluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/enginetest"
)

// TestRemovalWaits checks that an empty node remains for consolidateAfter, that it remains
// as long as the budget of its NodePool is zero, and that a NodePool that is deleted in the
// foreground is gone only after its NodeClaims, their Nodes and their VMs.
func TestRemovalWaits(t *testing.T) {
	enginetest.Nightly(t)
	const wait = 20 * time.Second
	w := newWorld(t, worldConfig{hosts: largeHosts(t)})
	w.start()
	w.pool(poolConfig{name: "workers", budgets: "1"})
	w.patch(&karpv1.NodePool{}, "workers", fmt.Sprintf(`{"spec": {"disruption": {"consolidateAfter": "%s"}}}`, wait))
	w.deployment("web", 1, "300m")
	w.comesTo("web", 1, 1, 3*time.Minute)
	w.initialized(time.Minute)

	// The wait begins when the pod is gone. The node is then deleted, but not earlier.
	claim := w.onlyClaim("workers")
	w.patch(&appsv1.Deployment{}, "web", `{"spec": {"replicas": 0}}`)
	w.comesTo("web", 0, 1, time.Minute)
	w.holds(wait-5*time.Second, w.stays(claim))
	w.hasGone(claim, 2*time.Minute)

	w.patch(&appsv1.Deployment{}, "web", `{"spec": {"replicas": 1}}`)
	w.comesTo("web", 1, 1, 3*time.Minute)
	w.initialized(time.Minute)
	claim = w.onlyClaim("workers")
	w.patch(&karpv1.NodePool{}, "workers", `{"spec": {"disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "0"}]}}}`)
	w.patch(&appsv1.Deployment{}, "web", `{"spec": {"replicas": 0}}`)
	w.comesTo("web", 0, 1, time.Minute)
	w.holds(wait, w.stays(claim))

	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}
	if err := w.api.Delete(context.Background(), pool, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	w.eventually(3*time.Minute, func(ctx context.Context) string {
		err := w.api.Get(ctx, client.ObjectKeyFromObject(pool), pool)
		if client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Sprintf("the NodePool still exists (%v)", err)
		}
		return ""
	})
	if err := w.api.Get(context.Background(), client.ObjectKeyFromObject(claim), claim); !apierrors.IsNotFound(err) {
		t.Errorf("the NodePool is gone before NodeClaim %s: %v", claim.Name, err)
	}
	if vms := w.ours(); len(vms) > 0 {
		t.Errorf("the NodePool is gone before %d VMs", len(vms))
	}
}

// stays reports a NodeClaim that is being deleted, or whose VM is gone.
func (w *world) stays(claim *karpv1.NodeClaim) func(context.Context) string {
	return func(ctx context.Context) string {
		found := &karpv1.NodeClaim{}
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(claim), found); err != nil {
			return err.Error()
		}
		if !found.DeletionTimestamp.IsZero() {
			return "NodeClaim " + found.Name + " is being deleted"
		}
		if _, exists := w.ours()[claim.Name]; !exists {
			return "its VM is gone"
		}
		return ""
	}
}
