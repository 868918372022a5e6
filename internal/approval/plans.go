package approval

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/state/guard"
)

// The reasons of events on ScalePlans.
const (
	ReasonProposed = "ScalePlanProposed"
	ReasonDecided  = "ScalePlanDecided"
	ReasonFinished = "ScalePlanFinished"
)

// conditionBegun is true once an approved plan is in progress. Its message lists the keys
// of similar VMs that existed before, which are not the plan's.
const conditionBegun = "Begun"

// readPlans returns the ScalePlans that numaform proposed, with their status from the
// ledger. It waits until no status is written: with the version of a status whose entry is
// not in the ledger yet, the caller could replace that status by the one before it.
func (a *Approvals) readPlans(ctx context.Context) ([]v1alpha1.ScalePlan, error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	return a.plansNow(ctx)
}

// plansNow is readPlans for a caller that holds writing.
func (a *Approvals) plansNow(ctx context.Context) ([]v1alpha1.ScalePlan, error) {
	var list v1alpha1.ScalePlanList
	if err := a.config.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("reading scaleplans: %w", err)
	}
	known, err := a.readLedger(ctx, list.Items)
	if err != nil {
		return nil, err
	}
	plans := slices.DeleteFunc(list.Items, func(plan v1alpha1.ScalePlan) bool {
		_, ours := known[plan.UID]
		return !ours
	})
	for i := range plans {
		plans[i].Status = known[plans[i].UID]
	}
	return plans, nil
}

// pending reports whether a plan waits for approval, or is approved but has not begun.
func pending(plan *v1alpha1.ScalePlan) bool {
	return plan.Status.Phase == "" || plan.Status.Phase == v1alpha1.ScalePlanPending
}

// approved reports whether an operator approved a plan by its complete hash, the current
// change has that hash, the required people signed the approval, no freeze window blocks
// it, and the plan is not rejected, expired or finished.
func (a *Approvals) approved(plan *v1alpha1.ScalePlan, hash string) bool {
	same := func(x, y string) bool { return subtle.ConstantTimeCompare([]byte(x), []byte(y)) == 1 }
	given, _ := plan.Approval()
	if len(hash) != 64 || !same(given, hash) || !same(plan.Spec.PlanHash, hash) || isRejected(plan) || plan.Status.Phase.Over() || a.expired(plan) {
		return false
	}
	_, err := a.consent(plan)
	return err == nil
}

// unforeseen returns why an approval does not cover the guard's verdict on a new plan, or
// "".
func unforeseen(plan *v1alpha1.ScalePlan, verdict guard.Verdict) string {
	known := map[string]bool{}
	for _, rule := range plan.Spec.Verdict.Rules {
		known[rule.Rule] = true
	}
	for _, finding := range verdict.Findings {
		switch {
		case finding.Decision == guard.Deny:
			return "the guard now denies it: " + finding.String()
		case finding.Decision == guard.NeedsApproval && !known[string(finding.Rule)]:
			return "the guard requires approval for another reason: " + finding.String()
		}
	}
	return ""
}

// otherState returns why a new plan is based on another or on an older Terraform state
// than the approved plan, or "" if it is not.
func otherState(plan *v1alpha1.ScalePlan, hosts []v1alpha1.ScalePlanHost) string {
	for _, was := range plan.Spec.Hosts {
		for _, is := range hosts {
			switch {
			case is.Host != was.Host || was.Lineage == "":
			case is.Lineage != was.Lineage:
				return "the Terraform state of " + is.Host + " was replaced"
			case is.Serial < was.Serial:
				return fmt.Sprintf("the Terraform state of %s went back from serial %d to %d", is.Host, was.Serial, is.Serial)
			}
		}
	}
	return ""
}

