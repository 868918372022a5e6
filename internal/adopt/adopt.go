// Package adopt moves Nodes of another autoscaler to numaform, and Nodes of numaform whose
// files were lost back into the fleet. It finds the Nodes, describes their VMs as they are,
// and exchanges the NodeClaims. It imports no VM into the fleet:
// scaler.ProposeAdoption does. Start at Find.
package adopt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// kppGroup is the API group of karpenter-provider-proxmox: pkg/apis/apis.go.
const kppGroup = "karpenter.proxmox.sinextra.dev"

// controlPlaneLabel marks the Nodes of the control plane.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// RefusedError reports why a Node cannot be adopted.
type RefusedError struct{ Node, Problem string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("node %s cannot be adopted: %s", e.Node, e.Problem)
}

// replaceHint is the alternative to an adoption.
const replaceHint = "to replace the node instead, run kubectl drain, and delete its VM with the tool that created it: numaform creates nodes for its pods"

// Candidate is a Node to adopt.
type Candidate struct {
	Node corev1.Node
	// Pool is the NodePool of numaform that the Node moves to, and Class its class.
	Pool  karpv1.NodePool
	Class v1alpha1.ProxmoxNodeClass
	// Theirs are the NodeClaims of the other autoscaler for this Node.
	Theirs []karpv1.NodeClaim
	// Ours is numaform's own NodeClaim for this Node, if it outlived the VM's file; nil
	// otherwise.
	Ours *karpv1.NodeClaim
}

// Find returns the Nodes with the names or, without names, all Nodes of
// karpenter-provider-proxmox, sorted by name. pool is the NodePool that the Nodes move to; if
// it is empty, they stay in the NodePool of their label. Find returns a *RefusedError for
// each Node that cannot be adopted.
func Find(ctx context.Context, c client.Reader, names []string, pool string) ([]Candidate, error) {
	var nodes corev1.NodeList
	var claims karpv1.NodeClaimList
	var pools karpv1.NodePoolList
	var classes v1alpha1.ProxmoxNodeClassList
	for _, list := range []client.ObjectList{&nodes, &claims, &pools, &classes} {
		if err := c.List(ctx, list); err != nil {
			return nil, fmt.Errorf("reading the cluster: %w", err)
		}
	}
	owners := func(node *corev1.Node) (theirs []karpv1.NodeClaim, ours *karpv1.NodeClaim) {
		for i := range claims.Items {
			claim := &claims.Items[i]
			ref := claim.Spec.NodeClassRef
			switch {
			case claim.Status.NodeName != node.Name && (claim.Status.ProviderID == "" || claim.Status.ProviderID != node.Spec.ProviderID):
			case ref == nil || ref.Group == v1alpha1.Group:
				ours = claim
			default:
				theirs = append(theirs, *claim)
			}
		}
		return theirs, ours
	}

	var found []Candidate
	var refused []error
	unknown := slices.Clone(names)
	for i := range nodes.Items {
		node := &nodes.Items[i]
		candidate := Candidate{Node: *node}
		candidate.Theirs, candidate.Ours = owners(node)
		unknown = slices.DeleteFunc(unknown, func(name string) bool { return name == node.Name })
		named := slices.Contains(names, node.Name)
		kpp := slices.ContainsFunc(candidate.Theirs, func(claim karpv1.NodeClaim) bool { return claim.Spec.NodeClassRef.Group == kppGroup })
		if !named && (len(names) > 0 || !kpp) {
			continue
		}
		if err := candidate.check(pool, pools.Items, classes.Items); err != nil {
			refused = append(refused, err)
			continue
		}
		found = append(found, candidate)
	}
	for _, name := range unknown {
		refused = append(refused, &RefusedError{Node: name, Problem: "the cluster has no such Node"})
	}
	if len(found)+len(refused) == 0 {
		refused = append(refused, errors.New("the cluster has no Node of karpenter-provider-proxmox: name the Nodes to adopt"))
	}
	slices.SortFunc(found, func(a, b Candidate) int { return strings.Compare(a.Node.Name, b.Node.Name) })
	return found, errors.Join(refused...)
}

