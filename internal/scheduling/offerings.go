package scheduling

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Offer is an offering: an instance type of a NodePool on a host. An empty field matches
// anything: Offer{Host: h} is every offering on that host. A Flexible node's type matches
// all sizes of Flexible nodes, because the next one may have another size.
type Offer struct {
	NodePool     string
	InstanceType string
	Host         topology.HostID
}

// closedOfferings are the offerings that are unavailable to a decision.
type closedOfferings struct {
	// requested are the request's unavailable offerings.
	requested []Offer
	// refuted are the offerings on which the planner and the scheduler turned out to
	// disagree.
	refuted map[offering]bool
}

func newClosedOfferings(requested []Offer) *closedOfferings {
	return &closedOfferings{requested: requested, refuted: map[offering]bool{}}
}

func (c *closedOfferings) has(o offering) bool { return c.refuted[o] || c.byRequest(o) }

func (c *closedOfferings) byRequest(o offering) bool {
	return slices.ContainsFunc(c.requested, func(closed Offer) bool {
		return (closed.NodePool == "" || closed.NodePool == o.pool) &&
			(closed.InstanceType == "" || closed.InstanceType == o.instanceType || isFlexible(closed.InstanceType) && isFlexible(o.instanceType)) &&
			(closed.Host == topology.HostID{} || closed.Host == o.host)
	})
}

// offering is a type of a pool on a host.
type offering struct {
	pool, instanceType string
	host               topology.HostID
}

// InstanceTypes returns the types of a NodePool in Karpenter's form, with an offering
// where a VM of that size has room now. It always includes the type of a live VM of the
// pool, with an offering on the VM's host that is unavailable if nothing more fits:
// without it, Karpenter replaces the node as drifted, or does not know its price. The
// price of a live Flexible type is reduced there, so that the node is not replaced for a
// small saving. It returns a *ClassNotReadyError if the class is missing or invalid.
func (c *Cluster) InstanceTypes(ctx context.Context, request Request, nodePool *karpv1.NodePool) ([]*cloudprovider.InstanceType, error) {
	p, err := c.findPool(ctx, request, nodePool.Name)
	if err != nil {
		return nil, fmt.Errorf("finding instance types of NodePool %q: %w", nodePool.Name, err)
	}
	if p == nil {
		return nil, fmt.Errorf("finding instance types: NodePool %q does not exist or has no ProxmoxNodeClass", nodePool.Name)
	}
	if p.class == nil || p.class.invalid() {
		return nil, &ClassNotReadyError{NodePool: p.Name, Reason: p.problem}
	}

	// Pods may spread over the hosts of running VMs even if these are full.
	locator := newLocator(request.Snapshot)
	var live []fleet.VM
	var known []topology.HostID
	for _, vm := range request.Kept {
		if vm.Pool != p.Name {
			continue
		}
		live = append(live, vm)
		if locator.usable[vm.Host] {
			known = append(known, vm.Host)
		}
	}
	slices.SortFunc(known, topology.HostID.Compare)
	fits := func(fleet.Spec, topology.HostID) bool { return true }
	if !request.Everywhere {
		fits = newSite(request.Snapshot, request.Kept, p).Fits
	}
	offerings := makeOfferings(p, fits, newClosedOfferings(request.Closed), slices.Compact(known))
	for i := range live {
		offerings.addLive(p, &live[i], typesOrDefault(request.Types), request.Snapshot)
	}
	return offerings.types, nil
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
func makeOfferings(p *pool, fits func(fleet.Spec, topology.HostID) bool, closed *closedOfferings, known []topology.HostID) offerings {
	made := offerings{room: map[topology.HostID]int{}}
	for i := range p.types {
		t := &p.types[i]
		spec := p.class.spec(p.Name, t, nil)
		var open []topology.HostID
		for _, host := range p.class.hosts {
			spec.Hosts = []topology.HostID{host}
			if !closed.has(offering{p.Name, t.Name, host}) && fits(spec, host) {
				open = append(open, host)
				made.room[host] += t.VCPUs
			}
		}
		made.types = append(made.types, p.overlay(karpenterType(p.class, t, open, known)))
	}
	return made
}

// addLive adds a live VM's type and offering, if they are missing.
func (o *offerings) addLive(p *pool, vm *fleet.VM, types []InstanceType, snapshot *topology.Snapshot) {
	size := typeOf(vm, types).forClass(p.class.fields)
	i := slices.IndexFunc(o.types, func(it *cloudprovider.InstanceType) bool { return it.Name == vm.InstanceType })
	if i < 0 {
		i = len(o.types)
		o.types = append(o.types, karpenterType(p.class, &size, nil, []topology.HostID{vm.Host}))
	}
	labels := vmLabels(vm)
	labels[corev1.LabelArchStable] = Arch(snapshot, vm.Host)
	own := scheduling.NewRequirements()
	for _, key := range []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, corev1.LabelArchStable, karpv1.CapacityTypeLabelKey} {
		own.Add(scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, labels[key]))
	}
	offering := &cloudprovider.Offering{Requirements: own, Price: size.Price}
	p.matching(o.types[i]).apply(offering)
	switch of := o.types[i]; {
	case isFlexible(vm.InstanceType):
		// Karpenter uses the first matching offering as the node's price.
		offering.Price *= liveFlexibleFactor
		of.Offerings = slices.Insert(of.Offerings, 0, offering)
	case !of.Offerings.HasCompatible(own):
		of.Offerings = append(of.Offerings, offering)
	}
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

// Arch returns Kubernetes' name of a host's architecture.
func Arch(snapshot *topology.Snapshot, host topology.HostID) string {
	if h := snapshot.Host(host); h != nil && h.Arch != "" {
		return h.Arch
	}
	return karpv1.ArchitectureAmd64
}
