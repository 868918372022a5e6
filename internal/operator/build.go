package operator

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	providermetrics "sigs.k8s.io/karpenter/pkg/cloudprovider/metrics"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/controllers/csr"
	"github.com/numaform/numaform/internal/controllers/garbage"
	"github.com/numaform/numaform/internal/controllers/metrics"
	"github.com/numaform/numaform/internal/controllers/nodeclass"
	"github.com/numaform/numaform/internal/controllers/nodepool"
	"github.com/numaform/numaform/internal/controllers/provisioning"
	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// workshop holds the dependencies of a controller's parts.
type workshop struct {
	*Controller
	manager  manager.Manager
	events   record.EventRecorder
	recorder events.Recorder
	// live is a client that bypasses the cache.
	live client.Client
	// cluster reads from the cache, liveCluster from the API server.
	cluster, liveCluster *scheduling.Cluster
	types                []scheduling.InstanceType
	karpenter            *options.Options
	closed               *cloudprovider.Closed
	placing              sync.Mutex
}

// build creates all parts. Nothing runs before the manager starts.
func (c *Controller) build(ctx context.Context) (*parts, error) {
	karpenter, err := karpenterOptions(&c.settings)
	if err != nil {
		return nil, err
	}
	w := &workshop{Controller: c, closed: cloudprovider.NewClosed(c.clock), karpenter: karpenter}
	ctx = options.ToContext(ctx, karpenter)
	if w.manager, err = newManager(ctx, &c.settings, karpenter); err != nil {
		return nil, err
	}
	if w.live, err = client.New(c.settings.Rest, client.Options{Scheme: scheme.Scheme}); err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	if w.types, err = c.config.InstanceTypes(); err != nil {
		return nil, err
	}
	w.events = newEvents(ctx, c.kube)
	w.recorder = events.NewRecorder(w.events)
	w.cluster, w.liveCluster = scheduling.FromClient(w.manager.GetClient()), scheduling.FromClient(w.live)
	if c.settings.Observe {
		return w.observe(ctx)
	}
	return w.apply(ctx)
}

// apply creates the parts of a controller that makes changes.
func (w *workshop) apply(ctx context.Context) (*parts, error) {
	var writer *scaler.Writer
	var provisioner *provisioning.Controller
	seeder, err := w.seeder(func() *scaler.Writer { return writer })
	if err != nil {
		return nil, err
	}
	config, err := w.scalerConfig(ctx)
	if err != nil {
		return nil, err
	}
	collector := w.collector(func() *scaler.Writer { return writer })
	observer, err := w.metrics(func() []scaler.VMState { return writer.VMs() }, collector)
	if err != nil {
		return nil, err
	}
	config.Guests, config.Observe = seeder, observer
	fleetScaler := scaler.New(*config)
	approvals := approval.New(approval.Config{
		Client: w.live, Namespace: w.settings.Namespace, Scaler: fleetScaler, Snapshot: w.inventory.Snapshot, Taken: w.liveCluster.VMIDs,
		Paused: w.control.paused, Events: w.recorder, Clock: w.clock,
		Approved: func() { provisioner.Trigger() },
	})
	writer = scaler.NewWriter(fleetScaler, scaler.WriterConfig{
		Snapshot: w.inventory.Snapshot, Taken: w.liveCluster.VMIDs, Joined: joined(w.live), Gate: approvals,
		Paused: w.control.Paused, Changed: w.inventory.Stale,
	})
	approvals.Watch(writer)
	own := cloudprovider.New(cloudprovider.Config{
		ClusterID: w.config.ClusterID, Overlays: w.gates().NodeOverlay, Client: w.manager.GetClient(), Fleet: writer, Cluster: w.cluster,
		Snapshot: w.inventory.Snapshot, Types: w.types, Closed: w.closed, Evacuated: w.control.evacuated, Placing: &w.placing, Clock: w.clock,
	})
	core := newCore(ctx, w, providermetrics.Decorate(own), w.recorder)
	core.judged = own.Everywhere()
	provisioner = provisioning.New(provisioning.Config{
		Virtual: w.virtual(core),
		Client:  w.manager.GetClient(), Cluster: w.cluster, State: core.state, Recorder: w.recorder, Writer: writer, Approvals: approvals,
		Snapshot: w.inventory.Snapshot, Closed: w.offersClosed, Request: w.request(),
		BatchIdle: w.settings.BatchIdle, BatchMax: w.settings.BatchMax, Begun: writer.Begun, EngineStart: time.Second,
		Placing: &w.placing, Clock: w.clock,
	})
	list := append(core.watchers(), core.controllers(ctx, approvals.Methods)...)
	list = append(list, provisioner, approvals, w.inPlace(writer))
	list = append(list, core.buffers(ctx, provisioner.Trigger)...)
	list = append(list, w.ours(seeder)...)
	list = append(list, collector.Controllers()...)
	runs := []manager.RunnableFunc{writer.Run}
	if w.settings.DriftEvery > 0 {
		runs = append(runs, (&driftWatch{workshop: w, scaler: fleetScaler, observer: observer}).run)
	}
	return w.assemble(ctx, writer, list, runs)
}

