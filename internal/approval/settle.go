package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scaler"
)

// SettleEvery is the interval between calls of Settle.
const SettleEvery = 10 * time.Second

// Settle updates ScalePlans: it ends the rejected, expired and completed ones, and
// deletes old ones. Call it every SettleEvery on the leader. It does nothing before the
// fleet has been read, because then no VM is known and every VM to be removed would look
// gone.
func (a *Approvals) Settle(ctx context.Context) error {
	if !a.synced() {
		return nil
	}
	errs := []error{a.restore(ctx)}
	plans, err := a.readPlans(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	approved := false
	for i := range plans {
		errs = append(errs, a.settleOne(ctx, &plans[i]))
		approved = approved || (pending(&plans[i]) && a.said(&plans[i], plans[i].Spec.PlanHash))
	}
	if approved {
		a.config.Approved()
	}
	return errors.Join(errs...)
}

func (a *Approvals) settleOne(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	if plan.Spec.RequestedBy != RequestedByClass || plan.Status.Phase.Over() {
		return a.settle(ctx, plan)
	}
	switch {
	case a.unchanging(plan) && (!pending(plan) || a.config.Clock.Since(a.started) >= unwantedFor):
		return a.settleChanged(ctx, plan)
	case pending(plan):
		return a.settle(ctx, plan)
	}
	return nil // it is being carried out
}

func (a *Approvals) settle(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	switch {
	case plan.Status.Phase.Over():
		return a.prune(ctx, plan)
	case plan.Status.Phase == v1alpha1.ScalePlanApproved && plan.Spec.Direction == v1alpha1.ScaleUp:
		return a.settleMade(ctx, plan)
	case plan.Status.Phase == v1alpha1.ScalePlanApproved:
		return a.settleGone(ctx, plan)
	case plan.Spec.Reject != "":
		return a.end(ctx, plan, v1alpha1.ScalePlanRejected, fmt.Sprintf("rejected by %s: %s", plan.Spec.RejectedBy, plan.Spec.Reject))
	case a.expired(plan) && plan.Spec.Approve != "":
		return a.end(ctx, plan, v1alpha1.ScalePlanExpired, "it was approved, and could not be begun in time: if it is still needed, it is proposed anew")
	case a.expired(plan):
		return a.end(ctx, plan, v1alpha1.ScalePlanExpired, "nobody approved it in time: if it is still needed, it is proposed anew")
	case plan.Spec.Direction == v1alpha1.ScaleDown && a.outdated(plan):
		return a.end(ctx, plan, v1alpha1.ScalePlanSuperseded, "its nodes are gone, or are needed again")
	}
	return nil
}

// prune deletes a plan that has been finished for keptFor: the fleet's history has its
// result.
func (a *Approvals) prune(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	over := plan.CreationTimestamp.Time
	if plan.Status.FinishedAt != nil {
		over = plan.Status.FinishedAt.Time
	}
	if a.config.Clock.Since(over) < keptFor {
		return nil
	}
	err := a.config.Client.Delete(ctx, plan, client.Preconditions{UID: &plan.UID})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting scaleplan %s: %w", plan.Name, err)
	}
	return nil
}

// settleMade ends a plan according to the phases of its new VMs.
func (a *Approvals) settleMade(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	wanted, states := creates(plan), a.made(plan)
	made, failures := outcomes(states)
	late := plan.Status.DecidedAt != nil && a.config.Clock.Since(plan.Status.DecidedAt.Time) > beginWithin
	switch {
	case made >= wanted:
		return a.end(ctx, plan, v1alpha1.ScalePlanApplied, fmt.Sprintf("%d VMs were made", wanted))
	case len(failures) > 0 && made+len(failures) >= wanted:
		slices.Sort(failures)
		return a.end(ctx, plan, v1alpha1.ScalePlanFailed, clip(strings.Join(failures, "; "), 4096))
	case late && len(states) < wanted:
		return a.end(ctx, plan, v1alpha1.ScalePlanFailed, fmt.Sprintf("%d of %d VMs were made, the others were given up meanwhile: "+
			"see the events of their NodeClaims; what pods still need is proposed anew", made, wanted))
	}
	return nil
}

