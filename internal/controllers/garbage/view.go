package garbage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/event"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
)

// view is the input of one pass.
type view struct {
	now    time.Time
	paused bool
	// states are the writer's VMs, sorted by region and VMID; vms are the same by key.
	states []scaler.VMState
	vms    map[fleet.Key]*scaler.VMState
	// claims are the claims that refer to a ProxmoxNodeClass, including copies, and byKey the
	// claims of the writer's VMs.
	claims []*karpv1.NodeClaim
	byKey  map[fleet.Key]*karpv1.NodeClaim
	nodes  map[string]*corev1.Node
	pools  map[string]*karpv1.NodePool
	// timesToJoin are the join timeouts of the classes, by name.
	timesToJoin map[string]time.Duration
}

// newView reads the cluster. The NodeClaims and Nodes are shared with the cache: a pass must
// not change them. states are the VMs of the writer, which was read first.
func newView(ctx context.Context, config Config, states []scaler.VMState) (*view, error) {
	v := &view{
		now:    config.Clock.Now(),
		states: states,
		vms:    make(map[fleet.Key]*scaler.VMState, len(states)),
		nodes:  map[string]*corev1.Node{},
		pools:  map[string]*karpv1.NodePool{},
		paused: config.Paused(),

		timesToJoin: map[string]time.Duration{},
	}
	for i := range states {
		v.vms[states[i].VM.Key] = &states[i]
	}
	if err := v.readClaims(ctx, config.Client); err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := config.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	for i := range nodes.Items {
		v.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	var pools karpv1.NodePoolList
	if err := config.Client.List(ctx, &pools); err != nil {
		return nil, fmt.Errorf("listing nodepools: %w", err)
	}
	for i := range pools.Items {
		v.pools[pools.Items[i].Name] = &pools.Items[i]
	}
	var classes v1alpha1.ProxmoxNodeClassList
	if err := config.Client.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing proxmoxnodeclasses: %w", err)
	}
	for i := range classes.Items {
		v.timesToJoin[classes.Items[i].Name] = classes.Items[i].TimeToJoin()
	}
	return v, nil
}

// readClaims reads the claims, after vms has been set.
func (v *view) readClaims(ctx context.Context, reader client.Reader) error {
	var claims karpv1.NodeClaimList
	if err := reader.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing nodeclaims: %w", err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if !isOurs(claim.Spec.NodeClassRef) {
			continue
		}
		v.claims = append(v.claims, claim)
	}
	v.byKey = scheduling.OwnClaims(claims.Items, func(key fleet.Key) *fleet.VM {
		if state := v.vms[key]; state != nil {
			return &state.VM
		}
		return nil
	})
	return nil
}

func isOurs(ref *karpv1.NodeClassReference) bool {
	return ref != nil && ref.Group == v1alpha1.Group && ref.Kind == v1alpha1.KindProxmoxNodeClass
}

// keyOf returns the key of the claim's VM, or "" if it has none yet.
func keyOf(claim *karpv1.NodeClaim) fleet.Key {
	return fleet.Key(claim.Annotations[v1alpha1.AnnotationKey])
}

// poolsOf returns the names of the pools that use the class, sorted.
func (v *view) poolsOf(class string) []string {
	var names []string
	for name, pool := range v.pools {
		if ref := pool.Spec.Template.Spec.NodeClassRef; isOurs(ref) && ref.Name == class {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// nodeOf returns a VM's Node: by its name, or by its providerID if the Node has another
// name.
func (v *view) nodeOf(vm fleet.VM) *corev1.Node {
	if node := v.nodes[vm.Name]; node != nil {
		return node
	}
	return v.nodeBy(fleet.ProviderID(vm.Host.Region, vm.VMID))
}

func (v *view) nodeBy(providerID string) *corev1.Node {
	for _, node := range v.nodes {
		if providerID != "" && node.Spec.ProviderID == providerID {
			return node
		}
	}
	return nil
}

// The reasons of events.
const (
	// ReasonFailed means that a VM could not be created.
	ReasonFailed = "VMFailed"
	// ReasonHeld means that a VM is pending approval.
	ReasonHeld = "VMHeld"
	// ReasonRemovalWaits means that a VM cannot be removed yet.
	ReasonRemovalWaits = "VMRemovalWaits"
	// ReasonNeverJoined means that a VM was created, but its Node did not join in time.
	ReasonNeverJoined = "NodeNeverJoined"
	// ReasonVMGone means that a NodeClaim's VM is no longer in Proxmox.
	ReasonVMGone = "VMGone"
	// ReasonNodeGone means that a registered NodeClaim's Node no longer exists.
	ReasonNodeGone = "NodeGone"
	// ReasonClaimRestored means that the NodeClaim of a running Node was re-created.
	ReasonClaimRestored = "NodeClaimRestored"
	// ReasonPoolGone means that a Node has neither a NodeClaim nor a NodePool.
	ReasonPoolGone = "NodePoolGone"
	// ReasonNodeLeft means that a Node has neither a NodeClaim nor a VM.
	ReasonNodeLeft = "NodeLeft"
	// ReasonOrphan means that a guest carries our marker but is not desired.
	ReasonOrphan = "OrphanedVM"
)

// publish publishes an event about a VM on its claim and on its pool.
func (c *Config) publish(v *view, pool string, claim *karpv1.NodeClaim, reason, message string) {
	if claim != nil {
		c.Recorder.Publish(warning(claim, reason, message))
	}
	if np := v.pools[pool]; np != nil {
		c.Recorder.Publish(warning(np, reason, message))
	}
}

func warning(object client.Object, reason, message string, cause ...string) events.Event {
	return event.New(object, corev1.EventTypeWarning, reason, message, cause...)
}

// brief returns an error as one short line.
func brief(err error) string {
	if err == nil {
		return "for an unknown reason"
	}
	return event.Cut(strings.Join(strings.Fields(err.Error()), " "), 600)
}