// assemble adds everything that the manager runs.
func (w *workshop) assemble(ctx context.Context, writer *scaler.Writer, list []controller.Controller, runs []manager.RunnableFunc) (*parts, error) {
	for _, one := range list {
		if err := one.Register(ctx, w.manager); err != nil {
			return nil, fmt.Errorf("registering a controller: %w", err)
		}
	}
	all := &parts{manager: w.manager, writer: writer}
	// Runnables of this kind wait for the leader election.
	for _, run := range runs {
		err := w.manager.Add(manager.RunnableFunc(func(running context.Context) error {
			all.runs.Add(1)
			defer all.runs.Done()
			return run(log.IntoContext(running, log.FromContext(ctx)))
		}))
		if err != nil {
			return nil, fmt.Errorf("adding to the manager: %w", err)
		}
	}
	return all, nil
}

// ours returns numaform's controllers that need no writer.
func (w *workshop) ours(seeder *seed.Seeder) []controller.Controller {
	cached := w.manager.GetClient()
	return []controller.Controller{
		nodeclass.New(nodeclass.Config{
			Client: cached, Recorder: w.recorder, Snapshot: w.inventory.Snapshot, ClusterID: w.config.ClusterID,
			Metadata: seeder.Check, Types: w.types,
			CanSetAffinity: w.canSetAffinity, CanSetHugePages: w.canSetHugePages, Clock: w.clock,
		}),
		nodepool.New(w.recorder),
		csr.NewController(csr.Config{
			Client: cached, Live: w.live, Events: w.recorder, Clock: w.clock, Paused: w.control.paused,
			Account: csr.Account{Namespace: w.settings.Namespace, Name: w.settings.BootstrapAccount},
		}),
		seed.NewController(seeder, w.control.paused),
		seed.NewJoiner(seeder, w.control.paused, w.recorder),
		seed.NewGarbage(seeder, w.control.paused),
		&evacuation{client: cached, hosts: w.control.evacuated},
	}
}

// inPlace returns the controller that updates running VMs when their classes change.
func (w *workshop) inPlace(writer *scaler.Writer) controller.Controller {
	return nodeclass.NewInPlace(nodeclass.InPlaceConfig{
		Client: w.manager.GetClient(), Recorder: w.recorder, Fleet: writer, MayMove: w.mayMove,
	})
}

// collector returns the garbage collector, for what no other controller removes.
func (w *workshop) collector(writer func() *scaler.Writer) *garbage.Collector {
	return garbage.New(garbage.Config{
		Client: w.manager.GetClient(), Live: w.live, Recorder: w.recorder, Writer: lateWriter{writer}, Closer: w.closed,
		Snapshot: w.inventory.Snapshot, ClusterID: w.config.ClusterID, Paused: w.control.paused, Clock: w.clock,
		NewNodeClaim: func(vm fleet.VM, pool *karpv1.NodePool) *karpv1.NodeClaim { return scheduling.NewNodeClaim(vm, pool) },
		Self:         &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.settings.Namespace, Name: control.ConfigMapName}},
	})
}

