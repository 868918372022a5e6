package scheduling_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
)

// TestFromClientDecidesAlike checks that any client can be used: a decision with
// controller-runtime's fake client, which stores objects like an API server, is the same as
// with the objects themselves.
func TestFromClientDecidesAlike(t *testing.T) {
	all := map[string]string{}
	for i, m := range append(mixed(), node2000Ready) {
		all[string(rune('a'+i))+".yaml"] = m
	}
	objects, err := loadFiles(t, all)
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgo.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	karpenter := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(karpenter, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&corev1.Node{}, "spec.providerID", func(o client.Object) []string { return []string{o.(*corev1.Node).Spec.ProviderID} }).
		WithIndex(&karpv1.NodeClaim{}, "status.providerID", func(o client.Object) []string { return []string{o.(*karpv1.NodeClaim).Status.ProviderID} }).
		Build()
	want := decide(t, scheduling.FromObjects(objects), lab())
	if diff := cmp.Diff(want, decide(t, scheduling.FromClient(c), lab())); diff != "" {
		t.Errorf("decisions differ:\n%s", diff)
	}
}

const node2000Ready = `
apiVersion: v1
kind: Node
metadata: {name: worker-1, labels: {topology.kubernetes.io/zone: xeon}}
spec: {providerID: "kind://worker-1"}
status: {capacity: {cpu: 3, memory: 8Gi, ephemeral-storage: 30Gi}}
---
`
