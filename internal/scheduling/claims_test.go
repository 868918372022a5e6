package scheduling_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

const richPool = `
metadata: {name: general, uid: pool-uid}
spec:
  template:
    metadata:
      labels: {team: blue}
      annotations: {note: hello}
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: shared}
      expireAfter: 48h
      terminationGracePeriod: 10m
      taints: [{key: dedicated, value: blue, effect: NoSchedule}]
      startupTaints: [{key: network, effect: NoExecute}]
      requirements:
      - {key: kubernetes.io/arch, operator: In, values: [amd64]}
      - {key: topology.kubernetes.io/zone, operator: In, values: [epyc, xeon]}
      - {key: node.kubernetes.io/instance-type, operator: Exists, minValues: 5}
      - {key: disk, operator: In, values: [ssd]}
      - {key: rack, operator: In, values: [r1, r2]}
      - {key: row, operator: NotIn, values: [w9]}
`

func parsePool(t *testing.T, text string) *karpv1.NodePool {
	t.Helper()
	pool := &karpv1.NodePool{}
	if err := yaml.UnmarshalStrict([]byte(text), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

func TestNewNodeClaim(t *testing.T) {
	t.Parallel()
	pool := parsePool(t, richPool)
	before := pool.DeepCopy()
	vm := keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared)
	vm.Labels = map[string]string{"rack": "r2"}
	vm.CPUType = "custom-" // not a valid label value
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
	}}}}}
	claim := scheduling.NewNodeClaim(vm, pool, pod, pod)

	if claim.Name != "general-2000" || claim.GenerateName != "" {
		t.Errorf("name is %q, generated from %q", claim.Name, claim.GenerateName)
	}
	block := true
	owner := []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: "general", UID: "pool-uid", BlockOwnerDeletion: &block}}
	if diff := cmp.Diff(owner, claim.OwnerReferences); diff != "" {
		t.Errorf("owner differs:\n%s", diff)
	}
	annotations := map[string]string{
		"note": "hello", "numaform.dev/vm": "general-2000", "numaform.dev/key": "key-2000",
		karpv1.NodePoolHashAnnotationKey: pool.Hash(), karpv1.NodePoolHashVersionAnnotationKey: karpv1.NodePoolHashVersion,
	}
	if diff := cmp.Diff(annotations, claim.Annotations); diff != "" {
		t.Errorf("annotations differ:\n%s", diff)
	}
	labels := map[string]string{
		"team": "blue", "disk": "ssd", "rack": "r2", "numaform.dev/proxmoxnodeclass": "shared", "karpenter.sh/nodepool": "general",
		"kubernetes.io/hostname": "general-2000", "kubernetes.io/os": "linux",
		"topology.kubernetes.io/region": "lab", "topology.kubernetes.io/zone": "xeon",
		"node.kubernetes.io/instance-type": "c1.4VCPU-8GB", "karpenter.sh/capacity-type": "on-demand",
		"numaform.dev/instance-family": "c1", "numaform.dev/nodeclass": "shared", "numaform.dev/placement": "Shared", "numaform.dev/numa-nodes": "1",
		"numaform.dev/template": "debian",
	}
	if diff := cmp.Diff(labels, claim.Labels); diff != "" {
		t.Errorf("labels differ:\n%s", diff)
	}
	for _, r := range claim.Spec.Requirements {
		if r.MinValues != nil || r.Operator != corev1.NodeSelectorOpIn || len(r.Values) != 1 {
			t.Errorf("requirement %+v leaves a choice", r)
			continue
		}
		want, known := labels[r.Key]
		if !known && r.Key == corev1.LabelArchStable {
			want = "amd64"
		}
		if r.Values[0] != want || r.Key == corev1.LabelHostname {
			t.Errorf("requirement %+v, want %q", r, want)
		}
	}
	if got := len(claim.Spec.Requirements); got != len(labels) {
		t.Errorf("%d requirements, want one for each label but the hostname, and one for the architecture", got)
	}
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourcePods: resource.MustParse("2")}
	if !equality.Semantic.DeepEqual(requests, claim.Spec.Resources.Requests) {
		t.Errorf("requests are %v", claim.Spec.Resources.Requests)
	}
	template := pool.Spec.Template.Spec
	if !equality.Semantic.DeepEqual(template.Taints, claim.Spec.Taints) || !equality.Semantic.DeepEqual(template.StartupTaints, claim.Spec.StartupTaints) ||
		claim.Spec.ExpireAfter.String() != "48h0m0s" || claim.Spec.TerminationGracePeriod.Minutes() != 10 || claim.Spec.NodeClassRef.Name != "shared" {
		t.Errorf("spec is %+v", claim.Spec)
	}
	if diff := cmp.Diff(before, pool); diff != "" {
		t.Errorf("the pool was changed:\n%s", diff)
	}
	for range 20 {
		if diff := cmp.Diff(claim, scheduling.NewNodeClaim(vm, pool, pod, pod)); diff != "" {
			t.Fatalf("the same VM has another claim:\n%s", diff)
		}
	}
}