// propose ends the given pending plans that the draft replaces. It then creates
// the draft's ScalePlan, unless it already exists or the same plan was recently refused.
// If the guard denies the draft, the new ScalePlan has the phase Failed.
//
// A draft does not replace plans that only wake other VMs. Otherwise, pods could wake these VMs
// again, their new plans would replace this one, and neither could be approved.
func (a *Approvals) propose(ctx context.Context, plans []v1alpha1.ScalePlan, d *draft) error {
	// The plans were read before the draft was planned, which takes seconds. A plan that has
	// changed since then, such as by its pull request, could not be ended: two plans would
	// be pending, and the new one would get a pull request of its own.
	now, err := a.readPlans(ctx)
	if err != nil {
		return err
	}
	plans = slices.DeleteFunc(now, func(plan v1alpha1.ScalePlan) bool {
		return !slices.ContainsFunc(plans, func(given v1alpha1.ScalePlan) bool { return given.UID == plan.UID })
	})
	woken := wakes(d.vms)
	isWoken := func(vm v1alpha1.ScalePlanVM) bool { return woken[vm.Key] }
	err = a.supersede(ctx, plans, d.hash, "another change is needed now", func(plan *v1alpha1.ScalePlan) bool {
		if onlyWakes(plan) && !slices.ContainsFunc(plan.Spec.VMs, isWoken) {
			return false
		}
		return plan.Spec.RequestedBy == d.requestedBy || (d.requestedBy == RequestedByProvisioning &&
			(plan.Spec.RequestedBy == RequestedByGuard || plan.Spec.RequestedBy == RequestedByStandby))
	})
	if err != nil || a.refused(plans, d.hash) {
		return err
	}
	if len(d.vms) > maxVMs {
		return fmt.Errorf("proposing a change of %d VMs for NodePool %s: a ScalePlan can contain at most %d VMs: "+
			"lower the NodePool's limits, or set its mode to auto until the change is done", len(d.vms), strings.Join(d.pools, ", "), maxVMs)
	}

	if d.cost, err = a.costOf(ctx, d); err != nil {
		return err
	}
	plan := a.object(d)
	a.draw(ctx, plan.Name, d)
	for {
		err := a.config.Client.Create(ctx, plan)
		if err == nil {
			break
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("proposing scaleplan %s: %w", plan.Name, err)
		}
		if free, err := a.freeName(ctx, plan.Name); err != nil || !free {
			return err
		}
		plan.ResourceVersion = ""
	}
	plan.Status.Phase = v1alpha1.ScalePlanPending
	frozen, until := "", ""
	if d.verdict.Decision == guard.Deny {
		now := metav1.NewTime(a.config.Clock.Now())
		plan.Status.Phase, plan.Status.FinishedAt = v1alpha1.ScalePlanFailed, &now
		plan.Status.Result = "the guard denies it, and approval cannot override that: see spec.reasons"
	} else {
		frozen, until = a.setFrozen(plan)
	}
	if err := a.enterFirst(ctx, plan); err != nil {
		return err
	}
	log.FromContext(ctx).Info("proposed scaleplan", logkey.ScalePlan, plan.Name, logkey.NodePool, d.pools, logkey.Message, plan.Spec.Summary)
	a.publish(plan, corev1.EventTypeNormal, ReasonProposed, plan.Spec.Summary+": see numaform plans "+plan.Name)
	a.publishFreeze(plan, frozen, until)
	return nil
}

// object returns the ScalePlan of a draft.
func (a *Approvals) object(d *draft) *v1alpha1.ScalePlan {
	reasons := slices.Clone(d.reasons)
	verdict := v1alpha1.ScalePlanVerdict{Decision: decisionOf(d.verdict.Decision)}
	for i, finding := range d.verdict.Findings {
		reasons = append(reasons, finding.String())
		if i >= maxRules {
			continue
		}
		message := finding.Message
		if finding.Address != "" {
			message = finding.Address + ": " + message
		}
		verdict.Rules = append(verdict.Rules, v1alpha1.ScalePlanRule{
			Rule: clip(string(finding.Rule), 128), Decision: decisionOf(finding.Decision), Message: clip(message, 2048),
		})
	}
	for i := range reasons {
		reasons[i] = clip(reasons[i], 2048)
	}
	diff, sum := v1alpha1.CutDiff(d.diff)
	return &v1alpha1.ScalePlan{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ScalePlanName(d.pools[0], d.direction, d.hash)},
		Spec: v1alpha1.ScalePlanSpec{
			ClusterID: a.config.ClusterID,
			Direction: d.direction, NodePools: d.pools, RequestedBy: d.requestedBy, Why: clip(d.why, 4096), Summary: d.summary(), Cost: clip(d.cost, 256),
			VMs: d.vms, PlanHash: d.hash, Hosts: d.hosts, Diff: diff, DiffSHA256: sum,
			Reasons: reasons[:min(len(reasons), maxReasons)], Verdict: verdict,
			ExpiresAt: metav1.NewTime(a.config.Clock.Now().Add(expiry).UTC()),
		},
	}
}

