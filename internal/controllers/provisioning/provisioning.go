// Package provisioning creates NodeClaims for pending pods: it decides on VMs for a batch
// of pods, reserves the VMs, and only then creates the claims, each of which names its
// VM. It does not create VMs; the Writer does. Start at New.
package provisioning

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/metrics"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/tracing"
	"github.com/numaform/numaform/topology"
)

// Writer is the part of the scaler's Writer that this package uses.
type Writer interface {
	Synced() bool
	// States returns all VMs of the fleet, or an error if they are not known.
	States(ctx context.Context) ([]scaler.VMState, error)
	Ensure(ctx context.Context, requests []scaler.Request) ([]fleet.VM, error)
	// Wake starts standby VMs, which are then treated like new VMs.
	Wake(ctx context.Context, keys ...fleet.Key) ([]fleet.VM, error)
	Remove(keys ...fleet.Key)
}

// Approvals selects the VMs that need no approval or are approved.
type Approvals interface {
	Up(ctx context.Context, snapshot *topology.Snapshot, placed []scheduling.Placed) ([]scheduling.Placed, error)
	// Created records the VMs that an approved ScalePlan creates.
	Created(ctx context.Context, plan string, vms []fleet.VM) error
	// MayWake returns which standby VMs pods may wake.
	MayWake(ctx context.Context) (func(vm *fleet.VM) bool, error)
	// Draft creates ScalePlans for the VMs that the last Up did not return. Other
	// placements may run meanwhile.
	Draft(ctx context.Context) error
	// Waits returns why the VMs that the last Up did not return wait, with their pods.
	Waits() []scheduling.Wait
}

// Config configures a Controller.
type Config struct {
	Client    client.Client
	Cluster   *scheduling.Cluster
	State     *state.Cluster
	Recorder  events.Recorder
	Writer    Writer
	Approvals Approvals
	// Snapshot returns a recent snapshot of Proxmox.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Unavailable returns the unavailable offerings; nil means none.
	Unavailable func() []scheduling.OfferingSelector
	// Virtual returns the pods of CapacityBuffers, which do not exist but for which room is
	// reserved. If Virtual is nil, CapacityBuffers are not read. The pods of standby
	// buffers are ignored.
	Virtual func(ctx context.Context) []*corev1.Pod
	// Evacuated returns the hosts being evacuated; nil means none.
	Evacuated func() []topology.HostID
	// RemovalsFrozen reports whether a freeze window blocks removals now; nil means never.
	RemovalsFrozen func() bool
	// BusyHosts returns the hosts on which a wake would wait, and those on which it would
	// wait only for the removal of VMs; nil means none.
	BusyHosts func() (busy, removing []topology.HostID)
	// Request is the part of the request that is the same for each decision.
	Request scheduling.Request
	// BatchIdle is the longest time that a batch waits for the next pod, and BatchMax the
	// maximum duration of a batch.
	BatchIdle, BatchMax time.Duration
	// Begun waits until the VMs are being created, were refused or were removed. If it is
	// nil, NodeClaims are created without waiting.
	Begun func(ctx context.Context, keys ...fleet.Key)
	// EngineStart is the approximate time from the start of an apply to its first clone.
	EngineStart time.Duration
	// Placing is locked while VMs are placed and reserved.
	Placing sync.Locker
	Clock   clock.Clock
}

// Controller provisions for pending pods.
type Controller struct {
	config Config
	batch  *batch
	// unneeded records since when each standby VM has been spare or outdated.
	unneeded map[fleet.Key]time.Time
	// lastWake is the time of the last wake of a standby VM, by NodePool, if it is less than
	// refillAfter ago.
	lastWake map[string]time.Time

	// mu guards the fields below.
	mu sync.Mutex
	// decided is set when a decision has ended without an error.
	decided bool
	// asked is the number of pods in the last decision, and took its duration.
	asked int
	took  time.Duration
	// limited are the NodePools whose limit was the only obstacle for pods in the last
	// decision.
	limited map[string]scheduling.Wait
}