// TestNewClaimsMeetTheirPool checks that a decision sets each label for which the pool
// allows several values: a node whose labels do not meet its pool's requirements is
// replaced as drifted.
func TestNewClaimsMeetTheirPool(t *testing.T) {
	t.Parallel()
	pool := parsePool(t, richPool)
	pool.Spec.Template.Spec.Taints, pool.Spec.Template.Spec.StartupTaints = nil, nil
	pool.Spec.Template.Spec.Requirements[0].Values = []string{"amd64", "arm64"}
	text, err := yaml.Marshal(pool)
	if err != nil {
		t.Fatal(err)
	}
	c := load(t, classes, "apiVersion: karpenter.sh/v1\nkind: NodePool\n"+string(text)+"---\n", deployment("a", 4, "1", "1Gi", "\n      nodeSelector: {rack: r2, kubernetes.io/arch: amd64}\n"))
	d := decide(t, c, lab())
	if len(d.New) == 0 || len(d.Refused) > 0 {
		t.Fatalf("decided %+v", d)
	}
	if d.New[0].ClassHash == "" {
		t.Error("the decision does not say of what class its VMs are")
	}
	for _, vm := range keep(nil, d) {
		claim := scheduling.NewNodeClaim(vm, pool)
		launched := scheduling.Launched(vm, nil)
		launched.Labels[corev1.LabelArchStable] = scheduling.Arch(lab(), vm.Host)
		for key, value := range claim.Labels {
			launched.Labels[key] = value
		}
		wants := karpscheduling.NewNodeSelectorRequirementsWithMinValues(pool.Spec.Template.Spec.Requirements...)
		if err := karpscheduling.NewLabelRequirements(launched.Labels).Compatible(wants); err != nil {
			t.Errorf("vm %s does not meet its pool: %v", vm.Name, err)
		}
		if launched.Labels["rack"] != "r2" {
			t.Errorf("labels are %v", launched.Labels)
		}
	}
	// If these VMs exist, no further VM is added.
	if again := decide(t, c, lab(), keep(nil, d)...); len(again.New) > 0 || len(again.Refused) > 0 {
		t.Errorf("made again: %+v", again)
	}
}

// TestNewNodeClaimOfAnOlderVM checks that a pool that has changed since a VM was created
// sets no random label on its claim.
func TestNewNodeClaimOfAnOlderVM(t *testing.T) {
	t.Parallel()
	pool := parsePool(t, richPool)
	vm := keptVM(2000, "general", "shared", "ryzen", fleet.PolicyShared) // a zone that the pool no longer has
	claim := scheduling.NewNodeClaim(vm, pool)
	if _, drawn := claim.Labels["rack"]; drawn {
		t.Errorf("labels are %v", claim.Labels)
	}
	for _, r := range claim.Spec.Requirements {
		if r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 0 {
			t.Errorf("requirement %+v is none that an API server takes", r)
		}
	}
}

func TestLaunched(t *testing.T) {
	t.Parallel()
	vm := keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared)
	vm.Source.VMID = 9000
	claim := scheduling.Launched(vm, nil)
	if claim.Status.ProviderID != "proxmox://lab/2000" || claim.Status.ImageID != "lab/xeon/9000" {
		t.Errorf("status is %+v", claim.Status)
	}
	if claim.Annotations["numaform.dev/vm"] != vm.Name || claim.Annotations["numaform.dev/key"] != string(vm.Key) {
		t.Errorf("annotations are %v", claim.Annotations)
	}
	// The claim has the resources of the offered instance type.
	pool := parsePool(t, "metadata: {name: general}")
	types, err := load(t, classes, nodePool("general", "shared", "")).InstanceTypes(t.Context(), scheduling.Request{Snapshot: lab()}, pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range types {
		if it.Name != vm.InstanceType {
			continue
		}
		delete(it.Capacity, "nodes")
		allocatable := it.Allocatable()
		delete(allocatable, "nodes")
		if !equality.Semantic.DeepEqual(it.Capacity, claim.Status.Capacity) || !equality.Semantic.DeepEqual(allocatable, claim.Status.Allocatable) {
			t.Errorf("offered %v and %v, launched %v and %v", it.Capacity, allocatable, claim.Status.Capacity, claim.Status.Allocatable)
		}
	}
}

// TestVMIDsOfClasses checks which VMIDs the ranges of classes reserve.
func TestVMIDsOfClasses(t *testing.T) {
	t.Parallel()
	class := func(name string, r *v1alpha1.VMIDRange) client.Object {
		return &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ProxmoxNodeClassSpec{VMIDRange: r}}
	}
	c := scheduling.FromObjects([]client.Object{class("a", &v1alpha1.VMIDRange{Lower: 2100, Upper: 2103}), class("b", nil), class("c", &v1alpha1.VMIDRange{Lower: 2200, Upper: 2200})})
	got, err := c.ClassVMIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]fleet.VMIDRange{{Lower: 2100, Upper: 2103}, {Lower: 2200, Upper: 2200}}, got); diff != "" {
		t.Errorf("ranges (-want +got):\n%s", diff)
	}
}

// TestVMIDsOfClaims checks that a VMID is not reused while a NodeClaim, launched or not,
// refers to it, because the claim of a new VM would have the same name.
func TestVMIDsOfClaims(t *testing.T) {
	t.Parallel()
	unlaunched := scheduling.NewNodeClaim(keptVM(2000, "a-pool-7", "shared", "xeon", fleet.PolicyShared), parsePool(t, richPool))
	launched := scheduling.NewNodeClaim(keptVM(2001, "a-pool-7", "shared", "xeon", fleet.PolicyShared), parsePool(t, richPool))
	launched.Status.ProviderID = "proxmox://lab/2001"
	foreign := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "foreign-2002"}}
	c := scheduling.FromObjects([]client.Object{unlaunched, launched, foreign})
	got, err := c.VMIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[topology.RegionName][]fleet.VMID{"lab": {2000, 2001}}, got); diff != "" {
		t.Errorf("VMIDs differ:\n%s", diff)
	}
}
