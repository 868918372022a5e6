package garbage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/event"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// joins reports why a Node never joined, and prevents an immediate retry with its class.
// Karpenter deletes the claim of a Node that did not register within 15 minutes. joins
// deletes the claim if its class allows less time, and the claim of a Node that registered,
// but was never ready.
type joins struct {
	config  Config
	backoff *backoff
	// waiting are launched but unregistered claims, as last seen.
	waiting  map[types.UID]*karpv1.NodeClaim
	reported map[types.UID]bool
	// causes are the results of diagnose shortly before the timeout, because Karpenter may
	// delete a claim with its VM before the next pass.
	causes map[types.UID]string
	// blocked is the reason of the outage for which the VM of a claim waited. The VM may be
	// removed together with its claim.
	blocked map[types.UID]string
}

func (*joins) name() string { return "joins" }

func (*joins) every() time.Duration { return period }

func (*joins) concerns() bool { return true }

func (j *joins) run(ctx context.Context, v *view) error {
	current := map[types.UID]bool{}
	for _, claim := range v.claims {
		current[claim.UID] = true
		if isRegistered(claim) || claim.Status.ProviderID == "" {
			delete(j.waiting, claim.UID)
			continue
		}
		j.waiting[claim.UID] = claim
		if state, known := v.vms[keyOf(claim)]; known {
			j.noteOutage(v, claim, state)
		}
		soon := j.timedOut(v, claim, v.now.Add(2*period)) && !j.timedOut(v, claim, v.now)
		if soon && claim.DeletionTimestamp.IsZero() && j.blocked[claim.UID] == "" {
			j.expect(ctx, v, claim)
		}
	}
	late := slices.DeleteFunc(slices.Collect(maps.Values(j.waiting)), func(claim *karpv1.NodeClaim) bool {
		return j.reported[claim.UID] || !j.timedOut(v, claim, v.now)
	})
	slices.SortFunc(late, func(a, b *karpv1.NodeClaim) int { return cmp.Compare(a.Name, b.Name) })
	for _, claim := range late {
		j.reported[claim.UID] = true
		j.report(ctx, v, claim)
	}
	var errs []error
	for _, claim := range v.claims {
		if j.overdue(v, claim) && !v.paused {
			errs = append(errs, j.config.deleteClaim(ctx, claim))
			continue
		}
		node := v.neverReady(claim)
		if node == nil {
			continue
		}
		if !j.reported[claim.UID] {
			j.reported[claim.UID] = true
			what := fmt.Sprintf("Node %s has registered, but was not ready within %s", node.Name, v.timeToJoin(claim))
			if v.paused {
				what += deletedLater
			}
			j.fail(ctx, v, claim, what, j.diagnose(ctx, v, claim))
		}
		if !v.paused {
			errs = append(errs, j.config.deleteClaim(ctx, claim))
		}
	}
	maps.DeleteFunc(j.waiting, func(uid types.UID, _ *karpv1.NodeClaim) bool { return !current[uid] })
	maps.DeleteFunc(j.reported, func(uid types.UID, _ bool) bool { return !current[uid] })
	maps.DeleteFunc(j.causes, func(uid types.UID, _ string) bool { return !current[uid] })
	maps.DeleteFunc(j.blocked, func(uid types.UID, _ string) bool { return !current[uid] })
	return errors.Join(errs...)
}

// expect prepares for the timeout of a claim, at which Karpenter deletes it: it finds the cause
// while the VM exists, and makes the class unavailable until the passes after the timeout, so
// that the pods do not get another claim of the class in between.
func (j *joins) expect(ctx context.Context, v *view, claim *karpv1.NodeClaim) {
	j.causes[claim.UID] = j.diagnose(ctx, v, claim)
	for _, pool := range v.poolsOf(claim.Spec.NodeClassRef.Name) {
		j.config.Unavailable.Mark(scheduling.OfferingSelector{NodePool: pool}, v.now.Add(4*period))
	}
}

// deletedLater completes the event about a claim that exceeded its timeout during a pause.
const deletedLater = " (numaform is paused; after numaform resume, the NodeClaim is deleted)"

