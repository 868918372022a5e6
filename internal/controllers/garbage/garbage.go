// Package garbage ends what nothing else ends: VMs that could not be made, VMs whose
// NodeClaim vanished, NodeClaims whose VM or Node did, nodes that never joined. It
// tells people of guests that carry our marker and that nobody wants, and never
// removes one. What Karpenter's own garbage collection and liveness do, it leaves to
// them. DESIGN.md beside this file says who does what. Start at New.
package garbage

import (
	"context"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	manage "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

const (
	// grace is how long something has to be amiss before anything is done: what is
	// read of the API server, of Proxmox and of the writer are not of one moment.
	grace = time.Minute
	// nodeGrace is the same for a Node that is gone while its VM runs.
	nodeGrace = 5 * time.Minute
	// period is how often is looked.
	period = 10 * time.Second
	// eager is the same for VMs that failed, for pods wait for another place.
	eager = 2 * time.Second
)

// Writer is what is needed of the fleet's writer.
type Writer interface {
	// Synced reports whether the fleet has been read; before that, VMs knows of none.
	Synced() bool
	VMs() []scaler.VMState
	Remove(keys ...fleet.Key)
}

// Closer keeps offers from being made for a while.
type Closer interface {
	Close(offer scheduling.Offer, until time.Time, why string)
}

// Config is what New needs.
type Config struct {
	// Client reads and writes the cluster; it may read from a cache.
	Client client.Client
	// Live reads from the API server itself. It is asked before a VM is removed.
	Live     client.Reader
	Recorder events.Recorder
	Writer   Writer
	Closer   Closer
	// Snapshot returns what Proxmox is like now. It is only read.
	Snapshot  func(ctx context.Context) (*topology.Snapshot, error)
	ClusterID string
	// NewNodeClaim makes the claim that stands for a VM, without creating it.
	NewNodeClaim func(vm fleet.VM, pool *karpv1.NodePool) *karpv1.NodeClaim
	// Paused reports whether nothing may be removed or created now: numaform is
	// paused, or only observes. nil means never.
	Paused func(ctx context.Context) (bool, error)
	// Self is what events are attached to that are about no object of the cluster,
	// such as numaform's Deployment; nil drops those.
	Self runtime.Object
	// Clock is the real one by default.
	Clock clock.PassiveClock
}

// Collector holds the controllers of this package, which share a backoff.
type Collector struct {
	config  Config
	orphans *orphans
	all     []pass
}

// pass is one of the controllers.
type pass interface {
	// name is the controller's in logs and metrics.
	name() string
	// every is how often to look.
	every() time.Duration
	// run looks once. It does nothing but tell if paused.
	run(ctx context.Context, v *view) error
}

// New returns the controllers. It touches nothing.
func New(config Config) *Collector {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Paused == nil {
		config.Paused = func(context.Context) (bool, error) { return false, nil }
	}
	closing := newClosing(config.Closer)
	found := newOrphans(config)
	return &Collector{config: config, orphans: found, all: []pass{
		newFailures(config, closing), newReservations(config), newClaims(config), newJoins(config, closing), found,
	}}
}

// Controllers returns the controllers, to be registered with a manager.
func (c *Collector) Controllers() []controller.Controller {
	controllers := make([]controller.Controller, len(c.all))
	for i, p := range c.all {
		controllers[i] = &Controller{config: c.config, pass: p}
	}
	return controllers
}

// Orphans returns how many guests with our marker nobody wants, by host, as it was
// when last looked.
func (c *Collector) Orphans() map[topology.HostID]int { return c.orphans.counts() }

// Controller looks for one kind of garbage, again and again.
type Controller struct {
	config Config
	pass   pass
}

// Name is the controller's in logs and metrics.
func (c *Controller) Name() string { return "garbage." + c.pass.name() }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(c.Name()).
		// Else it would wait for up to a quarter of an hour once Proxmox is back.
		WithOptions(manage.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 3*period)}).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(c))
}

// Reconcile looks once.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	again := reconciler.Result{RequeueAfter: c.pass.every()}
	if !c.config.Writer.Synced() {
		return again, nil
	}
	v, err := look(ctx, c.config)
	if err != nil {
		return reconciler.Result{}, err
	}
	if err := c.pass.run(ctx, v); err != nil {
		return reconciler.Result{}, err
	}
	return again, nil
}
