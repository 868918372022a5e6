package cloudprovider

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
)

// settled is the minimum age from which a VM's absence means that it was deleted, because
// the snapshot of Proxmox is slightly outdated.
const settled = 2 * time.Minute

// Get returns the NodeClaim with a provider ID. It returns a NodeClaimNotFoundError only
// if the VM certainly does not exist.
func (c *CloudProvider) Get(ctx context.Context, providerID string) (*karpv1.NodeClaim, error) {
	claim, err := c.get(ctx, providerID)
	if err != nil {
		return nil, translate(err)
	}
	return claim, nil
}

func (c *CloudProvider) get(ctx context.Context, providerID string) (*karpv1.NodeClaim, error) {
	region, vmid, err := fleet.ParseProviderID(providerID)
	if err != nil {
		return nil, err
	}
	claims, sight, err := c.all(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", providerID, err)
	}
	if i := slices.IndexFunc(claims, func(claim *karpv1.NodeClaim) bool { return claim.Status.ProviderID == providerID }); i >= 0 {
		return claims[i], nil
	}
	if doubt := sight.doubt(number{region, vmid}); doubt != "" {
		return nil, fmt.Errorf("finding %s: nobody knows whether it exists: %s", providerID, doubt)
	}
	return nil, &goneError{providerID}
}

// List returns the NodeClaims of all VMs: desired VMs, created or not, VMs being removed,
// and existing VMs without a file. A VM whose host cannot be read counts as existing.
func (c *CloudProvider) List(ctx context.Context) ([]*karpv1.NodeClaim, error) {
	claims, _, err := c.all(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing vms: %w", err)
	}
	return claims, nil
}

func (c *CloudProvider) all(ctx context.Context) ([]*karpv1.NodeClaim, *sight, error) {
	// Read the fleet first, so that a VM created meanwhile is in both.
	states, err := c.config.Fleet.States(ctx)
	if err != nil {
		return nil, nil, err
	}
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("reading Proxmox: %w", err)
	}
	sight := look(snapshot, c.config.ClusterID)
	wanted := map[fleet.Key]bool{}
	var claims []*karpv1.NodeClaim
	for i := range states {
		state := &states[i]
		wanted[state.VM.Key] = true
		if c.vanished(state, sight) {
			continue
		}
		claim := scheduling.Launched(state.VM, c.config.Types)
		claim.Labels[corev1.LabelArchStable] = scheduling.Arch(snapshot, state.VM.Host)
		if state.Phase == scaler.PhaseRemoving {
			claim.DeletionTimestamp = &metav1.Time{Time: state.Since}
		}
		claims = append(claims, claim)
	}
	for _, key := range slices.Sorted(maps.Keys(sight.own)) {
		if !wanted[key] {
			claims = append(claims, stray(key, sight.own[key][0]))
		}
	}
	slices.SortStableFunc(claims, func(a, b *karpv1.NodeClaim) int { return cmp.Compare(a.Status.ProviderID, b.Status.ProviderID) })
	return claims, sight, nil
}

// vanished reports whether a VM was created and then deleted by another client.
func (c *CloudProvider) vanished(state *scaler.VMState, sight *sight) bool {
	return state.Phase == scaler.PhaseMade && c.config.Clock.Since(state.Since) > settled && sight.gone(&state.VM)
}

// stray returns the NodeClaim of a guest of ours that has no file.
func stray(key fleet.Key, guest seen) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	claim.Name = guest.name
	claim.Annotations = map[string]string{v1alpha1.AnnotationVM: guest.name, v1alpha1.AnnotationKey: string(key)}
	claim.Labels = map[string]string{
		corev1.LabelHostname:       guest.name,
		corev1.LabelTopologyRegion: string(guest.host.Region),
		corev1.LabelTopologyZone:   string(guest.host.Host),
	}
	claim.Status.ProviderID = fleet.ProviderID(guest.region, guest.vmid)
	return claim
}
