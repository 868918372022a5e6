// Package provenance records on NodeClaims and Nodes, as annotations, which change created
// their VM, who approved it, and which host CPUs the VM owns, and in the trace of the change,
// how long the Node took to join. It decides nothing, and nothing depends on the annotations.
// Start at New.
package provenance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/tracing"
)

const (
	// soon is the interval while a VM's change has not begun.
	soon = 5 * time.Second
	// again is the interval afterwards, because the host CPUs of a running VM may change.
	again = 10 * time.Minute
)

// Fleet returns the VMs of the fleet; *scaler.Writer implements it.
type Fleet interface {
	// VM returns the VM with a key, and whether it is known.
	VM(key fleet.Key) (state scaler.VMState, exists bool)
}

// Approvals finds the approver of a VM's ScalePlan; *approval.Approvals implements it.
type Approvals interface {
	// ApproverOf returns the user who approved the plan that created the VM with a key in a
	// change that began at a time, or "" if no plan contains the key.
	ApproverOf(ctx context.Context, key fleet.Key, began time.Time) (string, error)
}

// Controller annotates NodeClaims and their Nodes.
type Controller struct {
	client    client.Client
	fleet     Fleet
	approvals Approvals
	// joined has the UIDs of the NodeClaims whose join is in a trace.
	joined sync.Map
}

// New returns the controller. It does no I/O.
func New(client client.Client, fleet Fleet, approvals Approvals) *Controller {
	return &Controller{client: client, fleet: fleet, approvals: approvals}
}

// Name returns the controller's name in logs and metrics.
func (c *Controller) Name() string { return "provenance" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).Named(c.Name()).For(&karpv1.NodeClaim{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile annotates one NodeClaim and its Node. It waits until the VM's change has begun.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	if !claim.DeletionTimestamp.IsZero() {
		c.joined.Delete(claim.UID)
		return reconcile.Result{}, nil
	}
	ref := claim.Spec.NodeClassRef
	key := claim.Annotations[v1alpha1.AnnotationKey]
	if ref == nil || ref.Group != v1alpha1.Group || key == "" {
		return reconcile.Result{}, nil
	}
	state, exists := c.fleet.VM(fleet.Key(key))
	if !exists || state.Origin == nil && state.Phase != scaler.PhaseMade {
		return reconcile.Result{RequeueAfter: soon}, nil
	}

	if unknown := c.traceJoin(ctx, claim, &state); unknown {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	annotations := Annotations(&state)
	id := annotations[v1alpha1.AnnotationChange]
	switch {
	case annotations[v1alpha1.AnnotationApprover] != "":
	case id != "" && id != claim.Annotations[v1alpha1.AnnotationChange]:
		approver, err := c.approvals.ApproverOf(ctx, state.VM.Key, state.Origin.Time)
		if err != nil {
			return reconcile.Result{}, fmt.Errorf("finding the approver of vm %s: %w", state.VM.Name, err)
		}
		annotations[v1alpha1.AnnotationApprover] = approver // "" removes that of an earlier change
	default:
		annotations[v1alpha1.AnnotationApprover] = claim.Annotations[v1alpha1.AnnotationApprover] // so that the Node gets it, too
	}
	changed, err := c.annotate(ctx, claim, annotations)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("annotating NodeClaim %s: %w", claim.Name, err)
	}
	if changed {
		log.FromContext(ctx).Info("annotated nodeclaim", logkey.NodeClaim, claim.Name, logkey.VM, state.VM.Name, logkey.Host, state.VM.Host.String(),
			logkey.Change, annotations[v1alpha1.AnnotationChange], logkey.PlanSHA256, annotations[v1alpha1.AnnotationPlanSHA256],
			logkey.Approver, annotations[v1alpha1.AnnotationApprover])
	}
	if claim.Status.NodeName == "" {
		return reconcile.Result{RequeueAfter: again}, nil // Karpenter copies the annotations at registration
	}
	node := &corev1.Node{}
	err = c.client.Get(ctx, client.ObjectKey{Name: claim.Status.NodeName}, node)
	if err == nil {
		_, err = c.annotate(ctx, node, annotations)
	}
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("annotating node %s: %w", claim.Status.NodeName, err)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// traceJoin adds the join of a Node to the trace of the change that created or woke its VM,
// once: from the end of the apply until the NodeClaim was initialized. It reports whether the
// Node has joined and the end of the apply is unknown yet.
func (c *Controller) traceJoin(ctx context.Context, claim *karpv1.NodeClaim, state *scaler.VMState) (unknown bool) {
	ready := claim.StatusConditions().Get(karpv1.ConditionTypeInitialized)
	if !state.Trace.IsValid() || !ready.IsTrue() {
		return false
	}
	if state.Phase != scaler.PhaseMade {
		return state.Phase == scaler.PhaseMaking
	}
	if _, known := c.joined.LoadOrStore(claim.UID, true); known {
		return false
	}
	// The VM can join before the apply has ended, because that also creates other VMs.
	// Conditions have whole seconds.
	end := ready.LastTransitionTime.Time
	start := state.Since
	if end.Before(start) {
		start = end
	}
	_, span := tracing.Start(trace.ContextWithSpanContext(ctx, state.Trace), tracing.SpanJoin, trace.WithTimestamp(start))
	span.SetAttributes(
		tracing.KeyHost.String(state.VM.Host.String()), tracing.KeyNodePool.String(state.VM.Pool), tracing.KeyNode.String(claim.Status.NodeName),
		tracing.List(tracing.KeyNodeClaims, []string{claim.Name}),
	)
	if registered := claim.StatusConditions().Get(karpv1.ConditionTypeRegistered); registered.IsTrue() {
		span.AddEvent("registered", trace.WithTimestamp(registered.LastTransitionTime.Time))
	}
	span.End(trace.WithTimestamp(end))
	return false
}

// Annotations returns the annotations of a VM's NodeClaim and Node. Nothing is known about the origin of a VM
// whose change is older than the recent history, so its annotations remain.
func Annotations(state *scaler.VMState) map[string]string {
	annotations := map[string]string{}
	set := func(name, value string) {
		if value != "" {
			annotations[name] = value
		}
	}
	set(v1alpha1.AnnotationHostCPUs, state.VM.CPUs.String())
	if origin := state.Origin; origin != nil {
		set(v1alpha1.AnnotationChange, origin.Change)
		set(v1alpha1.AnnotationCommit, origin.Commit)
		set(v1alpha1.AnnotationPlanSHA256, origin.PlanSHA256)
		set(v1alpha1.AnnotationPlanDigest, origin.PlanDigest)
		set(v1alpha1.AnnotationVerdict, origin.Verdict.String())
		set(v1alpha1.AnnotationApprover, origin.Approver)
	}
	return annotations
}

// annotate sets annotations of an object, and removes those with an empty value. It reports
// whether that changed the object.
func (c *Controller) annotate(ctx context.Context, object client.Object, annotations map[string]string) (changed bool, err error) {
	stored := object.DeepCopyObject().(client.Object)
	all := object.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	for name, value := range annotations {
		changed = changed || all[name] != value
		if all[name] = value; value == "" {
			delete(all, name)
		}
	}
	if !changed {
		return false, nil
	}
	object.SetAnnotations(all)
	err = c.client.Patch(ctx, object, client.MergeFrom(stored))
	return err == nil, client.IgnoreNotFound(err)
}
