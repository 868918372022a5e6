package adopt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

// Handover moves a Node to a NodeClaim of numaform. Its VM must be in the fleet already.
// Each step can be repeated, so a handover that was interrupted continues. The order
// matters: the Node always has an owner, because Kubernetes deletes a Node without one, and
// the other autoscaler's NodeClaim is deleted without its finalizer, because that finalizer
// drains the Node and deletes its VM. Pods do not move. permit is called before the first
// step, and again before the NodeClaims of the other autoscaler are deleted. replace
// requests that numaform then replaces the node within the budgets of its NodePool.
func Handover(ctx context.Context, c client.Client, candidate *Candidate, vm *fleet.VM, replace bool, permit func(context.Context) error) error {
	if err := permit(ctx); err != nil {
		return err
	}
	claim, err := ensureClaim(ctx, c, candidate, vm)
	if err != nil {
		return err
	}
	if err := moveNode(ctx, c, candidate.Node.Name, claim, vm); err != nil {
		return err
	}
	if err := permit(ctx); err != nil {
		return err
	}
	for i := range candidate.Theirs {
		if err := drop(ctx, c, &candidate.Theirs[i]); err != nil {
			return err
		}
	}
	if !replace || claim.Annotations[v1alpha1.AnnotationReplace] == "true" {
		return nil
	}
	stored := claim.DeepCopy()
	claim.Annotations[v1alpha1.AnnotationReplace] = "true"
	if err := c.Patch(ctx, claim, client.MergeFrom(stored)); err != nil {
		return fmt.Errorf("requesting the replacement of node %s: %w", candidate.Node.Name, err)
	}
	return nil
}

// ensureClaim returns the NodeClaim of an adopted VM, as if its Node had registered with
// it, and creates it if it does not exist.
func ensureClaim(ctx context.Context, c client.Client, candidate *Candidate, vm *fleet.VM) (*karpv1.NodeClaim, error) {
	node := &candidate.Node
	if ours := candidate.Ours; ours != nil {
		if fleet.Key(ours.Annotations[v1alpha1.AnnotationKey]) != vm.Key {
			return nil, &RefusedError{Node: node.Name, Problem: fmt.Sprintf("its NodeClaim %s belongs to another VM: delete the NodeClaim, which drains the node", ours.Name)}
		}
		return ours, nil
	}
	claim := scheduling.NewNodeClaim(*vm, &candidate.Pool)
	for key := range claim.Labels {
		// The Node keeps its labels. Host and region are where the VM is.
		value, has := node.Labels[key]
		moves := key == karpv1.NodePoolLabelKey || key == corev1.LabelTopologyZone || key == corev1.LabelTopologyRegion
		if has && !moves && !strings.HasPrefix(key, v1alpha1.Group+"/") {
			claim.Labels[key] = value
		}
	}
	if arch := node.Labels[corev1.LabelArchStable]; arch != "" {
		claim.Labels[corev1.LabelArchStable] = arch
	}
	// Later changes of the class replace the node, like any other of the class.
	claim.Annotations[v1alpha1.AnnotationClassHash] = scheduling.ClassHash(&candidate.Class)
	claim.Annotations[v1alpha1.AnnotationClassHashVersion] = scheduling.ClassHashVersion
	err := c.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		existing := &karpv1.NodeClaim{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(claim), existing); err != nil {
			return nil, fmt.Errorf("reading NodeClaim %s: %w", claim.Name, err)
		}
		if fleet.Key(existing.Annotations[v1alpha1.AnnotationKey]) != vm.Key || !existing.DeletionTimestamp.IsZero() {
			return nil, &RefusedError{Node: node.Name, Problem: fmt.Sprintf("NodeClaim %s exists and belongs to another VM, or is being deleted: delete it first", claim.Name)}
		}
		claim, err = existing, nil
	}
	if err != nil {
		return nil, fmt.Errorf("creating NodeClaim %s: %w", claim.Name, err)
	}

	err = onConflict(ctx, c, claim, func() error {
		stored := claim.DeepCopy()
		claim.Status.NodeName = node.Name
		claim.Status.ProviderID = fleet.ProviderID(vm.Host.Region, vm.VMID)
		claim.Status.Capacity, claim.Status.Allocatable = node.Status.Capacity, node.Status.Allocatable
		for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
			if !claim.StatusConditions().Get(condition).IsTrue() {
				claim.StatusConditions().SetTrue(condition)
			}
		}
		return c.Status().Patch(ctx, claim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		return nil, fmt.Errorf("writing the status of NodeClaim %s: %w", claim.Name, err)
	}
	return claim, nil
}

