package cloudprovider

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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

// KeyOf returns the key of the VM for a NodeClaim that Karpenter created. It is the same
// for repeated requests.
func KeyOf(claim types.UID) fleet.Key {
	sum := sha256.Sum256([]byte("nodeclaim " + claim))
	return fleet.Key(hex.EncodeToString(sum[:16]))
}

// keyOf returns the key of a NodeClaim's VM.
func keyOf(claim *karpv1.NodeClaim) fleet.Key {
	if key := claim.Annotations[v1alpha1.AnnotationKey]; key != "" {
		return fleet.Key(key)
	}
	return KeyOf(claim.UID)
}

// Create returns the NodeClaim with a reserved VM: it does not wait until the VM is
// created. A NodeClaim created by numaform names its VM; for one created by Karpenter,
// Create places and reserves a VM.
func (c *CloudProvider) Create(ctx context.Context, claim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	created, err := c.create(ctx, claim)
	if err != nil {
		return nil, translate(err)
	}
	return created, nil
}

func (c *CloudProvider) create(ctx context.Context, claim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	name, named := claim.Annotations[v1alpha1.AnnotationVM]
	state, found, err := c.find(ctx, keyOf(claim))
	switch {
	case err != nil:
		return nil, err
	case found:
		if reason := unusable(&state); reason != "" {
			return nil, &unusableError{claim.Name, state.VM.Name, reason}
		}
		return c.launched(ctx, claim, state.VM)
	case named:
		return nil, &unusableError{claim.Name, name, "was reserved and never begun, or is gone"}
	}
	return c.reserve(ctx, claim)
}

// unusable returns why a VM will not become a Node, or "".
func unusable(state *scaler.VMState) string {
	switch state.Phase {
	case scaler.PhaseReserved, scaler.PhaseMaking, scaler.PhaseMade:
		return ""
	case scaler.PhaseRemoving:
		return "is being removed"
	case scaler.PhaseHeld:
		return fmt.Sprintf("has to be allowed first: %s", state.Err)
	}
	return fmt.Sprintf("could not be made: %s", state.Err)
}

// reserve places and reserves a VM for a NodeClaim that Karpenter created.
func (c *CloudProvider) reserve(ctx context.Context, claim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	class, err := c.readyClass(ctx, claim)
	if err != nil {
		return nil, err
	}
	vm, err := c.place(ctx, claim)
	if err != nil {
		return nil, err
	}
	log.FromContext(ctx).V(1).Info("reserved vm", logkey.NodeClaim, claim.Name, logkey.VM, vm.Name, logkey.Host, vm.Host.String(), logkey.Reason, vm.Reason)
	return c.launchedOf(ctx, claim, vm, class)
}

// place reserves the cheapest VM that satisfies the NodeClaim and has room. It excludes
// concurrent placements.
func (c *CloudProvider) place(ctx context.Context, claim *karpv1.NodeClaim) (fleet.VM, error) {
	c.config.Placing.Lock()
	defer c.config.Placing.Unlock()
	request, err := c.request(ctx)
	if err != nil {
		return fleet.VM{}, err
	}
	specs, err := c.config.Cluster.Resolve(ctx, request, claim)
	if err != nil {
		return fleet.VM{}, err
	}
	plan := planner.New(request.Snapshot, request.Kept)
	reason := "nothing suits it"
	for i := range specs {
		placed, unplaced := plan.Place(specs[i : i+1])
		if len(placed) == 0 {
			reason = unplaced[0].Reason
			continue
		}
		vms, err := c.config.Fleet.Ensure(ctx, []scaler.Request{{Spec: specs[i], Placement: placed[0].Placement, Key: KeyOf(claim.UID)}})
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
	pool := claim.Labels[karpv1.NodePoolLabelKey]
	if class == nil {
		return nil, &scheduling.ClassNotReadyError{
			NodePool: pool,
			Reason:   fmt.Sprintf("its ProxmoxNodeClass %q does not exist: create it", claim.Spec.NodeClassRef.Name),
		}
	}
	i := slices.IndexFunc(class.Status.Conditions, func(condition status.Condition) bool { return condition.Type == status.ConditionReady })
	switch {
	case !class.DeletionTimestamp.IsZero():
		return nil, &scheduling.ClassNotReadyError{NodePool: pool, Reason: fmt.Sprintf("its ProxmoxNodeClass %q is being deleted", class.Name)}
	case i < 0 || class.Status.Conditions[i].IsUnknown():
		return nil, &classUnknownError{class.Name}
	case class.Status.Conditions[i].IsFalse():
		return nil, &scheduling.ClassNotReadyError{
			NodePool: pool,
			Reason:   fmt.Sprintf("its ProxmoxNodeClass %q is not ready: %s", class.Name, class.Status.Conditions[i].Message),
		}
	}
	return class, nil
}

// launched returns the NodeClaim of an existing VM.
func (c *CloudProvider) launched(ctx context.Context, claim *karpv1.NodeClaim, vm fleet.VM) (*karpv1.NodeClaim, error) {
	class, err := c.class(ctx, claim)
	if err != nil {
		return nil, err
	}
	return c.launchedOf(ctx, claim, vm, class)
}

// launchedOf returns the NodeClaim of a VM with its class, which may be nil if it no
// longer exists.
func (c *CloudProvider) launchedOf(ctx context.Context, claim *karpv1.NodeClaim, vm fleet.VM, class *v1alpha1.ProxmoxNodeClass) (*karpv1.NodeClaim, error) {
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading Proxmox: %w", err)
	}
	created := scheduling.Launched(vm, c.types(&vm, class))
	created.Labels[corev1.LabelArchStable] = scheduling.Arch(snapshot, vm.Host)
	if err := c.addExtra(ctx, created, vm.Pool); err != nil {
		return nil, err
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

// types returns the VM's type as its class defines it, or all types if the class no
// longer exists.
func (c *CloudProvider) types(vm *fleet.VM, class *v1alpha1.ProxmoxNodeClass) []scheduling.InstanceType {
	if class == nil {
		return c.config.Types
	}
	return []scheduling.InstanceType{scheduling.TypeOf(class, vm, c.config.Types)}
}
