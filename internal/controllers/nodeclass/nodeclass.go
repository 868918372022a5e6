// Package nodeclass maintains the status of ProxmoxNodeClasses: whether nodes can be
// created from a class, on which hosts, and if not, how to fix it. It also maintains the
// hash by which drifted nodes are found, and prevents the deletion of a class while
// NodeClaims refer to it. It creates no nodes. Start at New.
package nodeclass

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

const (
	// period is the interval between checks of a class without a change in the cluster,
	// because templates, storages and hosts change in Proxmox.
	period = time.Minute
	// impatience is the interval for a class that is not ready, because someone may be
	// fixing it.
	impatience = 15 * time.Second
	// conflictDelay is the delay before a conflicting write is retried.
	conflictDelay = time.Second
)

// Config configures a Controller.
type Config struct {
	Client   client.Client
	Recorder events.Recorder
	// Snapshot returns the current snapshot of Proxmox. Do not modify it.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// ClusterID is the cluster ID of this installation. A host agent pins VMs only for the
	// clusters in its configuration.
	ClusterID string
	// Metadata returns an error if a class's join metadata is unusable.
	Metadata func(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) error
	// Template returns why the templates of a ProxmoxTemplate are not ready, or "".
	Template func(ctx context.Context, name string) string
	// CanSetAffinity reports whether the credential of a region may set the affinity of
	// VMs, and why not.
	CanSetAffinity func(region topology.RegionName) (allowed bool, why string)
	// CanSetHugePages reports the same for huge pages.
	CanSetHugePages func(region topology.RegionName) (allowed bool, why string)
	// Types are the instance types.
	Types []scheduling.InstanceType
	Clock clock.Clock
}

// Controller reconciles ProxmoxNodeClasses.
type Controller struct{ config Config }

// New returns the controller. It does no I/O.
func New(config Config) *Controller { return &Controller{config: config} }

// Name returns the controller's name in logs and metrics.
func (c *Controller) Name() string { return "nodeclass" }

// Register adds the controller to a manager. It watches classes, and deletions of
// NodeClaims for which a class may be waiting. It does not watch Secrets, which would
// require the right to list them; each check of a class reads them again.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&v1alpha1.ProxmoxNodeClass{}).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(c.terminatingClass)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile checks one class.
func (c *Controller) Reconcile(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	var result reconcile.Result
	var err error
	if !nc.DeletionTimestamp.IsZero() {
		result, err = c.finalize(ctx, nc)
	} else if err = c.mark(ctx, nc); err == nil {
		result, err = c.updateStatus(ctx, nc)
	}
	if errors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return result, client.IgnoreNotFound(err)
}

// claims returns the NodeClaims that refer to the class.
func (c *Controller) claims(ctx context.Context, class string) ([]karpv1.NodeClaim, error) {
	var all karpv1.NodeClaimList
	if err := c.config.Client.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("listing nodeclaims: %w", err)
	}
	var claims []karpv1.NodeClaim
	for i := range all.Items {
		if refersTo(&all.Items[i], class) {
			claims = append(claims, all.Items[i])
		}
	}
	return claims, nil
}

func refersTo(claim *karpv1.NodeClaim, class string) bool {
	ref := claim.Spec.NodeClassRef
	return ref != nil && ref.Group == v1alpha1.Group && ref.Kind == v1alpha1.KindProxmoxNodeClass && ref.Name == class
}
