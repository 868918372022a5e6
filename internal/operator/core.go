package operator

import (
	"context"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/capacitybuffer"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	metricsnode "sigs.k8s.io/karpenter/pkg/controllers/metrics/node"
	metricsnodepool "sigs.k8s.io/karpenter/pkg/controllers/metrics/nodepool"
	metricspod "sigs.k8s.io/karpenter/pkg/controllers/metrics/pod"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	nodehydration "sigs.k8s.io/karpenter/pkg/controllers/node/hydration"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination/terminator"
	claimconsistency "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/consistency"
	claimdisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/expiration"
	claimgarbage "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/garbagecollection"
	claimhydration "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/hydration"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/podevents"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	poolcounter "sigs.k8s.io/karpenter/pkg/controllers/nodepool/counter"
	poolhash "sigs.k8s.io/karpenter/pkg/controllers/nodepool/hash"
	poolreadiness "sigs.k8s.io/karpenter/pkg/controllers/nodepool/readiness"
	poolhealth "sigs.k8s.io/karpenter/pkg/controllers/nodepool/registrationhealth"
	poolvalidation "sigs.k8s.io/karpenter/pkg/controllers/nodepool/validation"
	karpprovisioning "sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	staticdown "sigs.k8s.io/karpenter/pkg/controllers/static/deprovisioning"
	staticup "sigs.k8s.io/karpenter/pkg/controllers/static/provisioning"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/cost"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/controllers/nodepool"
	"github.com/numaform/numaform/internal/controllers/provisioning"
)

// core is the shared state of Karpenter's controllers.
type core struct {
	clock    clock.Clock
	events   record.EventRecorder
	client   client.Client
	provider cloudprovider.CloudProvider
	state    *state.Cluster
	recorder events.Recorder
	cost     *cost.ClusterCost
	// virtual are the pods of CapacityBuffers.
	virtual *virtualpods.Cache
	// devices is what Karpenter's schedulers ask for the devices of pods. It does not run,
	// because they ignore such pods.
	devices *deviceallocation.Controller
	// paused reports whether numaform is paused.
	paused func() bool
	// unset is the approval mode of NodePools without an annotation.
	unset approval.Mode
	// frozen reports whether a freeze window blocks changes.
	frozen func() bool
	// overlaid is the provider whose instance types validate NodeOverlays.
	overlaid cloudprovider.CloudProvider
}

func newCore(ctx context.Context, b *builder, provider cloudprovider.CloudProvider, recorder events.Recorder) *core {
	api := b.manager.GetClient()
	return &core{
		clock:    b.clock,
		events:   b.events,
		client:   api,
		provider: provider,
		recorder: recorder,
		state:    state.NewCluster(b.clock, api, provider),
		cost:     cost.NewClusterCost(ctx, provider, api),
		virtual:  virtualpods.NewVirtualPodCache(bufferLimit{api}),
		devices:  deviceallocation.NewController(api),
		paused:   b.control.Paused,
		unset:    b.unset,
		frozen:   func() bool { return false },
	}
}

// paced returns a Karpenter loop whose interval grows with the number of Nodes.
func (c *core) paced(name string, loop loop) controller.Controller {
	return &paced{loop: loop, name: name, nodes: c.nodes}
}

// nodes returns the number of Nodes.
func (c *core) nodes() int {
	count := 0
	for range c.state.Nodes() {
		count++
	}
	return count
}

// watchers returns the controllers that maintain Karpenter's cluster state. They write
// nothing.
func (c *core) watchers() []controller.Controller {
	return []controller.Controller{
		informer.NewDaemonSetController(c.client, c.state),
		informer.NewNodeController(c.client, c.state),
		informer.NewPodController(c.client, c.state),
		informer.NewNodePoolController(c.client, c.provider, c.state, c.cost),
		informer.NewNodeClaimController(c.client, c.provider, c.state, c.cost),
		informer.NewPricingController(c.client, c.provider, c.cost),
	}
}

