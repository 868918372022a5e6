package garbage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// claims deletes NodeClaims that Karpenter would keep for 15 minutes or forever:
// unregistered claims whose VM no longer exists, and registered claims whose Node no longer
// exists. Karpenter handles registered claims whose VM no longer exists.
type claims struct {
	config   Config
	vmless   since[types.UID]
	nodeless since[types.UID]
	// abandoned are the claims in vmless that an earlier process left behind, and begun is
	// the time of this process's first pass.
	abandoned since[types.UID]
	begun     time.Time
}

func (*claims) name() string { return "nodeclaims" }

func (*claims) every() time.Duration { return period }

func (*claims) concerns() bool { return true }

func (c *claims) run(ctx context.Context, v *view) error {
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("reading proxmox: %w", err)
	}
	if c.begun.IsZero() {
		c.begun = v.now
	}
	var vmless, nodeless, abandoned []types.UID
	for _, claim := range v.claims {
		switch {
		case !claim.DeletionTimestamp.IsZero():
		case !isRegistered(claim):
			if !v.isVMless(claim, snapshot) {
				continue
			}
			vmless = append(vmless, claim.UID)
			if claim.CreationTimestamp.Add(period).Before(c.begun) {
				abandoned = append(abandoned, claim.UID)
			}
		case claim.Status.NodeName != "" && v.nodes[claim.Status.NodeName] == nil && v.nodeBy(claim.Status.ProviderID) == nil:
			nodeless = append(nodeless, claim.UID)
		}
	}
	noVM := c.vmless.lasting(vmless, v.now, grace)
	noNode := c.nodeless.lasting(nodeless, v.now, nodeGrace)
	// The process that created these claims died before it reserved their VMs. Do not wait
	// for the grace period, because their pods are waiting.
	maps.Copy(noVM, c.abandoned.lasting(abandoned, v.now, period))

	var errs []error
	for _, claim := range v.claims {
		var reason, cause, effect string
		switch {
		case noVM[claim.UID]:
			reason = ReasonVMGone
			cause = "its VM is neither in the fleet nor in Proxmox, so no Node will join"
			effect = "the NodeClaim is deleted, and its pods are scheduled again"
		case noNode[claim.UID]:
			reason = ReasonNodeGone
			cause = fmt.Sprintf("its Node %s was deleted and will not register again", claim.Status.NodeName)
			effect = "the NodeClaim and its VM are deleted"
		default:
			continue
		}
		if v.paused {
			effect = "numaform is paused; after numaform resume, " + effect
		}
		c.config.publish(v, claim.Labels[karpv1.NodePoolLabelKey], claim, reason, fmt.Sprintf("NodeClaim %s: %s: %s", claim.Name, cause, effect))
		if !v.paused {
			errs = append(errs, c.config.deleteClaim(ctx, claim))
		}
	}
	return errors.Join(errs...)
}

func isRegistered(claim *karpv1.NodeClaim) bool {
	return claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeRegistered).IsTrue()
}

// isVMless reports whether the claim has no VM and will not get one. A VM that is desired
// but not created yet counts as the VM of the claim. A standby VM does not count, because
// the process that created the claim died before it woke the VM. Nor does a VM that was
// created but no longer exists in Proxmox, because another client deleted it.
func (v *view) isVMless(claim *karpv1.NodeClaim, snapshot *topology.Snapshot) bool {
	key := keyOf(claim)
	if key == "" {
		return false // Karpenter has not launched it yet
	}
	state, desired := v.vms[key]
	if desired && state.VM.Standby {
		return true
	}
	if desired && state.Phase != scaler.PhaseMade {
		return false
	}
	region, vmid, err := fleet.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		// No VM was ever created for it, unless a guest has its key.
		return !desired && !slices.ContainsFunc(snapshot.Hosts, func(host topology.Host) bool {
			return slices.ContainsFunc(host.Guests, func(g topology.Guest) bool { return g.Key == string(key) })
		})
	}

	// Proxmox also lists the guests of hosts that are off. That is sufficient for a VM that
	// the fleet does not contain: it was never created, or it was removed.
	complete := listsAll(snapshot, region)
	if !desired {
		complete = listsGuests(snapshot, region)
	}
	// A guest with that VMID may be the VM, because its key may not have been read.
	mayBeVM := func(g topology.Guest) bool { return g.VMID == int(vmid) && (g.Key == "" || g.Key == string(key)) }
	return complete && !slices.ContainsFunc(snapshot.Hosts, func(host topology.Host) bool {
		return host.Region == region && slices.ContainsFunc(host.Guests, mayBeVM)
	})
}

// listsAll reports whether the snapshot contains all guests of a region, and no host of its
// cluster is off, so that a missing guest does not exist.
func listsAll(snapshot *topology.Snapshot, region topology.RegionName) bool {
	return listsGuests(snapshot, region) && !slices.ContainsFunc(snapshot.Hosts, func(host topology.Host) bool {
		return host.Region == region && !host.Online && !host.Absent
	})
}

// listsGuests reports whether the cluster of a region was read, and lists all its guests.
func listsGuests(snapshot *topology.Snapshot, region topology.RegionName) bool {
	return slices.ContainsFunc(snapshot.Regions, func(r topology.Region) bool { return r.Name == region && r.Quorate && !r.HidesGuests }) &&
		slices.ContainsFunc(snapshot.Hosts, func(host topology.Host) bool { return host.Region == region && !host.Absent })
}
