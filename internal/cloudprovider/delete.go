package cloudprovider

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
)

// Delete requests removal of a NodeClaim's VM, and returns a NodeClaimNotFoundError once
// the VM no longer exists. It identifies the VM only by its key, because the VMID may
// have been reused. A guest with that key but without a file is left to the garbage
// collector, and the NodeClaim remains until then.
func (c *CloudProvider) Delete(ctx context.Context, claim *karpv1.NodeClaim) error {
	return translate(c.remove(ctx, claim))
}

func (c *CloudProvider) remove(ctx context.Context, claim *karpv1.NodeClaim) error {
	key := keyOf(claim)
	state, found, err := c.find(ctx, key)
	switch {
	case err != nil:
		return err
	case found && state.Phase == scaler.PhaseRemoving:
		return removalProblem(&state)
	case found:
		c.config.Fleet.Remove(key)
		return nil
	}
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("reading Proxmox: %w", err)
	}
	sight := look(snapshot, c.config.ClusterID)
	name := cmp.Or(claim.Annotations[v1alpha1.AnnotationVM], "of NodeClaim "+claim.Name)
	if len(sight.own[key]) > 0 {
		return nil
	}
	if region, vmid, err := fleet.ParseProviderID(claim.Status.ProviderID); err == nil {
		if doubt := sight.doubt(number{region, vmid}); doubt != "" {
			return fmt.Errorf("removing vm %s: nobody knows whether it is gone: %s", name, doubt)
		}
	}
	return &goneError{name}
}

// removalProblem returns why a removal does not complete. Pending approval is not a
// failure.
func removalProblem(state *scaler.VMState) error {
	var held *scaler.HeldError
	if state.Err == nil || errors.As(state.Err, &held) {
		return nil
	}
	return fmt.Errorf("removing vm %s: %w", state.VM.Name, state.Err)
}