// New returns a controller. It does nothing before its manager starts it.
func New(config Config) *Controller {
	if config.Unavailable == nil {
		config.Unavailable = func() []scheduling.OfferingSelector { return nil }
	}
	if config.Evacuated == nil {
		config.Evacuated = func() []topology.HostID { return nil }
	}
	if config.RemovalsFrozen == nil {
		config.RemovalsFrozen = func() bool { return false }
	}
	if config.BusyHosts == nil {
		config.BusyHosts = func() (busy, removing []topology.HostID) { return nil, nil }
	}
	return &Controller{
		config: config, batch: newBatch(config.Clock, config.BatchIdle, config.BatchMax), lastWake: map[string]time.Time{},
	}
}

// Name returns the controller's name.
func (c *Controller) Name() string { return "provisioning" }

// Register adds the controller to a manager, and the controllers that trigger decisions:
// for pods without room, and for nodes being drained, whose pods will need room.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	// The default rate limiter would wait for up to 17 minutes after Proxmox is reachable
	// again.
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, longestWait)
	err := controllerruntime.NewControllerManagedBy(m).Named(c.Name()).WithOptions(controller.Options{RateLimiter: limit}).
		WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(c))
	if err != nil {
		return fmt.Errorf("registering %s: %w", c.Name(), err)
	}
	c.batch.trigger() // the first decision needs no pod: see Decided

	many := controller.Options{MaxConcurrentReconciles: 10}
	err = controllerruntime.NewControllerManagedBy(m).Named(c.Name() + ".pods").For(&corev1.Pod{}).WithOptions(many).
		Complete(reconcile.AsReconciler(m.GetClient(), reconcile.TypedFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod) (reconcile.Result, error) {
			if !podutils.IsProvisionable(pod) {
				return reconcile.Result{}, nil
			}
			c.config.State.AckPods(pod)
			c.batch.trigger()
			return reconcile.Result{RequeueAfter: c.retriggerAfter()}, nil
		})))
	if err != nil {
		return fmt.Errorf("registering %s.pods: %w", c.Name(), err)
	}

	err = controllerruntime.NewControllerManagedBy(m).Named(c.Name() + ".nodes").For(&corev1.Node{}).WithOptions(many).
		Complete(reconcile.AsReconciler(m.GetClient(), reconcile.TypedFunc[*corev1.Node](func(_ context.Context, node *corev1.Node) (reconcile.Result, error) {
			draining := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
				return taint.MatchTaint(&karpv1.DisruptedNoScheduleTaint)
			})
			if !draining {
				return reconcile.Result{}, nil
			}
			c.batch.trigger()
			return reconcile.Result{RequeueAfter: c.retriggerAfter()}, nil
		})))
	if err != nil {
		return fmt.Errorf("registering %s.nodes: %w", c.Name(), err)
	}
	err = controllerruntime.NewControllerManagedBy(m).Named(c.Name()+".claims").Watches(&karpv1.NodeClaim{}, c.endsOfClaims()).
		Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			c.claimsEnded()
			return reconcile.Result{}, nil
		}))
	if err != nil {
		return fmt.Errorf("registering %s.claims: %w", c.Name(), err)
	}
	if c.config.Virtual == nil {
		return nil
	}

	// Karpenter's controller triggers provisioning for existing buffers. This one also
	// triggers it for deleted buffers, because their capacity is free again.
	err = controllerruntime.NewControllerManagedBy(m).Named(c.Name() + ".buffers").For(&autoscalingv1beta1.CapacityBuffer{}).
		WithEventFilter(predicate.GenerationChangedPredicate{}).
		Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			c.batch.trigger()
			return reconcile.Result{}, nil
		}))
	if err != nil {
		return fmt.Errorf("registering %s.buffers: %w", c.Name(), err)
	}
	return nil
}

// endsOfClaims handles the ends of NodeClaims that have no Node, for example because their VMs
// failed: their pods need other VMs. It waits until the reason of a failure is known, and so
// also combines many of them.
func (c *Controller) endsOfClaims() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	ended := func(object client.Object, to queue) {
		if claim, ok := object.(*karpv1.NodeClaim); ok && claim.Status.NodeName == "" {
			to.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: c.Name()}}, max(claimDelay, c.retriggerAfter()/4))
		}
	}
	return handler.Funcs{
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, to queue) {
			if e.ObjectOld.GetDeletionTimestamp() == nil && e.ObjectNew.GetDeletionTimestamp() != nil {
				ended(e.ObjectNew, to)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, to queue) { ended(e.Object, to) },
	}
}

