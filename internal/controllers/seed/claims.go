package seed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
)

// claimPoll is the interval between checks for a missing claim.
const claimPoll = 250 * time.Millisecond

var _ scaler.PartialError = (*UnclaimedError)(nil)

// UnclaimedError reports VMs whose NodeClaim is missing or being deleted: their kubelets
// could not join, so no VM of the batch got a seed.
type UnclaimedError struct {
	VMs []fleet.VM
}

// Error lists the VMs.
func (e *UnclaimedError) Error() string {
	names := make([]string, len(e.VMs))
	for i := range e.VMs {
		names[i] = e.VMs[i].Name
	}
	return fmt.Sprintf("VMs without a NodeClaim are not created: %s: the NodeClaim was deleted, or numaform stopped before it created one", strings.Join(names, ", "))
}

// Concerns implements scaler.PartialError.
func (e *UnclaimedError) Concerns(key fleet.Key) bool {
	return slices.ContainsFunc(e.VMs, func(vm fleet.VM) bool { return vm.Key == key })
}

// claims returns the NodeClaim of each VM, by the VM's key. It waits while claims are
// being created: until ClaimWait after the last new claim, but for at most ten times
// ClaimWait in total. It returns an *UnclaimedError if some remain missing.
func (s *Seeder) claims(ctx context.Context, vms []fleet.VM) (map[fleet.Key]*karpv1.NodeClaim, error) {
	last := s.config.Clock.Now().Add(10 * s.config.ClaimWait)
	var deadline time.Time
	most := -1
	byKey := make(map[fleet.Key]*fleet.VM, len(vms))
	for i := range vms {
		byKey[vms[i].Key] = &vms[i]
	}
	for {
		list := &karpv1.NodeClaimList{}
		if err := s.config.Cluster.Client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing NodeClaims: %w", err)
		}
		if len(list.Items) > most { // more claims of a burst are being created
			most, deadline = len(list.Items), s.config.Clock.Now().Add(s.config.ClaimWait)
		}
		if last.Before(deadline) {
			deadline = last
		}
		found := scheduling.OwnClaims(list.Items, func(key fleet.Key) *fleet.VM { return byKey[key] })

		var missing []fleet.VM
		deleted := 0
		for i := range vms {
			claim := found[vms[i].Key]
			switch {
			case claim == nil:
				missing = append(missing, vms[i])
			case !claim.DeletionTimestamp.IsZero():
				missing = append(missing, vms[i])
				deleted++
			}
		}
		if len(missing) == 0 {
			return found, nil
		}
		if deleted == len(missing) || !s.config.Clock.Now().Before(deadline) {
			return nil, &UnclaimedError{VMs: missing}
		}

		timer := s.config.Clock.NewTimer(claimPoll)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("waiting for NodeClaims: %w", context.Cause(ctx))
		}
	}
}

// ours reports whether a claim's nodes are numaform's.
func ours(claim *karpv1.NodeClaim) bool {
	return claim.Spec.NodeClassRef != nil && claim.Spec.NodeClassRef.Group == v1alpha1.Group
}

// annotate sets annotations of a claim; an empty value removes one.
func (s *Seeder) annotate(ctx context.Context, claim *karpv1.NodeClaim, values map[string]string) error {
	changed := claim.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	for key, value := range values {
		changed.Annotations[key] = value
		if value == "" {
			delete(changed.Annotations, key)
		}
	}
	if maps.Equal(changed.Annotations, claim.Annotations) {
		return nil
	}
	if err := s.config.Cluster.Client.Patch(ctx, changed, client.MergeFrom(claim)); err != nil {
		return fmt.Errorf("annotating NodeClaim %s: %w", claim.Name, err)
	}
	return nil
}
