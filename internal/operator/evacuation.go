package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/topology"
)

// evacuation marks the NodeClaims on hosts being evacuated. Karpenter checks whether a
// node has drifted when its NodeClaim changes, and otherwise only every five minutes: the
// mark makes it check immediately, when an evacuation begins and when it ends.
type evacuation struct {
	client client.Client
	hosts  func() []topology.HostID
	clock  clock.PassiveClock
	// settled is when no host was evacuated and no NodeClaim marked; the zero time if a
	// NodeClaim may be marked.
	settled time.Time
}

const (
	// longestEvacuationWait is the maximum delay after an error.
	longestEvacuationWait = 15 * time.Second
	// settledFor is the interval at which all NodeClaims are read while no host is
	// evacuated.
	settledFor = time.Minute
)

// Name returns the controller's name.
func (e *evacuation) Name() string { return "nodeclaim.evacuation" }

// Register adds the controller to a manager.
func (e *evacuation) Register(_ context.Context, m manager.Manager) error {
	// The default would wait for up to 17 minutes after the API server recovers.
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, longestEvacuationWait)
	return controllerruntime.NewControllerManagedBy(m).Named(e.Name()).WithOptions(controller.Options{RateLimiter: limit}).
		WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(e))
}

// Reconcile marks the NodeClaims on evacuated hosts, and unmarks all other NodeClaims.
func (e *evacuation) Reconcile(ctx context.Context) (reconciler.Result, error) {
	hosts := e.hosts()
	if len(hosts) == 0 && e.clock.Since(e.settled) < settledFor {
		return reconciler.Result{RequeueAfter: switchInterval}, nil
	}
	e.settled = time.Time{}
	var claims karpv1.NodeClaimList
	if err := e.client.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return reconciler.Result{}, fmt.Errorf("listing nodeclaims: %w", err)
	}
	var errs []error
	settled := len(hosts) == 0
	for i := range claims.Items {
		claim := &claims.Items[i]
		// Another Karpenter in this cluster may use the same host names.
		if ref := claim.Spec.NodeClassRef; ref == nil || ref.Group != v1alpha1.Group || !claim.DeletionTimestamp.IsZero() {
			continue
		}
		home := topology.HostID{
			Region: topology.RegionName(claim.Labels[corev1.LabelTopologyRegion]),
			Host:   topology.HostName(claim.Labels[corev1.LabelTopologyZone]),
		}
		leaves := slices.Contains(hosts, home)
		if _, marked := claim.Annotations[v1alpha1.AnnotationEvacuated]; marked == leaves {
			continue
		}
		settled = false
		changed := claim.DeepCopy()
		if leaves {
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationEvacuated, "true")
		} else {
			delete(changed.Annotations, v1alpha1.AnnotationEvacuated)
		}
		if err := e.client.Patch(ctx, changed, client.MergeFrom(claim)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("changing the evacuation mark of nodeclaim %s: %w", claim.Name, err))
		}
	}
	if settled {
		e.settled = e.clock.Now()
	}
	return reconciler.Result{RequeueAfter: switchInterval}, errors.Join(errs...)
}
