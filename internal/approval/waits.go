package approval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state/guard"
)

// Waits returns why the new VMs of NodePools wait, according to the last Up and Draft,
// sorted by NodePool.
func (a *Approvals) Waits() []scheduling.Wait {
	a.mu.Lock()
	defer a.mu.Unlock()
	waits := make([]scheduling.Wait, 0, len(a.waits))
	for _, pool := range slices.Sorted(maps.Keys(a.waits)) {
		waits = append(waits, a.waits[pool])
	}
	return waits
}

// keepWaits forgets the waits of NodePools for which no new VM is requested any more.
func (a *Approvals) keepWaits(groups map[string][]scheduling.Placed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.waits, func(pool string, _ scheduling.Wait) bool { return len(groups[pool]) == 0 })
}

// proceed records that the VMs of a group do not wait.
func (a *Approvals) proceed(g *group) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waits, g.pool)
}

// wait records that the VMs of a group wait for the plan of a draft, because it is pending
// approval, was recently rejected, or is denied.
func (a *Approvals) wait(g *group, d *draft) {
	name := v1alpha1.ScalePlanName(d.pools[0], d.direction, d.hash)
	w := scheduling.Wait{
		NodePool: g.pool, ScalePlan: name, Reason: v1alpha1.ReasonPendingApproval,
		Message: fmt.Sprintf("waits for approval of plan %s (%s): to approve it, run numaform approve %s", name, d.summary(), name),
	}
	if active := a.frozen(d.direction); active != nil {
		w.Message = fmt.Sprintf("waits for the end of %s (plan %s: %s): in an emergency, run numaform approve %s --break-glass REASON", active, name, d.summary(), name)
	}
	rejected := slices.IndexFunc(g.plans, func(plan v1alpha1.ScalePlan) bool {
		return isRejected(&plan) && a.refused([]v1alpha1.ScalePlan{plan}, d.hash)
	})
	switch {
	case d.verdict.Decision == guard.Deny:
		w.Reason = v1alpha1.ReasonPlanDenied
		w.Message = fmt.Sprintf("the guard denies plan %s: to list the rules, run numaform plans %s", name, name)
	case rejected >= 0:
		plan := &g.plans[rejected]
		reason, by := plan.Rejection()
		w.ScalePlan, w.Reason = plan.Name, v1alpha1.ReasonPlanRejected
		w.Message = fmt.Sprintf("%s rejected plan %s: %s: change the pods or the NodePool; the same plan is not proposed again for a day, unless someone deletes it",
			cmp.Or(by, "a user"), plan.Name, reason)
	}
	a.setWait(g, w)
}

// waitForOutage records that the VMs of a group wait because no plan can be made. If the
// next attempt can succeed at once, it removes the group's wait.
func (a *Approvals) waitForOutage(g *group, err error) {
	if errors.Is(err, scaler.ErrFleetChanged) || errors.Is(err, context.Canceled) {
		a.proceed(g)
		return
	}
	a.mu.Lock()
	since := a.waits[g.pool].Since
	a.mu.Unlock()
	if since.IsZero() {
		since = a.config.Clock.Now()
	}
	outage := scaler.OutageOf(&scaler.VMState{Err: &scaler.PostponedError{Since: since, Err: err}, Since: since})
	reason, since := outage.Cause()
	a.setWait(g, scheduling.Wait{NodePool: g.pool, Reason: reason, Since: since, Message: outage.Summary()})
}

func (a *Approvals) setWait(g *group, w scheduling.Wait) {
	for i := range g.placed {
		w.Pods = append(w.Pods, g.placed[i].Pods...)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits[g.pool] = w
}

// ApproverOf returns the user who approved the ScalePlan that created the VM with the key,
// or "". began is when the change that created the VM began.
func (a *Approvals) ApproverOf(ctx context.Context, key fleet.Key, began time.Time) (string, error) {
	a.attributing.Lock()
	defer a.attributing.Unlock()
	// Plans of later changes do not matter, so one list serves all VMs of a burst.
	if !a.listedAt.After(began) {
		now := a.config.Clock.Now()
		plans, err := a.readPlans(ctx)
		if err != nil {
			return "", err
		}
		a.listedAt, a.listedPlans = now, plans
	}
	for i := range a.listedPlans {
		if status := &a.listedPlans[i].Status; slices.Contains(status.Keys, string(key)) {
			return status.Approver, nil
		}
	}
	return "", nil
}
