package operator

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	providermetrics "sigs.k8s.io/karpenter/pkg/cloudprovider/metrics"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/controllers/csr"
	"github.com/numaform/numaform/internal/controllers/garbage"
	"github.com/numaform/numaform/internal/controllers/metrics"
	"github.com/numaform/numaform/internal/controllers/nodeclass"
	"github.com/numaform/numaform/internal/controllers/nodepool"
	"github.com/numaform/numaform/internal/controllers/provenance"
	"github.com/numaform/numaform/internal/controllers/provisioning"
	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/controllers/template"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// eventSource is the source of the events that numaform publishes.
const eventSource = "numaform"

// builder contains the dependencies that the controller's parts share.
type builder struct {
	*Controller
	manager manager.Manager
	// election is the lock of the leader's Lease, and leadership compares it with this run;
	// both are nil without leader election.
	election   resourcelock.Interface
	leadership *leadership
	karpenter  *options.Options
	events     record.EventRecorder
	recorder   events.Recorder
	// live is a client that bypasses the cache.
	live client.WithWatch
	// cluster reads from the cache, liveCluster from the API server.
	cluster, liveCluster *scheduling.Cluster
	types                []scheduling.InstanceType
	// unavailable contains the offerings that are unavailable because VMs failed there
	// recently.
	unavailable *cloudprovider.UnavailableOfferings
	// placing is locked from a decision until its VMs are reserved.
	placing sync.Mutex
}

// build creates all parts. Nothing runs before the manager starts.
func (c *Controller) build(ctx context.Context) (*parts, error) {
	karpenter, err := karpenterOptions(&c.settings)
	if err != nil {
		return nil, err
	}
	ctx = options.ToContext(ctx, karpenter)
	b := &builder{Controller: c, karpenter: karpenter, unavailable: cloudprovider.NewUnavailableOfferings(c.clock)}
	if c.settings.LeaderElect {
		_, deadline := c.config.Intervals.leadership()
		if b.election, err = newElection(&c.settings, deadline); err != nil {
			return nil, err
		}
		b.leadership = &leadership{kube: c.kube, namespace: c.settings.Namespace, identity: b.election.Identity()}
	}
	if b.manager, err = newManager(ctx, &c.settings, c.config.Intervals, b.election, karpenter); err != nil {
		return nil, err
	}
	if b.live, err = client.NewWithWatch(c.settings.Rest, client.Options{Scheme: scheme.Scheme}); err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	if b.types, err = c.config.InstanceTypes(); err != nil {
		return nil, err
	}
	b.cluster = scheduling.FromClient(b.manager.GetClient())
	b.liveCluster = scheduling.FromClient(b.live)

	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.kube.CoreV1().Events("")})
	context.AfterFunc(ctx, broadcaster.Shutdown)
	b.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: eventSource})
	b.recorder = relativeEvents{c.recording(events.NewRecorder(b.events))}

	config, err := c.config.ScalerConfig(ctx, c.settings.Environ, Kubeconfig{
		Path: c.settings.Kubeconfig, Context: c.settings.Context, Rest: c.settings.Rest, Namespace: c.settings.Namespace,
	}, true)
	if err != nil {
		return nil, err
	}
	config.Regions = c.config.Regions()
	for i := range config.Regions {
		config.Regions[i].Live = c.clients[config.Regions[i].Name]
	}
	config.Drained = b.liveCluster.Drained
	config.NodeExists = b.liveCluster.NodeExists
	config.NodeAddresses = b.liveCluster.NodeAddresses
	config.ClassVMIDs = b.liveCluster.ClassVMIDs
	config.HolderGone = holders{pods: b.live, namespace: c.settings.Namespace, host: os.Hostname}.gone
	config.Actor = "controller/" + c.settings.Namespace
	config.Version = c.settings.Version
	config.Clock = c.clock
	logger := log.FromContext(ctx)
	config.Notice = func(message string) { logger.Info("read records of another writer", logkey.Message, message) }
	config.Progress = func(host topology.HostID, message string) { logger.V(1).Info(message, logkey.Host, host.String()) }
	if c.settings.Observe {
		return b.observe(ctx, config)
	}
	return b.apply(ctx, config)
}

