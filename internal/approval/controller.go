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

// seenFor is how long a VM is remembered that Karpenter offered for removal.
const seenFor = time.Hour

// Name is the controller's.
func (a *Approvals) Name() string { return "approval" }

// Register has the manager call Settle every SettleEvery, on the leader.
func (a *Approvals) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(a.Name()).
		// Else it would wait for up to a quarter of an hour once the API server is back.
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 3*SettleEvery)}).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(a))
}

// Reconcile is Settle for controller-runtime.
func (a *Approvals) Reconcile(ctx context.Context) (reconciler.Result, error) {
	if err := a.Settle(ctx); err != nil {
		return reconciler.Result{}, err
	}
	a.forget()
	return reconciler.Result{RequeueAfter: SettleEvery}, nil
}

// forget drops VMs that have not been offered for long.
func (a *Approvals) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for offered, last := range a.seen {
		if a.config.Clock.Since(last) > seenFor {
			delete(a.seen, offered)
		}
	}
}
