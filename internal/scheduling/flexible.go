package scheduling

import (
	"context"
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
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

const (
	// flexibleFamily is the family of nodes sized for their pods. Instance types from a
	// file must not use it.
	flexibleFamily = "flex"

	// liveFlexibleFactor is the factor for the price of an existing Flexible node: a node
	// is replaced only if that saves a quarter, not whenever the next smaller size is
	// sufficient.
	liveFlexibleFactor = 0.75

	// A ladder has vcpuRungs rungs for each doubling of vCPUs and memoryRungs for each
	// doubling of memory, with leastRungMiB to mostRungMiB of memory per vCPU, except at
	// the ends. With finer rungs, or less memory per vCPU, pods have too little room to
	// move to other VMs between rounds: over 40 random workloads, nodes had 2 to 6 % more
	// vCPUs on average.
	vcpuRungs    = 4
	memoryRungs  = 1
	leastRungMiB = 2 << 10
	mostRungMiB  = 32 << 10

	// exactSizes is the maximum number of sizes in a decision that each fit a single pod
	// exactly.
	exactSizes = 16
)

// flexibleType returns the type of a Flexible node with that size. A disk of 0 GiB is the
// class's. The name contains the size, which determines everything else.
func flexibleType(vcpus int, memoryMiB, diskGiB int64) InstanceType {
	gib := strconv.FormatFloat(float64(memoryMiB)/1024, 'f', -1, 64)
	name := fmt.Sprintf("%s.%dVCPU-%sGB", flexibleFamily, vcpus, gib)
	if diskGiB > 0 {
		name += fmt.Sprintf("-disk%dGB", diskGiB)
	}
	t := newType(name, vcpus, memoryMiB)
	t.DiskGiB = diskGiB
	return t
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
				types = append(types, flexibleType(int(v), m, 0))
			}
		}
	}
	return types
}