// timeToJoin returns how long the claim's Node may take to register, and then to be ready.
func (v *view) timeToJoin(claim *karpv1.NodeClaim) time.Duration {
	return cmp.Or(v.timesToJoin[claim.Spec.NodeClassRef.Name], v1alpha1.MaxJoinTimeout)
}

// overdue reports whether a claim has exceeded the timeout of its class, which is shorter
// than Karpenter's.
func (j *joins) overdue(v *view, claim *karpv1.NodeClaim) bool {
	return j.waiting[claim.UID] != nil && claim.DeletionTimestamp.IsZero() && j.timeout(v, claim) < v1alpha1.MaxJoinTimeout && j.timedOut(v, claim, v.now)
}

// shortOutage is how long changes can be postponed without effect on whether a Node joins in
// time.
const shortOutage = time.Minute

// noteOutage records the outage for which the claim's VM waits.
func (j *joins) noteOutage(v *view, claim *karpv1.NodeClaim, state *scaler.VMState) {
	outage := outageOf(state)
	if outage == nil {
		return
	}
	reason, since := outage.Cause()
	if reason != v1alpha1.ReasonChangePostponed || v.now.Sub(since) >= shortOutage {
		j.blocked[claim.UID] = reason
	}
}

// timeout returns how long the claim's Node may take to register. If its VM waited for the
// end of an outage, the class is not at fault, and Karpenter's timeout applies.
func (j *joins) timeout(v *view, claim *karpv1.NodeClaim) time.Duration {
	if j.blocked[claim.UID] != "" {
		return v1alpha1.MaxJoinTimeout
	}
	return v.timeToJoin(claim)
}

// neverReady returns the Node of a registered claim that has not been ready for the timeout
// and was never initialized, and nil for any other claim. Karpenter has no timeout for such
// a Node, and expects that the pods for which it was created will run on it.
func (v *view) neverReady(claim *karpv1.NodeClaim) *corev1.Node {
	conditions := claim.StatusConditions(status.WithObservedOnly())
	registered := conditions.Get(karpv1.ConditionTypeRegistered)
	node := v.nodes[claim.Status.NodeName]
	if node == nil || !claim.DeletionTimestamp.IsZero() || !registered.IsTrue() || conditions.Get(karpv1.ConditionTypeInitialized).IsTrue() {
		return nil
	}
	from := registered.LastTransitionTime.Time
	ready := nodeutils.GetCondition(node, corev1.NodeReady)
	// Kubelet writes this time by the clock of its guest, which may be wrong.
	if changed := ready.LastTransitionTime.Time; changed.After(from) && !changed.After(v.now) {
		from = changed
	}
	if ready.Status == corev1.ConditionTrue || v.now.Sub(from) < v.timeToJoin(claim) {
		return nil
	}
	return node
}

// timedOut reports whether the claim has reached its timeout or, for a claim being deleted,
// had reached it when the deletion began.
func (j *joins) timedOut(v *view, claim *karpv1.NodeClaim, now time.Time) bool {
	from := claim.CreationTimestamp.Time
	if registered := claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeRegistered); registered != nil {
		from = registered.LastTransitionTime.Time
	}
	if !claim.DeletionTimestamp.IsZero() {
		now = claim.DeletionTimestamp.Time
	}
	return now.Sub(from) >= j.timeout(v, claim)
}

// report reports why the claim's Node did not join. If its VM waited for the end of an
// outage, the class is not at fault and remains available.
func (j *joins) report(ctx context.Context, v *view, claim *karpv1.NodeClaim) {
	class := claim.Spec.NodeClassRef.Name
	if reason := j.blocked[claim.UID]; reason != "" {
		j.config.publish(v, claim.Labels[karpv1.NodePoolLabelKey], claim, reason, fmt.Sprintf(
			"NodeClaim %s: no Node joined within %s, because its VM waited: Karpenter deletes the NodeClaim, and its pods are scheduled again; "+
				"the earlier events with this reason contain the fix", claim.Name, v1alpha1.MaxJoinTimeout,
		))
		log.FromContext(ctx).Info("node did not join while its vm waited", logkey.NodeClaim, claim.Name, logkey.NodeClass, class, logkey.Reason, reason)
		return
	}
	why := j.causes[claim.UID]
	if why == "" {
		why = j.diagnose(ctx, v, claim)
	}
	what := fmt.Sprintf("no Node joined within %s", v.timeToJoin(claim))
	if v.paused && v.timeToJoin(claim) < v1alpha1.MaxJoinTimeout {
		what += deletedLater
	}
	j.fail(ctx, v, claim, what, why)
}

