package cluster_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/testenv"
)

// classAndPool creates a NodeClass with seeds and its NodePool, both with the same name.
func (w *world) classAndPool(name, classSpec, poolSpec string) {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: %[1]s}
spec:
  template: {name: %[2]s}
  metadata: {type: cdrom}
%[3]s
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: %[1]s}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
  disruption: {consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 2s}
%[4]s
`, name, testenv.Template, classSpec, poolSpec))
}

// manifest creates the objects of a manifest.
func (w *world) manifest(text string) {
	w.t.Helper()
	objects, err := testenv.Decode([]byte(text))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, object := range objects {
		if err := w.api.Create(context.Background(), object); err != nil {
			w.t.Fatal(err)
		}
	}
}

// pods creates n pods of one size.
func (w *world) pods(prefix string, n int, cpu, memory string, change ...func(*corev1.Pod)) {
	w.t.Helper()
	for i := range n {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%02d", prefix, i), Labels: map[string]string{"app": prefix}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "c", Image: "registry.invalid/c",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
				}},
			}}},
		}
		for _, change := range change {
			change(pod)
		}
		if err := w.api.Create(context.Background(), pod); err != nil {
			w.t.Fatal(err)
		}
	}
}

// running waits until exactly n pods of an app run.
func (w *world) running(app string, n int, limit time.Duration) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		var pods corev1.PodList
		if err := w.api.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": app}); err != nil {
			return err.Error()
		}
		up := 0
		for i := range pods.Items {
			if pods.Items[i].Status.Phase == corev1.PodRunning {
				up++
			}
		}
		if up != n {
			return fmt.Sprintf("%d of %d pods run", up, n)
		}
		return ""
	})
}

// describe describes claims and nodes, for the message of a failed wait.
func (w *world) describe(ctx context.Context) string {
	var claims karpv1.NodeClaimList
	var nodes corev1.NodeList
	if err := w.api.List(ctx, &claims); err != nil {
		return err.Error()
	}
	if err := w.api.List(ctx, &nodes); err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%d nodeclaims, %d nodes", len(claims.Items), len(nodes.Items))
	for i := range claims.Items {
		claim := &claims.Items[i]
		text += fmt.Sprintf("\n  claim %s (%s):", claim.Name, claim.Status.ProviderID)
		for _, c := range claim.Status.Conditions {
			text += fmt.Sprintf(" %s=%s", c.Type, c.Status)
			if c.Status != metav1.ConditionTrue && c.Message != "" {
				text += fmt.Sprintf(" (%s)", c.Message)
			}
		}
	}
	return text
}
