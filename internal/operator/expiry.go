package operator

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	ctrlbuilder "sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"
)

// frozenExpiry is how often an expired NodeClaim is checked in a freeze window.
const frozenExpiry = time.Minute

// expiry is Karpenter's controller that deletes expired NodeClaims, which drains their Nodes,
// except in a freeze window: they expire after it.
type expiry struct {
	inner interface {
		Name() string
		Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error)
	}
	frozen   func() bool
	clock    clock.PassiveClock
	provider cloudprovider.CloudProvider
}

// Name returns the controller's name.
func (e *expiry) Name() string { return e.inner.Name() }

// Register adds the controller to a manager, as Karpenter does.
func (e *expiry) Register(_ context.Context, m manager.Manager) error {
	err := controllerruntime.NewControllerManagedBy(m).Named(e.Name()).
		For(&karpv1.NodeClaim{}, ctrlbuilder.WithPredicates(nodeclaimutils.IsManagedPredicateFuncs(e.provider))).
		Complete(reconcile.AsReconciler(m.GetClient(), e))
	if err != nil {
		return fmt.Errorf("registering %s: %w", e.Name(), err)
	}
	return nil
}

// Reconcile deletes a NodeClaim that has expired, unless a freeze window is in effect.
func (e *expiry) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	after := claim.Spec.ExpireAfter.Duration
	if after != nil && !e.clock.Now().Before(claim.CreationTimestamp.Add(*after)) && e.frozen() {
		return reconcile.Result{RequeueAfter: frozenExpiry}, nil
	}
	return e.inner.Reconcile(ctx, claim) //nolint:wrapcheck // Karpenter's own controller
}