// request returns the part of a scheduling request that is the same for each decision.
func (b *builder) request() scheduling.Request {
	return scheduling.Request{
		ClusterID:         b.config.ClusterID,
		Types:             b.types,
		Prices:            b.config.Prices,
		Overlays:          b.karpenter.FeatureGates.NodeOverlay,
		IgnorePreferences: b.settings.IgnorePreferences,
		RelaxMinValues:    b.settings.RelaxMinValues,
		Timed: func(part scheduling.Part, took time.Duration) {
			if observer := b.observer.Load(); observer != nil {
				observer.DecisionTimed(part, took)
			}
		},
	}
}

// cost returns the cost of a change of VMs.
func (b *builder) cost(ctx context.Context, before, after []fleet.VM) (scheduling.Cost, error) {
	snapshot, err := b.inventory.Recent(ctx)
	if err != nil {
		return scheduling.Cost{}, fmt.Errorf("reading Proxmox: %w", err)
	}
	request := b.request()
	request.Snapshot = snapshot
	return b.cluster.Cost(ctx, request, before, after)
}

// closed returns the offerings that are unavailable because VMs failed there recently or
// because their host is evacuated.
func (b *builder) closed() []scheduling.OfferingSelector {
	offers := b.unavailable.List()
	for _, host := range b.control.evacuated() {
		offers = append(offers, scheduling.OfferingSelector{Host: host})
	}
	return offers
}

// garbage creates the controllers that remove VMs without a NodeClaim.
func (b *builder) garbage(writer *scaler.Writer) *garbage.Collector {
	return garbage.New(garbage.Config{
		Client:       b.manager.GetClient(),
		Live:         b.live,
		Recorder:     b.recorder,
		Writer:       writer,
		Unavailable:  b.unavailable,
		Snapshot:     b.inventory.Recent,
		ClusterID:    b.config.ClusterID,
		Paused:       b.control.Paused,
		Clock:        b.clock,
		NewNodeClaim: func(vm fleet.VM, pool *karpv1.NodePool) *karpv1.NodeClaim { return scheduling.NewNodeClaim(vm, pool) },
		Self:         b.self(),
	})
}

