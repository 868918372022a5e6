package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/enginetest"
)

// standbyBuffer creates a CapacityBuffer of standby VMs for a NodePool.
func (w *world) standbyBuffer(pool, cpu string, replicas int) *autoscalingv1beta1.CapacityBuffer {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: v1
kind: PodTemplate
metadata: {name: standby, namespace: default}
template:
  spec:
    nodeSelector: {karpenter.sh/nodepool: %s}
    containers: [{name: c, image: registry.invalid/c, resources: {requests: {cpu: %q, memory: 1Gi}}}]
---
apiVersion: autoscaling.x-k8s.io/v1beta1
kind: CapacityBuffer
metadata: {name: standby, namespace: default}
spec: {provisioningStrategy: numaform.dev/standby, podTemplateRef: {name: standby}, replicas: %d}
`, pool, cpu, replicas))
	return &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "standby"}}
}

// stopped returns the names of the stopped VMs without a lock, and of the running VMs,
// sorted.
func (w *world) stopped() (stopped, running []string) {
	w.t.Helper()
	for name, guest := range w.ours() {
		switch {
		case guest.Running:
			running = append(running, name)
		case guest.Lock == "":
			stopped = append(stopped, name)
		}
	}
	slices.Sort(stopped)
	slices.Sort(running)
	return stopped, running
}

// starts returns the number of starts of each VM, by the path of the request.
func (w *world) starts() map[string]int {
	count := map[string]int{}
	for _, call := range w.proxmox.Calls() {
		if call.Method == http.MethodPost && strings.HasSuffix(call.Path, "/status/start") && call.Status == http.StatusOK {
			count[call.Path]++
		}
	}
	return count
}

// TestStandby checks that two of the three standby VMs of a CapacityBuffer are started for
// pods and replaced by new standby VMs, that standby VMs are replaced one by one when their
// class changes, and that they are removed with the buffer.
func TestStandby(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{
		hosts: largeHosts(t), args: []string{"--feature-gates", "CapacityBuffer=true"},
		values: map[string]any{"featureGates": map[string]any{"CapacityBuffer": true}},
	})
	w.start()
	w.pool(poolConfig{name: "workers", budgets: "100%", class: ", bootDevice: {size: 40G}"})
	buffer := w.standbyBuffer("workers", "3", 3)
	three := func(context.Context) string {
		stopped, running := w.stopped()
		if len(stopped) != 3 || len(running) != 0 || len(w.starts()) != 0 {
			return fmt.Sprintf("VMs %v are stopped and %v run, %v were started, want 3 that never ran", stopped, running, w.starts())
		}
		return ""
	}
	w.eventually(3*time.Minute, three)
	w.remains(5*time.Second, three)
	first, _ := w.stopped()
	for _, guest := range w.ours() {
		if config, _ := w.proxmox.Guest(guest.VMID); config.Config["onboot"] == "1" {
			t.Errorf("VM %d starts with its host", guest.VMID)
		}
	}
	w.nothingJoined()

	w.pods("web", 2, "2500m", "256Mi", func(pod *corev1.Pod) { alone("web")(&pod.Spec); on(karpv1.NodePoolLabelKey, "workers")(&pod.Spec) })
	w.running("web", 2, 2*time.Minute)
	w.initialized(time.Minute)
	w.eventually(2*time.Minute, func(context.Context) string {
		stopped, running := w.stopped()
		if len(stopped) != 3 || len(running) != 2 {
			return fmt.Sprintf("VMs %v are stopped and %v run, want 3 and 2", stopped, running)
		}
		for _, name := range running {
			if !slices.Contains(first, name) {
				t.Fatalf("VM %s runs, but was not a standby VM: %v", name, first)
			}
		}
		return ""
	})
	for path, times := range w.starts() {
		if times != 1 {
			t.Errorf("%d calls of %s", times, path)
		}
	}
	if made := w.everMade(); made != 5 {
		t.Errorf("%d VMs were created, want 3 and 2 in place of the started ones", made)
	}

	// Started VMs are removed like any node; standby VMs remain.
	if err := w.api.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	w.eventually(3*time.Minute, func(context.Context) string {
		if stopped, running := w.stopped(); len(stopped) != 3 || len(running) != 0 {
			return fmt.Sprintf("VMs %v are stopped and %v run, want 3 and none", stopped, running)
		}
		return ""
	})
	w.nothingJoined()

	before, _ := w.stopped()
	w.patch(&v1alpha1.ProxmoxNodeClass{}, "workers", `{"spec":{"bootDevice":{"size":"48G"}}}`)
	w.eventually(5*time.Minute, func(context.Context) string {
		stopped, _ := w.stopped()
		if len(stopped) < 2 || len(stopped) > 4 {
			t.Fatalf("%d standby VMs exist while they are replaced: %v", len(stopped), stopped)
		}
		if len(stopped) != 3 || slices.ContainsFunc(stopped, func(name string) bool { return slices.Contains(before, name) }) {
			return fmt.Sprintf("VMs %v exist, want three other than %v", stopped, before)
		}
		return ""
	})
	for _, guest := range w.ours() {
		if config, _ := w.proxmox.Guest(guest.VMID); !strings.Contains(config.Config["scsi0"], "size=48G") {
			t.Errorf("VM %d has the disk %q", guest.VMID, config.Config["scsi0"])
		}
	}

	if err := w.api.Delete(context.Background(), buffer); err != nil {
		t.Fatal(err)
	}
	// The placeholder seeds of standby VMs contain no secret, and are removed by the next
	// regular sweep.
	w.eventually(4*time.Minute, func(ctx context.Context) string {
		if left := w.ours(); len(left) > 0 {
			return fmt.Sprintf("%d VMs still exist", len(left))
		}
		left, err := w.leftInCluster(ctx)
		if err != nil || len(left) > 0 {
			return fmt.Sprintf("left: %v (%v)", left, err)
		}
		return ""
	})
}

// nothingJoined waits until neither Nodes nor NodeClaims exist.
func (w *world) nothingJoined() {
	w.t.Helper()
	w.eventually(time.Minute, func(ctx context.Context) string {
		var nodes corev1.NodeList
		var claims karpv1.NodeClaimList
		for _, list := range []client.ObjectList{&nodes, &claims} {
			if err := w.api.List(ctx, list); err != nil {
				return err.Error()
			}
		}
		if len(nodes.Items)+len(claims.Items) > 0 {
			return fmt.Sprintf("%d nodes and %d nodeclaims exist, want only standby VMs", len(nodes.Items), len(claims.Items))
		}
		return ""
	})
}
