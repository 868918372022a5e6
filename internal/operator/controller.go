package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/controllers/metrics"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/notify"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/tracing"
	"github.com/numaform/numaform/topology"
)

// Controller runs numaform in a cluster.
type Controller struct {
	config    *Config
	settings  ControllerSettings
	clients   map[topology.RegionName]*proxmox.Client
	inventory *Inventory
	control   *switchboard
	// heap is nil if the garbage collector is configured by GOGC.
	heap  *heap
	kube  kubernetes.Interface
	clock clock.WithTicker
	// unset is the approval mode of NodePools without an annotation.
	unset approval.Mode
	// forge has the pull requests of repository; both are nil if no forge is configured.
	forge      forge.Client
	repository *store.Git
	// notifier sends notifications; nil without targets, and in observe mode. It outlives
	// the managers, so that it can report a pause. Only the leader publishes any.
	notifier *notify.Notifier
	// traces sends traces of changes; nil if the environment does not configure any.
	traces *tracing.Exporter
	// running is the current manager; nil while numaform is paused.
	running atomic.Pointer[manager.Manager]
	// writer is the current writer; nil while numaform is paused, and in observe mode.
	writer atomic.Pointer[scaler.Writer]
	// observer receives events, and numbers are its metrics; nil before the first manager
	// runs.
	observer atomic.Pointer[metrics.Observer]
	numbers  atomic.Pointer[prometheus.Registry]
}

// NewController returns the controller of a configuration. It reads secrets but makes no
// requests.
func NewController(config *Config, settings ControllerSettings) (*Controller, error) {
	unset := approval.ModePolicy
	if config.Fleet.Git.Review {
		if config.Fleet.Git.Forge.Kind == "" && !settings.Observe {
			return nil, errors.New("fleet.git.review: in the controller, people review pull requests, which need a forge: set fleet.git.forge.kind, " +
				"or remove fleet.git.review and use the annotations numaform.dev/scale-up: manual and numaform.dev/scale-down: manual on NodePools")
		}
		// The store must not propose a change again after its review.
		unset = approval.ModeManual
		own := *config
		own.Fleet.Git.Review = false
		config = &own
	}
	kube, err := kubernetes.NewForConfig(settings.Rest)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	if _, done := crmetrics.Registry.(replacing); !done {
		crmetrics.Registry = replacing{crmetrics.Registry}
	}
	c := &Controller{config: config, settings: settings, unset: unset, kube: kube, clock: clock.RealClock{}}
	if c.forge, err = config.OpenForge(settings.Environ, c.clock); err != nil {
		return nil, err
	}
	if c.forge != nil {
		if c.repository, err = config.openGit(settings.Environ); err != nil {
			return nil, err
		}
	}
	c.clients, err = config.ConnectObserved(func(region topology.RegionName) proxmox.Observe {
		return func(method, path string, code int, took time.Duration) {
			if observer := c.observer.Load(); observer != nil {
				observer.Request(region)(method, path, code, took)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	c.traces, err = tracing.Open(tracing.Config{
		Environ: settings.Environ, ClusterID: config.ClusterID, Version: settings.Version, Logger: settings.Logger, Clock: c.clock,
	})
	if err != nil {
		return nil, err
	}
	c.inventory = NewInventory(config, c.clients, c.clock)
	limitHeap()
	if !settings.FixedHeap {
		c.heap = newHeap(c.clock)
		c.inventory.deciding = c.heap.work
	}
	c.control = &switchboard{source: control.New(kube, settings.Namespace), now: c.clock.Now}
	c.notifier = c.newNotifier()
	return c, nil
}

// lastTraces limits how long sending the last traces may delay the exit.
const lastTraces = 5 * time.Second

// Run runs the controller until ctx ends or the Lease is lost. While numaform is
// paused, none of its parts runs and it is not the leader, but it still responds to
// probes.
func (c *Controller) Run(ctx context.Context) error {
	ctx = log.IntoContext(ctx, c.settings.Logger)
	if c.traces != nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTraces)
			defer cancel()
			if err := c.traces.Close(ctx); err != nil {
				log.FromContext(ctx).Info("could not send the last traces", logkey.Reason, err.Error())
			}
		}()
		ctx = tracing.Into(ctx, c.traces.Tracer())
	}

	// Add these kinds and labels before Karpenter's core or numaform's clients run, because
	// both read them without a lock. Pods may select nodes by numaform's labels.
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		return fmt.Errorf("registering kinds: %w", err)
	}
	karpv1.WellKnownLabels.Insert(scheduling.WellKnownLabels()...)

	if err := c.control.read(ctx); err != nil {
		return err
	}
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all := prometheus.Gatherers{crmetrics.Registry}
		if numbers := c.numbers.Load(); numbers != nil {
			all = append(all, numbers)
		}
		return all.Gather()
	})
	shown, err := c.newPage()
	if err != nil {
		return err
	}
	var handler http.Handler
	if shown != nil {
		handler = shown.Handler()
	}
	done := errors.New("done") // ends the server once the work has ended
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(ctx, &c.settings, gather, c.ready, handler) })
	if shown != nil {
		group.Go(func() error { shown.Run(ctx); return nil })
	}
	group.Go(func() error { c.control.run(ctx); return nil })
	if c.notifier != nil {
		group.Go(func() error { c.notifier.Run(ctx); return nil })
	}
	if c.heap != nil {
		applies := func() bool { writer := c.writer.Load(); return writer != nil && writer.Busy() }
		group.Go(func() error { c.heap.run(ctx, applies); return nil })
	}
	group.Go(func() error {
		for ctx.Err() == nil {
			if err := c.untilPaused(ctx); err != nil {
				return err
			}
			c.wait(ctx, c.control.Paused)
		}
		return done
	})
	if err := group.Wait(); err != nil && !errors.Is(err, done) {
		return err
	}
	return nil
}