// apply creates the parts of a controller that makes changes.
func (b *builder) apply(ctx context.Context, config *scaler.Config) (*parts, error) { //nolint:funlen // a list of the parts that are built
	// These parts are created last. The other parts use them only while the manager runs.
	var writer *scaler.Writer
	var provisioner *provisioning.Controller
	var collector *garbage.Collector
	var approvals *approval.Approvals

	cached := b.manager.GetClient()
	seeder, err := b.seeder(func() *scaler.Writer { return writer })
	if err != nil {
		return nil, err
	}
	freezes, err := b.config.Freezes()
	if err != nil {
		return nil, err
	}
	var regions []topology.RegionName
	for i := range b.config.Clusters {
		regions = append(regions, b.config.Clusters[i].Region)
	}
	registry := prometheus.NewRegistry()
	observer, err := metrics.Register(registry, metrics.Config{
		Regions:       regions,
		VMs:           func() []scaler.VMState { return writer.VMs() },
		Orphans:       func() map[topology.HostID]int { return collector.Orphans() },
		Snapshot:      b.inventory.Recent,
		Unread:        b.inventory.Unread,
		Unavailable:   b.closed,
		Pending:       func() map[v1alpha1.ScaleDirection]int { return approvals.Pending() },
		BreakGlass:    func() int { return approvals.BreakGlass() },
		Notifications: b.attempts,
		Kproximate:    b.settings.Kproximate,
		Client:        cached,
		Clock:         b.clock,
	})
	if err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}

	config.Guests = seeder
	config.Observe = observer
	kept := config.Store
	if b.leadership != nil {
		config.Store = leadersStore{kept, b.leadership}
	}
	fleetScaler := scaler.New(*config)
	approvals = approval.New(approval.Config{
		Client:     b.live,
		Namespace:  b.settings.Namespace,
		Scaler:     fleetScaler,
		Snapshot:   b.inventory.Snapshot,
		Taken:      b.liveCluster.VMIDs,
		Cost:       b.cost,
		Unset:      b.unset,
		ClusterID:  b.config.ClusterID,
		Pictures:   b.forge != nil,
		Signatures: b.config.Signatures,
		Freezes:    freezes,
		Paused:     b.control.Stopped,
		Events:     b.recorder,
		Clock:      b.clock,
		Decide:     func() { provisioner.Trigger() },
	})
	writer = scaler.NewWriter(fleetScaler, scaler.WriterConfig{
		Snapshot: b.inventory.Recent,
		Taken:    b.liveCluster.VMIDs,
		Joined:   joined(b.live),
		Leaving:  b.cluster.Leaving,
		Gate:     approvals,
		Paused:   b.control.Stopped,
		Changed:  func(region topology.RegionName) { b.inventory.Stale(region) },
	})
	approvals.Watch(writer)
	collector = b.garbage(writer)
	provider := cloudprovider.New(cloudprovider.Config{
		ClusterID:   b.config.ClusterID,
		Overlays:    b.karpenter.FeatureGates.NodeOverlay,
		Client:      cached,
		Fleet:       writer,
		Cluster:     b.cluster,
		Snapshot:    b.inventory.Snapshot,
		Recent:      b.inventory.Recent,
		Types:       b.types,
		Prices:      b.config.Prices,
		Unavailable: b.unavailable,
		Evacuated:   b.control.evacuated,
		Placing:     &b.placing,
		Clock:       b.clock,
	})
	core := newCore(ctx, b, providermetrics.Decorate(provider), b.recorder)
	core.overlaid = provider.Everywhere()
	core.frozen = func() bool { return approvals.Frozen(v1alpha1.ScaleUp) || approvals.Frozen(v1alpha1.ScaleDown) }
	var virtual func(context.Context) []*corev1.Pod // the pods of CapacityBuffers
	if b.karpenter.FeatureGates.CapacityBuffer {
		virtual = core.virtual.GetAll
	}
	provisioner = provisioning.New(provisioning.Config{
		Virtual:        virtual,
		Client:         cached,
		Cluster:        b.cluster,
		State:          core.state,
		Recorder:       b.recorder,
		Writer:         writer,
		Approvals:      approvals,
		Snapshot:       b.inventory.Snapshot,
		Unavailable:    b.closed,
		Evacuated:      b.control.evacuated,
		BusyHosts:      writer.BusyHosts,
		RemovalsFrozen: func() bool { return approvals.Frozen(v1alpha1.ScaleDown) },
		Request:        b.request(),
		BatchIdle:      b.settings.BatchIdle,
		BatchMax:       b.settings.BatchMax,
		Begun:          writer.Begun,
		EngineStart:    time.Second,
		Placing:        &b.placing,
		Clock:          b.clock,
	})
	// Serve the metrics now that everything they read exists.
	b.numbers.Store(registry)
	b.observer.Store(observer)

	list := append(core.watchers(), core.controllers(ctx, approvals)...)
	list = append(list, core.observability(ctx)...)
	list = append(list, core.gated(ctx, provisioner.Trigger)...)
	list = append(list, collector.Controllers()...)
	list = append(list, provisioner, approvals)
	list = append(list, b.reviewers(approvals, fleetScaler)...)
	history, err := b.historyWatch(kept, fleetScaler, observer)
	if err != nil {
		return nil, err
	}
	list = append(list, b.ours(seeder, writer, approvals, provisioner, history)...)

	drift := &driftWatch{builder: b, scaler: fleetScaler, vms: writer.VMs, observer: observer}
	runs := append([]manager.RunnableFunc{writer.Run}, watches(history, drift, b.settings.DriftEvery)...)
	return b.assemble(ctx, core, writer, list, runs...)
}

// watches returns the runs of both watches. driftEvery is the interval of the drift check; 0
// disables it, but not the verification of the history.
func watches(history *historyWatch, drift *driftWatch, driftEvery time.Duration) []manager.RunnableFunc {
	runs := []manager.RunnableFunc{history.run}
	if driftEvery > 0 {
		runs = append(runs, drift.run)
	}
	return runs
}

// historyWatch returns the watch of the history of a store.
func (b *builder) historyWatch(kept store.Store, fleetScaler *scaler.Scaler, observer *metrics.Observer) (*historyWatch, error) {
	places, err := b.config.CheckpointPlaces(b.settings.Environ, b.kube, b.settings.Namespace)
	if err != nil {
		return nil, err
	}
	h := &historyWatch{
		places: places, accept: fleetScaler.AcceptHistory, hold: b.control.hold,
		read: observer.HistoryRead, observe: observer.History, putBacks: observer.HistoryPutBack, wake: make(chan struct{}, 1),
		recorder: b.recorder, self: b.self(), clock: b.clock, every: b.settings.DriftEvery,
	}
	if sealed, is := kept.(*store.Sealed); is {
		h.store = sealed
		sealed.PutBack(h.putBack)
	}
	return h, nil
}