// controllers returns the controllers that Karpenter v1.14.1 runs without feature gates,
// except the watchers, the controllers that serve metrics, its provisioner and the
// provisioner's triggers, which numaform replaces. The provisioner is still created,
// because disruption uses it to simulate a cluster with fewer nodes. Its commands may need
// approval.
func (c *core) controllers(ctx context.Context, approvals *approval.Approvals) []controller.Controller {
	provisioner := karpprovisioning.NewProvisioner(c.client, c.recorder, c.provider, c.state, c.clock, c.devices, c.virtual)
	evictions := terminator.NewQueue(c.client, c.recorder)
	queue := disruption.NewQueue(c.client, c.recorder, c.state, c.clock, provisioner)
	floored := nodepool.WithFloors(c.client, c.state)
	free, held := approvals.Methods(func() []disruption.Method {
		methods := disruption.NewMethods(c.clock, c.state, floored, provisioner, c.provider, c.recorder, queue)
		return slices.DeleteFunc(methods, func(method disruption.Method) bool {
			_, static := method.(*disruption.StaticDrift)
			return static && !options.FromContext(ctx).FeatureGates.StaticCapacity
		})
	})
	health := nodepoolhealth.NewState()
	return []controller.Controller{
		evictions, queue,
		c.paced("disruption", newDisruptions(c.client, approvals.Manual, free, held, func(methods ...disruption.Method) *disruption.Controller {
			return disruption.NewController(c.clock, floored, provisioner, c.provider, c.recorder, c.state, queue, c.cost, disruption.WithMethods(methods...))
		})),
		poolhash.NewController(c.client, c.provider),
		&expiry{
			inner:  expiration.NewController(c.clock, c.client, c.provider),
			frozen: func() bool { return c.frozen() }, clock: c.clock, provider: c.provider,
		},
		termination.NewController(c.clock, c.client, c.provider, terminator.NewTerminator(c.clock, c.client, evictions, c.recorder), c.recorder),
		poolreadiness.NewController(c.clock, c.client, c.provider),
		poolhealth.NewController(c.clock, c.client, c.provider, health),
		poolcounter.NewController(c.client, c.provider, c.state),
		poolvalidation.NewController(c.clock, c.client, c.provider),
		podevents.NewController(c.clock, c.client, c.provider),
		claimconsistency.NewController(c.clock, c.client, c.provider, c.recorder),
		lifecycle.NewController(c.clock, c.client, c.provider, c.recorder, health, nil),
		claimgarbage.NewController(c.clock, c.client, c.provider),
		claimdisruption.NewController(c.clock, c.client, c.provider),
		claimhydration.NewController(c.client, c.provider),
		nodehydration.NewController(c.client, c.provider),
	}
}

// observability returns the controllers that only serve Karpenter's metrics. The metrics of
// NodePools have few series. The others have several for each Node, NodeClaim and pod, and
// most of their controllers inspect each object every few seconds.
func (c *core) observability(ctx context.Context) []controller.Controller {
	list := []controller.Controller{
		metricsnodepool.NewController(c.client, c.provider, c.cost),
		status.NewController[*karpv1.NodePool](c.client, c.events, status.EmitDeprecatedMetrics),
	}
	if options.FromContext(ctx).DisableClusterStateObservability {
		return list
	}
	labels := []string{karpv1.NodeClassLabelKey(v1alpha1.GroupVersion().WithKind(v1alpha1.KindProxmoxNodeClass).GroupKind()), karpv1.NodePoolLabelKey}
	return append(
		list,
		metricspod.NewController(c.client, c.state),
		c.paced("metrics.node", metricsnode.NewController(c.state)),
		status.NewController[*karpv1.NodeClaim](c.client, c.events, status.EmitDeprecatedMetrics, status.WithLabels(labels...)),
		status.NewGenericObjectController[*corev1.Node](c.client, c.events, status.WithLabels(append(labels, karpv1.NodeInitializedLabelKey)...)),
	)
}

// gated returns the controllers whose feature gates are enabled. trigger provisions for the
// pods of CapacityBuffers.
func (c *core) gated(ctx context.Context, trigger func()) []controller.Controller {
	gates := options.FromContext(ctx).FeatureGates
	var list []controller.Controller
	if gates.NodeRepair {
		list = append(list, health.NewController(c.client, c.provider, c.clock, c.recorder))
	}
	if gates.NodeOverlay {
		// This controller validates NodeOverlays. Its store is unused: each decision
		// applies the valid overlays to its own instance types.
		list = append(list, nodeoverlay.NewController(c.clock, c.client, c.overlaid, nodeoverlay.NewInstanceTypeStore(), c.state))
	}
	if gates.CapacityBuffer {
		list = append(list, capacitybuffer.NewController(bufferLimit{c.client}, buffers{client: c.client, virtual: c.virtual, trigger: trigger}, c.virtual))
	}
	if gates.StaticCapacity {
		list = append(list, &static{
			up:      staticup.NewController(c.client, c.state, c.recorder, c.provider, nil, c.clock, c.devices, c.virtual),
			down:    staticdown.NewController(c.client, c.state, c.provider, c.clock, c.recorder),
			problem: func(pool *karpv1.NodePool) string { return fixedSizeProblem(pool, true, c.unset) },
			// Karpenter would create NodeClaims again and again for changes that cannot wait.
			paused:   func() bool { return c.paused() || c.frozen() },
			client:   c.client,
			provider: c.provider,
			clock:    c.clock,
			tried:    map[string]time.Time{},
		})
	}
	return list
}

// buffers is called after Karpenter has evaluated a CapacityBuffer. Karpenter treats all
// buffers alike: its disruption would keep nodes for the pods of standby buffers.
type buffers struct {
	client  client.Reader
	virtual *virtualpods.Cache
	trigger func()
}

// Trigger hides the pods of standby buffers from Karpenter, and provisions. It ignores its
// argument.
func (b buffers) Trigger(types.UID) {
	ctx := context.Background()
	b.virtual.GetAll(ctx) // the first call adds the pods of all buffers
	var list autoscalingv1beta1.CapacityBufferList
	if err := b.client.List(ctx, &list); err == nil { // otherwise the next call does it
		for i := range list.Items {
			if provisioning.IsStandby(&list.Items[i]) {
				b.virtual.RemoveEntry(client.ObjectKeyFromObject(&list.Items[i]))
			}
		}
	}
	b.trigger()
}
