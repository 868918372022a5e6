package scheduling_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/crd"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// flexible returns the manifest of a class whose nodes are sized for their pods.
func flexible(sizing, more string) string {
	return fmt.Sprintf(`
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: flexible}
spec:
  template: {name: debian}
  sizing: {policy: Flexible%s}
%s
---
`, sizing, more)
}

const agents = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      tolerations: [{operator: Exists}]
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
        {matchExpressions: [{key: example.com/none, operator: Exists}]},
        {matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]}]}}}
      containers: [{name: main, image: example, resources: {requests: {cpu: 500m, memory: 1Gi}}}]
---
`

// TestFlexibleSizes checks that a Flexible VM is as small as its pods allow, and the next
// decision does not change its size.
func TestFlexibleSizes(t *testing.T) {
	tests := []struct {
		name         string
		sizing, more string // of the class
		pool         string // more of the NodePool
		pods         []string
		hosts        *topology.Snapshot
		want         []string
		reason       string
	}{
		{name: "one pod", pods: []string{deployment("a", 1, "3", "5Gi", "")}, want: []string{"flex.4VCPU-6GB"}},
		{name: "an odd number", pods: []string{deployment("a", 7, "900m", "1500Mi", "")}, want: []string{"flex.7VCPU-11.5GB"}},
		{name: "several deployments", pods: []string{deployment("a", 3, "2", "1Gi", ""), deployment("b", 2, "500m", "6Gi", "")}, want: []string{"flex.8VCPU-16GB"}},
		{name: "more than one node holds", pods: []string{deployment("a", 21, "1", "1Gi", "")}, want: []string{"flex.16VCPU-16GB", "flex.7VCPU-7GB"}},
		{name: "DaemonSets, by any of their terms", pods: []string{deployment("a", 1, "3", "5Gi", ""), agents}, want: []string{"flex.4VCPU-7GB"}},
		{name: "nothing but a little", pods: []string{deployment("a", 1, "100m", "64Mi", "")}, want: []string{"flex.1VCPU-2GB"}},
		{name: "many small pods", pods: []string{deployment("a", 70, "10m", "1Mi", "")}, want: []string{"flex.1VCPU-3GB"}},
		{name: "the least", sizing: ", minVCPUs: 3, minMemoryMiB: 5120", pods: []string{deployment("a", 1, "100m", "64Mi", "")}, want: []string{"flex.3VCPU-5GB"}},
		{
			name: "the most", sizing: ", maxVCPUs: 4, maxMemoryMiB: 8192", pods: []string{deployment("a", 1, "3950m", "1Gi", "")},
			reason: `the closest instance type, flex.4VCPU-8GB, has cpu 3890m, memory 7385Mi for pods: lower the requests, or raise spec.sizing of ProxmoxNodeClass "flexible"`,
		},
		{name: "whole cores", more: "  placement: {policy: Dedicated, pinWith: HostAgent}", pods: []string{deployment("a", 5, "900m", "1Gi", "")}, want: []string{"flex.6VCPU-6GB"}},
		{name: "kubelet's reservations", more: "  memoryOverheadMiB: 300\n  kubelet: {kubeReserved: {cpu: \"1\", memory: 1Gi}}", pods: []string{deployment("a", 1, "3", "5Gi", "")}, want: []string{"flex.5VCPU-6.5GB"}},
		{name: "apart", pods: []string{deployment("a", 3, "1", "1Gi", antiAffinity("a", "topology.kubernetes.io/zone"))}, want: []string{"flex.2VCPU-2GB", "flex.2VCPU-2GB", "flex.2VCPU-2GB"}},
		{name: "a limit", pool: "  limits: {cpu: 9}", pods: []string{deployment("a", 8, "1", "1Gi", "")}, want: []string{"flex.9VCPU-9GB"}},
		{name: "a disk for its pod", pods: []string{deployment("a", 1, "1", "1Gi, ephemeral-storage: 100Gi", "")}, want: []string{"flex.2VCPU-2GB-disk120GB"}},
		{name: "a disk for all pods", pods: []string{deployment("a", 3, "900m", "1Gi, ephemeral-storage: 20Gi", "")}, want: []string{"flex.3VCPU-4GB-disk70GB"}},
		{name: "the class's disk suffices", more: "  bootDevice: {size: 70G}", pods: []string{deployment("a", 3, "900m", "1Gi, ephemeral-storage: 20Gi", "")}, want: []string{"flex.3VCPU-4GB"}},
		{name: "steps beyond the class's disk", more: "  bootDevice: {size: 35G}", pods: []string{deployment("a", 1, "900m", "1Gi, ephemeral-storage: 32Gi", "")}, want: []string{"flex.1VCPU-2GB-disk40GB"}},
		{name: "eviction and reservations", more: "  kubelet: {systemReserved: {ephemeral-storage: 5Gi}, evictionHard: {nodefs.available: 50%}}", pods: []string{deployment("a", 1, "900m", "1Gi, ephemeral-storage: 20Gi", "")}, want: []string{"flex.1VCPU-2GB-disk60GB"}},
		{
			name: "more than a disk holds", sizing: ", maxDiskGiB: 100", pods: []string{deployment("a", 3, "900m", "1Gi, ephemeral-storage: 40Gi", "")},
			want: []string{"flex.1VCPU-2GB-disk50GB", "flex.2VCPU-3GB-disk100GB"},
		},
		{
			name: "the largest disk", sizing: ", maxDiskGiB: 119", pods: []string{deployment("a", 1, "1", "1Gi, ephemeral-storage: 100Gi", "")},
			reason: `lower the requests, or raise spec.sizing.maxDiskGiB of ProxmoxNodeClass "flexible" to at least 120`,
		},
		{
			name: "a storage with room", pods: []string{deployment("a", 1, "1", "1Gi, ephemeral-storage: 100Gi", "")},
			more: "  bootDevice: {storage: data}", hosts: with(lab(), "data", 119, 60, 121), want: []string{"flex.2VCPU-2GB-disk120GB"},
		},
		{
			name: "no storage with room", pods: []string{deployment("a", 1, "1", "1Gi, ephemeral-storage: 100Gi", "")},
			more: "  bootDevice: {storage: data}", hosts: with(lab(), "data", 119, 60, 119), reason: "free space there",
		},
		{name: "the one that fits on the host", pods: []string{deployment("a", 1, "8500m", "17Gi", "")}, hosts: busy(7, 10), want: []string{"flex.9VCPU-18GB"}},
		{
			name: "no host has room", pods: []string{deployment("a", 1, "8500m", "17Gi", "")}, hosts: busy(8, 10),
			reason: "flex.9VCPU-18GB: ",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := load(t, append([]string{flexible(test.sizing, test.more), nodePool("general", "flexible", test.pool)}, test.pods...)...)
			hosts := test.hosts
			if hosts == nil {
				hosts = lab()
			}
			d := decide(t, c, hosts)
			var got []string
			for _, n := range d.New {
				got = append(got, n.Spec.InstanceType)
			}
			slices.Sort(got)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("sizes differ:\n%s\n%+v", diff, d.Refused)
			}
			if test.reason != "" && (len(d.Refused) != 1 || !strings.Contains(d.Refused[0].Reason, test.reason)) {
				t.Errorf("refused %+v, want one for %q", d.Refused, test.reason)
			}
			if again := decide(t, c, hosts, keep(nil, d)...); len(again.New) > 0 || again.Placed != d.Placed {
				t.Errorf("the next decision makes %d VMs and places %d pods, not %d", len(again.New), again.Placed, d.Placed)
			}
		})
	}
}

// TestFlexibleShape checks that the smallest size has the needed resources, no smaller one
// does, and pods can be packed onto a rung that is at least as large.
func TestFlexibleShape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nc := drawFlexible(t)
		b, _ := nc.Spec.Flexible()
		amount := func(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }
		needed := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(rapid.Int64Range(0, 1000*int64(b.MaxVCPUs)).Draw(t, "cpu"), resource.DecimalSI),
			corev1.ResourceMemory: amount(rapid.Int64Range(0, b.MaxMemoryMiB<<20).Draw(t, "memory")),
			corev1.ResourcePods:   amount(rapid.Int64Range(0, 110).Draw(t, "pods")),

			corev1.ResourceEphemeralStorage: amount(rapid.Int64Range(0, b.MaxDiskGiB<<30).Draw(t, "disk")),
		}
		size, ok := scheduling.Shape(nc, needed)
		if size.VCPUs < b.MinVCPUs || size.VCPUs > b.MaxVCPUs || size.VCPUs%b.StepVCPUs != 0 ||
			size.MemoryMiB < b.MinMemoryMiB || size.MemoryMiB > b.MaxMemoryMiB || size.MemoryMiB%b.StepMemoryMiB != 0 {
			t.Fatalf("%s is not within %+v", size.Name, b)
		}
		if !ok {
			if holds(nc, b.MaxVCPUs, b.MaxMemoryMiB, b.MaxDiskGiB, needed) {
				t.Fatalf("the largest holds %v, but no size was found", needed)
			}
			return
		}
		own, _ := nc.Spec.BootDevice.SizeGiB()
		disk := max(own, size.DiskGiB)
		if size.DiskGiB != 0 && (size.DiskGiB <= own || size.DiskGiB > b.MaxDiskGiB || size.DiskGiB%b.StepDiskGiB != 0) {
			t.Fatalf("a disk of %d GiB is not within %+v, or not larger than the class's", size.DiskGiB, b)
		}
		if size.DiskGiB != 0 && holds(nc, size.VCPUs, size.MemoryMiB, max(own, size.DiskGiB-b.StepDiskGiB), needed) {
			t.Fatalf("the disk of %s is larger than %v needs", size.Name, needed)
		}
		if !holds(nc, size.VCPUs, size.MemoryMiB, disk, needed) {
			t.Fatalf("%s does not hold %v", size.Name, needed)
		}
		if size.VCPUs > b.MinVCPUs && holds(nc, size.VCPUs-b.StepVCPUs, size.MemoryMiB, disk, needed) ||
			size.MemoryMiB > b.MinMemoryMiB && holds(nc, size.VCPUs, size.MemoryMiB-b.StepMemoryMiB, disk, needed) {
			t.Fatalf("%s is larger than %v needs", size.Name, needed)
		}
		if again, _ := scheduling.Shape(nc, scheduling.Allocatable(size, disk)); again.Name != size.Name {
			t.Fatalf("what %s holds needs %s", size.Name, again.Name)
		}
		if !slices.ContainsFunc(scheduling.OfferedBy(nc, nil), func(rung scheduling.InstanceType) bool {
			return rung.VCPUs >= size.VCPUs && rung.MemoryMiB >= size.MemoryMiB
		}) {
			t.Fatalf("no rung is as large as %s", size.Name)
		}
	})
}

// drawFlexible draws a valid class.
func drawFlexible(t *rapid.T) *v1alpha1.ProxmoxNodeClass {
	nc := &v1alpha1.ProxmoxNodeClass{}
	nc.Spec.Template.Name = "debian"
	nc.Spec.Sizing = &v1alpha1.Sizing{
		Policy:   v1alpha1.SizingFlexible,
		MinVCPUs: rapid.Int32Range(1, 12).Draw(t, "min vcpus"), MinMemoryMiB: 512 * rapid.Int32Range(2, 20).Draw(t, "min memory"),
	}
	nc.Spec.Sizing.MaxVCPUs = nc.Spec.Sizing.MinVCPUs + rapid.Int32Range(1, 100).Draw(t, "more vcpus")
	nc.Spec.Sizing.MaxMemoryMiB = nc.Spec.Sizing.MinMemoryMiB + 512*rapid.Int32Range(0, 1000).Draw(t, "more memory")
	nc.Spec.Sizing.MaxDiskGiB = rapid.Int32Range(1, 2000).Draw(t, "max disk")
	nc.Spec.BootDevice = &v1alpha1.BootDevice{Size: fmt.Sprintf("%dG", rapid.IntRange(1, 300).Draw(t, "disk"))}
	if rapid.Bool().Draw(t, "dedicated") {
		nc.Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementDedicated, PinWith: v1alpha1.PinWithHostAgent}
	}
	if rapid.Bool().Draw(t, "huge pages") && nc.Spec.Sizing.MaxMemoryMiB-nc.Spec.Sizing.MinMemoryMiB >= 1024 {
		nc.Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementNUMA, HugePages: v1alpha1.HugePages1Gi}
	}
	if rapid.Bool().Draw(t, "kubelet") {
		nc.Spec.Kubelet = &v1alpha1.KubeletConfiguration{
			KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "700m", "memory": "300Mi"},
			EvictionHard: map[string]v1alpha1.ReservedQuantity{"memory.available": "7%"},
		}
	}
	if err := crd.Validate(nc); err != nil {
		t.Fatal(err)
	}
	return nc
}

// holds reports whether a Node of a VM with that size has the needed resources.
func holds(nc *v1alpha1.ProxmoxNodeClass, vcpus int, memoryMiB, diskGiB int64, needed corev1.ResourceList) bool {
	vm := fleet.VM{Spec: fleet.Spec{VCPUs: vcpus, MemoryMiB: memoryMiB, DiskGiB: diskGiB}}
	vm.InstanceType = fmt.Sprintf("flex.%dVCPU-%vGB", vcpus, float64(memoryMiB)/1024)
	node := scheduling.Launched(vm, []scheduling.InstanceType{scheduling.TypeOf(nc, &vm, nil)})
	return resources.Fits(needed, node.Status.Allocatable)
}

// TestFlexibleExample checks that the example creates one node for its pods.
func TestFlexibleExample(t *testing.T) {
	objects, err := scheduling.Load([]string{"../../examples/flexible"})
	if err != nil {
		t.Fatal(err)
	}
	hosts := oneHost(8, 64)
	hosts.Hosts[0].Templates[0].Name = "debian-13-k8s"
	d := decide(t, scheduling.FromObjects(objects), hosts)
	if len(d.New) != 1 || d.New[0].Spec.InstanceType != "flex.5VCPU-16GB" || d.Placed != 3 {
		t.Errorf("decided %+v", d)
	}
}

// busy returns a host with 16 threads and 30 GiB, partly used by a guest.
func busy(vcpus int, memoryGiB int64) *topology.Snapshot {
	s := oneHost(8, 30)
	s.Hosts[0].Guests = []topology.Guest{{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: vcpus, MemoryMiB: memoryGiB * 1024}}
	return s
}

// TestFlexibleNodesStay checks that a live Flexible VM's type is among the types, at a
// price at which it is not replaced for the next smaller size.
func TestFlexibleNodesStay(t *testing.T) {
	c := load(t, flexible("", ""), nodePool("general", "flexible", ""), deployment("a", 7, "900m", "1500Mi", ""))
	kept := keep(nil, decide(t, c, lab()))
	types, err := c.InstanceTypes(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: lab(), Existing: kept}, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}})
	if err != nil {
		t.Fatal(err)
	}
	claim := scheduling.Launched(kept[0], nil)
	i := slices.IndexFunc(types, func(it *cloudprovider.InstanceType) bool {
		return it.Name == claim.Labels[corev1.LabelInstanceTypeStable]
	})
	if i < 0 {
		t.Fatalf("%s is not among the %d types", kept[0].InstanceType, len(types))
	}
	price, known := types[i].OfferingPrice(claim.Labels[corev1.LabelTopologyZone], claim.Labels[karpv1.CapacityTypeLabelKey])
	if want := 0.75 * (0.025*7 + 0.001*11.5); !known || price < want-1e-9 || price > want+1e-9 {
		t.Errorf("it costs %v, want %v", price, want)
	}
	offered := types[i].Allocatable()
	if diff := cmp.Diff(claim.Status.Allocatable.Cpu().String(), offered.Cpu().String()); diff != "" {
		t.Errorf("allocatable differs:\n%s", diff)
	}
	// A claim of Karpenter that replaces the VM for the same pods results in the same size.
	replacement := replacementOf(kept[0], types)
	specs, err := c.Resolve(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: lab(), Existing: kept}, replacement)
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) != 1 || specs[0].InstanceType != kept[0].InstanceType || specs[0].VCPUs != 7 || specs[0].MemoryMiB != 11776 {
		t.Errorf("it resolves to %+v", specs)
	}
	for _, it := range types {
		pods := it.Allocatable()
		if p := it.Offerings.Available().Cheapest(); p != nil && p.Price < price && pods.Cpu().Cmp(resource.MustParse("6300m")) >= 0 {
			t.Errorf("%s is cheaper and holds as many CPUs", it.Name)
		}
	}
}

// replacementOf returns the NodeClaim that Karpenter would create to replace a VM.
func replacementOf(vm fleet.VM, types []*cloudprovider.InstanceType) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "replacement"}}
	claim.Labels = map[string]string{karpv1.NodePoolLabelKey: vm.Pool}
	var names []string
	for _, it := range types {
		names = append(names, it.Name)
	}
	claim.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: names}}
	claim.Spec.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(vm.Demand.CPUMilli, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(vm.Demand.MemoryMiB<<20, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(int64(vm.Demand.Pods), resource.DecimalSI),
	}
	return claim
}
