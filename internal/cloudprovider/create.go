package cloudprovider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/planner"
)

// keyOf returns the key of the VM that a NodeClaim names, or that is created for it. Whether
// the VM is the claim's own, owns reports.
func keyOf(claim *karpv1.NodeClaim) fleet.Key {
	if key := claim.Annotations[v1alpha1.AnnotationKey]; key != "" {
		return fleet.Key(key)
	}
	return scheduling.KeyOf(claim.UID)
}

// Create returns the NodeClaim with a reserved VM: it does not wait until the VM is
// created. A NodeClaim created by numaform names its VM; for one created by Karpenter,
// Create places and reserves a VM.
func (c *CloudProvider) Create(ctx context.Context, claim *karpv1.NodeClaim) (created *karpv1.NodeClaim, err error) {
	defer func() { err = translate(err) }()
	name, named := claim.Annotations[v1alpha1.AnnotationVM]
	state, found, err := c.config.Fleet.State(ctx, keyOf(claim))
	switch {
	case err != nil:
		return nil, err
	case found:
		own, err := scheduling.Owns(ctx, c.config.Client, claim, &state.VM)
		if err != nil {
			return nil, err
		}
		if !own {
			return nil, &unusableError{claim.Name, state.VM.Name, notOwn}
		}
		if reason := unusable(&state); reason != "" {
			return nil, &unusableError{claim.Name, state.VM.Name, reason}
		}
		class, err := c.class(ctx, claim)
		if err != nil {
			return nil, err
		}
		return c.launched(ctx, claim, state.VM, class)
	case named:
		return nil, &unusableError{claim.Name, name, "was reserved but never created, or was deleted"}
	}

	class, err := c.readyClass(ctx, claim)
	if err != nil {
		return nil, err
	}
	vm, err := c.place(ctx, claim)
	if err != nil {
		return nil, err
	}
	log.FromContext(ctx).V(1).Info("reserved vm", logkey.NodeClaim, claim.Name, logkey.VM, vm.Name, logkey.Host, vm.Host.String(), logkey.Reason, vm.Reason)
	return c.launched(ctx, claim, vm, class)
}

// notOwn is why a copy of a NodeClaim gets no VM.
const notOwn = "is not its own, but another NodeClaim's: to create one more node from a copy of a NodeClaim, " +
	"remove the annotations " + v1alpha1.AnnotationVM + " and " + v1alpha1.AnnotationKey + " from the copy"

// unusable returns why a VM will not become a Node, or "".
func unusable(state *scaler.VMState) string {
	if state.VM.Standby {
		return "is still a standby VM, because numaform stopped before it was woken"
	}
	switch state.Phase {
	case scaler.PhaseReserved, scaler.PhaseMaking, scaler.PhaseMade:
		return ""
	case scaler.PhaseRemoving:
		return "is being removed"
	case scaler.PhasePendingApproval:
		return fmt.Sprintf("is pending approval: %s", state.Err)
	}
	return fmt.Sprintf("could not be created: %s", state.Err)
}

// place reserves the cheapest VM that satisfies the NodeClaim and has room. It excludes
// concurrent placements.
func (c *CloudProvider) place(ctx context.Context, claim *karpv1.NodeClaim) (fleet.VM, error) {
	c.config.Placing.Lock()
	defer c.config.Placing.Unlock()
	states, err := c.config.Fleet.States(ctx)
	if err != nil {
		return fleet.VM{}, err
	}
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		return fleet.VM{}, fmt.Errorf("reading Proxmox: %w", err)
	}
	request := c.request(snapshot, states, c.unavailable())
	specs, err := c.config.Cluster.Resolve(ctx, request, claim)
	if err != nil {
		return fleet.VM{}, err
	}
	plan := planner.New(request.Snapshot, request.Existing)
	reason := "no instance type fits"
	for i := range specs {
		placed, unplaced := plan.Place(specs[i : i+1])
		if len(placed) == 0 {
			reason = unplaced[0].Reason
			continue
		}
		vms, err := c.config.Fleet.Ensure(ctx, []scaler.Request{{Spec: specs[i], Placement: placed[0].Placement, Key: scheduling.KeyOf(claim.UID)}})
		if err != nil {
			return fleet.VM{}, err
		}
		return vms[0], nil
	}
	return fleet.VM{}, &scheduling.NoRoomError{NodeClaim: claim.Name, Reason: "no host has room: " + reason}
}

// class returns a NodeClaim's class, or nil if it does not exist.
func (c *CloudProvider) class(ctx context.Context, claim *karpv1.NodeClaim) (*v1alpha1.ProxmoxNodeClass, error) {
	class := &v1alpha1.ProxmoxNodeClass{}
	err := c.config.Client.Get(ctx, client.ObjectKey{Name: claim.Spec.NodeClassRef.Name}, class)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading ProxmoxNodeClass %q: %w", claim.Spec.NodeClassRef.Name, err)
	}
	return class, nil
}

