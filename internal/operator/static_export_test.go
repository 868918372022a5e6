package operator

import (
	"context"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// FixedSizeProblem returns why a NodePool with spec.replicas has no nodes.
func FixedSizeProblem(pool *karpv1.NodePool, enabled bool) string {
	return fixedSizeProblem(pool, enabled)
}

// calls counts the calls of Karpenter's controllers.
type calls int

func (c *calls) Reconcile(context.Context, *karpv1.NodePool) (reconcile.Result, error) {
	*c++
	return reconcile.Result{}, nil
}

// FixedSize reconciles a NodePool and returns how often Karpenter's controllers were called.
// If since is positive, it is the time since an earlier attempt.
func FixedSize(ctx context.Context, pool *karpv1.NodePool, paused bool, pausedErr error, since time.Duration) (int, time.Duration, error) {
	var made calls
	now := time.Unix(1_800_000_000, 0)
	s := &static{
		up: &made, down: &made, clock: clocktesting.NewFakePassiveClock(now), tried: map[string]time.Time{},
		problem: func(pool *karpv1.NodePool) string { return fixedSizeProblem(pool, true) },
		paused:  func(context.Context) (bool, error) { return paused, pausedErr },
	}
	if since > 0 {
		s.tried[pool.Name] = now.Add(-since)
	}
	result, err := s.Reconcile(ctx, pool)
	return int(made), result.RequeueAfter, err
}
