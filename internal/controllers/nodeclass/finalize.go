package nodeclass

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/logkey"
)

// ReasonWaitingOnNodeClaims is the event reason of a class that cannot be deleted because
// NodeClaims refer to it.
const ReasonWaitingOnNodeClaims = "WaitingOnNodeClaims"

// maxNamed is the maximum number of NodeClaims named in an event.
const maxNamed = 5

// finalize removes the finalizer of a class when no NodeClaim refers to it.
func (c *Controller) finalize(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(nc, v1alpha1.FinalizerNodeClass) {
		return reconcile.Result{}, nil
	}
	claims, err := c.claims(ctx, nc.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(claims) > 0 {
		c.config.Recorder.Publish(waiting(nc, claims))
		return reconcile.Result{RequeueAfter: period}, nil
	}
	stored := nc.DeepCopy()
	controllerutil.RemoveFinalizer(nc, v1alpha1.FinalizerNodeClass)
	// The patch replaces the whole list of finalizers, so it must not overwrite
	// concurrent changes.
	patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
	if err := c.config.Client.Patch(ctx, nc, patch); err != nil {
		return reconcile.Result{}, fmt.Errorf("removing the finalizer of %s %s: %w", v1alpha1.KindProxmoxNodeClass, nc.Name, err)
	}
	log.FromContext(ctx).V(1).Info("let nodeclass go", logkey.NodeClass, nc.Name)
	return reconcile.Result{}, nil
}

func waiting(nc *v1alpha1.ProxmoxNodeClass, claims []karpv1.NodeClaim) events.Event {
	names := make([]string, len(claims))
	for i := range claims {
		names[i] = claims[i].Name
	}
	slices.Sort(names)
	more := ""
	if len(names) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(names)-maxNamed)
		names = names[:maxNamed]
	}
	return events.Event{
		InvolvedObject: nc, Type: corev1.EventTypeWarning, Reason: ReasonWaitingOnNodeClaims,
		Message: fmt.Sprintf("deletion waits for NodeClaims %s%s, which refer to this class: delete their NodePools or the NodeClaims",
			strings.Join(names, ", "), more),
		DedupeValues: []string{nc.Name, strings.Join(names, ",") + more},
	}
}

// terminatingClass returns the class of a NodeClaim if its deletion waits for NodeClaims.
func (c *Controller) terminatingClass(ctx context.Context, object client.Object) []reconcile.Request {
	claim, ok := object.(*karpv1.NodeClaim)
	if !ok || claim.Spec.NodeClassRef == nil || !refersTo(claim, claim.Spec.NodeClassRef.Name) {
		return nil
	}
	key := types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}
	var nc v1alpha1.ProxmoxNodeClass
	if err := c.config.Client.Get(ctx, key, &nc); err != nil || nc.DeletionTimestamp.IsZero() {
		return nil
	}
	return []reconcile.Request{{NamespacedName: key}}
}
