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

// world is what stands before a decision: Karpenter's view of nodes and claims,
// and those of our VMs that Karpenter cannot see by itself.
type world struct {
	state *state.Cluster
	// kept are all VMs by provider id, waiting those of them without a Node and
	// without a NodeClaim of their own.
	kept    map[string]*inflight
	waiting []*inflight
	// repelling are the rules by which bound pods keep others away.
	repelling []constraint
	// now tells nodes that are joining from those that failed.
	now time.Time
}

// newWorld fills Karpenter's cluster state from the client and the kept VMs, as
// they stand at that time.
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

// readClaims tells Karpenter of our NodeClaims and returns their provider ids.
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

// adoptVM gives a NodeClaim that names its VM, but does not know it yet, the VM's
// provider id and size. It closes the NodeClaim of a VM that is lost.
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

// readNodes returns the nodes, those of our VMs with the VM's provider id. A node
// that has no NodeClaim, because no controller runs, is seen as Karpenter's.
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

// adoptNode gives a node the labels that it has by its VM; one with a NodeClaim
// has them by that.
func adoptNode(node *corev1.Node, vm *inflight, claimed bool) {
	labels := map[string]string{}
	if !claimed {
		maps.Copy(labels, vm.claim.Labels)
	}
	maps.Copy(labels, node.Labels)
	node.Labels = labels
}

// isSettled reports whether a node is ready and has shed the taints of its start.
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

// readPods tells Karpenter of bound pods that keep others away, and of DaemonSets.
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
		wide, narrow := findConstraints([]*corev1.Pod{pod})
		w.repelling = slices.Concat(w.repelling, wide, narrow)
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

// without returns a copy of a NodeClaim less what pods take of it.
func without(claim *karpv1.NodeClaim, pods []*corev1.Pod) *karpv1.NodeClaim {
	claim = claim.DeepCopy()
	if len(pods) > 0 {
		claim.Status.Allocatable = resources.Subtract(claim.Status.Allocatable, resources.RequestsForPods(pods...))
	}
	return claim
}

// stateNodes returns copies of the nodes, the VMs given included, with the pods
// given, by provider id, on them. Those that are being deleted come apart.
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