// ready returns an error if the controller is not ready yet.
func (c *Controller) ready(ctx context.Context) error {
	m := c.running.Load()
	switch {
	case m == nil && c.control.Paused():
		return nil
	case m == nil:
		return errors.New("starting")
	case !(*m).GetCache().WaitForCacheSync(ctx):
		return errors.New("the caches are not synced yet")
	}
	return nil
}

// wait waits while a condition holds, or until ctx ends.
func (c *Controller) wait(ctx context.Context, while func() bool) {
	ticker := c.clock.NewTicker(switchInterval)
	defer ticker.Stop()
	for while() {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

// parts are the components that run together.
type parts struct {
	manager manager.Manager
	// election is the lock of the leader's Lease; nil without leader election.
	election resourcelock.Interface
	// writer is nil in observe mode.
	writer *scaler.Writer
	// runs counts the writer and other goroutines.
	runs sync.WaitGroup
}

// untilPaused runs all parts until numaform is paused. It then starts no new changes,
// and waits for applies in progress.
func (c *Controller) untilPaused(ctx context.Context) error {
	if c.control.Paused() {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts, err := c.build(ctx)
	if err != nil {
		return err
	}
	c.running.Store(&parts.manager)
	defer c.running.Store(nil)
	c.writer.Store(parts.writer)
	defer c.writer.Store(nil)

	var watching sync.WaitGroup
	watching.Go(func() {
		reported := false
		c.wait(ctx, func() bool {
			paused := c.control.Paused()
			if paused && !reported {
				c.notifyPause(parts.manager.Elected())
			}
			reported = paused
			return !paused || parts.writer != nil && parts.writer.Busy()
		})
		cancel()
	})
	// Begin the first reading of Proxmox, which takes long, while the caches are filled. The
	// parts that need it report errors. A replica that is not the leader can begin sooner
	// when it becomes the leader, because it then reads only what has changed.
	watching.Go(func() { _, _ = c.inventory.Recent(ctx) })
	err = parts.manager.Start(ctx)
	cancel()
	watching.Wait()
	// Wait here, because a manager that lost its Lease does not wait, and an engine that
	// dies with this process does not save the state.
	parts.runs.Wait()
	if err != nil {
		return fmt.Errorf("running the controllers: %w", err)
	}

	if parts.election != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if err := release(ctx, parts.election, c.clock); err != nil {
			log.FromContext(ctx).Info("could not release the leader's Lease, so the next leader waits until it expires", logkey.Reason, err.Error())
		}
	}
	return nil
}

// ControllerSettings configure the controller in a cluster.
type ControllerSettings struct {
	// Rest is the connection to the cluster.
	Rest *rest.Config
	// Kubeconfig and Context select the same cluster; empty means the defaults.
	Kubeconfig, Context string
	// Namespace is numaform's own namespace.
	Namespace string
	// BootstrapAccount is the ServiceAccount in Namespace that new nodes join as.
	BootstrapAccount string
	// BootstrapTokens allows classes to use bootstrap tokens, which are in kube-system.
	BootstrapTokens bool
	// Observe makes the controller decide and plan without writing anything.
	Observe     bool
	LeaderElect bool
	// MetricsAddress, ProbeAddress and ProfileAddress are the listen addresses; "0"
	// disables the listener.
	MetricsAddress, ProbeAddress, ProfileAddress string
	// PageAddress is the listen address of the web page, and PageTLSDir the directory with
	// its certificate; empty means no TLS.
	PageAddress, PageTLSDir string
	BatchIdle, BatchMax     time.Duration
	IgnorePreferences       bool
	RelaxMinValues          bool
	// FeatureGates are the Karpenter feature gates that CheckFeatureGates accepts, such
	// as NodeRepair=true.
	FeatureGates string
	// NoClusterState omits Karpenter's metrics of each Node, NodeClaim and pod.
	NoClusterState bool
	// Kproximate also serves kproximate's metrics, under their own names.
	Kproximate bool
	// DriftEvery is the interval between comparisons of all VMs with Proxmox; 0 means
	// never.
	DriftEvery time.Duration
	// Grace is the maximum time for a shutdown of the controller.
	Grace time.Duration
	// FixedHeap leaves the garbage collector as the environment configures it.
	FixedHeap bool
	// Version is numaform's version.
	Version string
	Environ []string
	Logger  logr.Logger
}
