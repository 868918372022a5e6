package scheduling

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// placer is the part of a planner that a decision uses.
type placer interface {
	Place(specs []fleet.Spec) (placed []planner.Placed, unplaced []planner.Unplaced)
	Fits(spec fleet.Spec, host topology.HostID) bool
}

// offer is a type of a pool on a host.
type offer struct {
	pool, instanceType string
	host               topology.HostID
}

// offerings are the instance types of one pool in Karpenter's form.
type offerings struct {
	types []*cloudprovider.InstanceType
	// room measures how much is free on each host with room: the sum of the vCPUs of the
	// types that fit.
	room map[topology.HostID]int
}

// makeOfferings returns an offering for every type on every host of the pool where the
// planner can still place it and that is not unavailable. The zones of VMs that are
// joining are known zones, over which pods may spread.
func makeOfferings(p *pool, plan placer, closed *closedOffers, known []topology.HostID) offerings {
	made := offerings{room: map[topology.HostID]int{}}
	for i := range p.sizes {
		t := &p.sizes[i]
		spec := p.class.spec(p.Name, t, nil)
		var open []topology.HostID
		for _, host := range p.class.hosts {
			spec.Hosts = []topology.HostID{host}
			if !closed.has(offer{p.Name, t.Name, host}) && plan.Fits(spec, host) {
				open = append(open, host)
				made.room[host] += t.VCPUs
			}
		}
		made.types = append(made.types, p.lay(karpenterType(p.class, t, open, known)))
	}
	return made
}

func karpenterType(c *class, t *InstanceType, open, known []topology.HostID) *cloudprovider.InstanceType {
	in := func(key string, values ...string) *scheduling.Requirement {
		return scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, values...)
	}
	var regions, zones, archs []string
	for _, host := range slices.Concat(open, known) {
		regions, zones = append(regions, string(host.Region)), append(zones, string(host.Host))
	}
	it := &cloudprovider.InstanceType{
		Name:     t.Name,
		Capacity: t.capacity(c.disk(t)),
		Overhead: t.overhead(c.disk(t)),
	}
	// Karpenter checks a limit of nodes only before a round; as part of the capacity it
	// is also checked within one.
	it.Capacity[resources.Node] = *resource.NewQuantity(1, resource.DecimalSI)
	for _, host := range open {
		archs = append(archs, c.arch[host])
		it.Offerings = append(it.Offerings, &cloudprovider.Offering{
			Available: true,
			Price:     t.Price,
			Requirements: scheduling.NewRequirements(
				in(corev1.LabelTopologyRegion, string(host.Region)),
				in(corev1.LabelTopologyZone, string(host.Host)),
				in(corev1.LabelArchStable, c.arch[host]),
				in(karpv1.CapacityTypeLabelKey, t.CapacityType),
			),
		})
	}
	it.Requirements = scheduling.NewRequirements(
		in(corev1.LabelInstanceTypeStable, t.Name),
		in(corev1.LabelOSStable, string(corev1.Linux)),
		in(corev1.LabelArchStable, archs...),
		in(corev1.LabelTopologyRegion, regions...),
		in(corev1.LabelTopologyZone, zones...),
		in(karpv1.CapacityTypeLabelKey, t.CapacityType),
		in(v1alpha1.LabelInstanceFamily, t.Family()),
		in(v1alpha1.LabelPlacement, string(c.base.Policy)),
		in(v1alpha1.LabelNodeClass, c.name),
		scheduling.NewRequirement(corev1.LabelWindowsBuild, corev1.NodeSelectorOpDoesNotExist),
	)
	if value := labelValue(c.base.CPUType); value != "" {
		it.Requirements.Add(in(v1alpha1.LabelCPUType, value))
	}
	return it
}

// overhead returns what pods cannot use. By default, kubelet evicts pods when a tenth of
// the disk is left, so pods cannot use that tenth.
func (t *InstanceType) overhead(diskGiB int64) *cloudprovider.InstanceTypeOverhead {
	eviction := t.Overhead.EvictionThreshold.DeepCopy()
	if eviction == nil {
		eviction = corev1.ResourceList{}
	}
	capacity := t.capacity(diskGiB)
	for name, part := range t.Overhead.EvictionPercent {
		whole := capacity[name]
		eviction[name] = quantity(int64(part / 100 * float64(whole.Value())))
	}
	if _, ok := eviction[corev1.ResourceEphemeralStorage]; !ok {
		eviction[corev1.ResourceEphemeralStorage] = quantity(guestDiskMiB(diskGiB) * mebibyte * nodefsPercent / 100)
	}
	return &cloudprovider.InstanceTypeOverhead{
		KubeReserved:      t.Overhead.KubeReserved.DeepCopy(),
		SystemReserved:    t.Overhead.SystemReserved.DeepCopy(),
		EvictionThreshold: eviction,
	}
}