// check sets the candidate's pool and class, or returns why the Node cannot be adopted.
func (c *Candidate) check(pool string, pools []karpv1.NodePool, classes []v1alpha1.ProxmoxNodeClass) error {
	node := &c.Node
	refuse := func(format string, args ...any) error {
		return &RefusedError{Node: node.Name, Problem: fmt.Sprintf(format, args...)}
	}
	if pool == "" {
		pool = node.Labels[karpv1.NodePoolLabelKey]
	}
	at := slices.IndexFunc(pools, func(p karpv1.NodePool) bool { return p.Name == pool })
	leaving := c.Ours != nil && !c.Ours.DeletionTimestamp.IsZero() ||
		slices.ContainsFunc(c.Theirs, func(claim karpv1.NodeClaim) bool { return !claim.DeletionTimestamp.IsZero() })
	foreign := slices.IndexFunc(c.Theirs, func(claim karpv1.NodeClaim) bool { return claim.Spec.NodeClassRef.Group != kppGroup })
	_, controlPlane := node.Labels[controlPlaneLabel]
	unregistered := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == karpv1.UnregisteredTaintKey })
	switch {
	case controlPlane:
		return refuse("it belongs to the control plane, which no autoscaler may manage")
	case !node.DeletionTimestamp.IsZero() || leaving:
		return refuse("it is being deleted: wait until it is gone")
	case foreign >= 0:
		ref := c.Theirs[foreign].Spec.NodeClassRef
		return refuse("its NodeClaim %s has a class of the group %s, whose autoscaler numaform does not know", c.Theirs[foreign].Name, ref.Group)
	case unregistered:
		return refuse("it has the taint %s, so it has not joined completely: wait until it has, or delete its NodeClaim", karpv1.UnregisteredTaintKey)
	case c.Ours != nil && c.Ours.Labels[karpv1.NodePoolLabelKey] != pool:
		return refuse("its NodeClaim %s belongs to NodePool %q: omit --nodepool", c.Ours.Name, c.Ours.Labels[karpv1.NodePoolLabelKey])
	case at < 0 || pools[at].Spec.Template.Spec.NodeClassRef == nil || pools[at].Spec.Template.Spec.NodeClassRef.Group != v1alpha1.Group:
		return refuse("NodePool %q does not exist or has no %s: create a NodePool of numaform for it, and set --nodepool to its name", pool, v1alpha1.KindProxmoxNodeClass)
	}
	c.Pool = pools[at]
	name := c.Pool.Spec.Template.Spec.NodeClassRef.Name
	class := slices.IndexFunc(classes, func(class v1alpha1.ProxmoxNodeClass) bool { return class.Name == name })
	if class < 0 {
		return refuse("the %s %q of NodePool %q does not exist: create it", v1alpha1.KindProxmoxNodeClass, name, pool)
	}
	c.Class = classes[class]
	return nil
}

// Guest returns the Node's VM in a snapshot: by the Node's providerID or, if it has none, by
// its name. It returns a *RefusedError if there is no such VM.
func (c *Candidate) Guest(snapshot *topology.Snapshot) (topology.HostID, topology.Guest, error) {
	node := &c.Node
	refuse := func(format string, args ...any) (topology.HostID, topology.Guest, error) {
		return topology.HostID{}, topology.Guest{}, &RefusedError{Node: node.Name, Problem: fmt.Sprintf(format, args...)}
	}
	region, vmid, err := fleet.ParseProviderID(node.Spec.ProviderID)
	if node.Spec.ProviderID != "" && err != nil {
		return refuse("its providerID %q does not name a VM, and Kubernetes never changes a providerID; %s", node.Spec.ProviderID, replaceHint)
	}
	var host topology.HostID
	var guest topology.Guest
	found := 0
	for i := range snapshot.Hosts {
		h := &snapshot.Hosts[i]
		for _, g := range h.Guests {
			if err != nil && g.Name == node.Name && g.Kind == topology.GuestVM || err == nil && h.Region == region && g.VMID == int(vmid) {
				host, guest = h.ID(), g
				found++
			}
		}
	}
	switch {
	case found > 1:
		return refuse("%d VMs have its name, and it has no providerID: rename the other VMs", found)
	case found == 0 && err == nil && !slices.ContainsFunc(snapshot.Regions, func(r topology.Region) bool { return r.Name == region }):
		return refuse("numaform.yaml has no region %q, which its providerID %s names: give the Proxmox cluster this region", region, node.Spec.ProviderID)
	case found == 0:
		return refuse("Proxmox has no such VM")
	}
	return host, guest, nil
}

