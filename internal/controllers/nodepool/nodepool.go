// Package nodepool reports NodePools that request what numaform does not support, which
// would otherwise go unnoticed, and enforces their minimum number of nodes. It changes
// nothing. Start at New and WithFloors.
package nodepool

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
)

// ReasonFixedSize is the reason of the event on a NodePool with spec.replicas.
const ReasonFixedSize = "FixedSizeNotSupported"

// ReasonMinNodes is the reason of the event on a NodePool with an invalid minimum number
// of nodes.
const ReasonMinNodes = "MinNodesInvalid"

// again is the interval between repeated events, because the API server deletes events
// after an hour.
const again = 30 * time.Minute

// Controller checks NodePools.
type Controller struct{ recorder events.Recorder }

// New returns a controller that publishes events with the recorder.
func New(recorder events.Recorder) *Controller { return &Controller{recorder: recorder} }

// Name returns the controller's name in logs and metrics.
func (c *Controller) Name() string { return "nodepool" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).Named(c.Name()).For(&karpv1.NodePool{}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile publishes a warning if the NodePool is ours and of a fixed size, because
// Karpenter leaves such pools to controllers that numaform does not run, or if its
// minimum number of nodes is invalid.
func (c *Controller) Reconcile(_ context.Context, pool *karpv1.NodePool) (reconcile.Result, error) {
	ref := pool.Spec.Template.Spec.NodeClassRef
	if !pool.DeletionTimestamp.IsZero() || ref == nil || ref.Group != v1alpha1.Group || ref.Kind != v1alpha1.KindProxmoxNodeClass {
		return reconcile.Result{}, nil
	}
	var result reconcile.Result
	warn := func(reason, message string) {
		c.recorder.Publish(events.Event{
			InvolvedObject: pool, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
			DedupeValues: []string{string(pool.UID), reason},
		})
		result.RequeueAfter = again
	}
	if pool.Spec.Replicas != nil {
		warn(ReasonFixedSize, "No nodes are made for it: "+scheduling.FixedSizeProblem)
	}
	if _, err := MinNodes(pool); err != nil {
		warn(ReasonMinNodes, err.Error())
	}
	return result, nil
}
