package garbage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// claims deletes NodeClaims without a VM or Node for which Karpenter waits 15 minutes, or
// forever: an unregistered claim whose VM no longer exists, and a claim whose Node was
// deleted past its finalizer. Karpenter handles a registered claim whose VM no longer
// exists.
type claims struct {
	config   Config
	vmless   since[types.UID]
	nodeless since[types.UID]
	// left are the claims in vmless that an earlier process left behind, and begun is the
	// time of this process's first pass.
	left  since[types.UID]
	begun time.Time
}

func newClaims(config Config) *claims {
	return &claims{config: config, vmless: since[types.UID]{}, nodeless: since[types.UID]{}, left: since[types.UID]{}}
}

func (*claims) name() string { return "nodeclaims" }

func (*claims) every() time.Duration { return period }

func (c *claims) run(ctx context.Context, v *view) error {
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("reading proxmox: %w", err)
	}
	noVM, noNode := c.lasting(v, snapshot)
	var errs []error
	for _, claim := range v.claims {
		switch {
		case noVM[claim.UID]:
			errs = append(errs, c.end(ctx, v, claim, ReasonVMGone,
				"its VM is neither in the fleet nor in Proxmox, so no Node will join: it is deleted, and its pods look for another place"))
		case noNode[claim.UID]:
			errs = append(errs, c.end(ctx, v, claim, ReasonNodeGone, fmt.Sprintf(
				"its Node %s was deleted and does not come back by itself: it is deleted with its VM", claim.Status.NodeName,
			)))
		}
	}
	return errors.Join(errs...)
}

// lasting returns the claims without a VM, and the claims without a Node, that have been
// so for long enough.
func (c *claims) lasting(v *view, snapshot *topology.Snapshot) (noVM, noNode map[types.UID]bool) {
	if c.begun.IsZero() {
		c.begun = v.now
	}
	var vmless, nodeless, left []types.UID
	for _, claim := range v.claims {
		switch {
		case !claim.DeletionTimestamp.IsZero():
		case !isRegistered(claim) && v.isVMless(claim, snapshot):
			vmless = append(vmless, claim.UID)
			if claim.CreationTimestamp.Add(period).Before(c.begun) {
				left = append(left, claim.UID)
			}
		case isRegistered(claim) && v.isNodeless(claim):
			nodeless = append(nodeless, claim.UID)
		}
	}
	noVM, noNode = c.vmless.lasting(vmless, v.now, grace), c.nodeless.lasting(nodeless, v.now, nodeGrace)
	// The process that created these died before it began their VMs, and their pods are
	// waiting.
	maps.Copy(noVM, c.left.lasting(left, v.now, period))
	return noVM, noNode
}

// end publishes an event about a claim and deletes it.
func (c *claims) end(ctx context.Context, v *view, claim *karpv1.NodeClaim, reason, message string) error {
	c.config.publish(v, claim.Labels[karpv1.NodePoolLabelKey], claim, reason, "NodeClaim "+claim.Name+": "+message)
	if v.paused {
		return nil
	}
	return c.config.deleteClaim(ctx, claim)
}

func isRegistered(claim *karpv1.NodeClaim) bool {
	return claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue()
}

// isVMless reports whether the claim has no VM and will not get one. A desired VM that is
// not created yet still counts; one that was created and is not in Proxmox was deleted by
// hand.
func (v *view) isVMless(claim *karpv1.NodeClaim, snapshot *topology.Snapshot) bool {
	key := keyOf(claim)
	if key == "" {
		return false // Karpenter has not launched it yet
	}
	state, wanted := v.vms[key]
	if wanted && state.Phase != scaler.PhaseMade {
		return false
	}
	if found, _ := guest(snapshot, key); found != nil {
		return false
	}
	region, vmid, known := where(claim)
	if !known {
		return !wanted // no VM was ever created for it
	}
	return seesAll(snapshot, region) && !isTaken(snapshot, region, vmid, key)
}

// where returns the region and VMID of the claim's VM.
func where(claim *karpv1.NodeClaim) (topology.RegionName, fleet.VMID, bool) {
	region, vmid, err := fleet.ParseProviderID(claim.Status.ProviderID)
	return region, vmid, err == nil
}

// isTaken reports whether a guest with that VMID may be the VM with the key, because the
// guest's own key may not have been read.
func isTaken(snapshot *topology.Snapshot, region topology.RegionName, vmid fleet.VMID, key fleet.Key) bool {
	for i := range snapshot.Hosts {
		for _, g := range snapshot.Hosts[i].Guests {
			if snapshot.Hosts[i].Region == region && g.VMID == int(vmid) && (g.Key == "" || g.Key == string(key)) {
				return true
			}
		}
	}
	return false
}

// isNodeless reports whether the claim's Node does not exist.
func (v *view) isNodeless(claim *karpv1.NodeClaim) bool {
	return claim.Status.NodeName != "" && v.nodes[claim.Status.NodeName] == nil && v.nodeBy(claim.Status.ProviderID) == nil
}
