package scheduling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// WellKnownLabels returns numaform's labels that an instance type determines and that
// pods may select by. Karpenter's own simulations reject such pods unless the labels are
// among its well-known ones: add them before running any part of Karpenter.
func WellKnownLabels() []string {
	return []string{v1alpha1.LabelInstanceFamily, v1alpha1.LabelNodeClass, v1alpha1.LabelPlacement, v1alpha1.LabelCPUType}
}

// NewNodeClaim returns the NodeClaim for a placed VM, as Karpenter would create it for
// the pool, narrowed to the placement and without a status. pods are the pods for that
// node, including DaemonSets' pods. The claim of a VM always has the same name, so that an
// API server accepts only one for each VM; the VM is identified by the annotations together with
// that name, see Owns.
func NewNodeClaim(vm fleet.VM, pool *karpv1.NodePool, pods ...*corev1.Pod) *karpv1.NodeClaim {
	template := karpscheduling.NewNodeClaimTemplate(pool)
	// Karpenter would add instance types and capacity types of its own choice.
	template.IsStaticNodeClaim = true
	template.Labels = maps.Clone(template.Labels)
	labels := vmLabels(&vm)
	for key, requirement := range template.Requirements {
		// Karpenter chooses a label at random if the pool allows several values. If the
		// pool has changed since the VM was created, and now requires a label that the VM
		// lacks, the VM is replaced.
		if _, known := labels[key]; !known && requirement.Len() != 1 && !karpv1.WellKnownLabels.Has(key) {
			delete(template.Requirements, key)
		}
	}
	for key, value := range labels {
		if key != corev1.LabelHostname {
			template.Requirements[key] = scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, value)
		}
	}
	maps.Copy(template.Labels, labels)
	template.Spec.Resources.Requests = resources.RequestsForPods(pods...)
	claim := template.ToNodeClaim()
	slices.SortFunc(claim.Spec.Requirements, func(a, b karpv1.NodeSelectorRequirementWithMinValues) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
	})
	claim.GenerateName, claim.Name = "", ClaimName(&vm)
	claim.Finalizers = []string{karpv1.TerminationFinalizer} // otherwise Karpenter adds it by another request
	claim.Annotations = maps.Clone(claim.Annotations)
	maps.Copy(claim.Annotations, identity(&vm))
	if vm.Adopted() {
		// The Node has joined already, so its registration must not add taints.
		claim.Spec.Taints, claim.Spec.StartupTaints = nil, nil
	}
	return claim
}

// identity returns the annotations that identify a NodeClaim's VM.
func identity(vm *fleet.VM) map[string]string {
	return map[string]string{v1alpha1.AnnotationVM: vm.Name, v1alpha1.AnnotationKey: string(vm.Key)}
}

// Launched returns the properties of a VM's node that are known once the VM is reserved:
// name, labels, provider ID, image, capacity and allocatable resources. The host's
// architecture is not known here.
func Launched(vm fleet.VM, types []InstanceType) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	claim.Name = vm.Name
	claim.Labels = vmLabels(&vm)
	claim.Annotations = identity(&vm)
	claim.Status.ProviderID = providerID(&vm)
	claim.Status.ImageID = ImageID(&vm)
	claim.Status.Capacity, claim.Status.Allocatable = typeOf(&vm, typesOrDefault(types)).resources(&vm)
	return claim
}

// ImageID identifies the template from which a VM is cloned, as region/host/vmid; it is
// empty if the template is unknown.
func ImageID(vm *fleet.VM) string {
	if vm.Source.VMID == 0 {
		return ""
	}
	return fmt.Sprintf("%s/%d", vm.Host, vm.Source.VMID)
}

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
// places the first one that it can. It returns a *NoRoomError if there is none, and a
// *ClassNotReadyError if that is because of the class. Unlike in a decision, a pool of a
// fixed size is allowed.
func (c *Cluster) Resolve(ctx context.Context, request Request, claim *karpv1.NodeClaim) ([]fleet.Spec, error) {
	name := claim.Labels[karpv1.NodePoolLabelKey]
	p, err := c.findPool(ctx, request, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("resolving nodeclaim %s: %w", claim.Name, err)
	case p == nil:
		return nil, &NoRoomError{NodeClaim: claim.Name, Reason: fmt.Sprintf("its NodePool %q does not exist or has no ProxmoxNodeClass: "+
			"create it, or set its spec.template.spec.nodeClassRef to a %s", name, v1alpha1.KindProxmoxNodeClass)}
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
	requests := claim.Spec.Resources.Requests
	if len(candidates) == 0 {
		return nil, &NoRoomError{NodeClaim: claim.Name, Reason: fmt.Sprintf("no instance type on any host of NodePool %q is large enough for %s and meets %s",
			p.Name, describe(requests, requests), required)}
	}

	demand := fleet.Demand{
		Pods:      int(requests.Pods().Value()),
		CPUMilli:  requests.Cpu().MilliValue(),
		MemoryMiB: requests.Memory().Value() / mebibyte,
	}
	used, err := c.inUse(ctx, request.Snapshot)
	if err != nil {
		return nil, fmt.Errorf("resolving nodeclaim %s: %w", claim.Name, err)
	}
	site := newSite(request.Snapshot, request.Existing, used, p)
	closed := newUnavailableOfferings(request.Unavailable)
	var specs []fleet.Spec
	reason := ""
	for _, c := range candidates {
		spec := p.class.spec(p.Name, c.size, c.hosts)
		spec.Demand = demand
		spec.Labels = chosenLabels(p, required)
		for key := range spec.Labels {
			// Karpenter has already chosen, and its choice is on the claim.
			spec.Labels[key] = cmp.Or(claim.Labels[key], spec.Labels[key])
		}
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
// type is removed. If Karpenter lists a single size, exactly that size is required.
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
