// Package nodeclass keeps the status of ProxmoxNodeClasses: whether nodes can be
// made of one, on which hosts, and if not, what a person has to do. It also keeps
// their hash, by which drifted nodes are found, and holds a class back from being
// deleted while NodeClaims refer to it. It makes no nodes. Start at New.
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
	// period is how often a class is looked at without a change in the cluster:
	// templates, storages and hosts come and go in Proxmox.
	period = time.Minute
	// impatience is the same for a class that is not ready, for somebody may be
	// mending it right now.
	impatience = 15 * time.Second
	// again is how soon a write is tried again that somebody else was faster than.
	again = time.Second
)

// Config is what New needs.
type Config struct {
	Client   client.Client
	Recorder events.Recorder
	// Snapshot returns what Proxmox is like now. It is only read.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// ClusterID is this numaform's, for which host agents pin.
	ClusterID string
	// Metadata says what is wrong with what nodes of the class join with. nil means
	// that nobody needs to ask.
	Metadata func(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) error
	// CanSetAffinity reports whether the credential of a region may set the affinity
	// of VMs, and why not. nil means that all may.
	CanSetAffinity func(region topology.RegionName) (allowed bool, why string)
	// CanSetHugePages reports the same of huge pages.
	CanSetHugePages func(region topology.RegionName) (allowed bool, why string)
	// Types are the instance types; nil means the default ones.
	Types []scheduling.InstanceType
	// Clock is the real one by default.
	Clock clock.Clock
}

// Controller reconciles ProxmoxNodeClasses.
type Controller struct{ config Config }

// New returns the controller. It touches nothing.
func New(config Config) *Controller {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Metadata == nil {
		config.Metadata = func(context.Context, *v1alpha1.ProxmoxNodeClass) error { return nil }
	}
	if config.CanSetAffinity == nil {
		config.CanSetAffinity = func(topology.RegionName) (bool, string) { return true, "" }
	}
	if config.CanSetHugePages == nil {
		config.CanSetHugePages = func(topology.RegionName) (bool, string) { return true, "" }
	}
	if config.Types == nil {
		config.Types = scheduling.DefaultInstanceTypes()
	}
	return &Controller{config: config}
}

// Name is the controller's in logs and metrics.
func (c *Controller) Name() string { return "nodeclass" }

// Register adds the controller to a manager. It follows classes, and NodeClaims as
// they go, for a class may be waiting for that. Secrets are not followed, as that
// takes the right to list them; they are read again with each look at the class.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&v1alpha1.ProxmoxNodeClass{}).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(c.terminatingClass)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile looks at one class.
func (c *Controller) Reconcile(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	if !nc.DeletionTimestamp.IsZero() {
		return c.settled(c.finalize(ctx, nc))
	}
	if err := c.mark(ctx, nc); err != nil {
		return c.settled(reconcile.Result{}, err)
	}
	return c.settled(c.judge(ctx, nc))
}

// settled turns the errors that a second try mends into that try.
func (c *Controller) settled(result reconcile.Result, err error) (reconcile.Result, error) {
	switch {
	case errors.IsConflict(err):
		return reconcile.Result{RequeueAfter: again}, nil
	case errors.IsNotFound(err):
		return reconcile.Result{}, nil
	}
	return result, err
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