// VM returns the VM of a Node as it is, with the key of its marker if it has this fleet's;
// otherwise, with a key that depends only on its identity. It returns a *RefusedError for a VM
// that numaform could not manage.
func (c *Candidate) VM(clusterID string, host topology.HostID, guest *topology.Guest, id *proxmox.Identity) (fleet.VM, error) {
	node := &c.Node
	switch {
	case len(id.Privileged) > 0:
		return fleet.VM{}, &RefusedError{Node: node.Name, Problem: fmt.Sprintf("its VM has %s, which numaform manages on no VM; %s", strings.Join(id.Privileged, ", "), replaceHint)}
	case id.NoSCSIHardware:
		return fleet.VM{}, &RefusedError{Node: node.Name, Problem: fmt.Sprintf("its VM has no option scsihw, and the provider would not keep it so: "+
			"on host %s, run qm set %d --scsihw lsi, which is the default of Proxmox; then run the command again", host.Host, guest.VMID)}
	case len(id.Marker.Pins) > 0:
		return fleet.VM{}, &RefusedError{Node: node.Name, Problem: "the host agent pins its VM by the VM's description, which an adoption would replace; to replace the node instead, run kubectl drain, and delete its VM in Proxmox: numaform creates nodes for its pods"}
	case !fleet.AdoptableName(node.Name):
		return fleet.VM{}, &RefusedError{Node: node.Name, Problem: "its name must have at most 63 characters a-z, 0-9 and -; " + replaceHint}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "adopt %s %s/%d %s", clusterID, host.Region, guest.VMID, id.UUID))
	vm := fleet.VM{
		Key: fleet.Key(hex.EncodeToString(sum[:16])), VMID: fleet.VMID(guest.VMID), Name: node.Name, Module: modules.Adopted,
		Spec: fleet.Spec{
			Pool: c.Pool.Name, NodeClass: c.Class.Name, InstanceType: node.Labels[corev1.LabelInstanceTypeStable],
			CapacityType: node.Labels[karpv1.CapacityTypeLabelKey], VCPUs: guest.VCPUs, MemoryMiB: guest.MemoryMiB,
			Policy: fleet.PolicyShared, Clone: fleet.CloneLinked, CPUType: id.CPUType,
		},
		Placement: fleet.Placement{
			Host:   host,
			Reason: fmt.Sprintf("adopted; SMBIOS UUID %s, MACs %s", orNone(id.UUID), orNone(strings.Join(id.MACs, ", "))),
		},
	}
	if vm.InstanceType == "" {
		vm.InstanceType = fmt.Sprintf("adopted.%dVCPU-%dMB", guest.VCPUs, guest.MemoryMiB)
	}
	if vm.CapacityType == "" {
		vm.CapacityType = karpv1.CapacityTypeOnDemand
	}
	for _, tag := range id.Tags {
		if tag != "numaform" && tag != "numaform-"+clusterID {
			vm.Tags = append(vm.Tags, tag)
		}
	}
	if bound(guest) {
		vm.Policy, vm.Cells = fleet.PolicyNUMA, guest.NUMA
	}
	if guest.ClusterID == clusterID && guest.Key != "" {
		vm.Key = fleet.Key(guest.Key)
		vm.Reason = "returned to the fleet; " + strings.TrimPrefix(vm.Reason, "adopted; ")
	}
	if guest.Pins.Size() == guest.VCPUs {
		vm.Policy, vm.PinWith, vm.CPUs, vm.VCPUPins = fleet.PolicyDedicated, fleet.PinWithAffinity, guest.Pins, guest.Pins.List()
	}
	return vm, nil
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// bound reports whether the NUMA nodes of a guest back all of its memory and vCPUs. Others
// are not part of the fleet's files: the planner reads them from Proxmox.
func bound(guest *topology.Guest) bool {
	var memory int64
	var cpus []int
	for _, cell := range guest.NUMA {
		if cell.HostNodes.IsEmpty() || cell.GuestCPUs.IsEmpty() || cell.MemoryMiB < 1 || cell.Policy == "" {
			return false
		}
		memory += cell.MemoryMiB
		cpus = append(cpus, cell.GuestCPUs.List()...)
	}
	slices.Sort(cpus)
	for i, cpu := range cpus {
		if cpu != i {
			return false
		}
	}
	return len(cpus) == guest.VCPUs && memory == guest.MemoryMiB
}
