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

// claims looks after NodeClaims that stand for nothing any more, where Karpenter
// waits for 15 minutes, or for ever: one that has not registered and whose VM is
// gone, and one whose Node was deleted past its finalizer. A registered claim whose
// VM is gone is Karpenter's.
type claims struct {
	config   Config
	vmless   since[types.UID]
	nodeless since[types.UID]
	// left are those of vmless that an earlier numaform left, and begun is when this
	// one looked first.
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

// lasting returns the claims without a VM, and those without a Node, that have been so
// for long enough.
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
	// Whoever made these died before their VMs were begun, and their pods wait.
	maps.Copy(noVM, c.left.lasting(left, v.now, period))
	return noVM, noNode
}

// end tells of a claim and deletes it.
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

// isVMless reports whether no VM backs the claim, or will. A VM that the fleet wants
// and that is not made yet will; one that was made and that Proxmox does not have was
// deleted by hand.
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
		return !wanted // nothing was ever made for it
	}
	return seesAll(snapshot, region) && !isTaken(snapshot, region, vmid, key)
}

// where returns the region and VMID of the claim's VM.
func where(claim *karpv1.NodeClaim) (topology.RegionName, fleet.VMID, bool) {
	region, vmid, err := fleet.ParseProviderID(claim.Status.ProviderID)
	return region, vmid, err == nil
}

// isTaken reports whether a guest of that VMID may be the one with the key: its own
// key may not have been read.
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

// isNodeless reports whether the claim's Node is not there.
func (v *view) isNodeless(claim *karpv1.NodeClaim) bool {
	return claim.Status.NodeName != "" && v.nodes[claim.Status.NodeName] == nil && v.nodeBy(claim.Status.ProviderID) == nil
}
