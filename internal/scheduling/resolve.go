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
// *ClassNotReadyError if that is because of the class.
func (c *Cluster) Resolve(ctx context.Context, request Request, claim *karpv1.NodeClaim) ([]fleet.Spec, error) {
	name := claim.Labels[karpv1.NodePoolLabelKey]
	p, err := c.findPool(ctx, request, name)
	if err != nil {
		return nil, fmt.Errorf("resolving nodeclaim %s: %w", claim.Name, err)
	}
	if p == nil {
		return nil, &NoRoomError{claim.Name, fmt.Sprintf("it is of NodePool %q, which does not exist or has no ProxmoxNodeClass: "+
			"VMs are made for NodePools only", name)}
	}
	if err := p.mayMake(claim.Name); err != nil {
		return nil, err
	}
	return newResolver(p, claim).specs(request)
}

// mayMake returns why the pool cannot create a node for a NodeClaim. Unlike in a
// decision, a pool of a fixed size is allowed.
func (p *pool) mayMake(claim string) error {
	switch {
	case p.class == nil:
		return &ClassNotReadyError{p.Name, p.problem}
	case p.class.problem != "":
		return &ClassNotReadyError{p.Name, p.class.problem}
	case !p.DeletionTimestamp.IsZero():
		return &NoRoomError{claim, fmt.Sprintf("its NodePool %q is being deleted", p.Name)}
	}
	return nil
}

// findPool returns our NodePool with that name, or nil.
func (c *Cluster) findPool(ctx context.Context, request Request, name string) (*pool, error) {
	if request.Snapshot == nil {
		return nil, errors.New("the request has no topology snapshot")
	}
	pools, err := readPools(ctx, c.client, &request, sizesOf(request))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pools, func(p *pool) bool { return p.Name == name })
	if i < 0 {
		return nil, nil
	}
	return pools[i], nil
}

// resolver finds VMs for one NodeClaim.
type resolver struct {
	pool  *pool
	claim *karpv1.NodeClaim
	wants scheduling.Requirements
	// sizes are the candidate sizes.
	sizes []InstanceType
}

// newResolver restricts a Flexible pool to the one size that the claim needs, which is
// not larger than the sizes that Karpenter lists. Karpenter lists a single size only if
// it must be that one.
func newResolver(p *pool, claim *karpv1.NodeClaim) *resolver {
	r := &resolver{
		pool: p, claim: claim, sizes: p.sizes,
		wants: scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...),
	}
	t, ok := p.class.shape(claim.Spec.Resources.Requests)
	if named := r.wants.Get(corev1.LabelInstanceTypeStable); ok && p.allows(t.Name) && named.Len() != 1 {
		delete(r.wants, corev1.LabelInstanceTypeStable)
		r.sizes = []InstanceType{t}
	}
	return r
}

// candidate is a type that satisfies the claim on some hosts, at the same price, whether
// or not they have room.
type candidate struct {
	size  *InstanceType
	hosts []topology.HostID
}

func (r *resolver) specs(request Request) ([]fleet.Spec, error) {
	candidates := r.candidates()
	if class := r.pool.class; len(class.hosts) == 0 {
		return nil, &NoRoomError{r.claim.Name, "no host can take its node: " + describeHosts(class.excluded)}
	}
	if len(candidates) == 0 {
		return nil, &NoRoomError{r.claim.Name, fmt.Sprintf("no instance type on any host of NodePool %q is large enough for %s and meets %s",
			r.pool.Name, describe(r.claim.Spec.Resources.Requests, r.claim.Spec.Resources.Requests), r.wants)}
	}
	plan := newSite(request.Snapshot, request.Kept, r.pool)
	closed := newClosedOffers(request.Closed)
	var specs []fleet.Spec
	reason := ""
	for _, c := range candidates {
		spec := r.spec(c)
		spec.Hosts = slices.DeleteFunc(slices.Clone(c.hosts), func(host topology.HostID) bool {
			return closed.has(offer{r.pool.Name, c.size.Name, host})
		})
		if _, unplaced := plan.Clone().Place([]fleet.Spec{spec}); len(unplaced) > 0 {
			reason = cmp.Or(reason, c.size.Name+": "+unplaced[0].Reason)
			continue
		}
		spec.Hosts = slices.DeleteFunc(spec.Hosts, func(host topology.HostID) bool { return !plan.Fits(spec, host) })
		specs = append(specs, r.pool.class.split(spec)...)
	}
	if len(specs) == 0 {
		return nil, &NoRoomError{r.claim.Name, "no host has room: " + reason}
	}
	return specs, nil
}

// candidates returns the types that satisfy the claim's requirements on some host and are
// large enough, the cheapest first.
func (r *resolver) candidates() []candidate {
	sizes := r.sizes
	var found []candidate
	for i := range sizes {
		it := r.pool.lay(karpenterType(r.pool.class, &sizes[i], r.pool.class.hosts, nil))
		if it.Requirements.Intersects(r.wants) != nil {
			continue
		}
		for _, alike := range byPrice(suiting(it, r.wants, r.claim.Spec.Resources.Requests)) {
			found = append(found, newCandidate(&sizes[i], alike))
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return compareSizes(a.size, b.size) })
	return found
}

// newCandidate returns the type on the hosts of offerings with the same price.
func newCandidate(t *InstanceType, alike cloudprovider.Offerings) candidate {
	size := *t
	size.Price = alike[0].Price
	c := candidate{size: &size}
	for _, o := range alike {
		c.hosts = append(c.hosts, hostOf(o.Requirements))
	}
	slices.SortFunc(c.hosts, topology.HostID.Compare)
	return c
}

func (r *resolver) spec(c candidate) fleet.Spec {
	spec := r.pool.class.spec(r.pool.Name, c.size, c.hosts)
	spec.Labels = chosenLabels(r.pool, r.wants)
	for key := range spec.Labels {
		// Karpenter has already chosen, and its choice is on the claim.
		spec.Labels[key] = cmp.Or(r.claim.Labels[key], spec.Labels[key])
	}
	requests := r.claim.Spec.Resources.Requests
	pods := requests[corev1.ResourcePods]
	spec.Demand = fleet.Demand{
		Pods: int(pods.Value()), CPUMilli: requests.Cpu().MilliValue(), MemoryMiB: requests.Memory().Value() / mebibyte,
	}
	return spec
}

func sizesOf(request Request) []InstanceType {
	if request.Types == nil {
		return DefaultInstanceTypes()
	}
	return request.Types
}

func compareRequirements(a, b karpv1.NodeSelectorRequirementWithMinValues) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
}

// classHash returns the hash of a pool's class.
func (s *session) classHash(name string) string {
	for _, p := range s.pools {
		if p.Name == name && p.class != nil {
			return p.class.hash
		}
	}
	return ""
}
