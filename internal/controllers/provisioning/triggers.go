package provisioning

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

// askAgain is how often a pod without room triggers again, because new nodes and hosts
// with free room change the answer.
const askAgain = 10 * time.Second

// registerTriggers watches what triggers a decision: pods without room, and nodes being
// drained, whose pods will need room.
func (c *Controller) registerTriggers(_ context.Context, m manager.Manager) error {
	many := controller.Options{MaxConcurrentReconciles: 10}
	err := controllerruntime.NewControllerManagedBy(m).Named(c.Name() + ".pods").For(&corev1.Pod{}).WithOptions(many).
		Complete(reconcile.AsReconciler(m.GetClient(), reconcile.ObjectReconciler[*corev1.Pod](podTrigger{c})))
	if err != nil {
		return fmt.Errorf("registering %s: %w", c.Name(), err)
	}
	err = controllerruntime.NewControllerManagedBy(m).Named(c.Name() + ".nodes").For(&corev1.Node{}).WithOptions(many).
		Complete(reconcile.AsReconciler(m.GetClient(), reconcile.ObjectReconciler[*corev1.Node](nodeTrigger{c})))
	if err != nil {
		return fmt.Errorf("registering %s: %w", c.Name(), err)
	}
	if c.config.Virtual == nil {
		return nil
	}
	// Karpenter's controller triggers for existing buffers; this one triggers for deleted
	// ones, whose room is free.
	err = controllerruntime.NewControllerManagedBy(m).Named(c.Name() + ".buffers").For(&autoscalingv1beta1.CapacityBuffer{}).
		WithEventFilter(predicate.GenerationChangedPredicate{}).
		Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			c.batch.trigger()
			return reconcile.Result{}, nil
		}))
	if err != nil {
		return fmt.Errorf("registering %s: %w", c.Name(), err)
	}
	return nil
}

// podTrigger triggers a batch for pods without room.
type podTrigger struct{ c *Controller }

// Reconcile checks one pod.
func (t podTrigger) Reconcile(_ context.Context, pod *corev1.Pod) (reconcile.Result, error) {
	if !podutils.IsProvisionable(pod) {
		return reconcile.Result{}, nil
	}
	t.c.config.State.AckPods(pod)
	t.c.batch.trigger()
	return reconcile.Result{RequeueAfter: askAgain}, nil
}

// nodeTrigger triggers a batch for the pods of nodes being drained.
type nodeTrigger struct{ c *Controller }

// Reconcile checks one node.
func (t nodeTrigger) Reconcile(_ context.Context, node *corev1.Node) (reconcile.Result, error) {
	leaving := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.MatchTaint(&karpv1.DisruptedNoScheduleTaint)
	})
	if !leaving {
		return reconcile.Result{}, nil
	}
	t.c.batch.trigger()
	return reconcile.Result{RequeueAfter: askAgain}, nil
}

// Trigger requests a decision, as a pod does.
func (c *Controller) Trigger() { c.batch.trigger() }
