package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
)

// TestFixedSize checks that a NodePool with spec.replicas has this number of nodes, up to its
// limit and without pods, that a drifted node is replaced by a new one before it is removed,
// and that pods use the nodes but get no others.
func TestFixedSize(t *testing.T) {
	w := newWorld(t, worldConfig{hosts: largeHosts(t), args: []string{"--feature-gates", "StaticCapacity=true"}})
	w.start()
	w.classAndPool("workers", "", "  replicas: 2\n  limits: {nodes: 3}")
	size := func(want int) func(context.Context) string {
		return func(context.Context) string {
			ready := 0
			for _, node := range w.nodesIn("workers") {
				if node.Labels[karpv1.NodeInitializedLabelKey] == "true" && node.DeletionTimestamp.IsZero() {
					ready++
				}
			}
			if vms := len(w.ours()); ready != want || vms != want {
				return fmt.Sprintf("%d nodes are ready and %d VMs exist, want %d of each", ready, vms, want)
			}
			return ""
		}
	}
	w.eventually(4*time.Minute, size(2))
	w.nodesAreAsPlanned()
	w.remains(15*time.Second, size(2)) // consolidation leaves empty nodes

	before := map[string]bool{} // the keys of the VMs
	for _, guest := range w.ours() {
		before[guest.Key] = true
	}
	w.patch(&karpv1.NodePool{}, "workers", `{"spec": {"template": {"metadata": {"labels": {"example.com/team": "a"}}}}}`)
	w.eventually(5*time.Minute, func(ctx context.Context) string {
		for name, guest := range w.ours() {
			if before[guest.Key] {
				return name + " is not replaced yet"
			}
		}
		return size(2)(ctx)
	})

	w.patch(&karpv1.NodePool{}, "workers", `{"spec": {"replicas": 5}}`)
	w.eventually(3*time.Minute, size(3))
	w.deployment("web", 4, "700m", alone("web"))
	w.eventually(time.Minute, func(ctx context.Context) string {
		var events corev1.EventList
		if err := w.api.List(ctx, &events); err != nil {
			return err.Error()
		}
		for i := range events.Items {
			if strings.Contains(events.Items[i].Message, "raise spec.replicas") {
				return ""
			}
		}
		return "no event tells why a pod has no node"
	})
	w.remains(10*time.Second, size(3))

	w.patch(&karpv1.NodePool{}, "workers", `{"spec": {"replicas": 1}}`)
	w.eventually(4*time.Minute, size(1))
	w.patch(&appsv1.Deployment{}, "web", `{"spec": {"replicas": 0}}`)
	w.patch(&karpv1.NodePool{}, "workers", `{"spec": {"replicas": 0}}`)
	w.nothingIsLeft(4 * time.Minute)
}

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
