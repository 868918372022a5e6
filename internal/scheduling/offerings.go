package scheduling

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// OfferingSelector selects offerings: an instance type of a NodePool on a host. An empty
// field matches anything: OfferingSelector{Host: h} is every offering on that host. A
// Flexible node's type matches all sizes of Flexible nodes, because the next VM may have
// another size.
type OfferingSelector struct {
	NodePool     string
	InstanceType string
	Host         topology.HostID
}

// unavailableOfferings are the offerings that are unavailable to a decision.
type unavailableOfferings struct {
	// requested are the request's unavailable offerings.
	requested []OfferingSelector
	// refuted are the offerings about which the planner and the scheduler turned out to
	// disagree.
	refuted map[offering]bool
}

func newUnavailableOfferings(requested []OfferingSelector) *unavailableOfferings {
	return &unavailableOfferings{requested: requested, refuted: map[offering]bool{}}
}

func (c *unavailableOfferings) has(o offering) bool { return c.refuted[o] || c.byRequest(o) }

func (c *unavailableOfferings) byRequest(o offering) bool {
	return slices.ContainsFunc(c.requested, func(selector OfferingSelector) bool {
		return (selector.NodePool == "" || selector.NodePool == o.pool) &&
			(selector.InstanceType == "" || selector.InstanceType == o.instanceType || isFlexible(selector.InstanceType) && isFlexible(o.instanceType)) &&
			(selector.Host == topology.HostID{} || selector.Host == o.host)
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
	for _, vm := range request.Existing {
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
		used, err := c.inUse(ctx, request.Snapshot)
		if err != nil {
			return nil, fmt.Errorf("finding instance types of NodePool %q: %w", nodePool.Name, err)
		}
		fits = newSite(request.Snapshot, request.Existing, used, p).Fits
	}
	// Pods of nodes with larger disks need such disks on other nodes.
	largest := int64(0)
	for i := range live {
		if isFlexible(live[i].InstanceType) {
			largest = max(largest, live[i].DiskGiB)
		}
	}
	p.addDisks(largest)
	offerings := makeOfferings(p, fits, newUnavailableOfferings(request.Unavailable), slices.Compact(known))
	seen := map[liveOffering]bool{}
	for i := range live {
		if of := liveOfferingOf(&live[i]); !seen[of] {
			seen[of] = true
			offerings.addLive(p, &live[i], typesOrDefault(request.Types), request.Snapshot)
		}
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
// planner can still place it, unless that offering is unavailable. Pods may also spread
// over the hosts in known, such as the hosts of VMs that are joining.
func makeOfferings(p *pool, fits func(fleet.Spec, topology.HostID) bool, closed *unavailableOfferings, known []topology.HostID) offerings {
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

// liveOffering identifies the offering of a live VM: its place and its size.
type liveOffering struct {
	instanceType, capacityType string
	host                       topology.HostID
	vcpus                      int
	memoryMiB, diskGiB         int64
}

func liveOfferingOf(vm *fleet.VM) liveOffering {
	return liveOffering{vm.InstanceType, vm.CapacityType, vm.Host, vm.VCPUs, vm.MemoryMiB, vm.DiskGiB}
}

// addLive adds a live VM's type and offering, if they are missing.
func (o *offerings) addLive(p *pool, vm *fleet.VM, types []InstanceType, snapshot *topology.Snapshot) {
	size := typeOf(vm, types).forClass(p.class.fields)
	size.Price = p.class.price(&size)
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
	// Karpenter checks a limit of nodes only before a round. As a part of the capacity,
	// nodes also count within a round.
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

// nodeOverlay is a parsed NodeOverlay, which changes the nodes that meet its requirements.
type nodeOverlay struct {
	requirements scheduling.Requirements
	// price is a new price or an adjustment of the price; empty means neither.
	price    string
	capacity corev1.ResourceList
}

// overlays are the valid NodeOverlays in order of precedence. Karpenter caches the result
// for the types and offerings that it has seen; here hosts fill up, and Flexible sizes
// depend on the pods, so the overlays are applied to the types of each decision.
type overlays []nodeOverlay

// readOverlays returns the valid NodeOverlays, or none if NodeOverlays are not enabled.
func readOverlays(ctx context.Context, c client.Client, enabled bool) (overlays, error) {
	if !enabled {
		return nil, nil
	}
	var list karpv1alpha1.NodeOverlayList
	if err := c.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing nodeoverlays: %w", err)
	}
	list.OrderByWeight()
	var all overlays
	for i := range list.Items {
		o := &list.Items[i]
		// Karpenter's controller may have found it to be invalid, or in conflict with
		// another one.
		ready := readyCondition(o.Status.Conditions)
		refused := ready != nil && ready.IsFalse()
		if !o.DeletionTimestamp.IsZero() || refused || validateOverlay(ctx, o) != nil {
			continue
		}
		overlay := nodeOverlay{requirements: scheduling.NewRequirements(), capacity: o.Spec.Capacity}
		for _, r := range o.Spec.Requirements {
			overlay.requirements.Add(scheduling.NewNodeSelectorRequirements(r.AsNodeSelectorRequirement()).Values()...)
		}
		for _, price := range []*string{o.Spec.PriceAdjustment, o.Spec.Price} {
			if price != nil {
				overlay.price = *price
			}
		}
		all = append(all, overlay)
	}
	return all, nil
}

// validateOverlay returns an error if a NodeOverlay is invalid. A price that is not a
// number would make Karpenter panic.
func validateOverlay(ctx context.Context, o *karpv1alpha1.NodeOverlay) error {
	if err := o.RuntimeValidate(ctx); err != nil {
		return err
	}
	for i := range o.Spec.Requirements {
		if meant := meantLabel(o.Spec.Requirements[i].Key); meant != "" {
			return fmt.Errorf("spec.requirements contains the label %s, which numaform does not set: %s", o.Spec.Requirements[i].Key, meant)
		}
	}
	return errors.Join(validatePrice("price", "0.2", o.Spec.Price), validatePrice("priceAdjustment", "+0.1 or -15%", o.Spec.PriceAdjustment))
}

// validatePrice returns an error with examples of valid values if a price is not a number.
func validatePrice(field, examples string, price *string) error {
	if price == nil {
		return nil
	}
	if _, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimLeft(*price, "+-"), "%"), 64); err != nil {
		return fmt.Errorf("spec.%s %q is not a number: write one such as %s", field, *price, examples)
	}
	return nil
}

// overlay applies the NodeOverlays to a type of the pool. As in Karpenter, the first one
// with a price determines the price, and the first one with a resource determines the
// resource. Unlike in Karpenter, a resource that only some hosts have is offered only on
// these hosts.
func (p *pool) overlay(it *cloudprovider.InstanceType) *cloudprovider.InstanceType {
	if len(p.overlays) == 0 {
		return it
	}
	matching := p.matching(it)
	extra := make([]corev1.ResourceList, len(it.Offerings))
	same := true
	for i, offering := range it.Offerings {
		extra[i] = matching.apply(offering)
		same = same && equality.Semantic.DeepEqual(extra[i], extra[0])
	}
	switch {
	case len(extra) == 0:
	case !same:
		for i, offering := range it.Offerings {
			offering.CapacityOverride = extra[i]
		}
	case len(extra[0]) > 0:
		it.ApplyCapacityOverlay(extra[0])
	}
	return it
}

// matching returns the NodeOverlays that match some offering of a type.
func (p *pool) matching(it *cloudprovider.InstanceType) overlays {
	known := scheduling.NewRequirements(scheduling.NewRequirement(karpv1.NodePoolLabelKey, corev1.NodeSelectorOpIn, p.Name))
	known.Add(scheduling.NewLabelRequirements(p.Spec.Template.Labels).Values()...)
	known.Add(it.Requirements.Values()...)
	return slices.DeleteFunc(slices.Clone(p.overlays), func(o nodeOverlay) bool { return !known.IsCompatible(o.requirements) })
}

// apply sets an offering's price, and returns the resources that the overlays add to its
// nodes.
func (all overlays) apply(offering *cloudprovider.Offering) corev1.ResourceList {
	var extra corev1.ResourceList
	for _, o := range all {
		if !o.requirements.IsCompatible(offering.Requirements, scheduling.AllowUndefinedWellKnownLabels) {
			continue
		}
		if o.price != "" && !offering.IsPriceOverlaid() {
			offering.ApplyPriceOverlay(o.price)
		}
		extra = o.addTo(extra)
	}
	return extra
}

// extra returns the resources that NodeOverlays add to a node with those labels.
func (all overlays) extra(labels map[string]string) corev1.ResourceList {
	if len(all) == 0 {
		return nil
	}
	var extra corev1.ResourceList
	node := scheduling.NewLabelRequirements(labels)
	for _, o := range all {
		if node.IsCompatible(o.requirements) {
			extra = o.addTo(extra)
		}
	}
	return extra
}

// addTo adds the resources that the list does not contain yet.
func (o *nodeOverlay) addTo(list corev1.ResourceList) corev1.ResourceList {
	for name, amount := range o.capacity {
		if _, have := list[name]; have {
			continue
		}
		if list == nil {
			list = corev1.ResourceList{}
		}
		list[name] = amount.DeepCopy()
	}
	return list
}

// resources returns the names of all resources that NodeOverlays add.
func (all overlays) resources() map[corev1.ResourceName]bool {
	names := map[corev1.ResourceName]bool{}
	for _, o := range all {
		for name := range o.capacity {
			names[name] = true
		}
	}
	return names
}

// Extra returns the resources that NodeOverlays add to a node of a pool with the given
// labels. It also considers the labels that the pool gives all of its nodes.
func (c *Cluster) Extra(ctx context.Context, poolName string, labels map[string]string) (corev1.ResourceList, error) {
	all, err := readOverlays(ctx, c.client, true)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	nodePool := &karpv1.NodePool{}
	if err := c.client.Get(ctx, client.ObjectKey{Name: poolName}, nodePool); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading nodepool %s: %w", poolName, err)
	}
	return all.extra(poolLabels(nodePool, labels)), nil
}

// suiting returns the offerings of a type that meet the requirements, and whose nodes
// have the requested resources.
func suiting(it *cloudprovider.InstanceType, required scheduling.Requirements, requests corev1.ResourceList) cloudprovider.Offerings {
	var suits cloudprovider.Offerings
	for _, group := range it.AllocatableOfferingsList() {
		if resources.Fits(requests, group.Allocatable) {
			suits = append(suits, group.Offerings.Compatible(required)...)
		}
	}
	return suits
}

// byPrice groups offerings by price, the cheapest first.
func byPrice(offerings cloudprovider.Offerings) []cloudprovider.Offerings {
	prices := map[float64]cloudprovider.Offerings{}
	for _, o := range offerings {
		prices[o.Price] = append(prices[o.Price], o)
	}
	var split []cloudprovider.Offerings
	for _, price := range slices.Sorted(maps.Keys(prices)) {
		split = append(split, prices[price])
	}
	return split
}