// ours returns numaform's controllers for classes, NodePools, seeds, joins and
// evacuations.
func (b *builder) ours(seeder *seed.Seeder, writer *scaler.Writer, approvals *approval.Approvals, provisioner *provisioning.Controller, history *historyWatch) []controller.Controller {
	cached := b.manager.GetClient()
	return []controller.Controller{
		nodeclass.New(nodeclass.Config{
			Client:          cached,
			Recorder:        b.recorder,
			Snapshot:        b.inventory.Recent,
			ClusterID:       b.config.ClusterID,
			Metadata:        seeder.Check,
			Template:        b.templateProblem,
			Types:           b.types,
			CanSetAffinity:  func(region topology.RegionName) (bool, string) { return b.clients[region].CanSetAffinity() },
			CanSetHugePages: func(region topology.RegionName) (bool, string) { return b.clients[region].CanSetHugePages() },
			Clock:           b.clock,
		}),
		template.New(template.Config{Client: b.live, Recorder: b.recorder, Fleet: writer, Snapshot: b.inventory.Recent, Clock: b.clock}),
		nodeclass.NewInPlace(nodeclass.InPlaceConfig{Client: cached, Recorder: b.recorder, Fleet: writer, MayMove: b.mayMove}),
		nodepool.New(nodepool.Config{
			Client: cached, Recorder: b.recorder, Clock: b.clock,
			FixedSize: func(pool *karpv1.NodePool) string {
				return fixedSizeProblem(pool, b.karpenter.FeatureGates.StaticCapacity, b.unset)
			},
			Waits: func(pool string) []scheduling.Wait {
				return append(waitsOf(pool, append(approvals.Waits(), provisioner.Limited()...), writer.VMs()), history.waits(pool)...)
			},
			Known: func() bool { return writer.Synced() && provisioner.Decided() },
		}),
		provenance.New(cached, writer, approvals),
		csr.NewController(csr.Config{
			Client:  cached,
			Live:    b.live,
			Events:  b.recorder,
			Clock:   b.clock,
			Paused:  b.control.Paused,
			Account: csr.Account{Namespace: b.settings.Namespace, Name: b.settings.BootstrapAccount},
		}),
		seed.NewController(seeder, b.control.Paused),
		seed.NewJoiner(seeder, b.control.Paused, b.recorder),
		seed.NewGarbage(seeder, b.control.Paused),
		&evacuation{client: cached, hosts: b.control.evacuated, clock: b.clock},
	}
}

// templateProblem returns why the templates of a ProxmoxTemplate are not ready, or "".
func (b *builder) templateProblem(ctx context.Context, name string) string {
	var pt v1alpha1.ProxmoxTemplate
	err := b.live.Get(ctx, client.ObjectKey{Name: name}, &pt)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return fmt.Sprintf("%s %q does not exist: create it", v1alpha1.KindProxmoxTemplate, name)
	case err != nil:
		return ""
	}
	if ready := pt.StatusConditions().Root(); !ready.IsTrue() {
		return fmt.Sprintf("%s %q: %s", v1alpha1.KindProxmoxTemplate, name, cmp.Or(ready.Message, "its templates are being created"))
	}
	return ""
}

// assemble adds everything that the manager runs.
func (b *builder) assemble(ctx context.Context, core *core, writer *scaler.Writer, list []controller.Controller, runs ...manager.RunnableFunc) (*parts, error) {
	registered := bounded{b.manager, &objectPace{clock: b.clock, nodes: core.nodes}, b.manager.GetClient()}
	for _, one := range list {
		if err := one.Register(ctx, registered); err != nil {
			return nil, fmt.Errorf("registering a controller: %w", err)
		}
	}
	all := &parts{manager: b.manager, election: b.election, writer: writer}
	if b.leadership != nil {
		runs = append(runs, b.leadership.watch)
	}
	// Runnables of this kind wait for the leader election.
	for _, run := range runs {
		err := b.manager.Add(manager.RunnableFunc(func(running context.Context) error {
			all.runs.Add(1)
			defer all.runs.Done()
			return run(log.IntoContext(running, log.FromContext(ctx)))
		}))
		if err != nil {
			return nil, fmt.Errorf("adding a runnable to the manager: %w", err)
		}
	}
	return all, nil
}

// self returns the object of events about numaform itself.
func (b *builder) self() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: b.settings.Namespace, Name: control.ConfigMapName}}
}

