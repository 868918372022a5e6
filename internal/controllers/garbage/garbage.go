// Package garbage cleans up what no other controller does: VMs that could not be created,
// VMs whose NodeClaim vanished, NodeClaims whose VM or Node vanished, nodes that never
// joined, and Nodes that have neither a NodeClaim nor a VM. It reports guests that carry our
// marker but are not desired, and never removes them. It does not repeat Karpenter's own
// garbage collection and liveness checks.
// DESIGN.md in this directory lists what each controller does. Start at New.
package garbage

import (
	"context"
	"maps"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"k8s.io/apimachinery/pkg/types"
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
	// grace is how long a problem must last before a controller acts, because the API
	// server, Proxmox and the writer are read at different times.
	grace = time.Minute
	// nodeGrace is the grace period for a Node that is missing while its VM runs.
	nodeGrace = 5 * time.Minute
	// period is the interval between passes.
	period = 10 * time.Second
	// perVM lengthens the intervals of large fleets, because each pass reads all VMs, NodeClaims
	// and Nodes: from 2,000 VMs, they are longer than period.
	perVM = 5 * time.Millisecond
	// failuresPeriod is the interval for failed VMs, because their pods wait to be
	// scheduled again.
	failuresPeriod = 2 * time.Second
)

// Writer is the part of the fleet's writer that this package uses.
type Writer interface {
	// Synced reports whether the fleet has been read; before that, VMs returns none.
	Synced() bool
	VMs() []scaler.VMState
	// Any reports whether a VM satisfies a condition.
	Any(condition func(*scaler.VMState) bool) bool
	Remove(keys ...fleet.Key)
}

// UnavailableOfferings makes offerings unavailable for a while.
type UnavailableOfferings interface {
	Mark(offering scheduling.OfferingSelector, until time.Time)
}

// Config configures a Collector.
type Config struct {
	// Client reads and writes the cluster; it may read from a cache.
	Client client.Client
	// Live reads from the API server directly. It is used before a VM is removed.
	Live        client.Reader
	Recorder    events.Recorder
	Writer      Writer
	Unavailable UnavailableOfferings
	// Snapshot returns the current snapshot of Proxmox. Do not modify it.
	Snapshot  func(ctx context.Context) (*topology.Snapshot, error)
	ClusterID string
	// NewNodeClaim returns the claim for a VM, without creating it in the API server.
	NewNodeClaim func(vm fleet.VM, pool *karpv1.NodePool) *karpv1.NodeClaim
	// Paused reports whether nothing may be removed or created now, because numaform is
	// paused.
	Paused func() bool
	// Self is the object of events that concern no other object of the cluster, such as
	// numaform's Deployment; nil discards these events.
	Self  client.Object
	Clock clock.PassiveClock
}

// Collector contains the controllers of this package, which share a backoff.
type Collector struct {
	config  Config
	orphans *orphans
	all     []pass
}

// pass is one of the controllers.
type pass interface {
	// name returns the controller's name in logs and metrics.
	name() string
	// every returns the interval between passes.
	every() time.Duration
	// concerns reports whether a pass is needed.
	concerns() bool
	// run makes one pass. If paused, it only reports.
	run(ctx context.Context, v *view) error
}

// New returns the collector. It does no I/O.
func New(config Config) *Collector {
	backoff := &backoff{unavailable: config.Unavailable, classes: map[string]failing{}}
	orphans := &orphans{config: config, lasting: since[orphanID]{}, reported: map[orphanID]bool{}}
	return &Collector{config: config, orphans: orphans, all: []pass{
		&failures{config: config, backoff: backoff, reported: map[fleet.Key]time.Time{}, claimless: since[fleet.Key]{}},
		&reservations{config: config, claimless: since[fleet.Key]{}},
		&claims{config: config, vmless: since[types.UID]{}, nodeless: since[types.UID]{}, abandoned: since[types.UID]{}},
		&joins{
			config: config, backoff: backoff, waiting: map[types.UID]*karpv1.NodeClaim{}, reported: map[types.UID]bool{},
			causes: map[types.UID]string{}, blocked: map[types.UID]string{},
		},
		&nodes{config: config, vmless: since[types.UID]{}},
		orphans,
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

// Orphans returns the number of undesired guests with our marker that the last pass found,
// by host.
func (c *Collector) Orphans() map[topology.HostID]int {
	c.orphans.mu.Lock()
	defer c.orphans.mu.Unlock()
	return maps.Clone(c.orphans.byHost)
}

// Controller periodically looks for one kind of garbage.
type Controller struct {
	config Config
	pass   pass
}

// Name returns the controller's name in logs and metrics.
func (c *Controller) Name() string { return "garbage." + c.pass.name() }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(c.Name()).
		// The default rate limiter would wait for up to 17 minutes after Proxmox is
		// reachable again.
		WithOptions(manage.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 3*period)}).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(c))
}

// Reconcile makes one pass.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	again := reconciler.Result{RequeueAfter: c.pass.every()}
	if !c.config.Writer.Synced() || !c.pass.concerns() {
		return again, nil
	}
	// Read the writer first, and then the cluster: a claim that is created in between is
	// then seen without its VM. In the reverse order, its VM would be seen without a claim.
	states := c.config.Writer.VMs()
	v, err := newView(ctx, c.config, states)
	if err != nil {
		return reconciler.Result{}, err
	}
	if err := c.pass.run(ctx, v); err != nil {
		return reconciler.Result{}, err
	}
	if again.RequeueAfter >= period { // shorter intervals are for failures
		again.RequeueAfter = max(again.RequeueAfter, time.Duration(len(states))*perVM)
	}
	return again, nil
}

// since records the time from which a condition has been true, by key.
type since[K comparable] map[K]time.Time

// lasting updates s with the keys for which the condition holds now, and returns the keys
// for which it has been true for at least long.
func (s since[K]) lasting(current []K, now time.Time, long time.Duration) map[K]bool {
	is := make(map[K]bool, len(current))
	for _, k := range current {
		is[k] = true
	}
	maps.DeleteFunc(s, func(k K, _ time.Time) bool { return !is[k] })
	old := map[K]bool{}
	for _, k := range current {
		from, known := s[k]
		if !known {
			from, s[k] = now, now
		}
		if now.Sub(from) >= long {
			old[k] = true
		}
	}
	return old
}
