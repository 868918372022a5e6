package operator

import (
	"context"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/approval"
)

// FixedSizeProblem returns why a NodePool with spec.replicas has no nodes.
func FixedSizeProblem(pool *karpv1.NodePool, enabled bool) string {
	return fixedSizeProblem(pool, enabled, approval.ModePolicy)
}

// call records the calls of one of Karpenter's controllers under its name.
type call struct {
	name  string
	calls *string
}

func (c call) Reconcile(context.Context, *karpv1.NodePool) (reconcile.Result, error) {
	*c.calls += c.name
	return reconcile.Result{}, nil
}

// FixedSize reconciles a NodePool and returns the calls of Karpenter's controllers.
// If since is positive, it is the time since an earlier attempt.
func FixedSize(ctx context.Context, pool *karpv1.NodePool, paused bool, since time.Duration) (string, time.Duration, error) {
	made := ""
	now := time.Unix(1_800_000_000, 0)
	s := &static{
		up: call{"up ", &made}, down: call{"down ", &made}, clock: clocktesting.NewFakePassiveClock(now), tried: map[string]time.Time{},
		problem: func(pool *karpv1.NodePool) string { return fixedSizeProblem(pool, true, approval.ModePolicy) },
		paused:  func() bool { return paused },
	}
	if since > 0 {
		s.tried[pool.Name] = now.Add(-since)
	}
	result, err := s.Reconcile(ctx, pool)
	return made, result.RequeueAfter, err
}
