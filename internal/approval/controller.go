package approval

import (
	"context"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"k8s.io/client-go/util/workqueue"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// seenFor is how long to remember a VM that Karpenter offered for removal.
const seenFor = time.Hour

// Name returns the controller's name.
func (a *Approvals) Name() string { return "approval" }

// Register makes the manager call Settle every SettleEvery, on the leader.
func (a *Approvals) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(a.Name()).
		// The default would wait for up to 15 minutes after the API server is back.
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 3*SettleEvery)}).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(a))
}

// Reconcile calls Settle for controller-runtime.
func (a *Approvals) Reconcile(ctx context.Context) (reconciler.Result, error) {
	if err := a.Settle(ctx); err != nil {
		return reconciler.Result{}, err
	}
	a.forget()
	return reconciler.Result{RequeueAfter: SettleEvery}, nil
}

// forget drops VMs that have not been offered for seenFor.
func (a *Approvals) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for offered, last := range a.seen {
		if a.config.Clock.Since(last) > seenFor {
			delete(a.seen, offered)
		}
	}
}
