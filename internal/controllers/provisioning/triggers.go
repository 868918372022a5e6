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

// askAgain is how often a pod that still has no room asks again: nodes that come up
// and hosts that get room change the answer.
const askAgain = 10 * time.Second

// registerTriggers watches what asks for VMs: pods without room, and nodes that are
// being emptied, whose pods will need some.
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
	// Karpenter's controller triggers for those that are there; what one that is gone held
	// is free, too.
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

// podTrigger opens a batch for pods that found no room.
type podTrigger struct{ c *Controller }

// Reconcile looks at one pod.
func (t podTrigger) Reconcile(_ context.Context, pod *corev1.Pod) (reconcile.Result, error) {
	if !podutils.IsProvisionable(pod) {
		return reconcile.Result{}, nil
	}
	t.c.config.State.AckPods(pod)
	t.c.batch.trigger()
	return reconcile.Result{RequeueAfter: askAgain}, nil
}

// nodeTrigger opens a batch for the pods of nodes that are being emptied.
type nodeTrigger struct{ c *Controller }

// Reconcile looks at one node.
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

// Trigger asks for a decision, as a pod does.
func (c *Controller) Trigger() { c.batch.trigger() }