// rungs returns sizes from least to most that are at least step apart. The parameter each
// is the maximum number of sizes per doubling.
func rungs(least, most, step, each int64) []int64 {
	var all []int64
	power := int64(1) // the largest power of two not above at
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

// smallestSize returns the smallest size of a Flexible class with the resources needed for
// pods, including DaemonSets' pods, and false if there is none.
func (c *class) smallestSize(needed corev1.ResourceList) (InstanceType, bool) {
	b, flexible := c.fields.Flexible()
	if !flexible {
		return InstanceType{}, false
	}
	own := c.disk(&InstanceType{}) / b.StepDiskGiB
	size := func(vcpus, memory, disk int) InstanceType {
		diskGiB := int64(0)
		if disk > 0 {
			diskGiB = (own + int64(disk)) * b.StepDiskGiB
		}
		return flexibleType(b.MinVCPUs+vcpus*b.StepVCPUs, b.MinMemoryMiB+int64(memory)*b.StepMemoryMiB, diskGiB).forClass(c.fields)
	}
	has := func(t InstanceType, names ...corev1.ResourceName) bool {
		allocatable := t.allocatable(c.disk(&t))
		return !slices.ContainsFunc(names, func(name corev1.ResourceName) bool {
			available, required := allocatable[name], needed[name]
			return required.Cmp(available) > 0
		})
	}
	// The reservations of CPU, memory and disk are independent.
	vcpus := sort.Search((b.MaxVCPUs-b.MinVCPUs)/b.StepVCPUs, func(i int) bool {
		return has(size(i, 0, 0), corev1.ResourceCPU)
	})
	memory := sort.Search(int((b.MaxMemoryMiB-b.MinMemoryMiB)/b.StepMemoryMiB), func(i int) bool {
		return has(size(0, i, 0), corev1.ResourceMemory, corev1.ResourcePods)
	})
	disk := sort.Search(int(max(0, b.MaxDiskGiB/b.StepDiskGiB-own)), func(i int) bool {
		return has(size(0, 0, i), corev1.ResourceEphemeralStorage)
	})
	t := size(vcpus, memory, disk)
	t.Price = c.price(&t)

	// Resources that NodeOverlays add do not depend on the size.
	rest := maps.Clone(needed)
	maps.DeleteFunc(rest, func(name corev1.ResourceName, _ resource.Quantity) bool { return c.overlaid[name] })
	return t, resources.Fits(rest, t.allocatable(c.disk(&t)))
}

// allows reports whether the pool's own requirements allow an instance type.
func (p *pool) allows(instanceType string) bool {
	own := scheduling.NewNodeSelectorRequirementsWithMinValues(p.Spec.Template.Spec.Requirements...)
	return own.Get(corev1.LabelInstanceTypeStable).Has(instanceType)
}

// addDisks adds the sizes of a Flexible pool with larger disks, up to the given size, each
// about twice as large as the one before.
func (p *pool) addDisks(mostGiB int64) {
	b, flexible := p.class.fields.Flexible()
	own := p.class.disk(&InstanceType{})
	if !flexible || mostGiB <= own {
		return
	}
	sizes := slices.Clip(p.types)
	for gib := own; gib < mostGiB; {
		gib = min(2*gib/b.StepDiskGiB*b.StepDiskGiB+b.StepDiskGiB, mostGiB)
		for i := range p.types {
			t := flexibleType(p.types[i].VCPUs, p.types[i].MemoryMiB, gib).forClass(p.class.fields)
			t.Price = p.class.price(&t)
			sizes = append(sizes, t)
		}
	}
	p.types = sizes
}

// addExactSizes adds sizes with the disks that the pods need, and sizes that exactly fit the largest pods, each on its own, and all pods
// together, to a Flexible pool, so that pods that fit a host only this way are not refused.
func (p *pool) addExactSizes(pods, daemons []*corev1.Pod) {
	if p.problem != "" || !p.class.flexible() {
		return
	}
	overhead := p.daemonRequests(daemons)
	all, _ := p.class.smallestSize(resources.Merge(resources.RequestsForPods(pods...), overhead))
	p.addDisks(all.DiskGiB)
	offered := map[string]bool{}
	for i := range p.types {
		offered[p.types[i].Name] = true
	}
	var exact []InstanceType
	add := func(requests corev1.ResourceList) {
		if t, ok := p.class.smallestSize(resources.Merge(requests, overhead)); ok && !offered[t.Name] {
			offered[t.Name] = true
			exact = append(exact, t)
		}
	}
	add(resources.RequestsForPods(pods...))
	seen := map[[3]int64]bool{}
	for _, pod := range pods {
		requests := resources.RequestsForPods(pod)
		key := [3]int64{requests.Cpu().MilliValue(), requests.Memory().Value(), requests.StorageEphemeral().Value()}
		if !seen[key] {
			seen[key] = true
			add(requests)
		}
	}
	slices.SortFunc(exact, func(a, b InstanceType) int { return compareTypes(&b, &a) })
	p.types = append(slices.Clip(p.types), exact[:min(len(exact), exactSizes)]...)
}

// shrink shrinks the new VMs of Flexible classes to what their pods need, but keeps their
// order, so that each pod is placed on the same VM as before. If Karpenter's scheduler does
// not confirm that, all VMs stay as they are.
func (s *session) shrink(ctx context.Context, sol *solution) (*solution, error) {
	large, specs := s.smallerSpecs(sol)
	if len(large) == 0 {
		return sol, nil
	}
	return s.attempt(ctx, sol, func() bool {
		s.drop(large)
		placed, unplaced := s.site.Place(specs)
		for _, p := range placed {
			old := large[p.Index]
			vm := fleet.VM{Key: old.Key, VMID: old.VMID, Name: old.Name, Spec: specs[p.Index], Placement: p.Placement, Standby: old.Standby}
			vm.Hosts = old.Hosts // the same hosts are still allowed
			small := newInflight(vm, s.pools, s.types)
			small.phase = old.phase
			s.added = append(s.added, small)
		}
		return len(unplaced) == 0
	})
}

// smallerSpecs returns the VMs that can shrink, and their new specs.
func (s *session) smallerSpecs(sol *solution) (large []*inflight, specs []fleet.Spec) {
	added := slices.Clone(s.added)
	slices.SortFunc(added, func(a, b *inflight) int { return compareInflight(b, a) })
	var next InstanceType // the size of the next VM in filling order
	for _, vm := range added {
		p := s.pools.find(vm.Pool)
		if p == nil || !isFlexible(vm.InstanceType) {
			continue
		}
		pods := resources.RequestsForPods(sol.landed[providerID(&vm.VM)]...)
		labels := scheduling.NewLabelRequirements(vm.claim.Labels)
		daemons := requestsOf(s.daemons, vm.claim.Spec.Taints, func(required scheduling.Requirements) bool { return labels.IsCompatible(required) })
		t, ok := p.class.smallestSize(resources.Merge(pods, daemons))
		if ok {
			// Keep the VM at least as large as the next one, so that it is still filled
			// first.
			t = p.class.atLeast(t, next, &vm.Spec)
		}
		if !ok || vm.VMID < newVMIDs || !p.allows(t.Name) || t.VCPUs > vm.VCPUs || t.MemoryMiB > vm.MemoryMiB ||
			p.class.disk(&t) > vm.DiskGiB || t.Name == vm.InstanceType {
			next = InstanceType{VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, DiskGiB: vm.DiskGiB}
			continue
		}
		next = t
		spec := vm.Spec
		spec.InstanceType = t.Name
		spec.VCPUs = t.VCPUs
		spec.MemoryMiB = t.MemoryMiB
		spec.DiskGiB = p.class.disk(&t)
		spec.Hosts = []topology.HostID{vm.Host}
		large = append(large, vm)
		specs = append(specs, spec)
	}
	return large, specs
}

// atLeast returns the size, or a larger one with at least the vCPUs, for equal vCPUs the
// memory, and for equal memory the disk, of size next. If that memory or disk exceeds the
// VM's, it returns more vCPUs instead.
func (c *class) atLeast(t, next InstanceType, vm *fleet.Spec) InstanceType {
	b, _ := c.fields.Flexible()
	vcpus := max(t.VCPUs, roundUp(next.VCPUs, b.StepVCPUs))
	memory, disk := t.MemoryMiB, t.DiskGiB
	if vcpus == next.VCPUs && memory < next.MemoryMiB {
		memory = roundUp(next.MemoryMiB, b.StepMemoryMiB)
	}
	if vcpus == next.VCPUs && memory == next.MemoryMiB && c.disk(&t) < c.disk(&next) {
		disk = next.DiskGiB
	}
	if memory > vm.MemoryMiB || disk > vm.DiskGiB {
		vcpus += b.StepVCPUs
		memory, disk = t.MemoryMiB, t.DiskGiB
	}
	return flexibleType(vcpus, memory, disk).forClass(c.fields)
}

func roundUp[T int | int64](n, step T) T { return (n + step - 1) / step * step }