// moveNode makes a Node the Node of a NodeClaim: as Karpenter's registration does, but the
// Node keeps its taints, and all of its labels but the NodePool's.
func moveNode(ctx context.Context, c client.Client, name string, claim *karpv1.NodeClaim, vm *fleet.VM) error {
	node := &corev1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return fmt.Errorf("reading node %s: %w", name, err)
	}
	err := onConflict(ctx, c, node, func() error { return own(ctx, c, node, claim, vm) })
	if err != nil {
		return fmt.Errorf("moving node %s to NodeClaim %s: %w", name, claim.Name, err)
	}
	return nil
}

// own is one attempt of moveNode.
func own(ctx context.Context, c client.Client, node *corev1.Node, claim *karpv1.NodeClaim, vm *fleet.VM) error {
	if !node.DeletionTimestamp.IsZero() {
		return &RefusedError{Node: node.Name, Problem: "it is being deleted"}
	}
	stored := node.DeepCopy()
	controllerutil.AddFinalizer(node, karpv1.TerminationFinalizer)
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	for key, value := range claim.Labels {
		if _, has := node.Labels[key]; !has || key == karpv1.NodePoolLabelKey {
			node.Labels[key] = value
		}
	}
	node.Labels[karpv1.NodeRegisteredLabelKey], node.Labels[karpv1.NodeInitializedLabelKey] = "true", "true"
	node.Annotations[v1alpha1.AnnotationVM], node.Annotations[v1alpha1.AnnotationKey] = vm.Name, string(vm.Key)
	if node.Spec.ProviderID == "" {
		node.Spec.ProviderID = claim.Status.ProviderID
	}
	const kind = "NodeClaim"
	node.OwnerReferences = slices.DeleteFunc(node.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.Kind == kind })
	block := true
	node.OwnerReferences = append(node.OwnerReferences, metav1.OwnerReference{
		APIVersion: "karpenter.sh/v1", Kind: kind, Name: claim.Name, UID: claim.UID, BlockOwnerDeletion: &block,
	})
	return c.Patch(ctx, node, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
}

// onConflict calls write, and again after it has read the object again, while other clients
// change it meanwhile: kubelet, Karpenter and numaform's controller do.
func onConflict(ctx context.Context, c client.Client, object client.Object, write func() error) error {
	first := true
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if !first {
			if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
				return err
			}
		}
		first = false
		return write()
	})
}

// drop deletes a NodeClaim of another autoscaler without deleting its Node and VM.
func drop(ctx context.Context, c client.Client, claim *karpv1.NodeClaim) error {
	now := &karpv1.NodeClaim{}
	err := c.Get(ctx, client.ObjectKeyFromObject(claim), now)
	if apierrors.IsNotFound(err) || err == nil && now.UID != claim.UID {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading NodeClaim %s: %w", claim.Name, err)
	}
	err = onConflict(ctx, c, now, func() error {
		stored := now.DeepCopy()
		now.Finalizers = nil
		return c.Patch(ctx, now, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizers of NodeClaim %s: %w", claim.Name, err)
	}
	if err := c.Delete(ctx, now, client.Preconditions{UID: &now.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting NodeClaim %s: %w", claim.Name, err)
	}
	return nil
}