// seeder returns the seeder of new VMs. writer may return nil at first: until it
// returns a writer, no VMs are known, and no seed is deleted because its VM is missing.
func (b *builder) seeder(writer func() *scaler.Writer) (*seed.Seeder, error) {
	join := seed.Join{
		APIServer:       b.config.Join.APIServer,
		CloudController: b.config.Join.ExternalCloudProvider,
		ClusterDNS:      b.config.Join.ClusterDNS,
		ClusterDomain:   b.config.Join.ClusterDomain,
	}
	if path := b.config.Join.CAFile; path != "" {
		var err error
		if join.CA, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("reading join.ca_file: %w: %s", err, readFix(err, "correct its path, or remove the key"))
		}
	}
	regions := map[topology.RegionName]seed.Region{}
	for i := range b.config.Clusters {
		cluster := &b.config.Clusters[i]
		regions[cluster.Region] = seed.Region{
			Proxmox: b.clients[cluster.Region],
			VMIDs:   cluster.VMIDRange,
			Stop:    cluster.Timeouts.Stop,
			Upload:  cluster.Timeouts.Upload,
		}
	}
	return seed.New(seed.Config{
		ClusterID: b.config.ClusterID,
		Regions:   regions,
		Snapshot:  b.inventory.Snapshot,
		Types:     b.types,
		Clock:     b.clock,
		Cluster: seed.Cluster{
			Client:          b.manager.GetClient(),
			Live:            b.live,
			REST:            b.settings.Rest,
			Namespace:       b.settings.Namespace,
			Account:         b.settings.BootstrapAccount,
			BootstrapTokens: b.settings.BootstrapTokens,
			Join:            join,
			Version: func() (string, error) {
				version, err := b.kube.Discovery().ServerVersion()
				if err != nil {
					return "", fmt.Errorf("reading the Kubernetes version: %w", err)
				}
				return version.GitVersion, nil
			},
		},
		// VMs returns the VMs that are desired or still being removed. They are not known
		// until the fleet has been read.
		VMs: func() (vms []fleet.VM, known bool) {
			w := writer()
			if w == nil || !w.Synced() {
				return nil, false
			}
			for _, state := range w.VMs() {
				vms = append(vms, state.VM)
			}
			return vms, true
		},
		VM: func(key fleet.Key) (vm *fleet.VM, known bool) {
			w := writer()
			if w == nil || !w.Synced() {
				return nil, false
			}
			state, exists := w.VM(key)
			if !exists {
				return nil, true
			}
			return &state.VM, true
		},
		Record: func(ctx context.Context, written []string) {
			for _, line := range written {
				log.FromContext(ctx).Info("wrote to Proxmox outside a plan", logkey.Message, line)
			}
			writer().Record(written)
		},
	}), nil
}

// poolPrivilege is the Proxmox privilege for changing the members of a pool.
const poolPrivilege = "Pool.Allocate"

// mayMove returns an error if VMs of a region cannot move between two Proxmox pools. ""
// means no pool.
func (b *builder) mayMove(ctx context.Context, region topology.RegionName, from, to string) error {
	client := b.clients[region]
	if client == nil {
		return fmt.Errorf("numaform.yaml has no region %q: add it under clusters", region)
	}
	snapshot, err := b.inventory.Recent(ctx)
	if err != nil {
		return err
	}
	return MayMove(ctx, client, snapshot, region, from, to)
}

// MayMove returns an error if a client's user cannot move VMs of its region between two
// Proxmox pools, or if the pool to does not exist. "" means no pool.
func MayMove(ctx context.Context, client *proxmox.Client, snapshot *topology.Snapshot, region topology.RegionName, from, to string) error {
	var paths, lacking []string
	for _, pool := range []string{from, to} {
		if pool != "" {
			paths = append(paths, "/pool/"+pool)
		}
	}
	have, err := client.Permissions(ctx, paths)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if !have[path].Has(poolPrivilege, false) {
			lacking = append(lacking, path)
		}
	}
	if len(lacking) > 0 {
		return fmt.Errorf("numaform's user lacks %s on %s: grant it a role that includes this privilege; new nodes do not need it",
			poolPrivilege, strings.Join(lacking, " and "))
	}
	if to == "" {
		return nil
	}

	// A user who may change a pool can also see it.
	for i := range snapshot.Regions {
		if snapshot.Regions[i].Name == region && slices.Contains(snapshot.Regions[i].Pools, to) {
			return nil
		}
	}
	return fmt.Errorf("region %s has no pool %q: create the resource pool in Proxmox, or correct spec.pool", region, to)
}
