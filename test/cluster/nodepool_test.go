package cluster_test

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
)

// buffers checks that a NodePool has capacity for replicas of an app while a CapacityBuffer
// exists, and two nodes afterwards.
func (w *world) buffers(pool, app string, replicas, nodes int) {
	w.t.Helper()
	manifest := fmt.Sprintf(`
apiVersion: autoscaling.x-k8s.io/v1beta1
kind: CapacityBuffer
metadata: {name: spare, namespace: default}
spec: {scalableRef: {kind: Deployment, name: %s}, replicas: %d}
`, app, replicas)
	w.manifest(manifest)
	buffer := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "spare"}}
	held := func(ctx context.Context) string {
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(buffer), buffer); err != nil {
			return err.Error()
		}
		have := len(w.nodesIn(pool))
		if fits := apimeta.IsStatusConditionTrue(buffer.Status.Conditions, autoscalingv1beta1.ProvisioningCondition); have != nodes || !fits {
			return fmt.Sprintf("%d nodes for a buffer of %d replicas, want %d: %v", have, replicas, nodes, buffer.Status.Conditions)
		}
		return ""
	}
	w.eventually(3*time.Minute, held)
	w.initialized(time.Minute)
	w.remains(10*time.Second, held)
	if err := w.api.Delete(context.Background(), buffer); err != nil {
		w.t.Fatal(err)
	}
	w.eventually(3*time.Minute, func(context.Context) string {
		if left := len(w.nodesIn(pool)); left != 2 {
			return fmt.Sprintf("%d nodes exist without the buffer, want 2", left)
		}
		return ""
	})
}

// dear makes an instance type expensive with a NodeOverlay, and waits until the overlay is
// ready.
func (w *world) dear(instanceType string) {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: dear}
spec:
  requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [%s]}]
  price: "1"
`, instanceType))
	w.eventually(time.Minute, func(ctx context.Context) string {
		overlay := &karpv1alpha1.NodeOverlay{}
		if err := w.api.Get(ctx, client.ObjectKey{Name: "dear"}, overlay); err != nil {
			return err.Error()
		}
		if !overlay.StatusConditions().Root().IsTrue() {
			return fmt.Sprintf("the NodeOverlay is not ready: %v", overlay.Status.Conditions)
		}
		return ""
	})
}

// keepsTwo sets a NodePool's minimum to two nodes, deletes its pods, and checks that
// exactly two nodes remain.
func (w *world) keepsTwo(pool, app string) {
	w.t.Helper()
	w.patch(&karpv1.NodePool{}, pool, `{"metadata": {"annotations": {"numaform.dev/min-nodes": "2"}}}`)
	w.patch(&appsv1.Deployment{}, app, `{"spec": {"replicas": 0}}`)
	w.eventually(5*time.Minute, func(context.Context) string {
		if left := len(w.nodesIn(pool)); left != 2 {
			return fmt.Sprintf("%d nodes exist without pods, want 2", left)
		}
		return ""
	})
	w.remains(15*time.Second, func(context.Context) string {
		if left := len(w.nodesIn(pool)); left != 2 {
			return fmt.Sprintf("%d nodes exist, want at least 2", left)
		}
		return ""
	})
}
