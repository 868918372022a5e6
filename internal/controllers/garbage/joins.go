package garbage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// registrationTimeout is the time after which Karpenter deletes a claim whose Node has
// not registered: sigs.k8s.io/karpenter v1.14.1, lifecycle/liveness.go.
const registrationTimeout = 15 * time.Minute

// joins reports why a Node never joined, and prevents an immediate retry with its class.
// Karpenter deletes the claim.
type joins struct {
	config  Config
	closing *closing
	// waiting are launched but unregistered claims, as last seen.
	waiting map[types.UID]*karpv1.NodeClaim
	told    map[types.UID]bool
}

func newJoins(config Config, closing *closing) *joins {
	return &joins{config: config, closing: closing, waiting: map[types.UID]*karpv1.NodeClaim{}, told: map[types.UID]bool{}}
}

func (*joins) name() string { return "joins" }

func (*joins) every() time.Duration { return period }

func (j *joins) run(ctx context.Context, v *view) error {
	current := map[types.UID]bool{}
	for _, claim := range v.claims {
		current[claim.UID] = true
		if isRegistered(claim) || claim.Status.ProviderID == "" {
			delete(j.waiting, claim.UID)
			continue
		}
		j.waiting[claim.UID] = claim
	}
	for _, claim := range j.late(v.now) {
		j.told[claim.UID] = true
		j.tell(ctx, v, claim)
	}
	maps.DeleteFunc(j.waiting, func(uid types.UID, _ *karpv1.NodeClaim) bool { return !current[uid] })
	maps.DeleteFunc(j.told, func(uid types.UID, _ bool) bool { return !current[uid] })
	return nil
}

// late returns the claims that timed out and were not reported yet, sorted by name.
func (j *joins) late(now time.Time) []*karpv1.NodeClaim {
	var late []*karpv1.NodeClaim
	for uid, claim := range j.waiting {
		if timedOut(claim, now) && !j.told[uid] {
			late = append(late, claim)
		}
	}
	slices.SortFunc(late, func(a, b *karpv1.NodeClaim) int { return cmp.Compare(a.Name, b.Name) })
	return late
}

// timedOut reports whether the claim reached its timeout, by now or before it was
// deleted.
func timedOut(claim *karpv1.NodeClaim, now time.Time) bool {
	from := claim.CreationTimestamp.Time
	if registered := claim.StatusConditions().Get(karpv1.ConditionTypeRegistered); registered != nil {
		from = registered.LastTransitionTime.Time
	}
	if !claim.DeletionTimestamp.IsZero() {
		now = claim.DeletionTimestamp.Time
	}
	return now.Sub(from) >= registrationTimeout
}

func (j *joins) tell(ctx context.Context, v *view, claim *karpv1.NodeClaim) {
	class := claim.Spec.NodeClassRef.Name
	why := j.diagnose(ctx, v, claim)
	var offers []scheduling.Offer
	for _, pool := range v.poolsOf(class) {
		offers = append(offers, scheduling.Offer{NodePool: pool})
	}
	until := j.closing.close(class, offers, v.now, "a node did not join: "+why)
	j.config.publish(v, claim.Labels[karpv1.NodePoolLabelKey], claim, ReasonNeverJoined, fmt.Sprintf(
		"NodeClaim %s: no Node joined within %s: %s; no other node of class %s is made before %s",
		claim.Name, registrationTimeout, why, class, until.UTC().Format(time.RFC3339),
	))
	log.FromContext(ctx).Info("node never joined", logkey.NodeClaim, claim.Name, logkey.NodeClass, class, logkey.Reason, why)
}

// diagnose returns why a Node did not join, as seen from outside of it.
func (j *joins) diagnose(ctx context.Context, v *view, claim *karpv1.NodeClaim) string {
	state, known := v.vms[keyOf(claim)]
	switch {
	case !known:
		return "the fleet does not have its VM any more"
	case state.Phase == scaler.PhaseReserved || state.Phase == scaler.PhaseMaking:
		return fmt.Sprintf("its VM %s is still being made on %s: see the controller's log and `numaform history`", state.VM.Name, state.VM.Host)
	case state.Err != nil:
		return brief(state.Err)
	}
	snapshot, err := j.config.Snapshot(ctx)
	if err != nil {
		return "Proxmox cannot be asked about its VM: " + brief(err)
	}
	found, host := guest(snapshot, state.VM.Key)
	switch {
	case found == nil:
		return fmt.Sprintf("its VM %s is not in Proxmox any more", state.VM.Name)
	case !found.Running:
		return fmt.Sprintf("its VM %s on %s does not run: see its start task in Proxmox", state.VM.Name, host)
	}
	return v.diagnoseNode(claim, state, host)
}

// diagnoseNode returns why the Node of a running VM did not join.
func (v *view) diagnoseNode(claim *karpv1.NodeClaim, state scaler.VMState, host topology.HostID) string {
	node := v.nodes[state.VM.Name]
	switch {
	case node == nil && v.nodeBy(claim.Status.ProviderID) == nil:
		return fmt.Sprintf("its VM runs, and its kubelet never reached the API server: on %s open `qm terminal %d` and look at "+
			"`cloud-init status --long` and `journalctl -u kubelet`", host, state.VM.VMID)
	case node != nil && node.Spec.ProviderID != claim.Status.ProviderID:
		return fmt.Sprintf("Node %s has providerID %q and not %s: let kubelet's configuration or the cloud controller manager set that one",
			node.Name, node.Spec.ProviderID, claim.Status.ProviderID)
	}
	return "its Node is there, and Karpenter did not take it: see the NodeClaim's condition Registered"
}
