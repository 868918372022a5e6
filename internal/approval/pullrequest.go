package approval

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/numaform/numaform/api/v1alpha1"
)

// isApproved reports whether a plan has an approval, valid or not.
func isApproved(plan *v1alpha1.ScalePlan) bool {
	hash, _ := plan.Approval()
	return hash != ""
}

func isRejected(plan *v1alpha1.ScalePlan) bool {
	reason, _ := plan.Rejection()
	return reason != ""
}

// Plans returns the ScalePlans that numaform proposed, with their status from the ledger.
func (a *Approvals) Plans(ctx context.Context) ([]v1alpha1.ScalePlan, error) { return a.readPlans(ctx) }

// Undecided reports whether a plan is pending and was neither approved nor rejected.
func (a *Approvals) Undecided(plan *v1alpha1.ScalePlan) bool {
	return pending(plan) && !isApproved(plan) && !isRejected(plan) && !a.expired(plan)
}

// SetPullRequest records the pull request of a plan, with its decision if it has one. Only
// the ledger counts: a status that another client wrote approves nothing. It does nothing if
// the plan no longer exists or has that pull request already.
func (a *Approvals) SetPullRequest(ctx context.Context, plan string, request *v1alpha1.ScalePlanPullRequest) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	plans, err := a.plansNow(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(plans, func(p v1alpha1.ScalePlan) bool { return p.Name == plan })
	if i < 0 || equality.Semantic.DeepEqual(plans[i].Status.PullRequest, request) {
		return nil
	}
	plans[i].Status.PullRequest = request
	if err := a.write(ctx, &plans[i]); err != nil {
		return fmt.Errorf("recording the pull request of scaleplan %s: %w", plan, err)
	}
	return nil
}
