package approval

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/signature"
	"github.com/numaform/numaform/state/guard"
)

// ReasonBreakGlass is the reason of the event on a ScalePlan that began by a break-glass
// approval.
const ReasonBreakGlass = "BreakGlassApproval"

// ConditionSufficient is false while an approval lacks signatures, or waits for the end of
// a freeze window.
const ConditionSufficient = "ApprovalSufficient"

// manualReason returns why changes of a NodePool whose mode is manual need approval.
func (a *Approvals) manualReason(pool string, direction v1alpha1.ScaleDirection) string {
	if active := a.frozen(direction); active != nil {
		return active.String() + ": only a break-glass approval begins the change before"
	}
	return fmt.Sprintf("scale-%s of NodePool %s is manual", strings.ToLower(string(direction)), pool)
}

// signatures returns whose signatures approvals need. Without a configuration, none do.
func (a *Approvals) signatures() (signature.Policy, error) {
	if a.config.Signatures == nil {
		return signature.Policy{}, nil
	}
	return a.config.Signatures()
}

// consent returns the approval of a plan for the history, or an error if signatures are
// missing, or if a freeze window blocks the change. An approval that has begun stays valid
// as of its begin.
func (a *Approvals) consent(plan *v1alpha1.ScalePlan) (audit.Approval, error) {
	_, by := plan.Approval()
	approval := audit.Approval{By: by, Digest: plan.Spec.PlanHash, ScalePlan: plan.Name}
	statement := signature.Statement{
		ClusterID: a.config.ClusterID, Hash: plan.Spec.PlanHash, Subject: signature.ForScalePlan(plan.Name, string(plan.UID)),
	}
	if glass := plan.Spec.BreakGlass; glass != nil {
		statement.BreakGlass, statement.Until = glass.Reason, glass.Until.Time
	}
	now := a.config.Clock.Now()
	if plan.Status.Phase == v1alpha1.ScalePlanApproved && plan.Status.DecidedAt != nil {
		now = plan.Status.DecidedAt.Time
	} else if active := a.frozen(plan.Spec.Direction); active != nil && plan.Spec.BreakGlass == nil {
		return approval, fmt.Errorf("%s: the change begins afterwards; in an emergency, run numaform approve %s --break-glass REASON", active, plan.Name)
	}
	policy, err := a.signatures()
	if err != nil {
		return approval, err
	}
	armored := make([]string, len(plan.Spec.Signatures))
	for i := range plan.Spec.Signatures {
		armored[i] = plan.Spec.Signatures[i].Signature
	}
	signers, err := policy.Check(&statement, armored, scopeOf(plan), "", now)
	if err != nil {
		return approval, err
	}
	if approval, err = approval.Signed(&statement, signers); err != nil {
		return approval, err
	}
	approval.By = approverName(&approval)
	return approval, nil
}

// approverName names the user who approved, the signers, and a break-glass approval.
func approverName(approval *audit.Approval) string {
	text := approval.By
	if len(approval.Signatures) > 0 {
		names := make([]string, len(approval.Signatures))
		for i := range approval.Signatures {
			names[i] = approval.Signatures[i].Signer
		}
		text += ", signed by " + strings.Join(names, ", ")
	}
	if approval.BreakGlass != "" {
		text += ", break-glass: " + approval.BreakGlass
	}
	return text
}

// scopeOf returns what the approval of a plan concerns.
func scopeOf(plan *v1alpha1.ScalePlan) signature.Scope {
	scope := signature.Scope{NodePools: slices.Clone(plan.Spec.NodePools)}
	for i := range plan.Spec.VMs {
		if pool := plan.Spec.VMs[i].NodePool; !slices.Contains(scope.NodePools, pool) {
			scope.NodePools = append(scope.NodePools, pool)
		}
	}
	for _, rule := range plan.Spec.Verdict.Rules {
		if rule.Decision == v1alpha1.VerdictNeedsApproval {
			scope.Rules = append(scope.Rules, rule.Rule)
		}
	}
	return scope
}

// scopeOfPlan returns what the approval of the plan of a host concerns.
func scopeOfPlan(plan *scaler.RootPlan) (scope signature.Scope) {
	for _, t := range targets(plan.Intent) {
		scope.NodePools = append(scope.NodePools, t.Pool)
	}
	for _, finding := range plan.Verdict.Findings {
		if finding.Decision == guard.NeedsApproval {
			scope.Rules = append(scope.Rules, string(finding.Rule))
		}
	}
	return scope
}

// noteConsent records in a pending plan whether its approval is sufficient, for users.
func (a *Approvals) noteConsent(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	if !isApproved(plan) {
		return nil
	}
	_, err := a.consent(plan)
	known := meta.FindStatusCondition(plan.Status.Conditions, ConditionSufficient)
	condition := metav1.Condition{Type: ConditionSufficient, Status: metav1.ConditionTrue, Reason: "Sufficient", LastTransitionTime: metav1.NewTime(a.config.Clock.Now())}
	if err != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Insufficient", clip(err.Error(), 4096)
	}
	if known == nil && err == nil || known != nil && known.Status == condition.Status && known.Message == condition.Message {
		return nil
	}
	meta.SetStatusCondition(&plan.Status.Conditions, condition)
	if err := a.update(ctx, plan); err != nil {
		return fmt.Errorf("recording the signatures of scaleplan %s: %w", plan.Name, err)
	}
	if err != nil {
		a.publish(plan, corev1.EventTypeNormal, ReasonInsufficient, condition.Message)
	}
	return nil
}

// ReasonInsufficient is the reason of the event on an approved ScalePlan that cannot begin
// yet.
const ReasonInsufficient = "ApprovalInsufficient"

// broke reports the beginning of a change by a break-glass approval.
func (a *Approvals) broke(plan *v1alpha1.ScalePlan, approval *audit.Approval) {
	a.publish(plan, corev1.EventTypeWarning, ReasonBreakGlass, fmt.Sprintf("%s: see numaform plans %s", approval.By, plan.Name))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.glass++
}

// BreakGlass returns the number of changes that began by a break-glass approval since the
// start.
func (a *Approvals) BreakGlass() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.glass
}

// Approved returns the approval of a plan that Asks does not hold back, because a ScalePlan
// that covers it has already begun; nil if there is none.
func (a *Approvals) Approved(ctx context.Context, plan *scaler.RootPlan) (*audit.Approval, error) {
	a.mu.Lock()
	none := a.begunPlans == 0
	a.mu.Unlock()
	if none || plan.Plan == nil {
		return nil, nil
	}
	d, err := draftOf(plan)
	if err != nil {
		return nil, fmt.Errorf("reading the approval of the plan of host %s: %w", plan.Host, err)
	}
	plans, err := a.readPlans(ctx)
	if err != nil {
		return nil, err
	}
	for i := range plans {
		if plans[i].Status.Phase != v1alpha1.ScalePlanApproved || !a.covers(&plans[i], d) {
			continue
		}
		approval, err := a.consent(&plans[i])
		if err != nil {
			return nil, err
		}
		return &approval, nil
	}
	return nil, nil
}