// claimsEnded triggers a decision if the last one was about pods.
func (c *Controller) claimsEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked > 0 {
		c.batch.trigger()
	}
}

// Trigger requests a decision, as a pod does.
func (c *Controller) Trigger() { c.batch.trigger() }

const (
	// waitForSync is the interval between checks whether the caches are synced.
	waitForSync = time.Second
	// longestWait is the maximum delay after an error.
	longestWait = 15 * time.Second
	// longestPlan is the maximum time for which a NodeClaim waits for the change that
	// creates its VM. On a host that is being changed, that change starts only after the
	// current one has ended.
	longestPlan = 3 * time.Second
	// retriggerInterval is how often each pod without room, each node being drained, and a
	// reason why new nodes wait trigger another decision, because new nodes and freed
	// resources may change the result. Decisions of large fleets take long: the interval is at
	// least retriggerFactor times the last one, but at most longestRetrigger.
	retriggerInterval = 10 * time.Second
	retriggerFactor   = 20
	longestRetrigger  = time.Minute
	// claimDelay is the delay of the decision after the end of a NodeClaim without a Node. It
	// is longer than the interval at which failures make an offering unavailable.
	claimDelay = 3 * time.Second
)

// retriggerAfter returns the interval until another decision is triggered.
func (c *Controller) retriggerAfter() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(max(retriggerInterval, retriggerFactor*c.took), longestRetrigger)
}

// Reconcile waits for a batch of pods and provisions for it. At a pause within a burst, it
// wakes standby VMs early if the pods need no new VMs.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	complete, ok := c.batch.wait(ctx)
	if !ok {
		return reconciler.Result{RequeueAfter: singleton.RequeueImmediately}, nil
	}
	if !complete {
		return c.wakeEarly(ctx)
	}
	log.FromContext(ctx).V(1).Info("batched pods")
	if !c.config.Writer.Synced() || !c.config.State.Synced(ctx) {
		c.batch.trigger()
		return reconciler.Result{RequeueAfter: waitForSync}, nil
	}
	if _, err := c.Provision(ctx); err != nil {
		c.batch.trigger()
		return reconciler.Result{}, err
	}
	return reconciler.Result{RequeueAfter: singleton.RequeueImmediately}, nil
}

// Provision decides on VMs for all pending pods, reserves them, and returns the NodeClaims
// that it created.
func (c *Controller) Provision(ctx context.Context) ([]*karpv1.NodeClaim, error) {
	return c.provision(ctx, false)
}

// provision implements Provision. With onlyWake, it wakes and reserves VMs only if the pods
// need standby VMs and no new VMs.
func (c *Controller) provision(ctx context.Context, onlyWake bool) ([]*karpv1.NodeClaim, error) {
	var span trace.Span = noop.Span{}
	reserved, err := c.reserve(ctx, onlyWake, &span)
	defer func() { span.End() }()
	tracing.Fail(span, err)
	errs := []error{err}
	c.awaitEngines(ctx, reserved)
	var claims []*karpv1.NodeClaim
	for _, r := range reserved {
		claim, err := c.createClaim(ctx, r)
		if err != nil {
			c.config.Writer.Remove(r.vm.Key)
			errs = append(errs, fmt.Errorf("creating NodeClaim %s: %w", r.vm.Name, err))
			continue
		}
		claims = append(claims, claim)
	}
	if span.IsRecording() {
		names := make([]string, len(claims))
		for i, claim := range claims {
			names[i] = claim.Name
		}
		span.SetAttributes(tracing.List(tracing.KeyNodeClaims, names))
	}
	errs = append(errs, c.config.Approvals.Draft(ctx), c.publishApprovals(ctx))
	if len(c.Limited())+len(c.config.Approvals.Waits()) > 0 { // new VMs wait that only another decision can create
		c.batch.triggerIn(c.retriggerAfter()) // the pods may be deleted, which triggers nothing
	}
	if err = errors.Join(errs...); err != nil {
		return claims, fmt.Errorf("provisioning: %w", err)
	}
	if !onlyWake {
		c.mu.Lock()
		c.decided = true
		c.mu.Unlock()
	}
	return claims, nil
}