// readyClass returns a NodeClaim's class if nodes can be created from it.
func (c *CloudProvider) readyClass(ctx context.Context, claim *karpv1.NodeClaim) (*v1alpha1.ProxmoxNodeClass, error) {
	class, err := c.class(ctx, claim)
	if err != nil {
		return nil, err
	}
	notReady := func(format string, args ...any) error {
		return &scheduling.ClassNotReadyError{NodePool: claim.Labels[karpv1.NodePoolLabelKey], Reason: "its ProxmoxNodeClass " + fmt.Sprintf(format, args...)}
	}
	if class == nil {
		return nil, notReady("%q does not exist: create it", claim.Spec.NodeClassRef.Name)
	}
	i := slices.IndexFunc(class.Status.Conditions, func(condition status.Condition) bool { return condition.Type == status.ConditionReady })
	switch {
	case !class.DeletionTimestamp.IsZero():
		return nil, notReady("%q is being deleted", class.Name)
	case i < 0 || class.Status.Conditions[i].IsUnknown():
		return nil, &classUnknownError{class.Name}
	case class.Status.Conditions[i].IsFalse():
		return nil, notReady("%q is not ready: %s", class.Name, class.Status.Conditions[i].Message)
	}
	return class, nil
}

// launched returns the NodeClaim of a VM as Create must return it. class is nil if it no
// longer exists.
func (c *CloudProvider) launched(ctx context.Context, claim *karpv1.NodeClaim, vm fleet.VM, class *v1alpha1.ProxmoxNodeClass) (*karpv1.NodeClaim, error) {
	snapshot, err := c.config.Recent(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading Proxmox: %w", err)
	}
	types := c.config.Types
	if class != nil {
		types = []scheduling.InstanceType{scheduling.TypeOf(class, &vm, c.config.Types)}
	}
	created := scheduling.Launched(vm, types)
	created.Labels[corev1.LabelArchStable] = scheduling.Arch(snapshot, vm.Host)
	if c.config.Overlays {
		// Without a node's resources from NodeOverlays, pods that need them would request
		// another node until this one has joined.
		extra, err := c.config.Cluster.Extra(ctx, vm.Pool, created.Labels)
		if err != nil {
			return nil, fmt.Errorf("finding the resources that NodeOverlays add to node %s: %w", created.Name, err)
		}
		maps.Copy(created.Status.Capacity, extra)
		maps.Copy(created.Status.Allocatable, extra)
	}
	created.CreationTimestamp = claim.CreationTimestamp
	created.Spec = *claim.Spec.DeepCopy()
	for key, value := range hashes(class) {
		// Annotations set by provisioning describe the class from which the VM was
		// created.
		created.Annotations[key] = cmp.Or(claim.Annotations[key], value)
	}
	return created, nil
}

// Delete requests removal of a NodeClaim's VM, and returns a NodeClaimNotFoundError once
// the VM no longer exists. A guest that is the VM but has no file is not removed, and the
// NodeClaim remains as long as the guest exists. A standby VM belongs to no NodeClaim, and is not
// removed, and neither is the VM of another NodeClaim, of which this one is a copy.
func (c *CloudProvider) Delete(ctx context.Context, claim *karpv1.NodeClaim) (err error) {
	defer func() { err = translate(err) }()
	key := keyOf(claim)
	state, found, err := c.config.Fleet.State(ctx, key)
	if err != nil {
		return err
	}
	if found && state.VM.Standby {
		return &goneError{state.VM.Name}
	}
	if found {
		own, err := scheduling.Owns(ctx, c.config.Client, claim, &state.VM)
		if err != nil {
			return err
		}
		if !own {
			return &goneError{"of NodeClaim " + claim.Name}
		}
	}
	if found && state.Phase == scaler.PhaseRemoving {
		// Waiting for approval or for the end of an outage is not a failure.
		var held *scaler.PendingApprovalError
		if state.Err == nil || errors.As(state.Err, &held) || scaler.OutageOf(&state) != nil {
			return nil
		}
		return fmt.Errorf("removing vm %s: %w", state.VM.Name, state.Err)
	}
	if found {
		c.config.Fleet.Remove(key)
		return nil
	}

	snapshot, err := c.config.Recent(ctx)
	if err != nil {
		return fmt.Errorf("reading Proxmox: %w", err)
	}
	view := c.view(snapshot)
	name := cmp.Or(claim.Annotations[v1alpha1.AnnotationVM], "of NodeClaim "+claim.Name)
	region, vmid, err := fleet.ParseProviderID(claim.Status.ProviderID)
	if err != nil { // its VMID is unknown
		if len(view.own[key]) > 0 {
			return nil
		}
		return &goneError{name}
	}
	at := guestID{region, vmid}
	if len(view.seen(key, at)) > 0 {
		return nil
	}
	if doubt := view.doubt(at); doubt != "" {
		return fmt.Errorf("removing vm %s: cannot determine whether it still exists: %s", name, doubt)
	}
	return &goneError{name}
}
