package cloudprovider_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/testenv"
)

const richPool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers}
spec:
  template:
    metadata: {labels: {team: blue}, annotations: {note: hello}}
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: shared}
      expireAfter: 48h
      terminationGracePeriod: 10m
      taints: [{key: dedicated, value: blue, effect: NoSchedule}]
      startupTaints: [{key: network, effect: NoExecute}]
      requirements:
      - {key: kubernetes.io/arch, operator: In, values: [amd64]}
      - {key: topology.kubernetes.io/zone, operator: In, values: [pve-2]}
      - {key: node.kubernetes.io/instance-type, operator: Exists, minValues: 5}
      - {key: rack, operator: In, values: [r1, r2]}
      - {key: row, operator: Gt, values: ["3"]}
`

// TestAPIServerTakesOurNodeClaims checks that an API server accepts each VM's NodeClaim,
// but only once, even if the pool would no longer create the VM.
func TestAPIServerTakesOurNodeClaims(t *testing.T) {
	t.Parallel()
	cluster := testenv.ControlPlane(t)
	if err := cluster.InstallCRDs(testenv.CRDs(t)...); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cluster.Config, client.Options{Scheme: clientgo.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	pool := &karpv1.NodePool{}
	if err := yaml.UnmarshalStrict([]byte(richPool), pool); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
	}}}}}
	chosen, older := vm(pve2, 2000), vm(pve1, 2001)
	chosen.Labels = map[string]string{"rack": "r2", "row": "4"}
	for _, own := range []*karpv1.NodeClaim{scheduling.NewNodeClaim(chosen, pool, pod), scheduling.NewNodeClaim(older, pool)} {
		if err := c.Create(t.Context(), own.DeepCopy()); err != nil {
			t.Fatalf("creating %s: %v", own.Name, err)
		}
		if err := c.Create(t.Context(), own.DeepCopy()); !apierrors.IsAlreadyExists(err) {
			t.Errorf("creating %s twice: %v", own.Name, err)
		}
		read := &karpv1.NodeClaim{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(own), read); err != nil {
			t.Fatal(err)
		}
		for _, r := range read.Spec.Requirements {
			if r.Operator != corev1.NodeSelectorOpIn || len(r.Values) != 1 {
				t.Errorf("%s: requirement %+v", own.Name, r)
			}
		}
		launched := scheduling.Launched(chosen, nil)
		read.Status = launched.Status
		read.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
		if err := c.Status().Update(t.Context(), read); err != nil {
			t.Errorf("launching %s: %v", own.Name, err)
		}
	}
}
