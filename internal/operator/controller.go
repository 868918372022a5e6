package operator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/controllers/metrics"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// Controller is numaform in a cluster.
type Controller struct {
	config    *Config
	settings  ControllerSettings
	clients   map[topology.RegionName]*proxmox.Client
	inventory *Inventory
	control   *switchboard
	kube      kubernetes.Interface
	clock     clock.WithTicker
	// running is the current manager; nil while numaform is paused.
	running atomic.Pointer[manager.Manager]
	// observer receives what happens, and numbers are its metrics; nil before anything
	// has run.
	observer atomic.Pointer[metrics.Observer]
	numbers  atomic.Pointer[prometheus.Registry]
}

// NewController returns the controller of a configuration. It reads secrets but makes no
// requests.
func NewController(config *Config, settings ControllerSettings) (*Controller, error) {
	if config.Fleet.Git.Review && !settings.Observe {
		return nil, errors.New("fleet.git.review: the controller applies what it begins, and would push a branch at each try: leave the key out, " +
			"and let people decide by the annotations numaform.dev/scale-up: manual and numaform.dev/scale-down: manual on NodePools")
	}
	kube, err := kubernetes.NewForConfig(settings.Rest)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	replaceCollectors()
	c := &Controller{config: config, settings: settings, kube: kube, clock: clock.RealClock{}}
	if c.clients, err = config.ConnectObserved(c.observe); err != nil {
		return nil, err
	}
	c.inventory = NewInventory(config, c.clients, c.clock)
	c.control = &switchboard{source: control.New(kube, settings.Namespace), now: c.clock.Now}
	return c, nil
}

// observe returns the observer of a region's requests.
func (c *Controller) observe(region topology.RegionName) proxmox.Observe {
	return func(method, path string, code int, took time.Duration) {
		if observer := c.observer.Load(); observer != nil {
			observer.Request(region)(method, path, code, took)
		}
	}
}

// gather collects Karpenter's and numaform's metrics.
func (c *Controller) gather() ([]*dto.MetricFamily, error) {
	all := prometheus.Gatherers{crmetrics.Registry}
	if numbers := c.numbers.Load(); numbers != nil {
		all = append(all, numbers)
	}
	return all.Gather()
}

// Run works until ctx ends or the lease is lost. While numaform is paused, none of its
// parts runs and it is not the leader, but it still answers probes.
func (c *Controller) Run(ctx context.Context) error {
	ctx = log.IntoContext(ctx, c.settings.Logger)
	if err := register(); err != nil {
		return err
	}
	if err := c.control.read(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(ctx, &c.settings, prometheus.GathererFunc(c.gather), c.ready) })
	group.Go(func() error { c.control.run(ctx); return nil })
	group.Go(func() error {
		for ctx.Err() == nil {
			if err := c.untilPaused(ctx); err != nil {
				return err
			}
			if err := c.whilePaused(ctx); err != nil {
				return err
			}
		}
		return errDone
	})
	if err := group.Wait(); err != nil && !errors.Is(err, errDone) {
		return err
	}
	return nil
}

// errDone ends the server once the work has ended.
var errDone = errors.New("done")

// ready returns why the controller does not work yet, or nil.
func (c *Controller) ready(ctx context.Context) error {
	m := c.running.Load()
	switch {
	case m == nil && c.control.Paused():
		return nil
	case m == nil:
		return errors.New("starting")
	case !(*m).GetCache().WaitForCacheSync(ctx):
		return errors.New("the caches are not complete yet")
	}
	return nil
}

// whilePaused waits until numaform is no longer paused.
func (c *Controller) whilePaused(ctx context.Context) error {
	ticker := c.clock.NewTicker(askSwitch)
	defer ticker.Stop()
	for c.control.Paused() {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// untilPaused runs all parts until numaform is paused: then it begins nothing new, and
// waits for applies in progress.
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
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := c.clock.NewTicker(askSwitch)
		defer ticker.Stop()
		for !c.control.Paused() || parts.busy() {
			select {
			case <-ticker.C():
			case <-ctx.Done():
				return
			}
		}
		cancel()
	})
	err = parts.manager.Start(ctx)
	cancel()
	watching.Wait()
	// A manager that has lost its lease does not wait, and an engine that dies with this
	// process does not save the state.
	parts.runs.Wait()
	if err != nil {
		return fmt.Errorf("running the controllers: %w", err)
	}
	return nil
}

// parts are the components that run together.
type parts struct {
	manager manager.Manager
	// writer is nil in observe mode.
	writer *scaler.Writer
	// runs counts the writer and other goroutines.
	runs sync.WaitGroup
}

// busy reports whether a change is being applied.
func (p *parts) busy() bool { return p.writer != nil && p.writer.Busy() }

// actor returns the controller's name in the fleet's history.
func (c *Controller) actor() string { return "controller/" + c.settings.Namespace }
