package approval

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"k8s.io/client-go/util/workqueue"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scaler"
)

const (
	// advanceEvery is the interval between calls of Advance while a ScalePlan is
	// unfinished, because its VMs and the time determine its progress.
	advanceEvery = 10 * time.Second
	// settledEvery is the interval while all ScalePlans are finished. A new or changed
	// ScalePlan does not wait for it.
	settledEvery = 5 * time.Minute
)

// Name returns the controller's name.
func (a *Approvals) Name() string { return "approval" }

// Register makes the manager call Advance on the leader, periodically and when a ScalePlan
// changes. Advance itself does not read from the manager's cache.
func (a *Approvals) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(a.Name()).
		// The default would wait for up to 17 minutes after the API server is back.
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 3*advanceEvery)}).
		WatchesRawSource(singleton.Source()).
		Watches(&v1alpha1.ScalePlan{}, handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
			return []reconcile.Request{{}}
		})).
		Complete(singleton.AsReconciler(a))
}

// Reconcile calls Advance for controller-runtime, and forgets old candidates for disruption.
func (a *Approvals) Reconcile(ctx context.Context) (reconciler.Result, error) {
	settled, err := a.Advance(ctx)
	if err != nil {
		return reconciler.Result{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for candidate, last := range a.seen {
		if a.config.Clock.Since(last) > seenFor {
			delete(a.seen, candidate)
		}
	}
	if settled {
		return reconciler.Result{RequeueAfter: settledEvery}, nil
	}
	return reconciler.Result{RequeueAfter: advanceEvery}, nil
}

// Advance updates the ScalePlans: it restores their statuses from the ledger, ends
// ScalePlans that are rejected, expired, completed, failed or no longer needed, and
// deletes old ones and the ones that numaform did not propose. It calls Config.Decide if an
// approved ScalePlan has not begun, or pods may no longer need a pending one. It reports whether every ScalePlan was already
// finished. Before the fleet has been read, Advance does nothing, because every VM to be
// removed would appear to be deleted.
func (a *Approvals) Advance(ctx context.Context) (settled bool, err error) {
	if !a.fleet.Synced() {
		return false, nil
	}
	a.started()
	listed, err := a.restore(ctx)
	errs := []error{err}
	plans, err := a.readPlans(ctx)
	if err != nil {
		return false, errors.Join(append(errs, err)...)
	}
	settled = listed == len(plans)
	a.countPending(plans)
	decide := false
	for i := range plans {
		plan := &plans[i]
		settled = settled && plan.Status.Phase.Over()
		switch {
		case plan.Status.Phase.Over():
			errs = append(errs, a.prune(ctx, plan))
		case plan.Spec.RequestedBy == RequestedByClass:
			errs = append(errs, a.advanceUpdates(ctx, plan))
		case pending(plan):
			errs = append(errs, a.advancePending(ctx, plan))
		case plan.Spec.Direction == v1alpha1.ScaleUp:
			errs = append(errs, a.advanceCreates(ctx, plan))
		default:
			errs = append(errs, a.advanceDeletes(ctx, plan))
		}
		decide = decide || pending(plan) && (a.approved(plan, plan.Spec.PlanHash) || a.unrequested(plan))
	}
	if decide {
		a.config.Decide()
	}
	return settled, errors.Join(errs...)
}

// countPending counts the plans that wait for a decision, and the plans in progress.
func (a *Approvals) countPending(plans []v1alpha1.ScalePlan) {
	counts, begun := map[v1alpha1.ScaleDirection]int{}, 0
	for i := range plans {
		if a.undecided(&plans[i]) {
			counts[plans[i].Spec.Direction]++
		}
		if plans[i].Status.Phase == v1alpha1.ScalePlanApproved {
			begun++
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pending, a.begunPlans = counts, begun
}

// Pending returns the number of ScalePlans that wait for a decision, as of the last Advance.
func (a *Approvals) Pending() map[v1alpha1.ScaleDirection]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.pending)
}

// prune deletes a plan that finished more than retainedFor ago. The fleet's history still has
// the changes that were applied; rejected and expired plans are recorded nowhere else.
func (a *Approvals) prune(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	finished := plan.CreationTimestamp.Time
	if plan.Status.FinishedAt != nil {
		finished = plan.Status.FinishedAt.Time
	}
	if a.config.Clock.Since(finished) < retainedFor {
		return nil
	}
	err := a.config.Client.Delete(ctx, plan, client.Preconditions{UID: &plan.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting scaleplan %s: %w", plan.Name, err)
	}
	return nil
}

// advancePending ends a plan that was rejected or was not begun in time, or whose nodes to
// be removed no longer exist or are needed again, or whose VMs to be woken no longer exist.
func (a *Approvals) advancePending(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	switch {
	case isRejected(plan):
		reason, by := plan.Rejection()
		return a.end(ctx, plan, v1alpha1.ScalePlanRejected, fmt.Sprintf("rejected by %s: %s", by, reason))
	case a.expired(plan) && isApproved(plan):
		return a.end(ctx, plan, v1alpha1.ScalePlanExpired, "it was approved, but could not begin in time: if it is still needed, it is proposed again")
	case a.expired(plan):
		return a.end(ctx, plan, v1alpha1.ScalePlanExpired, "it was not approved in time: if it is still needed, it is proposed again")
	case plan.Spec.Direction == v1alpha1.ScaleDown && a.outdated(plan):
		return a.end(ctx, plan, v1alpha1.ScalePlanSuperseded, "its nodes no longer exist, or are needed again")
	case onlyWakes(plan) && !a.onStandby(plan):
		return a.end(ctx, plan, v1alpha1.ScalePlanSuperseded, "its VMs are not on standby")
	}
	return errors.Join(a.noteFreeze(ctx, plan), a.noteConsent(ctx, plan))
}

// advanceUpdates ends a plan of updates in place that are done or no longer needed, that
// were rejected, or that were not begun in time.
func (a *Approvals) advanceUpdates(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	changing := slices.ContainsFunc(a.fleet.VMs(), func(state scaler.VMState) bool {
		return state.Changing && slices.ContainsFunc(plan.Spec.VMs, func(line v1alpha1.ScalePlanVM) bool {
			return line.Action == v1alpha1.ScalePlanUpdate && line.Key == string(state.VM.Key)
		})
	})
	switch {
	case !changing && !pending(plan):
		return a.end(ctx, plan, v1alpha1.ScalePlanApplied, vmsWere(len(plan.Spec.VMs))+" changed")
	case !changing && a.config.Clock.Since(a.started()) >= unrequestedFor:
		// Right after a start, the requester of updates may not have requested them yet.
		return a.end(ctx, plan, v1alpha1.ScalePlanSuperseded, "the class of its nodes changed again, or the nodes no longer exist")
	case pending(plan):
		return a.advancePending(ctx, plan)
	}
	return nil // it is being carried out
}

// advanceCreates ends a plan once each of its VMs has been created or woken, or has
// failed, or if not all of them were reserved in time. What happens to a VM after its
// creation does not matter.
func (a *Approvals) advanceCreates(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	planned, states := creates(plan), a.created(plan)
	if woken := wakes(plan.Spec.VMs); len(woken) > 0 {
		planned += len(woken)
		states = append(states, slices.DeleteFunc(a.fleet.VMs(), func(state scaler.VMState) bool {
			return state.VM.Standby || !woken[string(state.VM.Key)]
		})...)
	}
	done := 0
	blocked := false // a VM waits for the end of an outage
	var failures []string
	for i := range states {
		switch state := &states[i]; {
		case state.Made || state.Phase == scaler.PhaseMade:
			done++
		case state.Phase == scaler.PhaseFailed:
			failures = append(failures, fmt.Sprintf("%s: %v", state.VM.Name, state.Err))
		case state.Phase == scaler.PhaseRemoving:
			failures = append(failures, state.VM.Name+" was abandoned before it was created")
		case scaler.OutageOf(state) != nil:
			blocked = true
		}
	}
	late := !blocked && plan.Status.DecidedAt != nil && a.config.Clock.Since(plan.Status.DecidedAt.Time) > beginWithin
	switch {
	case done >= planned:
		return a.end(ctx, plan, v1alpha1.ScalePlanApplied, vmsWere(planned)+" "+begun(plan))
	case len(failures) > 0 && done+len(failures) >= planned:
		slices.Sort(failures)
		return a.end(ctx, plan, v1alpha1.ScalePlanFailed, clip(strings.Join(failures, "; "), 4096))
	case late && len(states) < planned:
		return a.end(ctx, plan, v1alpha1.ScalePlanFailed, fmt.Sprintf("%d of %d VMs were %s within %s: "+
			"see the events of their NodeClaims; VMs that pods still need are proposed again", done, planned, begun(plan), beginWithin))
	}
	return nil
}

// creates returns the number of VMs that a plan creates.
func creates(plan *v1alpha1.ScalePlan) int {
	n := 0
	for i := range plan.Spec.VMs {
		if plan.Spec.VMs[i].Action == v1alpha1.ScalePlanCreate {
			n++
		}
	}
	return n
}

// wakes returns the keys of the VMs that a plan with these VMs wakes.
func wakes(vms []v1alpha1.ScalePlanVM) map[string]bool {
	keys := map[string]bool{}
	for i := range vms {
		if vms[i].Action == v1alpha1.ScalePlanWake {
			keys[vms[i].Key] = true
		}
	}
	return keys
}

// onlyWakes reports whether a plan wakes standby VMs and changes no others.
func onlyWakes(plan *v1alpha1.ScalePlan) bool {
	return len(plan.Spec.VMs) > 0 && len(wakes(plan.Spec.VMs)) == len(plan.Spec.VMs)
}

// onStandby reports whether a standby VM that a plan wakes exists.
func (a *Approvals) onStandby(plan *v1alpha1.ScalePlan) bool {
	woken := wakes(plan.Spec.VMs)
	return slices.ContainsFunc(a.fleet.VMs(), func(state scaler.VMState) bool { return state.VM.Standby && woken[string(state.VM.Key)] })
}

// begun returns the participle that describes the VMs of a finished scale-up: created,
// woken, or both.
func begun(plan *v1alpha1.ScalePlan) string {
	switch {
	case len(wakes(plan.Spec.VMs)) == 0:
		return "created"
	case creates(plan) == 0:
		return "woken"
	}
	return "created or woken"
}

// vmsWere begins a sentence about a number of VMs, such as "1 VM was" or "2 VMs were".
func vmsWere(n int) string {
	if n == 1 {
		return "1 VM was"
	}
	return fmt.Sprintf("%d VMs were", n)
}

// advanceDeletes ends a plan according to the phases of the VMs that it removes.
func (a *Approvals) advanceDeletes(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	left := a.leaving(plan)
	removing := slices.ContainsFunc(left, func(state scaler.VMState) bool { return state.Phase == scaler.PhaseRemoving })
	switch {
	case len(left) == 0:
		return a.end(ctx, plan, v1alpha1.ScalePlanApplied, vmsWere(len(plan.Spec.VMs)-creates(plan))+" deleted")
	case !removing && plan.Status.DecidedAt != nil && a.config.Clock.Since(plan.Status.DecidedAt.Time) > drainWithin:
		return a.end(ctx, plan, v1alpha1.ScalePlanFailed, fmt.Sprintf("%s not deleted within %s: "+
			"see the events of their Nodes; removals that are still needed are proposed again", vmsWere(len(left)), drainWithin))
	}
	return nil
}

// leaving returns the existing VMs that a plan removes.
func (a *Approvals) leaving(plan *v1alpha1.ScalePlan) []scaler.VMState {
	keys := deletes(plan.Spec.VMs)
	return slices.DeleteFunc(a.fleet.VMs(), func(state scaler.VMState) bool { return !keys[string(state.VM.Key)] })
}

// deletes returns the keys of the VMs that a plan with these VMs deletes.
func deletes(vms []v1alpha1.ScalePlanVM) map[string]bool {
	keys := map[string]bool{}
	for i := range vms {
		if vms[i].Action == v1alpha1.ScalePlanDelete {
			keys[vms[i].Key] = true
		}
	}
	return keys
}

// outdated reports whether all nodes that a plan removes are gone, or one of them has not
// been a candidate for removal for candidateFor, for example because pods returned.
func (a *Approvals) outdated(plan *v1alpha1.ScalePlan) bool {
	if len(a.leaving(plan)) == 0 {
		return true
	}
	if plan.Spec.RequestedBy == RequestedByGuard {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for key := range deletes(plan.Spec.VMs) {
		last := a.seen[candidacy{by: plan.Spec.RequestedBy, key: key}]
		if last.Before(a.started()) {
			last = a.started()
		}
		if a.config.Clock.Since(last) > candidateFor {
			return true
		}
	}
	return false
}
