package review

import (
	"context"
	"errors"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"k8s.io/client-go/util/workqueue"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/forge"
)

// longestDelay is the longest time for which the reviewer obeys a forge that allows no more
// requests.
const longestDelay = 5 * time.Minute

// Name returns the controller's name.
func (r *Reviewer) Name() string { return "review" }

// Register makes the manager call Pass on the leader, periodically and when a ScalePlan
// changes. The forge needs no way to reach numaform.
func (r *Reviewer) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(r.Name()).
		// An error about one pull request, which a stranger may have opened, must not delay the
		// others: the next pass is never later than without an error.
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, r.config.Every)}).
		WatchesRawSource(singleton.Source()).
		Watches(&v1alpha1.ScalePlan{}, handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
			return []reconcile.Request{{}}
		})).
		Complete(singleton.AsReconciler(r))
}

// Reconcile calls Pass for controller-runtime.
func (r *Reviewer) Reconcile(ctx context.Context) (reconciler.Result, error) {
	err := r.Pass(ctx)
	var limit *forge.RateLimitError
	switch {
	case errors.As(err, &limit):
		// The forge's clock can differ from this one, so only the difference within bounds counts.
		return reconciler.Result{RequeueAfter: min(max(limit.Reset.Sub(r.config.Clock.Now()), r.config.Every), longestDelay)}, nil
	case err != nil:
		return reconciler.Result{}, err
	}
	return reconciler.Result{RequeueAfter: r.config.Every}, nil
}

// limited reports whether the forge allows no more requests now.
func limited(err error) bool { return errors.As(err, new(*forge.RateLimitError)) }
