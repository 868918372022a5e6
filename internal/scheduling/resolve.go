package scheduling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// ClassNotReadyError reports that a NodePool's ProxmoxNodeClass creates no nodes.
type ClassNotReadyError struct{ NodePool, Reason string }

func (e *ClassNotReadyError) Error() string {
	return fmt.Sprintf("NodePool %q: %s", e.NodePool, e.Reason)
}

// NoRoomError reports why no VM can be created for a NodeClaim now.
type NoRoomError struct{ NodeClaim, Reason string }

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("NodeClaim %q: %s", e.NodeClaim, e.Reason)
}

// Resolve returns the VMs that satisfy a NodeClaim created by Karpenter, such as a node's
// replacement, the cheapest first. Each has the hosts with room for it now; the caller
// places the first one possible. It returns a *NoRoomError if there is none, and a
// *ClassNotReadyError if that is because of the class. Unlike in a decision, a pool of a
// fixed size is allowed.
func (c *Cluster) Resolve(ctx context.Context, request Request, claim *karpv1.NodeClaim) ([]fleet.Spec, error) {
	name := claim.Labels[karpv1.NodePoolLabelKey]
	p, err := c.findPool(ctx, request, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("resolving nodeclaim %s: %w", claim.Name, err)
	case p == nil:
		return nil, &NoRoomError{NodeClaim: claim.Name, Reason: fmt.Sprintf("it is of NodePool %q, which does not exist or has no ProxmoxNodeClass: "+
			"VMs are made for NodePools only", name)}
	case p.class == nil:
		return nil, &ClassNotReadyError{NodePool: p.Name, Reason: p.problem}
	case p.class.problem != "":
		return nil, &ClassNotReadyError{NodePool: p.Name, Reason: p.class.problem}
	case !p.DeletionTimestamp.IsZero():
		return nil, &NoRoomError{NodeClaim: claim.Name, Reason: fmt.Sprintf("its NodePool %q is being deleted", p.Name)}
	case len(p.class.hosts) == 0:
		return nil, &NoRoomError{NodeClaim: claim.Name, Reason: "no host can take its node: " + describeHosts(p.class.excluded)}
	}
	required := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	candidates := p.candidates(claim, required)
	if len(candidates) == 0 {
		requests := claim.Spec.Resources.Requests
		return nil, &NoRoomError{NodeClaim: claim.Name, Reason: fmt.Sprintf("no instance type on any host of NodePool %q is large enough for %s and meets %s",
			p.Name, describe(requests, requests), required)}
	}

	site := newSite(request.Snapshot, request.Kept, p)
	closed := newClosedOfferings(request.Closed)
	var specs []fleet.Spec
	reason := ""
	for _, c := range candidates {
		spec := p.specOf(c, claim, required)
		spec.Hosts = slices.DeleteFunc(slices.Clone(c.hosts), func(host topology.HostID) bool {
			return closed.has(offering{p.Name, c.size.Name, host})
		})
		if _, unplaced := site.Clone().Place([]fleet.Spec{spec}); len(unplaced) > 0 {
			reason = cmp.Or(reason, c.size.Name+": "+unplaced[0].Reason)
			continue
		}
		spec.Hosts = slices.DeleteFunc(spec.Hosts, func(host topology.HostID) bool { return !site.Fits(spec, host) })
		specs = append(specs, p.class.split(spec)...)
	}
	if len(specs) == 0 {
		return nil, &NoRoomError{NodeClaim: claim.Name, Reason: "no host has room: " + reason}
	}
	return specs, nil
}

// findPool returns our NodePool with that name, or nil.
func (c *Cluster) findPool(ctx context.Context, request Request, name string) (*pool, error) {
	if request.Snapshot == nil {
		return nil, errors.New("the request has no topology snapshot")
	}
	pools, err := readPools(ctx, c.client, &request, typesOrDefault(request.Types))
	return pools.find(name), err
}

// candidate is a type that satisfies a claim on some hosts, at the same price, whether or
// not they have room.
type candidate struct {
	size  *InstanceType
	hosts []topology.HostID
}

// candidates returns the types that satisfy the claim's requirements on some host and are
// large enough, the cheapest first. A Flexible pool has only the one size that the claim
// needs, which is not larger than the sizes that Karpenter lists; the requirement on the
// type is removed. Karpenter lists a single size only if it must be that one.
func (p *pool) candidates(claim *karpv1.NodeClaim, required scheduling.Requirements) []candidate {
	requests := claim.Spec.Resources.Requests
	types := p.types
	t, ok := p.class.smallestSize(requests)
	if ok && p.allows(t.Name) && required.Get(corev1.LabelInstanceTypeStable).Len() != 1 {
		delete(required, corev1.LabelInstanceTypeStable)
		types = []InstanceType{t}
	}

	var found []candidate
	for i := range types {
		it := p.overlay(karpenterType(p.class, &types[i], p.class.hosts, nil))
		if it.Requirements.Intersects(required) != nil {
			continue
		}
		for _, offerings := range byPrice(suiting(it, required, requests)) {
			found = append(found, newCandidate(&types[i], offerings))
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return compareTypes(a.size, b.size) })
	return found
}

// newCandidate returns the type on the hosts of offerings with the same price.
func newCandidate(t *InstanceType, offerings cloudprovider.Offerings) candidate {
	size := *t
	size.Price = offerings[0].Price
	c := candidate{size: &size}
	for _, o := range offerings {
		c.hosts = append(c.hosts, topology.HostID{
			Region: topology.RegionName(o.Requirements.Get(corev1.LabelTopologyRegion).Any()),
			Host:   topology.HostName(o.Requirements.Get(corev1.LabelTopologyZone).Any()),
		})
	}
	slices.SortFunc(c.hosts, topology.HostID.Compare)
	return c
}

// specOf returns the Spec of a candidate for a claim.
func (p *pool) specOf(c candidate, claim *karpv1.NodeClaim, required scheduling.Requirements) fleet.Spec {
	spec := p.class.spec(p.Name, c.size, c.hosts)
	spec.Labels = chosenLabels(p, required)
	for key := range spec.Labels {
		// Karpenter has already chosen, and its choice is on the claim.
		spec.Labels[key] = cmp.Or(claim.Labels[key], spec.Labels[key])
	}
	requests := claim.Spec.Resources.Requests
	pods := requests[corev1.ResourcePods]
	spec.Demand = fleet.Demand{
		Pods:      int(pods.Value()),
		CPUMilli:  requests.Cpu().MilliValue(),
		MemoryMiB: requests.Memory().Value() / mebibyte,
	}
	return spec
}
