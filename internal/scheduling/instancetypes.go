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

// anywhere is a placer with unlimited room.
type anywhere struct{ placer }

// Fits always returns true.
func (anywhere) Fits(fleet.Spec, topology.HostID) bool { return true }

// running returns the hosts of running VMs, sorted: pods may spread over these hosts even
// if they are full.
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

// addLive adds a live VM's type and offering, if they are missing.
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
		// Karpenter uses the first matching offering as the node's price.
		offering.Price *= flexibleKept
		of.Offerings = slices.Insert(of.Offerings, 0, offering)
	case !of.Offerings.HasCompatible(own):
		of.Offerings = append(of.Offerings, offering)
	}
}

// sizeOf returns a VM's current type, or one with the VM's size if the type no longer
// exists.
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
