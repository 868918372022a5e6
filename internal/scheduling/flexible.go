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
	// flexibleFamily is the family of nodes that are sized for their pods. No
	// instance type of a file is of it.
	flexibleFamily = "flex"

	// flexibleKept is the part of its price that a Flexible node counts with while it
	// lives: it is replaced where that saves a quarter, not for the next step.
	flexibleKept = 0.75

	// Ladders have so many rungs where the number of vCPUs, and the memory, doubles,
	// with so much memory for each vCPU, the outermost ones aside. Finer rungs, or ones
	// of less memory, leave pods no room to move between rounds: on the average of 40
	// random workloads, nodes had more vCPUs by 2 to 6 %.
	vcpuRungs    = 4
	memoryRungs  = 1
	leastRungMiB = 2 << 10
	mostRungMiB  = 32 << 10

	// exactSizes is how many sizes a decision offers that are made for one pod.
	exactSizes = 16
)

// flexibleType returns the size as the type of a Flexible node. Its name tells its
// size, and nothing else decides what it is.
func flexibleType(vcpus int, memoryMiB int64) InstanceType {
	gib := strconv.FormatFloat(float64(memoryMiB)/1024, 'f', -1, 64)
	return newType(fmt.Sprintf("%s.%dVCPU-%sGB", flexibleFamily, vcpus, gib), vcpus, memoryMiB)
}

// isFlexible reports whether a type is that of a Flexible node.
func isFlexible(instanceType string) bool {
	return (&InstanceType{Name: instanceType}).Family() == flexibleFamily
}

// ladder returns sizes within the bounds, of which one is at least as large as
// any size within them. Pods are packed on these, and what they come to is made
// smaller afterwards.
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

// rungs returns the least, the most, and so many for each doubling between them.
func rungs(least, most, step, each int64) []int64 {
	var all []int64
	power := int64(1) // the largest that at holds
	for at := least; at < most; {
		all = append(all, at)
		for 2*power <= at {
			power *= 2
		}
		at += max(step, power/each)
	}
	return append(all, most)
}

// flexible reports whether nodes of the class are sized for their pods.
func (c *class) flexible() bool {
	_, flexible := c.fields.Flexible()
	return flexible
}

// shape returns the smallest size of a Flexible class whose nodes have what is
// needed for pods, those of DaemonSets included, and false if none has.
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
	// What is reserved of one does not depend on the other.
	v := sort.Search((b.MaxVCPUs-b.MinVCPUs)/b.StepVCPUs, func(i int) bool {
		return !lacks(sized(vcpus(i), b.MinMemoryMiB), corev1.ResourceCPU)
	})
	m := sort.Search(int((b.MaxMemoryMiB-b.MinMemoryMiB)/b.StepMemoryMiB), func(i int) bool {
		return !lacks(sized(b.MinVCPUs, memory(i)), corev1.ResourceMemory, corev1.ResourcePods)
	})
	t := sized(vcpus(v), memory(m))
	return t, resources.Fits(c.ofSize(needed), t.allocatable(c.disk(&t)))
}

// ofSize returns what of the resources a node's size decides.
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

// offerExact adds to a Flexible pool's sizes those that are made for one of the pods,
// the largest of them, and for all: what fits on a host only so shall not be refused.
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
