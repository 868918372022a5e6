package scheduling

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
)

const (
	// flexibleFamily is the family of nodes sized for their pods. No instance type in a
	// file may use it.
	flexibleFamily = "flex"

	// flexibleKept is the factor for the price of an existing Flexible node: it is
	// replaced if that saves a quarter, not for the next smaller step.
	flexibleKept = 0.75

	// Ladders have this many rungs for each doubling of vCPUs and of memory, with at
	// least this much memory per vCPU, except at the ends. With finer rungs, or rungs of
	// less memory, pods have no room to move between rounds: over 40 random workloads,
	// nodes had 2 to 6 % more vCPUs on average.
	vcpuRungs    = 4
	memoryRungs  = 1
	leastRungMiB = 2 << 10
	mostRungMiB  = 32 << 10

	// exactSizes is the maximum number of sizes in a decision that are made for a single
	// pod.
	exactSizes = 16
)

// flexibleType returns the type of a Flexible node with that size. Its name contains its
// size, which determines everything else.
func flexibleType(vcpus int, memoryMiB int64) InstanceType {
	gib := strconv.FormatFloat(float64(memoryMiB)/1024, 'f', -1, 64)
	return newType(fmt.Sprintf("%s.%dVCPU-%sGB", flexibleFamily, vcpus, gib), vcpus, memoryMiB)
}

// isFlexible reports whether a type belongs to a Flexible node.
func isFlexible(instanceType string) bool {
	return (&InstanceType{Name: instanceType}).Family() == flexibleFamily
}

// ladder returns sizes within the bounds such that every size within them is covered by a
// returned one. Pods are packed onto these sizes, and the resulting VMs are shrunk
// afterwards.
func ladder(b v1alpha1.FlexibleBounds) []InstanceType {
	var types []InstanceType
	vcpus := rungs(int64(b.MinVCPUs), int64(b.MaxVCPUs), int64(b.StepVCPUs), vcpuRungs)
	memory := rungs(b.MinMemoryMiB, b.MaxMemoryMiB, b.StepMemoryMiB, memoryRungs)
	for i, v := range vcpus {
		for j, m := range memory {
			if (m >= v*leastRungMiB || j == len(memory)-1) && (m <= v*mostRungMiB || i == len(vcpus)-1) {
				types = append(types, flexibleType(int(v), m))
			}
		}
	}
	return types
}

// rungs returns sizes from least to most: up to each of them per doubling, at least step
// apart.
func rungs(least, most, step, each int64) []int64 {
	var all []int64
	power := int64(1) // the largest power of two that is at most at
	for at := least; at < most; {
		all = append(all, at)
		for 2*power <= at {
			power *= 2
		}
		at += max(step, power/each)
	}
	return append(all, most)
}

// flexible reports whether the class's nodes are sized for their pods.
func (c *class) flexible() bool {
	_, flexible := c.fields.Flexible()
	return flexible
}

// shape returns the smallest size of a Flexible class with the resources needed for pods,
// including DaemonSets' pods, and false if there is none.
func (c *class) shape(needed corev1.ResourceList) (InstanceType, bool) {
	b, flexible := c.fields.Flexible()
	if !flexible {
		return InstanceType{}, false
	}
	lacks := func(t InstanceType, names ...corev1.ResourceName) bool {
		allocatable := t.allocatable(c.disk(&t))
		return slices.ContainsFunc(names, func(name corev1.ResourceName) bool {
			have, want := allocatable[name], needed[name]
			return want.Cmp(have) > 0
		})
	}
	sized := func(vcpus int, memoryMiB int64) InstanceType {
		return flexibleType(vcpus, memoryMiB).forClass(c.fields)
	}
	vcpus := func(i int) int { return b.MinVCPUs + i*b.StepVCPUs }
	memory := func(i int) int64 { return b.MinMemoryMiB + int64(i)*b.StepMemoryMiB }
	// The reservations of CPU and memory are independent.
	v := sort.Search((b.MaxVCPUs-b.MinVCPUs)/b.StepVCPUs, func(i int) bool {
		return !lacks(sized(vcpus(i), b.MinMemoryMiB), corev1.ResourceCPU)
	})
	m := sort.Search(int((b.MaxMemoryMiB-b.MinMemoryMiB)/b.StepMemoryMiB), func(i int) bool {
		return !lacks(sized(b.MinVCPUs, memory(i)), corev1.ResourceMemory, corev1.ResourcePods)
	})
	t := sized(vcpus(v), memory(m))
	return t, resources.Fits(c.ofSize(needed), t.allocatable(c.disk(&t)))
}

// ofSize returns the resources that depend on a node's size.
func (c *class) ofSize(needed corev1.ResourceList) corev1.ResourceList {
	if len(c.overlaid) == 0 {
		return needed
	}
	needed = maps.Clone(needed)
	maps.DeleteFunc(needed, func(name corev1.ResourceName, _ resource.Quantity) bool { return c.overlaid[name] })
	return needed
}

// allows reports whether the pool's own requirements allow an instance type.
func (p *pool) allows(instanceType string) bool {
	own := scheduling.NewNodeSelectorRequirementsWithMinValues(p.Spec.Template.Spec.Requirements...)
	return own.Get(corev1.LabelInstanceTypeStable).Has(instanceType)
}

// offerExact adds exact sizes for the largest of the pods, and for all of them together,
// to a Flexible pool: pods that fit a host only this way should not be refused.
func (p *pool) offerExact(pods, daemons []*corev1.Pod) {
	if p.problem != "" || !p.class.flexible() {
		return
	}
	overhead := p.daemonRequests(daemons)
	seen, offered := map[[2]int64]bool{}, map[string]bool{}
	for i := range p.sizes {
		offered[p.sizes[i].Name] = true
	}
	var exact []InstanceType
	offer := func(requests corev1.ResourceList) {
		if t, ok := p.class.shape(resources.Merge(requests, overhead)); ok && !offered[t.Name] {
			offered[t.Name] = true
			exact = append(exact, t)
		}
	}
	offer(resources.RequestsForPods(pods...))
	for _, pod := range pods {
		requests := resources.RequestsForPods(pod)
		if key := [2]int64{requests.Cpu().MilliValue(), requests.Memory().Value()}; !seen[key] {
			seen[key] = true
			offer(requests)
		}
	}
	slices.SortFunc(exact, func(a, b InstanceType) int { return compareSizes(&b, &a) })
	p.sizes = append(slices.Clip(p.sizes), exact[:min(len(exact), exactSizes)]...)
}
