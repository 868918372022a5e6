package seed

import (
	"context"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scheduling"
)

const (
	// workers is the number of claims handled concurrently.
	workers = 10
	// pausedDelay is the delay before a paused controller checks again.
	pausedDelay = 5 * time.Second
	// unknownDelay is the delay before the next check whether the fleet has been read.
	unknownDelay = 2 * time.Second
	// renewBefore is the remaining lifetime below which a token is useless to a guest
	// that has not started yet.
	renewBefore = time.Minute
)

// Controller removes seeds of nodes that have joined, removes tokens of NodeClaims being
// deleted, and replaces both for VMs that took too long to start.
type Controller struct {
	seeder *Seeder
	paused func() bool
}

// NewController returns a controller for Register. paused reports whether numaform must not write.
func NewController(seeder *Seeder, paused func() bool) *Controller {
	return &Controller{seeder: seeder, paused: paused}
}

// Name returns the controller's name.
func (*Controller) Name() string { return "nodeclaim.seed" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&karpv1.NodeClaim{}, builder.WithPredicates(ourClaims())).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.seeder.claimsOf), builder.WithPredicates(becameReady())).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// ourClaims selects NodeClaims whose nodes are numaform's.
func ourClaims() predicate.Funcs {
	return predicate.NewPredicateFuncs(func(object client.Object) bool {
		claim, ok := object.(*karpv1.NodeClaim)
		return ok && ours(claim)
	})
}

// becameReady selects Nodes that have just become ready, and so ignores heartbeats. When
// numaform starts, it also ignores initialized Nodes, whose NodeClaims are reconciled anyway.
func becameReady() predicate.Funcs {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool {
			return ready(e.Object) && e.Object.GetLabels()[karpv1.NodeInitializedLabelKey] != "true"
		},
		UpdateFunc: func(e event.UpdateEvent) bool { return ready(e.ObjectNew) && !ready(e.ObjectOld) },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

func ready(object client.Object) bool {
	node, ok := object.(*corev1.Node)
	return ok && nodeutils.GetCondition(node, corev1.NodeReady).Status == corev1.ConditionTrue
}

// claimsOf returns requests for the claims of a Node's VM.
func (s *Seeder) claimsOf(ctx context.Context, node client.Object) []reconcile.Request {
	list := &karpv1.NodeClaimList{}
	if err := s.config.Cluster.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing NodeClaims failed")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if claim := &list.Items[i]; ours(claim) && claim.Annotations[v1alpha1.AnnotationVM] == node.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: claim.Name}})
		}
	}
	return requests
}

// Reconcile updates the seed and the token of one claim.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !ours(claim) || claim.Annotations[v1alpha1.AnnotationVM] == "" || claim.Annotations[AnnotationSeed] == Removed {
		return reconcile.Result{}, nil
	}
	if c.paused() {
		return reconcile.Result{RequeueAfter: pausedDelay}, nil
	}
	ctx = withClaim(ctx, claim)
	if !claim.DeletionTimestamp.IsZero() {
		// The VM's seed remains attached as long as the VM exists.
		return reconcile.Result{}, c.seeder.revoke(ctx, claim)
	}

	vm, known := c.seeder.named(claim)
	if !known {
		return reconcile.Result{RequeueAfter: unknownDelay}, nil
	}
	if vm == nil || vm.Seed == "" {
		return reconcile.Result{}, nil // deleted, being removed, or created without a seed
	}
	if own, err := c.seeder.owns(ctx, claim, vm); err != nil || !own {
		return reconcile.Result{}, err
	}
	joined, err := c.seeder.joined(ctx, claim)
	if err != nil {
		return reconcile.Result{}, err
	}
	if joined {
		return reconcile.Result{}, c.seeder.remove(ctx, claim, vm)
	}
	return c.seeder.renew(ctx, claim, vm)
}

// withClaim adds a claim and its VM to the logger.
func withClaim(ctx context.Context, claim *karpv1.NodeClaim) context.Context {
	return log.IntoContext(ctx, log.FromContext(ctx).WithValues(
		logkey.NodeClaim, klog.KObj(claim), logkey.VM, claim.Annotations[v1alpha1.AnnotationVM],
	))
}

// named returns the VM that a claim names, or nil if there is none. known is false until the
// fleet has been read.
func (s *Seeder) named(claim *karpv1.NodeClaim) (vm *fleet.VM, known bool) {
	return s.config.VM(fleet.Key(claim.Annotations[v1alpha1.AnnotationKey]))
}

// owns reports whether a claim is the claim of the VM that it names, and not a copy of it.
func (s *Seeder) owns(ctx context.Context, claim *karpv1.NodeClaim, vm *fleet.VM) (bool, error) {
	return scheduling.Owns(ctx, s.config.Cluster.Client, claim, vm)
}

