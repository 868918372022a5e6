package operator

import (
	"context"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// expired records whether Karpenter's controller was called.
type expired struct{ called *bool }

func (expired) Name() string { return "expired" }

func (e expired) Reconcile(context.Context, *karpv1.NodeClaim) (reconcile.Result, error) {
	*e.called = true
	return reconcile.Result{}, nil
}

// Expire reconciles a NodeClaim at a time, in a freeze window or not. It returns whether
// Karpenter's controller was called, and when the NodeClaim is checked again.
func Expire(ctx context.Context, claim *karpv1.NodeClaim, now time.Time, frozen bool) (called bool, again time.Duration, err error) {
	e := &expiry{inner: expired{&called}, frozen: func() bool { return frozen }, clock: clocktesting.NewFakePassiveClock(now)}
	result, err := e.Reconcile(ctx, claim)
	return called, result.RequeueAfter, err
}
