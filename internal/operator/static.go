package operator

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	ctrlbuilder "sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	nodepoolutils "sigs.k8s.io/karpenter/pkg/utils/nodepool"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/approval"
)

// fixedSizeDisabled explains why a NodePool with spec.replicas has no nodes without the
// feature gate.
const fixedSizeDisabled = "it has spec.replicas, and the feature gate StaticCapacity is off: " +
	"set --feature-gates StaticCapacity=true, or re-create the NodePool without spec.replicas"

// fixedSizeProblem returns why the number of nodes of a NodePool with spec.replicas is not
// maintained, or "". Karpenter creates and deletes these NodeClaims without a pod or a
// disruption command that could wait for approval.
func fixedSizeProblem(pool *karpv1.NodePool, enabled bool, unset approval.Mode) string {
	if !enabled {
		return fixedSizeDisabled
	}
	for _, direction := range []v1alpha1.ScaleDirection{v1alpha1.ScaleUp, v1alpha1.ScaleDown} {
		if mode, _ := approval.ModeOf(pool, direction, unset); mode == approval.ModeManual {
			return fmt.Sprintf("it has spec.replicas, whose changes cannot wait for an approval, but its mode %s is manual: "+
				"set numaform.dev/scale-up and numaform.dev/scale-down to policy or auto, or re-create the NodePool without spec.replicas", direction)
		}
	}
	return ""
}

// staticPace is the minimum time between two attempts to create nodes of a NodePool with
// spec.replicas: if no host has room, Karpenter deletes the NodeClaims immediately.
const staticPace = 10 * time.Second

// poolReconciler is a controller of Karpenter for NodePools.
type poolReconciler interface {
	Reconcile(ctx context.Context, pool *karpv1.NodePool) (reconcile.Result, error)
}

// static maintains the number of nodes of NodePools with spec.replicas, by two controllers
// of Karpenter. It does nothing while numaform is paused, and for NodePools with a problem.
type static struct {
	up, down poolReconciler
	problem  func(pool *karpv1.NodePool) string
	paused   func() bool
	client   client.Client
	provider cloudprovider.CloudProvider
	clock    clock.PassiveClock
	// tried is when nodes of a NodePool were last created. Only Reconcile uses it, which is
	// not called concurrently.
	tried map[string]time.Time
}

// Name returns the controller's name in logs and metrics.
func (s *static) Name() string { return "static" }

// Register adds the controller to a manager.
func (s *static) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).Named(s.Name()).
		For(&karpv1.NodePool{}, ctrlbuilder.WithPredicates(nodepoolutils.IsManagedPredicateFuncs(s.provider), nodepoolutils.IsStaticPredicateFuncs())).
		Watches(&karpv1.NodeClaim{}, nodepoolutils.NodeClaimEventHandler(nodepoolutils.WithClient(s.client), nodepoolutils.WithStaticOnly)).
		Complete(reconcile.AsReconciler(m.GetClient(), s))
}

// Reconcile creates or deletes NodeClaims of a NodePool until it has spec.replicas of them.
func (s *static) Reconcile(ctx context.Context, pool *karpv1.NodePool) (reconcile.Result, error) {
	if pool.Spec.Replicas == nil || s.problem(pool) != "" {
		return reconcile.Result{}, nil
	}
	wait := staticPace - s.clock.Since(s.tried[pool.Name])
	if s.paused() || wait > 0 {
		return reconcile.Result{RequeueAfter: max(wait, time.Second)}, nil
	}
	s.tried[pool.Name] = s.clock.Now()
	if result, err := s.down.Reconcile(ctx, pool); err != nil {
		return result, fmt.Errorf("deleting nodes of NodePool %s: %w", pool.Name, err)
	}
	result, err := s.up.Reconcile(ctx, pool)
	if err != nil {
		return result, fmt.Errorf("creating nodes of NodePool %s: %w", pool.Name, err)
	}
	return result, nil
}