// freeName deletes the plan with that name if it is finished, or if numaform did not
// propose it, and reports whether the name is free.
func (a *Approvals) freeName(ctx context.Context, name string) (bool, error) {
	var old v1alpha1.ScalePlan
	err := a.config.Client.Get(ctx, client.ObjectKey{Name: name}, &old)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading scaleplan %s: %w", name, err)
	}
	known, err := a.readLedger(ctx, []v1alpha1.ScalePlan{old})
	if err != nil {
		return false, err
	}
	if status, ours := known[old.UID]; ours && !status.Phase.Over() {
		return false, nil
	}
	err = a.remove(ctx, &old)
	return err == nil, err
}

// begin records that an approved plan is in progress. It must succeed before the change
// starts, because an approval is valid for one change. before lists keys of VMs that are
// not the plan's, and keys the keys of its new VMs that are already known.
func (a *Approvals) begin(ctx context.Context, plan *v1alpha1.ScalePlan, before, keys []string) error {
	if plan.Status.Phase == v1alpha1.ScalePlanApproved {
		return nil
	}
	approval, err := a.consent(plan)
	if err != nil {
		return fmt.Errorf("beginning scaleplan %s: %w", plan.Name, err)
	}
	now := metav1.NewTime(a.config.Clock.Now())
	plan.Status.Phase, plan.Status.DecidedAt = v1alpha1.ScalePlanApproved, &now
	plan.Status.Approver, plan.Status.Keys = approval.By, keys
	plan.Status.Conditions = append(plan.Status.Conditions, metav1.Condition{
		Type: conditionBegun, Status: metav1.ConditionTrue, Reason: "Approved", LastTransitionTime: now,
		Message: strings.Join(before, ","),
	})
	thawed, why := a.setFrozen(plan)
	if err := a.update(ctx, plan); err != nil {
		return fmt.Errorf("beginning scaleplan %s: %w", plan.Name, err)
	}
	log.FromContext(ctx).Info("began approved scaleplan", logkey.ScalePlan, plan.Name, logkey.Approver, plan.Status.Approver)
	a.publish(plan, corev1.EventTypeNormal, ReasonDecided, "approved by "+plan.Status.Approver)
	a.publishFreeze(plan, thawed, why)
	if approval.BreakGlass != "" {
		a.broke(plan, &approval)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begunPlans = -1 // until the next Advance
	return nil
}

// end moves a plan to a final phase. If another client has changed or deleted the plan,
// end returns nil, and a later call ends it.
func (a *Approvals) end(ctx context.Context, plan *v1alpha1.ScalePlan, phase v1alpha1.ScalePlanPhase, result string) error {
	now := metav1.NewTime(a.config.Clock.Now())
	if plan.Status.DecidedAt == nil {
		plan.Status.DecidedAt = &now
	}
	plan.Status.Phase, plan.Status.FinishedAt, plan.Status.Result = phase, &now, result
	a.mu.Lock()
	delete(a.pictures, plan.Name)
	a.mu.Unlock()
	thawed, why := a.setFrozen(plan)
	err := a.update(ctx, plan)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("ending scaleplan %s: %w", plan.Name, err)
	}
	log.FromContext(ctx).Info("ended scaleplan", logkey.ScalePlan, plan.Name, logkey.Phase, string(phase), logkey.Message, result)
	kind := corev1.EventTypeNormal
	if phase == v1alpha1.ScalePlanFailed || phase == v1alpha1.ScalePlanExpired {
		kind = corev1.EventTypeWarning
	}
	a.publishFreeze(plan, thawed, why)
	a.publish(plan, kind, ReasonFinished, string(phase)+": "+result)
	return nil
}

// supersede ends the pending plans that which selects, except those with the given hash.
func (a *Approvals) supersede(ctx context.Context, plans []v1alpha1.ScalePlan, hash, why string, which func(*v1alpha1.ScalePlan) bool) error {
	var errs []error
	for i := range plans {
		plan := &plans[i]
		if pending(plan) && plan.Spec.PlanHash != hash && which(plan) {
			errs = append(errs, a.end(ctx, plan, v1alpha1.ScalePlanSuperseded, why))
		}
	}
	return errors.Join(errs...)
}
