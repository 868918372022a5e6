// Package nodepool warns about NodePools with settings that numaform does not support, which
// would otherwise go unnoticed, reports in a condition whether new nodes of a NodePool can
// be created, and enforces the minimum number of nodes. It changes nothing else. Start at
// New and WithFloors.
package nodepool

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/controllers/event"
	"github.com/numaform/numaform/internal/scheduling"
)

// The reasons of the events on NodePools.
const (
	// ReasonAnnotation means that a NodePool has an annotation of numaform's group that
	// numaform does not read.
	ReasonAnnotation = "AnnotationUnknown"
	// ReasonMinNodes means that the minimum number of nodes is invalid.
	ReasonMinNodes = "MinNodesInvalid"
)

// Config configures a Controller.
type Config struct {
	// Client writes the status of NodePools.
	Client   client.Client
	Recorder events.Recorder
	// Waits returns why new nodes of a NodePool wait.
	Waits func(pool string) []scheduling.Wait
	// FixedSize returns why a NodePool with spec.replicas does not get these nodes, or "".
	FixedSize func(pool *karpv1.NodePool) string
	// Known reports whether Waits is complete, which it is not right after the start.
	Known func() bool
	Clock clock.Clock
}

// Controller checks NodePools.
type Controller struct{ config Config }

// New returns a controller. It does no I/O.
func New(config Config) *Controller { return &Controller{config: config} }

// Name returns the controller's name in logs and metrics.
func (c *Controller) Name() string { return "nodepool" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).Named(c.Name()).For(&karpv1.NodePool{}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile publishes a warning if the NodePool is ours and one of its annotations is
// unknown or invalid. It also updates ConditionScaleUpReady.
func (c *Controller) Reconcile(ctx context.Context, pool *karpv1.NodePool) (reconcile.Result, error) {
	ref := pool.Spec.Template.Spec.NodeClassRef
	if !pool.DeletionTimestamp.IsZero() || ref == nil || ref.Group != v1alpha1.Group || ref.Kind != v1alpha1.KindProxmoxNodeClass {
		return reconcile.Result{}, nil
	}
	// Events with the same cause are the same, even if their messages differ.
	publish := func(kind, reason, message, cause string) {
		c.config.Recorder.Publish(event.New(pool, kind, reason, message, cause))
	}
	warn := func(reason, message string) { publish(corev1.EventTypeWarning, reason, message, message) }
	if mistake := scheduling.AnnotationMistake(pool, v1alpha1.NodePoolAnnotations()); mistake != "" {
		warn(ReasonAnnotation, mistake)
	}
	if _, err := MinNodes(pool); err != nil {
		warn(ReasonMinNodes, err.Error())
	}
	return reconcile.Result{RequeueAfter: checkInterval}, c.updateCondition(ctx, pool, publish)
}

// MinNodesError reports an invalid minimum number of nodes in a NodePool's annotation.
type MinNodesError struct{ NodePool, Value string }

func (e *MinNodesError) Error() string {
	return fmt.Sprintf("NodePool %s: annotation %s: %q must be a number of nodes, 0 or more, such as \"2\"; until then, none of its nodes is consolidated",
		e.NodePool, v1alpha1.AnnotationMinNodes, e.Value)
}

// MinNodes returns how many nodes of a NodePool consolidation must leave: 0 without an
// annotation, and a MinNodesError if the annotation is invalid.
func MinNodes(pool *karpv1.NodePool) (int, error) {
	value, set := pool.Annotations[v1alpha1.AnnotationMinNodes]
	if !set {
		return 0, nil
	}
	least, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0, &MinNodesError{NodePool: pool.Name, Value: value}
	}
	return int(least), nil
}

// WithFloors returns a client from which Karpenter's disruption controller reads the
// budgets of NodePools. It adds a budget to NodePools with a minimum number of nodes: the
// number of nodes above the minimum.
func WithFloors(api client.Client, cluster *state.Cluster) client.Client {
	return &floors{Client: api, cluster: cluster}
}

type floors struct {
	client.Client
	cluster *state.Cluster
}

// List lists objects, and adds the budgets to NodePools. It does not copy pods: in each
// round, Karpenter v1.14.1 lists the pods of every node, and only reads them. Its scheduler
// copies a pod before it relaxes the pod's preferences.
func (f *floors) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, pods := list.(*corev1.PodList); pods {
		opts = append(opts, client.UnsafeDisableDeepCopy)
	}
	if err := f.Client.List(ctx, list, opts...); err != nil {
		return err
	}
	pools, ok := list.(*karpv1.NodePoolList)
	if !ok {
		return nil
	}
	var nodes map[string]int
	for i := range pools.Items {
		pool := &pools.Items[i]
		if _, set := pool.Annotations[v1alpha1.AnnotationMinNodes]; !set {
			continue
		}
		if nodes == nil {
			nodes = f.countNodes()
		}
		// Karpenter subtracts nodes that are being deleted or not ready from the budget.
		spare := 0
		if least, err := MinNodes(pool); err == nil {
			spare = max(0, nodes[pool.Name]-least)
		}
		pool.Spec.Disruption.Budgets = append(pool.Spec.Disruption.Budgets, karpv1.Budget{
			Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty, karpv1.DisruptionReasonUnderutilized},
			Nodes:   strconv.Itoa(spare),
		})
	}
	return nil
}

// countNodes returns the number of nodes of each NodePool, counted as in
// BuildDisruptionBudgetMapping of Karpenter v1.14.1: without nodes that are not initialized
// yet or whose instance is terminating.
func (f *floors) countNodes() map[string]int {
	nodes := map[string]int{}
	for node := range f.cluster.Nodes() {
		// StatusConditions would add missing conditions to the NodeClaim, which is shared.
		if node.Managed() && node.Initialized() && !slices.ContainsFunc(node.NodeClaim.Status.Conditions, func(c status.Condition) bool {
			return c.Type == karpv1.ConditionTypeInstanceTerminating && c.Status == metav1.ConditionTrue
		}) {
			nodes[node.Labels()[karpv1.NodePoolLabelKey]]++
		}
	}
	return nodes
}