// lateWriter is a writer that is created after its users.
type lateWriter struct{ writer func() *scaler.Writer }

// Synced reports whether the fleet has been read.
func (l lateWriter) Synced() bool { return l.writer().Synced() }

// VMs returns the fleet's VMs.
func (l lateWriter) VMs() []scaler.VMState { return l.writer().VMs() }

// Remove requests deletion of VMs.
func (l lateWriter) Remove(keys ...fleet.Key) { l.writer().Remove(keys...) }

// metrics registers numaform's metrics, for each new manager.
func (w *workshop) metrics(vms func() []scaler.VMState, collector *garbage.Collector) (*metrics.Observer, error) {
	registry := prometheus.NewRegistry()
	observer, err := metrics.Register(registry, metrics.Config{
		VMs: vms, Snapshot: w.inventory.Snapshot, Closed: w.offersClosed, Orphans: collector.Orphans,
		Kproximate: w.settings.Kproximate, Client: w.manager.GetClient(), Clock: w.clock,
	})
	if err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	w.numbers.Store(registry)
	w.observer.Store(observer)
	return observer, nil
}

// canSetAffinity reports whether a region's credential may pin by affinity.
func (w *workshop) canSetAffinity(region topology.RegionName) (bool, string) {
	return w.clients[region].CanSetAffinity()
}

// canSetHugePages reports whether a region's credential may take huge pages.
func (w *workshop) canSetHugePages(region topology.RegionName) (bool, string) {
	return w.clients[region].CanSetHugePages()
}

// offersClosed returns the offerings that are currently unavailable: where VMs failed
// recently, and on hosts being evacuated.
func (w *workshop) offersClosed() []scheduling.Offer {
	closed := w.closed.List()
	hosts, _ := w.control.evacuated(context.Background())
	for _, host := range hosts {
		closed = append(closed, scheduling.Offer{Host: host})
	}
	return closed
}

// gates returns Karpenter's feature gates.
func (w *workshop) gates() options.FeatureGates { return w.karpenter.FeatureGates }

// virtual returns a function that lists the pods of CapacityBuffers, or nil if the
// feature gate is disabled.
func (w *workshop) virtual(c *core) func(context.Context) []*corev1.Pod {
	if !w.gates().CapacityBuffer {
		return nil
	}
	return c.virtual.GetAll
}

// request returns the part of the request that is the same for each decision.
func (w *workshop) request() scheduling.Request {
	return scheduling.Request{
		ClusterID: w.config.ClusterID, Types: w.types, Overlays: w.gates().NodeOverlay,
		IgnorePreferences: w.settings.IgnorePreferences, RelaxMinValues: w.settings.RelaxMinValues,
		Timed: w.timed,
	}
}

// timed records how long a part of a decision took.
func (w *workshop) timed(part scheduling.Part, took time.Duration) {
	if observer := w.observer.Load(); observer != nil {
		observer.DecisionTimed(part, took)
	}
}

// scalerConfig returns the configuration of the controller's scaler.
func (w *workshop) scalerConfig(ctx context.Context) (*scaler.Config, error) {
	config, err := w.config.ScalerConfig(ctx, w.settings.Environ, Kubeconfig{Rest: w.settings.Rest, Namespace: w.settings.Namespace}, true)
	if err != nil {
		return nil, err
	}
	config.Regions = w.config.Regions()
	for i := range config.Regions {
		config.Regions[i].Live = w.clients[config.Regions[i].Name]
	}
	config.Drained, config.HolderGone = w.liveCluster.Drained, holders{pods: w.live, namespace: w.settings.Namespace, host: os.Hostname}.gone
	config.Actor, config.Version, config.Clock = w.actor(), w.settings.Version, w.clock
	logger := log.FromContext(ctx)
	config.Notice = func(message string) { logger.Info("read records that others wrote", logkey.Message, message) }
	config.Progress = func(shard fleet.Shard, message string) { logger.V(1).Info(message, logkey.Host, shard.String()) }
	return config, nil
}
