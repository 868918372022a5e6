package operator

import (
	"context"
	"fmt"
	"slices"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
)

// applicable tells which methods of disruption may find a candidate.
type applicable struct {
	// drift is set if a NodeClaim has drifted.
	drift bool
	// approval is set if changes of a NodePool need approval.
	approval bool
}

// disruptions is Karpenter's disruption loop. For each method, a round copies all nodes and
// lists the pods of each before it asks the method for candidates, so a round omits the
// methods that cannot have any.
type disruptions struct {
	// Controller has all methods. The others have those of an applicable.
	*disruption.Controller
	others map[applicable]*disruption.Controller

	// client reads from the cache.
	client client.Reader
	// manual reports whether changes of a NodePool need approval.
	manual func(*karpv1.NodePool) bool
	// last is what was applicable in the last round.
	last applicable
}

// newDisruptions returns the loop with methods for NodePools that need no approval, and for
// those that do. build creates a loop with some of the methods.
func newDisruptions(
	reader client.Reader, manual func(*karpv1.NodePool) bool, free, held []disruption.Method,
	build func(methods ...disruption.Method) *disruption.Controller,
) *disruptions {
	d := &disruptions{others: map[applicable]*disruption.Controller{}, client: reader, manual: manual}
	isDrift := func(m disruption.Method) bool { return m.Reason() == karpv1.DisruptionReasonDrifted }
	all := slices.Concat(free, held)
	d.Controller = build(all...)
	d.others[applicable{approval: true}] = build(slices.DeleteFunc(slices.Clone(all), isDrift)...)
	d.others[applicable{drift: true}] = build(free...)
	d.others[applicable{}] = build(slices.DeleteFunc(slices.Clone(free), isDrift)...)
	return d
}

// Reconcile runs a round. A method that was applicable in the last round runs once more,
// because it resets its metric when it has no candidates.
func (d *disruptions) Reconcile(ctx context.Context) (reconciler.Result, error) {
	now, err := d.applicable(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "checking which methods of disruption are applicable")
		now = applicable{drift: true, approval: true}
	}
	run := d.Controller
	if fewer, ok := d.others[applicable{drift: now.drift || d.last.drift, approval: now.approval || d.last.approval}]; ok {
		run = fewer
	}
	d.last = now
	return run.Reconcile(ctx) //nolint:wrapcheck // Karpenter's own controller
}

func (d *disruptions) applicable(ctx context.Context) (applicable, error) {
	var pools karpv1.NodePoolList
	if err := d.client.List(ctx, &pools); err != nil {
		return applicable{}, fmt.Errorf("listing nodepools: %w", err)
	}
	var claims karpv1.NodeClaimList
	if err := d.client.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return applicable{}, fmt.Errorf("listing nodeclaims: %w", err)
	}
	var now applicable
	for i := range pools.Items {
		now.approval = now.approval || d.manual(&pools.Items[i])
	}
	for i := range claims.Items {
		// StatusConditions would write to the cache's object.
		now.drift = now.drift || slices.ContainsFunc(claims.Items[i].Status.Conditions, func(c status.Condition) bool {
			return c.Type == karpv1.ConditionTypeDrifted && c.IsTrue()
		})
	}
	return now, nil
}
