package nodeclass

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
)

// mark writes the class's hash and finalizer.
func (c *Controller) mark(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) error {
	stored := nc.DeepCopy()
	hash := scheduling.ClassHash(nc)
	if nc.Annotations[v1alpha1.AnnotationClassHashVersion] != scheduling.ClassHashVersion {
		// Update the claims first: if this is interrupted, it is repeated.
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
// theirs from other fields, so the two cannot be compared: without this, an upgrade would
// replace every node. A claim that had drifted keeps its hash, and so remains drifted,
// because its drift can no longer be determined.
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
			errs = append(errs, fmt.Errorf("writing the hash of nodeclaim %s: %w", claim.Name, err))
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