// fail publishes the event, and makes the class unavailable for a while.
func (j *joins) fail(ctx context.Context, v *view, claim *karpv1.NodeClaim, what, why string) {
	class := claim.Spec.NodeClassRef.Name
	var offerings []scheduling.OfferingSelector
	for _, pool := range v.poolsOf(class) {
		offerings = append(offerings, scheduling.OfferingSelector{NodePool: pool})
	}
	until := j.backoff.close(class, offerings, v.now)
	j.config.publish(v, claim.Labels[karpv1.NodePoolLabelKey], claim, ReasonNeverJoined, fmt.Sprintf(
		"NodeClaim %s: %s: %s; no other node of class %s is created before %s",
		claim.Name, what, why, class, until.UTC().Format(time.RFC3339),
	))
	log.FromContext(ctx).Info("node never joined", logkey.NodeClaim, claim.Name, logkey.NodeClass, class, logkey.Reason, why)
}

// findGuest returns the guest of a VM, and its host.
func findGuest(snapshot *topology.Snapshot, clusterID string, vm *fleet.VM) (*topology.Guest, topology.HostID) {
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		for j := range host.Guests {
			if vm.IsGuest(clusterID, host.Region, &host.Guests[j]) {
				return &host.Guests[j], host.ID()
			}
		}
	}
	return nil, topology.HostID{}
}

// diagnose returns why a Node did not join, as far as that is visible from outside the
// guest.
func (j *joins) diagnose(ctx context.Context, v *view, claim *karpv1.NodeClaim) string {
	state, known := v.vms[keyOf(claim)]
	switch {
	case !known:
		return "its VM is no longer in the fleet"
	case state.Phase == scaler.PhaseReserved || state.Phase == scaler.PhaseMaking:
		return fmt.Sprintf("its VM %s is still being created on %s: see the controller's log and `numaform history`", state.VM.Name, state.VM.Host)
	case state.Err != nil:
		return brief(state.Err)
	}
	snapshot, err := j.config.Snapshot(ctx)
	if err != nil {
		return "Proxmox cannot be queried for its VM: " + brief(err)
	}
	found, host := findGuest(snapshot, j.config.ClusterID, &state.VM)
	node := v.nodes[state.VM.Name]
	switch {
	case found == nil:
		return fmt.Sprintf("its VM %s no longer exists in Proxmox", state.VM.Name)
	case !found.Running:
		return fmt.Sprintf("its VM %s on %s is not running: see its start task in Proxmox", state.VM.Name, host)
	case node == nil && v.nodeBy(claim.Status.ProviderID) == nil:
		return fmt.Sprintf("its VM is running, but its kubelet never reached the API server: on %s, run `qm terminal %d` and check "+
			"`cloud-init status --long` and `journalctl -u kubelet`", host, state.VM.VMID)
	case node != nil && node.Spec.ProviderID != claim.Status.ProviderID:
		return fmt.Sprintf("Node %s has providerID %q instead of %s: set providerID in kubelet's configuration or with the cloud controller manager",
			node.Name, node.Spec.ProviderID, claim.Status.ProviderID)
	}
	if node := v.nodes[claim.Status.NodeName]; node != nil && isRegistered(claim) {
		ready := nodeutils.GetCondition(node, corev1.NodeReady)
		if ready.Status == corev1.ConditionUnknown {
			return fmt.Sprintf("its VM is running, but its kubelet no longer responds: on %s, run `qm terminal %d` and check `journalctl -u kubelet`", host, state.VM.VMID)
		}
		return fmt.Sprintf("kubelet reports %q: see `kubectl describe node %s`", event.Cut(ready.Message, 300), node.Name)
	}
	return "its Node exists, but Karpenter did not register it: see the NodeClaim's condition Registered"
}