// unchanging reports whether no VM that a plan updates in place has a pending update.
func (a *Approvals) unchanging(plan *v1alpha1.ScalePlan) bool {
	return !slices.ContainsFunc(a.vms(), func(state scaler.VMState) bool { return state.Changing && updates(plan, state) })
}

// updates reports whether a plan updates a VM.
func updates(plan *v1alpha1.ScalePlan, state scaler.VMState) bool {
	return slices.ContainsFunc(plan.Spec.VMs, func(line v1alpha1.ScalePlanVM) bool {
		return line.Action == v1alpha1.ScalePlanUpdate && line.Key == string(state.VM.Key)
	})
}

// settleChanged ends a plan of updates in place that are done or no longer needed. Right
// after a start, the requester of updates may not have asked yet.
func (a *Approvals) settleChanged(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	if plan.Status.Phase == v1alpha1.ScalePlanApproved {
		return a.end(ctx, plan, v1alpha1.ScalePlanApplied, fmt.Sprintf("%d VMs were changed", len(plan.Spec.VMs)))
	}
	return a.end(ctx, plan, v1alpha1.ScalePlanSuperseded, "the class of its nodes says otherwise now, or they are gone")
}

// outcomes returns how many VMs were created, whatever happened to them later, and why
// others were not.
func outcomes(states []scaler.VMState) (made int, failures []string) {
	for i := range states {
		switch state := &states[i]; {
		case state.Made || state.Phase == scaler.PhaseMade:
			made++
		case state.Phase == scaler.PhaseFailed:
			failures = append(failures, fmt.Sprintf("%s: %v", state.VM.Name, state.Err))
		case state.Phase == scaler.PhaseRemoving:
			failures = append(failures, state.VM.Name+" was given up before it was made")
		}
	}
	return made, failures
}

// creates returns how many VMs a plan creates.
func creates(plan *v1alpha1.ScalePlan) int {
	n := 0
	for i := range plan.Spec.VMs {
		if plan.Spec.VMs[i].Action == v1alpha1.ScalePlanCreate {
			n++
		}
	}
	return n
}

// settleGone ends a plan according to the phases of the VMs that it removes.
func (a *Approvals) settleGone(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	left := a.leaving(plan)
	removing := slices.ContainsFunc(left, func(state scaler.VMState) bool { return state.Phase == scaler.PhaseRemoving })
	switch {
	case len(left) == 0:
		return a.end(ctx, plan, v1alpha1.ScalePlanApplied, fmt.Sprintf("%d VMs are gone", len(plan.Spec.VMs)-creates(plan)))
	case !removing && plan.Status.DecidedAt != nil && a.config.Clock.Since(plan.Status.DecidedAt.Time) > drainWithin:
		return a.end(ctx, plan, v1alpha1.ScalePlanFailed, fmt.Sprintf("%d VMs did not leave within %s: "+
			"see the events of their Nodes; what should go is proposed anew", len(left), drainWithin))
	}
	return nil
}

// leaving returns the existing VMs that a plan removes.
func (a *Approvals) leaving(plan *v1alpha1.ScalePlan) []scaler.VMState {
	keys := deletes(plan.Spec.VMs)
	return slices.DeleteFunc(a.vms(), func(state scaler.VMState) bool { return !keys[string(state.VM.Key)] })
}

// deletes returns the keys of the removed VMs.
func deletes(vms []v1alpha1.ScalePlanVM) map[string]bool {
	keys := map[string]bool{}
	for i := range vms {
		if vms[i].Action == v1alpha1.ScalePlanDelete {
			keys[vms[i].Key] = true
		}
	}
	return keys
}

// outdated reports whether nodes waiting for removal are gone, or have not been offered
// for removal for a while because pods came back.
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
		last := a.seen[offered{plan.Spec.RequestedBy, key}]
		if last.Before(a.started) {
			last = a.started
		}
		if a.config.Clock.Since(last) > offeredFor {
			return true
		}
	}
	return false
}

// offeredFor is how long a plan remains after Karpenter stopped offering its node.
const offeredFor = 5 * time.Minute
