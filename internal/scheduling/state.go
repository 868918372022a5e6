package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
)

// world is the state before a decision: Karpenter's view of nodes and claims, and our VMs
// that Karpenter cannot see by itself.
type world struct {
	state *state.Cluster
	// kept are all VMs by provider ID; waiting are the ones without a Node and without a
	// NodeClaim.
	kept    map[string]*inflight
	waiting []*inflight
	// now distinguishes nodes that are joining from failed ones.
	now time.Time
}

// newWorld fills Karpenter's cluster state from the client and the kept VMs, as of now.
func newWorld(ctx context.Context, c client.Client, vms []*inflight, now time.Time) (*world, error) {
	w := &world{state: state.NewCluster(clock.RealClock{}, c, nil), kept: map[string]*inflight{}, now: now}
	claimed, err := w.readClaims(ctx, c, vms)
	if err != nil {
		return nil, err
	}
	nodes, err := w.readNodes(ctx, c, vms, claimed)
	if err != nil {
		return nil, err
	}
	joined := map[string]bool{}
	for _, node := range nodes {
		joined[node.Spec.ProviderID] = true
	}
	for _, vm := range vms {
		id := providerID(&vm.VM)
		w.kept[id] = vm
		switch {
		case claimed[id]:
		case joined[id]:
			vm.claim.Name = "node-" + vm.Name
			w.state.UpdateNodeClaim(vm.claim)
		default:
			w.waiting = append(w.waiting, vm)
		}
	}
	for _, node := range nodes {
		if err := w.state.UpdateNode(ctx, node); err != nil {
			return nil, fmt.Errorf("counting the pods of node %s: %w", node.Name, err)
		}
	}
	return w, w.readPods(ctx, c)
}

// readClaims adds our NodeClaims to Karpenter's state and returns their provider IDs.
func (w *world) readClaims(ctx context.Context, c client.Client, vms []*inflight) (map[string]bool, error) {
	var claims karpv1.NodeClaimList
	if err := c.List(ctx, &claims); err != nil {
		return nil, fmt.Errorf("listing nodeclaims: %w", err)
	}
	claimed := map[string]bool{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if !isOurs(claim.Spec.NodeClassRef) {
			continue
		}
		adoptVM(claim, vms)
		w.state.UpdateNodeClaim(claim)
		claimed[claim.Status.ProviderID] = true
	}
	return claimed, nil
}

func isOurs(ref *karpv1.NodeClassReference) bool {
	return ref != nil && ref.Group == v1alpha1.Group && ref.Kind == v1alpha1.KindProxmoxNodeClass
}

// adoptVM sets the provider ID and size of the VM on a NodeClaim that names its VM but
// does not have them yet. It closes the NodeClaim of a lost VM.
func adoptVM(claim *karpv1.NodeClaim, vms []*inflight) {
	id, name := claim.Status.ProviderID, claim.Annotations[v1alpha1.AnnotationVM]
	i := slices.IndexFunc(vms, func(vm *inflight) bool {
		return id != "" && id == providerID(&vm.VM) || id == "" && name != "" && name == vm.Name
	})
	if i < 0 {
		return
	}
	if id == "" {
		labels := maps.Clone(vms[i].claim.Labels)
		maps.Copy(labels, claim.Labels)
		claim.Labels = labels
		claim.Status = vms[i].claim.Status
	}
	if vms[i].lost {
		closeClaim(claim)
	}
}

