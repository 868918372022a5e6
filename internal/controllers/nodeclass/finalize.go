package nodeclass

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scheduling"
)

// ReasonWaitingOnNodeClaims is the event reason of a class that cannot be deleted because
// NodeClaims refer to it.
const ReasonWaitingOnNodeClaims = "WaitingOnNodeClaims"

// maxNamed is the maximum number of NodeClaims named in an event.
const maxNamed = 5

// finalize removes the finalizer of a class if no NodeClaim refers to it. Otherwise it
// publishes a warning and checks again later.
func (c *Controller) finalize(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(nc, v1alpha1.FinalizerNodeClass) {
		return reconcile.Result{}, nil
	}
	claims, err := c.claims(ctx, nc.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(claims) > 0 {
		var names []string
		for i := range claims {
			names = append(names, claims[i].Name)
		}
		slices.Sort(names)
		more := ""
		if len(names) > maxNamed {
			more = fmt.Sprintf(" and %d more", len(names)-maxNamed)
			names = names[:maxNamed]
		}
		c.config.Recorder.Publish(event(nc, corev1.EventTypeWarning, ReasonWaitingOnNodeClaims,
			fmt.Sprintf("deletion is blocked by NodeClaims %s%s, which refer to this class: delete them or their NodePools", strings.Join(names, ", "), more)))
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
	log.FromContext(ctx).V(1).Info("removed the finalizer of nodeclass", logkey.NodeClass, nc.Name)
	return reconcile.Result{}, nil
}

// terminatingClass returns a request for the class of a NodeClaim if the class is being
// deleted: its deletion waits for its NodeClaims.
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

// mark writes the class's hash and finalizer. If the existing hash has another version,
// mark first updates the hashes of the class's NodeClaims.
func (c *Controller) mark(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) error {
	stored := nc.DeepCopy()
	hash := scheduling.ClassHash(nc)
	if nc.Annotations[v1alpha1.AnnotationClassHashVersion] != scheduling.ClassHashVersion {
		// Update the claims first: if the update is interrupted, the next call repeats it.
		if err := c.rehash(ctx, nc.Name, hash); err != nil {
			return err
		}
	}
	controllerutil.AddFinalizer(nc, v1alpha1.FinalizerNodeClass)
	annotate(nc, hash)
	if equality.Semantic.DeepEqual(stored, nc) {
		return nil
	}
	patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
	if err := c.config.Client.Patch(ctx, nc, patch); err != nil {
		return fmt.Errorf("writing the hash and finalizer of %s %s: %w", v1alpha1.KindProxmoxNodeClass, nc.Name, err)
	}
	return nil
}

// rehash sets the hash of this version on the claims of a class. Another version computed
// the hashes of the claims from other fields, so they cannot be compared with this
// version's: without rehash, an upgrade would replace every node. A claim that had drifted
// keeps its hash, and so remains drifted, because its drift can no longer be determined.
func (c *Controller) rehash(ctx context.Context, class, hash string) error {
	claims, err := c.claims(ctx, class)
	if err != nil {
		return err
	}
	var errs []error
	for i := range claims {
		claim := &claims[i]
		if claim.Annotations[v1alpha1.AnnotationClassHashVersion] == scheduling.ClassHashVersion {
			continue
		}
		stored := claim.DeepCopy()
		kept := claim.Annotations[v1alpha1.AnnotationClassHash]
		annotate(claim, hash)
		if claim.StatusConditions().Get(karpv1.ConditionTypeDrifted).IsTrue() && kept != "" {
			claim.Annotations[v1alpha1.AnnotationClassHash] = kept
		}
		if err := c.config.Client.Patch(ctx, claim, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("writing the hash of NodeClaim %s: %w", claim.Name, err))
		}
	}
	return errors.Join(errs...)
}

// annotate writes a hash and the version of its algorithm.
func annotate(object client.Object, hash string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationClassHash] = hash
	annotations[v1alpha1.AnnotationClassHashVersion] = scheduling.ClassHashVersion
	object.SetAnnotations(annotations)
}
