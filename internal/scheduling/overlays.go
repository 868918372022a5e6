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
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// nodeOverlay is a NodeOverlay: changes to the nodes that meet its requirements.
type nodeOverlay struct {
	requirements scheduling.Requirements
	// price is the new price, or an adjustment of it, and may be empty.
	price    string
	capacity corev1.ResourceList
}

// overlays are the valid NodeOverlays in order of precedence. Karpenter caches the result
// for the types and offerings that it has seen; here hosts fill up, and Flexible sizes
// are made for pods, so the overlays are applied to the types of each decision.
type overlays []nodeOverlay

// readOverlays returns the valid NodeOverlays.
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
	return errors.Join(validatePrice("price", o.Spec.Price), validatePrice("priceAdjustment", o.Spec.PriceAdjustment))
}

func validatePrice(field string, price *string) error {
	if price == nil {
		return nil
	}
	if _, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimLeft(*price, "+-"), "%"), 64); err != nil {
		return fmt.Errorf("spec.%s %q is no number: write one such as 0.2, +0.1 or -15%%", field, *price)
	}
	return nil
}

// overlay applies the NodeOverlays to a type of the pool. As in Karpenter, the first one
// with a price determines the price, and the first one with a resource determines the
// resource. Unlike in Karpenter, a resource that only some hosts have is offered only on
// these.
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

// Extra returns the resources that NodeOverlays add to the node of a pool's VM, which
// they match by the node's labels.
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