// readNodes returns the nodes, setting the provider ID on the nodes of our VMs. A node
// without a NodeClaim, because no controller runs, is treated as Karpenter's.
func (w *world) readNodes(ctx context.Context, c client.Client, vms []*inflight, claimed map[string]bool) ([]*corev1.Node, error) {
	var list corev1.NodeList
	if err := c.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	var nodes []*corev1.Node
	for i := range list.Items {
		node := list.Items[i].DeepCopy()
		addNodeTaints(node)
		if vm := vmOf(node, vms); vm != nil {
			node.Spec.ProviderID = providerID(&vm.VM)
			adoptNode(node, vm, claimed[node.Spec.ProviderID])
			w.judgeNode(node, vm, claimed[node.Spec.ProviderID])
		}
		if node.Spec.ProviderID == "" {
			node.Spec.ProviderID = node.Name
		}
		if node.Labels[karpv1.NodePoolLabelKey] != "" && node.Labels[corev1.LabelInstanceTypeStable] == "" {
			// Karpenter would not count a node of a pool before its type is known.
			node.Labels[corev1.LabelInstanceTypeStable] = "unknown"
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

func vmOf(node *corev1.Node, vms []*inflight) *inflight {
	for _, vm := range vms {
		if node.Spec.ProviderID == providerID(&vm.VM) || node.Spec.ProviderID == "" && node.Name == vm.Name {
			return vm
		}
	}
	return nil
}

// adoptNode sets the labels that a node has because of its VM; a node with a NodeClaim
// gets them from that.
func adoptNode(node *corev1.Node, vm *inflight, claimed bool) {
	labels := map[string]string{}
	if !claimed {
		maps.Copy(labels, vm.claim.Labels)
	}
	maps.Copy(labels, node.Labels)
	node.Labels = labels
}

// isSettled reports whether a node is ready and no longer has its startup taints.
func isSettled(node *corev1.Node, claim *karpv1.NodeClaim) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return false
		}
	}
	return !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.MatchTaint(&karpv1.UnregisteredNoExecuteTaint) || scheduling.IsKnownEphemeralTaint(&taint) ||
			slices.ContainsFunc(claim.Spec.StartupTaints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) })
	})
}

// readPods adds bound pods that keep others away, and DaemonSets, to Karpenter's state.
func (w *world) readPods(ctx context.Context, c client.Client) error {
	var pods corev1.PodList
	if err := c.List(ctx, &pods); err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == "" || !podutils.HasRequiredPodAntiAffinity(pod) {
			continue
		}
		if err := w.state.UpdatePod(ctx, pod); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	var daemonSets appsv1.DaemonSetList
	if err := c.List(ctx, &daemonSets); err != nil {
		return fmt.Errorf("listing daemonsets: %w", err)
	}
	for i := range daemonSets.Items {
		if err := w.state.UpdateDaemonSet(ctx, &daemonSets.Items[i]); err != nil {
			return fmt.Errorf("reading daemonset %s/%s: %w", daemonSets.Items[i].Namespace, daemonSets.Items[i].Name, err)
		}
	}
	return nil
}

// without returns a copy of a NodeClaim with the pods' resources subtracted.
func without(claim *karpv1.NodeClaim, pods []*corev1.Pod) *karpv1.NodeClaim {
	claim = claim.DeepCopy()
	if len(pods) > 0 {
		claim.Status.Allocatable = resources.Subtract(claim.Status.Allocatable, resources.RequestsForPods(pods...))
	}
	return claim
}

// stateNodes returns copies of the nodes, including the nodes of vms, with the pods in
// taken, by provider ID, on them. Nodes being deleted are returned separately.
func (w *world) stateNodes(ctx context.Context, vms []*inflight, taken map[string][]*corev1.Pod) (active, deleting state.StateNodes, err error) {
	nameClaims(vms)
	for _, node := range w.state.DeepCopyNodes() {
		if pods := taken[node.ProviderID()]; node.Node == nil && len(pods) > 0 {
			w.state.UpdateNodeClaim(without(node.NodeClaim, pods))
			defer w.state.UpdateNodeClaim(node.NodeClaim)
		}
	}
	for _, vm := range vms {
		w.state.UpdateNodeClaim(without(vm.claim, taken[vm.claim.Status.ProviderID]))
		defer w.state.DeleteNodeClaim(vm.claim.Name)
	}
	for _, node := range w.state.DeepCopyNodes() {
		if node.Node == nil {
			continue
		}
		for _, pod := range taken[node.ProviderID()] {
			bound := pod.DeepCopy()
			bound.Spec.NodeName = node.Node.Name
			if err := w.state.UpdatePod(ctx, bound); err != nil {
				return nil, nil, fmt.Errorf("counting pod %s/%s on node %s: %w", pod.Namespace, pod.Name, node.Node.Name, err)
			}
			defer w.state.DeletePod(client.ObjectKeyFromObject(pod))
		}
	}
	nodes := w.state.DeepCopyNodes()
	slices.SortFunc(nodes, func(a, b *state.StateNode) int { return cmp.Compare(a.Name(), b.Name()) })
	return nodes.Active(), nodes.Deleting(), nil
}