// joined reports whether a claim's node has registered and is ready, and so has its own
// certificate.
func (s *Seeder) joined(ctx context.Context, claim *karpv1.NodeClaim) (bool, error) {
	conditions := claim.StatusConditions()
	if conditions.Get(karpv1.ConditionTypeInitialized).IsTrue() {
		return true, nil
	}
	if !conditions.Get(karpv1.ConditionTypeRegistered).IsTrue() || claim.Status.NodeName == "" {
		return false, nil
	}
	node := &corev1.Node{}
	err := s.config.Cluster.Client.Get(ctx, client.ObjectKey{Name: claim.Status.NodeName}, node)
	return ready(node), client.IgnoreNotFound(err)
}

// remove removes the tokens of a node that has joined, the certificate request approved
// with them, and the node's seed. It is idempotent; the annotation is set last.
func (s *Seeder) remove(ctx context.Context, claim *karpv1.NodeClaim, vm *fleet.VM) error {
	region, err := s.region(vm.Host)
	if err != nil {
		return err
	}
	if err := s.forget(ctx, claim); err != nil {
		return err
	}
	done := fmt.Sprintf("detached seed %s from VM %s (%d) and deleted it from host %s", vm.Seed, vm.Name, vm.VMID, vm.Host)
	err = region.Proxmox.DetachSeed(ctx, s.owned(ctx, vm), vm.Seed)
	notOurs := errors.As(err, new(*proxmox.NotOursError))
	if notOurs {
		done = fmt.Sprintf("deleted seed %s of VM %s (%d) from host %s", vm.Seed, vm.Name, vm.VMID, vm.Host)
	}
	if err == nil || notOurs {
		err = region.Proxmox.DeleteSeed(ctx, vm.Host.Host, vm.Seed)
	}
	if err != nil {
		return fmt.Errorf("removing the seed of vm %s: %w", vm.Name, err)
	}
	if err := s.annotate(ctx, claim, map[string]string{AnnotationSeed: Removed, jointoken.AnnotationToken: ""}); err != nil {
		return err
	}
	log.FromContext(ctx).Info("removed seed", logkey.Volume, vm.Seed, logkey.Host, vm.Host.String())
	s.config.Record(ctx, []string{done + ": the node has joined"})
	return nil
}

// forget deletes the tokens of a claim and the request approved with them.
func (s *Seeder) forget(ctx context.Context, claim *karpv1.NodeClaim) error {
	record, err := s.record(ctx, claim)
	if err != nil {
		return err
	}
	if record != nil && record.Used() {
		request := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: record.Use.Request}}
		if err := client.IgnoreNotFound(s.config.Cluster.Client.Delete(ctx, request)); err != nil {
			return fmt.Errorf("deleting certificate request %s: %w", request.Name, err)
		}
	}
	return s.revoke(ctx, claim)
}

// renew replaces the token and the seed of a VM that was not started before the token
// expired. A running guest has already read its seed: if it does not join with that token,
// it never will, and Karpenter deletes its NodeClaim.
func (s *Seeder) renew(ctx context.Context, claim *karpv1.NodeClaim, vm *fleet.VM) (reconcile.Result, error) {
	if claim.Annotations[AnnotationSeed] != Attached {
		return reconcile.Result{}, nil // not uploaded yet
	}
	record, err := s.record(ctx, claim)
	if err != nil || record != nil && record.Used() {
		return reconcile.Result{}, err
	}
	var left time.Duration
	if record != nil {
		left = record.Expires().Sub(s.config.Clock.Now())
	}
	if left > renewBefore {
		return reconcile.Result{RequeueAfter: left - renewBefore}, nil
	}
	running, err := s.running(ctx, vm)
	if err != nil {
		return reconcile.Result{}, err
	}
	if running && (record == nil || left > 0) {
		return reconcile.Result{RequeueAfter: max(left, 0)}, nil
	}
	if running {
		// Delete the expired tokens: the API server may have extended their validity.
		return reconcile.Result{}, s.drop(ctx, record)
	}

	// Overwrite the seed with a new one.
	class, err := s.class(ctx, vm.NodeClass)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("renewing the seed of vm %s: %w", vm.Name, err)
	}
	g := &guest{vm: vm, claim: claim, class: class}
	if err := s.issue(ctx, g); err != nil {
		return reconcile.Result{}, fmt.Errorf("renewing the seed: %w", err)
	}
	line, err := s.upload(ctx, g)
	if line != "" {
		s.config.Record(ctx, []string{line + ": the token was renewed because the VM had not been started"})
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("renewing the seed: %w", err)
	}
	return reconcile.Result{RequeueAfter: class.class.TTL() - renewBefore}, nil
}

// running reports whether a VM's guest runs. A guest with the VMID of the VM that has
// another marker, or none yet because it is being cloned, does not read our seed.
func (s *Seeder) running(ctx context.Context, vm *fleet.VM) (bool, error) {
	region, err := s.region(vm.Host)
	if err != nil {
		return false, err
	}
	running, err := region.Proxmox.Running(ctx, s.owned(ctx, vm))
	if errors.As(err, new(*proxmox.NotOursError)) {
		return false, nil
	}
	return running, err
}
