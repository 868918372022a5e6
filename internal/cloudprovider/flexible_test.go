package cloudprovider_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	numaform "github.com/numaform/numaform/internal/scheduling"
)

const flexibleClass = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: shared}
spec:
  template: {name: debian}
  sizing: {policy: Flexible}
  memoryOverheadMiB: 200
  kubelet: {kubeReserved: {cpu: 300m}}
---
`

// typesOf returns the types of the pool.
func typesOf(t *testing.T, w *world) []*karpenter.InstanceType {
	t.Helper()
	np := &karpv1.NodePool{}
	np.Name = "workers"
	types, err := w.GetInstanceTypes(t.Context(), np)
	if err != nil {
		t.Fatal(err)
	}
	return types
}

// TestFlexibleNodeIsItself checks that a replacement is as small as its pods allow,
// whatever Karpenter requests. It then keeps its size, and does not drift when the bounds
// change.
func TestFlexibleNodeIsItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flexibleClass, pool)
	var names []string
	for _, it := range typesOf(t, w) {
		names = append(names, it.Name)
	}
	c := claim("workers-x", in(corev1.LabelInstanceTypeStable, names...))
	requests := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2600m"), corev1.ResourceMemory: resource.MustParse("5Gi"), corev1.ResourcePods: resource.MustParse("3"),
	}
	c.Spec.Resources.Requests = requests
	created, err := w.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	made := created.Labels[corev1.LabelInstanceTypeStable]
	if vm := w.fleet.asked[0].Spec; made != "flex.3VCPU-6GB" || vm.InstanceType != made || vm.VCPUs != 3 || vm.MemoryMiB != 6144 {
		t.Fatalf("it is %s, and the VM %+v", made, vm)
	}
	allocatable := created.Status.Allocatable
	if cpu, memory := allocatable.Cpu().MilliValue(), allocatable.Memory().Value()>>20; cpu != 3000-300-10 || memory != 6144-200-384-64-100 {
		t.Errorf("allocatable are %dm and %d MiB", cpu, memory)
	}
	if !resources.Fits(requests, allocatable) {
		t.Errorf("%v do not fit in %v", requests, allocatable)
	}

	c.Labels, c.Annotations, c.Status = created.Labels, created.Annotations, created.Status
	for _, sizing := range []*v1alpha1.Sizing{
		{Policy: v1alpha1.SizingFlexible}, {Policy: v1alpha1.SizingFlexible, MaxVCPUs: 2}, nil,
	} {
		w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.Sizing = sizing })
		if reason, err := w.IsDrifted(t.Context(), c); reason != "" || err != nil {
			t.Errorf("with %+v: drifted: %q, %v", sizing, reason, err)
		}
		if !slices.ContainsFunc(typesOf(t, w), func(it *karpenter.InstanceType) bool {
			return it.Name == made && it.Offerings.HasCompatible(scheduling.NewLabelRequirements(c.Labels))
		}) {
			t.Errorf("with %+v: its type is not offered: Karpenter would replace it", sizing)
		}
	}
	// An equal request results in the same size.
	w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) {
		nc.Spec.Sizing = &v1alpha1.Sizing{Policy: v1alpha1.SizingFlexible}
	})
	again := claim("workers-y", in(corev1.LabelInstanceTypeStable, names...))
	again.Spec.Resources.Requests = requests
	if second, err := w.Create(t.Context(), again); err != nil || second.Labels[corev1.LabelInstanceTypeStable] != made {
		t.Errorf("the next is %v, %v", second, err)
	}
}

// TestFlexibleClosesAllSizes checks that a Flexible VM that could not be created makes its
// host unavailable for all sizes of its pool.
func TestFlexibleClosesAllSizes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flexibleClass, pool)
	w.config.Unavailable.Mark(numaform.OfferingSelector{NodePool: "workers", InstanceType: "flex.3VCPU-6GB", Host: pve1}, epoch.Add(time.Minute))
	for _, it := range typesOf(t, w) {
		for _, o := range it.Offerings.Available() {
			if o.Requirements.Get(corev1.LabelTopologyZone).Has("pve-1") {
				t.Errorf("%s is offered on pve-1", it.Name)
			}
		}
	}
}
