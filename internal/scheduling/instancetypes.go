package scheduling

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// InstanceTypes returns the types of a NodePool as Karpenter reads them: offered
// where a VM of that size finds room now. A type of which a VM of the pool lives is
// among them in any case, with an offering on the VM's host, which is unavailable
// if nothing more fits: without it, Karpenter replaces the node as drifted, or does
// not know its price. A Flexible one has a low price there, so that it is not replaced
// for a little less. It returns a *ClassNotReadyError if the class is missing or wrong.
func (c *Cluster) InstanceTypes(ctx context.Context, request Request, nodePool *karpv1.NodePool) ([]*cloudprovider.InstanceType, error) {
	p, err := c.findPool(ctx, request, nodePool.Name)
	if err != nil {
		return nil, fmt.Errorf("finding instance types of NodePool %q: %w", nodePool.Name, err)
	}
	if p == nil {
		return nil, fmt.Errorf("finding instance types: NodePool %q does not exist or has no ProxmoxNodeClass", nodePool.Name)
	}
	if p.class == nil || p.class.invalid() {
		return nil, &ClassNotReadyError{p.Name, p.problem}
	}
	var live []fleet.VM
	for _, vm := range request.Kept {
		if vm.Pool == p.Name {
			live = append(live, vm)
		}
	}
	sizes, where := sizesOf(request), newLocator(request.Snapshot)
	var plan placer = anywhere{}
	if !request.Everywhere {
		plan = newSite(request.Snapshot, request.Kept, p)
	}
	offers := makeOfferings(p, plan, newClosedOffers(request.Closed), where.running(live))
	for i := range live {
		offers.addLive(p, &live[i], sizes, request.Snapshot)
	}
	return offers.types, nil
}

// anywhere is a placer that has room for everything.
type anywhere struct{ placer }

// Fits is always true.
func (anywhere) Fits(fleet.Spec, topology.HostID) bool { return true }

// running returns the hosts of VMs that run, sorted: pods may be spread over these
// though they are full.
func (l *locator) running(vms []fleet.VM) []topology.HostID {
	var hosts []topology.HostID
	for i := range vms {
		if l.runs[vms[i].Host] {
			hosts = append(hosts, vms[i].Host)
		}
	}
	slices.SortFunc(hosts, topology.HostID.Compare)
	return slices.Compact(hosts)
}

// addLive adds what is missing of a live VM: its type, and its offering.
func (o *offerings) addLive(p *pool, vm *fleet.VM, sizes []InstanceType, snapshot *topology.Snapshot) {
	size := sizeOf(vm, sizes).forClass(p.class.fields)
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
	p.matching(o.types[i]).lay(offering)
	switch of := o.types[i]; {
	case isFlexible(vm.InstanceType):
		// Karpenter takes the first that suits for what the node costs.
		offering.Price *= flexibleKept
		of.Offerings = slices.Insert(of.Offerings, 0, offering)
	case !of.Offerings.HasCompatible(own):
		of.Offerings = append(of.Offerings, offering)
	}
}

// sizeOf returns a VM's type as it is sold now, or one made of the VM's size if that
// type is no more.
func sizeOf(vm *fleet.VM, sizes []InstanceType) InstanceType {
	t := typeOf(vm, sizes)
	if t.Name != vm.InstanceType || t.CapacityType != vm.CapacityType {
		t.Name, t.CapacityType, t.DiskGiB = vm.InstanceType, vm.CapacityType, vm.DiskGiB
		t.Price = price(vm.VCPUs, vm.MemoryMiB, vm.CapacityType)
	}
	return t
}

// Arch returns Kubernetes' name of a host's architecture.
func Arch(snapshot *topology.Snapshot, host topology.HostID) string {
	if h := snapshot.Host(host); h != nil && h.Arch != "" {
		return h.Arch
	}
	return karpv1.ArchitectureAmd64
}
