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

// methodSet is a set of Karpenter's methods of disruption: those for empty and underused nodes
// of NodePools that need no approval, and more.
type methodSet struct {
	// drift adds the methods for drifted nodes, and approval the methods for NodePools whose
	// changes need approval.
	drift, approval bool
}

// disruptions is Karpenter's disruption loop. For each method, a round copies all nodes and
// lists the pods of each before it asks the method for candidates, so a round omits the
// methods that cannot have any.
type disruptions struct {
	*disruption.Controller // has all methods

	// loops are the controllers with each set of methods.
	loops map[methodSet]*disruption.Controller
	// client reads from the cache.
	client client.Reader
	// manual reports whether changes of a NodePool need approval.
	manual func(*karpv1.NodePool) bool
	// last are the methods that could have candidates in the last round.
	last methodSet
}

// newDisruptions returns the loop with the methods for NodePools that need no approval (free),
// and for those that do (held). build creates a controller with some of the methods.
func newDisruptions(
	reader client.Reader, manual func(*karpv1.NodePool) bool, free, held []disruption.Method,
	build func(methods ...disruption.Method) *disruption.Controller,
) *disruptions {
	d := &disruptions{loops: map[methodSet]*disruption.Controller{}, client: reader, manual: manual}
	for _, set := range []methodSet{{}, {drift: true}, {approval: true}, {drift: true, approval: true}} {
		methods := slices.Clone(free)
		if set.approval {
			methods = append(methods, held...)
		}
		if !set.drift {
			methods = slices.DeleteFunc(methods, func(m disruption.Method) bool { return m.Reason() == karpv1.DisruptionReasonDrifted })
		}
		d.loops[set] = build(methods...)
	}
	d.Controller = d.loops[methodSet{drift: true, approval: true}]
	return d
}

// Reconcile runs a round. A method that could have candidates in the last round runs once
// more, because it resets its metric when it has none.
func (d *disruptions) Reconcile(ctx context.Context) (reconciler.Result, error) {
	now, err := d.needed(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "checking which methods of disruption are needed: all run")
		now = methodSet{drift: true, approval: true}
	}
	run := d.loops[methodSet{drift: now.drift || d.last.drift, approval: now.approval || d.last.approval}]
	d.last = now
	return run.Reconcile(ctx) //nolint:wrapcheck // Karpenter's own controller
}

// needed returns the methods that can have candidates.
func (d *disruptions) needed(ctx context.Context) (methodSet, error) {
	var pools karpv1.NodePoolList
	if err := d.client.List(ctx, &pools); err != nil {
		return methodSet{}, fmt.Errorf("listing nodepools: %w", err)
	}
	var claims karpv1.NodeClaimList
	if err := d.client.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return methodSet{}, fmt.Errorf("listing nodeclaims: %w", err)
	}
	var now methodSet
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