// awaitEngines waits briefly until the VMs' changes are planned and being applied. Each
// claim causes a dozen writes by Karpenter and its controllers, which should happen while
// Proxmox clones and not while engines use the CPU. Seeds require claims, so if a VM has a
// seed, awaitEngines does not wait.
func (c *Controller) awaitEngines(ctx context.Context, vms []reserved) {
	seeded := slices.ContainsFunc(vms, func(r reserved) bool { return r.vm.Seed != "" })
	if len(vms) == 0 || seeded || c.config.Begun == nil {
		return
	}
	planning, cancel := context.WithTimeout(ctx, longestPlan)
	defer cancel()
	keys := make([]fleet.Key, len(vms))
	for i := range vms {
		keys[i] = vms[i].vm.Key
	}
	c.config.Begun(planning, keys...)
	if c.config.EngineStart <= 0 {
		return
	}
	timer := c.config.Clock.NewTimer(c.config.EngineStart)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

// reserved is a reserved or woken VM that has no NodeClaim yet.
type reserved struct {
	vm        fleet.VM
	classHash string
	pods      []*corev1.Pod
}

// reserve decides on VMs, wakes standby VMs and reserves new ones. It returns the VMs that
// become Nodes, and can return both VMs and an error. With onlyWake, it does nothing if the
// pods need new VMs. If it requests any VM, it begins the span of the decision.
func (c *Controller) reserve(ctx context.Context, onlyWake bool, span *trace.Span) ([]reserved, error) {
	c.config.Placing.Lock()
	defer c.config.Placing.Unlock()
	started := c.config.Clock.Now()
	request := c.config.Request
	var err error
	if request.Snapshot, err = c.config.Snapshot(ctx); err != nil {
		return nil, err
	}
	states, err := c.config.Writer.States(ctx)
	if err != nil {
		return nil, err
	}
	// An offering may have become unavailable while the two reads above waited.
	request.Unavailable = c.config.Unavailable()
	request.Busy, request.Removing = c.config.BusyHosts()
	request.Now = c.config.Clock.Now()
	request.Existing, request.Reserved = scaler.Places(states)
	if request.Unready, err = c.unready(ctx, states); err != nil {
		return nil, err
	}
	request.Evacuated = c.config.Evacuated()
	request.Keep = c.keep(&request)
	if c.config.Virtual != nil {
		var standby map[types.NamespacedName]bool
		if request.Standby, standby, err = c.standbyPods(ctx); err != nil {
			return nil, err
		}
		request.Virtual = slices.DeleteFunc(slices.Clone(c.config.Virtual(ctx)), func(pod *corev1.Pod) bool { return standby[bufferOf(pod)] })
	}

	decision, err := c.config.Cluster.Decide(ctx, request)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.asked, c.took = decision.Asked, c.config.Clock.Since(request.Now)
	c.mu.Unlock()
	if onlyWake && !onlyWakes(decision) {
		return nil, nil
	}
	c.reportBuffers(ctx, decision, slices.Concat(request.Virtual, request.Standby))
	c.removeSpare(ctx, decision, states, request.Evacuated)
	c.mu.Lock()
	c.limited = limited(decision)
	c.mu.Unlock()
	pods, err := c.readPods(ctx, decision)
	if err != nil {
		return nil, err
	}
	c.publish(ctx, decision, pods)
	c.publishOutages(decision, states, pods)

	// Most decisions need no VM, so they have no span.
	if len(decision.Woken) > 0 {
		ctx, *span = startDecide(ctx, started, decision)
	}
	woken, err := c.wake(ctx, decision.Woken, pods)
	if err != nil {
		return nil, err
	}
	// Pools whose approval is unknown do not block other pools. Call Up even if no VM is
	// needed any more.
	placed, unapproved := c.config.Approvals.Up(ctx, request.Snapshot, c.refill(decision))
	if len(placed) == 0 {
		return woken, unapproved
	}
	requests := make([]scaler.Request, len(placed))
	for i := range placed {
		requests[i] = scaler.Request{
			Spec: placed[i].Spec, Placement: placed[i].Placement, Standby: placed[i].Standby, Reserve: placed[i].Reserve,
		}
	}
	if len(decision.Woken) == 0 {
		ctx, *span = startDecide(ctx, started, decision)
	}
	vms, err := c.config.Writer.Ensure(ctx, requests)
	if err != nil {
		return woken, errors.Join(unapproved, err)
	}
	list := woken
	for i, vm := range vms {
		if !placed[i].Standby {
			list = append(list, reserved{vm: vm, classHash: placed[i].ClassHash, pods: pods.of(placed[i].Pods)})
		}
	}
	return list, errors.Join(unapproved, c.recordCreated(ctx, vms, placed))
}

// startDecide begins the span of a decision that started earlier and is known now.
func startDecide(ctx context.Context, started time.Time, decision *scheduling.Decision) (context.Context, trace.Span) {
	ctx, span := tracing.Start(ctx, tracing.SpanDecide, trace.WithTimestamp(started))
	if !span.IsRecording() {
		return ctx, span
	}
	var pods []string
	for i := range decision.Woken {
		for _, pod := range decision.Woken[i].Pods {
			pods = append(pods, pod.String())
		}
	}
	for i := range decision.New {
		for _, pod := range decision.New[i].Pods {
			pods = append(pods, pod.String())
		}
	}
	span.SetAttributes(
		tracing.KeyPodCount.Int(decision.Asked), tracing.KeyRefused.Int(len(decision.Refused)), tracing.List(tracing.KeyPods, pods),
		tracing.KeyCreate.Int(len(decision.New)), tracing.KeyWake.Int(len(decision.Woken)),
	)
	return ctx, span
}

// recordCreated records the VMs of each ScalePlan in it. Without the record, only the name
// of their approver is unknown.
func (c *Controller) recordCreated(ctx context.Context, vms []fleet.VM, placed []scheduling.Placed) error {
	byPlan := map[string][]fleet.VM{}
	for i, vm := range vms {
		if plan := placed[i].ScalePlan; plan != "" {
			byPlan[plan] = append(byPlan[plan], vm)
		}
	}
	var errs []error
	for plan, vms := range byPlan {
		errs = append(errs, c.config.Approvals.Created(ctx, plan, vms))
	}
	return errors.Join(errs...)
}

// createClaim creates the NodeClaim of a reserved VM, unless it exists.
func (c *Controller) createClaim(ctx context.Context, r reserved) (*karpv1.NodeClaim, error) {
	vm := r.vm
	pool := &karpv1.NodePool{}
	if err := c.config.Client.Get(ctx, client.ObjectKey{Name: vm.Pool}, pool); err != nil {
		return nil, fmt.Errorf("reading NodePool %s: %w", vm.Pool, err)
	}
	claim := scheduling.NewNodeClaim(vm, pool, r.pods...)
	if r.classHash != "" {
		claim.Annotations[v1alpha1.AnnotationClassHash] = r.classHash
	}

	err := c.config.Client.Create(ctx, claim)
	switch {
	case apierrors.IsAlreadyExists(err):
		existing := &karpv1.NodeClaim{}
		if err := c.config.Client.Get(ctx, client.ObjectKeyFromObject(claim), existing); err != nil {
			return nil, fmt.Errorf("reading the existing NodeClaim: %w", err)
		}
		if existing.Annotations[v1alpha1.AnnotationKey] != claim.Annotations[v1alpha1.AnnotationKey] {
			return nil, fmt.Errorf("another VM has a NodeClaim with this name: %w", err)
		}
	case err != nil:
		return nil, err
	}

	// The cache does not have the claim yet, but the next decision needs it.
	c.config.State.UpdateNodeClaim(claim)
	c.config.State.UpdatePodToNodeClaimMapping(map[string][]*corev1.Pod{claim.Name: r.pods})
	metrics.NodeClaimsCreatedTotal.Inc(map[string]string{
		metrics.ReasonLabel: metrics.ProvisionedReason, metrics.NodePoolLabel: vm.Pool, metrics.MinValuesRelaxedLabel: "false",
	})
	for _, pod := range r.pods {
		c.config.Recorder.Publish(karpscheduling.NominatePodEvent(pod, nil, claim))
	}
	log.FromContext(ctx).Info("created nodeclaim", logkey.NodeClaim, claim.Name, logkey.VM, vm.Name, logkey.NodePool, vm.Pool, logkey.Host, vm.Host.String(),
		logkey.InstanceType, vm.InstanceType, logkey.Pods, len(r.pods), logkey.Reason, vm.Reason)
	return claim, nil
}
