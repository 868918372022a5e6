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
	"github.com/numaform/numaform/fleet"
)

// clusterState is the state before a decision: Karpenter's view of nodes and claims, and
// our VMs that Karpenter cannot see by itself.
type clusterState struct {
	karpenter *state.Cluster
	// vms are all existing VMs by provider ID. waiting and standby are the VMs without a
	// Node and without a NodeClaim: standby the standby VMs, and waiting the others.
	vms              map[string]*inflight
	waiting, standby []*inflight
	// keys are the keys of VMs in the annotations of all NodeClaims, by the NodeClaims' names.
	keys map[string]fleet.Key
}

// newClusterState fills Karpenter's cluster state from the client and the existing VMs. now
// determines which nodes count as joining.
func newClusterState(ctx context.Context, c client.Client, vms []*inflight, now time.Time) (*clusterState, error) {
	s := &clusterState{karpenter: state.NewCluster(clock.RealClock{}, sharedPods{c}, nil), vms: map[string]*inflight{}, keys: map[string]fleet.Key{}}
	index := indexInflight(vms)
	claimed, err := s.readClaims(ctx, c, index)
	if err != nil {
		return nil, err
	}
	nodes, err := readNodes(ctx, c, index, claimed, now)
	if err != nil {
		return nil, err
	}
	joined := map[string]bool{}
	for _, node := range nodes {
		joined[node.Spec.ProviderID] = true
	}
	for _, vm := range vms {
		id := providerID(&vm.VM)
		s.vms[id] = vm
		switch {
		case claimed[id]:
		case joined[id]:
			vm.claim.Name = "node-" + vm.Name
			s.karpenter.UpdateNodeClaim(vm.claim)
		case vm.Standby:
			s.standby = append(s.standby, vm)
		default:
			s.waiting = append(s.waiting, vm)
		}
	}
	for _, node := range nodes {
		if err := s.karpenter.UpdateNode(ctx, node); err != nil {
			return nil, fmt.Errorf("counting the pods of node %s: %w", node.Name, err)
		}
	}

	// Karpenter also needs the bound pods with required anti-affinity, and the DaemonSets.
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == "" || !podutils.HasRequiredPodAntiAffinity(pod) {
			continue
		}
		if err := s.karpenter.UpdatePod(ctx, pod); err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	var daemonSets appsv1.DaemonSetList
	if err := c.List(ctx, &daemonSets); err != nil {
		return nil, fmt.Errorf("listing daemonsets: %w", err)
	}
	for i := range daemonSets.Items {
		set := &daemonSets.Items[i]
		if err := s.karpenter.UpdateDaemonSet(ctx, set); err != nil {
			return nil, fmt.Errorf("reading daemonset %s/%s: %w", set.Namespace, set.Name, err)
		}
	}
	return s, nil
}

// sharedPods lists pods without copying them. Karpenter lists the pods of every node, and
// only reads them.
type sharedPods struct{ client.Client }

// List lists the objects.
func (c sharedPods) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, pods := list.(*corev1.PodList); pods {
		opts = append(opts, client.UnsafeDisableDeepCopy)
	}
	return c.Client.List(ctx, list, opts...)
}

// vmIndex contains VMs by provider ID and by name.
type vmIndex struct{ byID, byName map[string]*inflight }

func indexInflight(vms []*inflight) vmIndex {
	index := vmIndex{byID: make(map[string]*inflight, len(vms)), byName: make(map[string]*inflight, len(vms))}
	for _, vm := range slices.Backward(vms) { // the first of several VMs counts
		index.byID[providerID(&vm.VM)] = vm
		index.byName[vm.Name] = vm
	}
	return index
}

// find returns the VM with a provider ID or, if id is empty, with a name. It returns nil if
// there is none.
func (i vmIndex) find(id, name string) *inflight {
	if id != "" {
		return i.byID[id]
	}
	return i.byName[name]
}

// readClaims adds our NodeClaims to Karpenter's state and returns their provider IDs. A
// NodeClaim that names its VM, but has no provider ID and size yet, gets them from the VM.
func (s *clusterState) readClaims(ctx context.Context, c client.Client, vms vmIndex) (map[string]bool, error) {
	var claims karpv1.NodeClaimList
	if err := c.List(ctx, &claims); err != nil {
		return nil, fmt.Errorf("listing nodeclaims: %w", err)
	}
	claimed := map[string]bool{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		s.keys[claim.Name] = fleet.Key(claim.Annotations[v1alpha1.AnnotationKey])
		if !isOurs(claim.Spec.NodeClassRef) {
			continue
		}
		id := claim.Status.ProviderID
		name := claim.Annotations[v1alpha1.AnnotationVM]
		if vm := vms.find(id, name); vm != nil {
			if id == "" {
				labels := maps.Clone(vm.claim.Labels)
				maps.Copy(labels, claim.Labels)
				claim.Labels = labels
				claim.Status = vm.claim.Status
			}
			// A standby VM's claim is left over from a wake that did not begin.
			if vm.lost || vm.Standby {
				closeClaim(claim)
			}
		}
		s.karpenter.UpdateNodeClaim(claim)
		claimed[claim.Status.ProviderID] = true
	}
	return claimed, nil
}

func isOurs(ref *karpv1.NodeClassReference) bool {
	return ref != nil && ref.Group == v1alpha1.Group && ref.Kind == v1alpha1.KindProxmoxNodeClass
}

// readNodes returns the nodes, setting the provider ID on the nodes of our VMs. A VM's node
// that has no NodeClaim, because no controller runs, is treated like a node that Karpenter
// manages.
func readNodes(ctx context.Context, c client.Client, vms vmIndex, claimed map[string]bool, now time.Time) ([]*corev1.Node, error) {
	var list corev1.NodeList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	var nodes []*corev1.Node
	for i := range list.Items {
		node := list.Items[i].DeepCopy()
		addNodeTaints(node)
		if vm := vms.find(node.Spec.ProviderID, node.Name); vm != nil {
			node.Spec.ProviderID = providerID(&vm.VM)
			adoptNode(node, vm, claimed[node.Spec.ProviderID], now)
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

// addNodeTaints adds the taints that Kubernetes' node controller derives from a node's
// state: it may not have set them yet, and manifests lack them.
func addNodeTaints(node *corev1.Node) {
	add := func(key string) {
		taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
			node.Spec.Taints = append(node.Spec.Taints, taint)
		}
	}
	if node.Spec.Unschedulable {
		add(corev1.TaintNodeUnschedulable)
	}
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type != corev1.NodeReady || c.Status == corev1.ConditionTrue:
		case c.Status == corev1.ConditionUnknown:
			add(corev1.TaintNodeUnreachable)
		default:
			add(corev1.TaintNodeNotReady)
		}
	}
}

// joiningGrace is how long after its creation a Node that cannot run pods counts as
// joining. A Node does not record whether it has ever been ready, so its age must
// distinguish a start from a failure.
const joiningGrace = 10 * time.Minute

// adoptNode sets the labels that a node has because of its VM; a node with a NodeClaim gets
// them from the NodeClaim. It determines how Karpenter sees the node: as lost, so that it
// takes no pods; as joining, with taints that will be removed; or as it reports itself.
func adoptNode(node *corev1.Node, vm *inflight, claimed bool, now time.Time) {
	labels := map[string]string{}
	if !claimed {
		maps.Copy(labels, vm.claim.Labels)
	}
	maps.Copy(labels, node.Labels)
	node.Labels = labels

	// A ready kubelet responds: its node can run pods, even if its host cannot take more
	// VMs.
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	// If the VM does not exist, the node is a leftover, and its VM is re-created.
	mayJoin := !node.Spec.Unschedulable && (vm.absent || now.Sub(node.CreationTimestamp.Time) < joiningGrace)
	switch {
	case vm.Standby, vm.lost && (!vm.online || !ready):
		node.Spec.Taints = append(node.Spec.Taints, karpv1.DisruptedNoScheduleTaint)
		node.Status.Allocatable = nil
	case mayJoin && (claimed || !hasJoined(node, vm.claim)):
	default:
		// Karpenter uses the taints and the size that an initialized node reports. A node
		// that has not reported its size counts with the size of its VM.
		node.Labels[karpv1.NodeRegisteredLabelKey] = "true"
		node.Labels[karpv1.NodeInitializedLabelKey] = "true"
		if node.Status.Capacity == nil {
			node.Status.Capacity = corev1.ResourceList{}
		}
		for name, quantity := range vm.claim.Status.Capacity {
			if resources.IsZero(node.Status.Capacity[name]) {
				node.Status.Capacity[name] = quantity
			}
		}
	}
}

// hasJoined reports whether a node is ready and no longer has its startup taints.
func hasJoined(node *corev1.Node, claim *karpv1.NodeClaim) bool {
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

// without returns a copy of a NodeClaim with the pods' resources subtracted.
func without(claim *karpv1.NodeClaim, pods []*corev1.Pod) *karpv1.NodeClaim {
	claim = claim.DeepCopy()
	if len(pods) > 0 {
		claim.Status.Allocatable = resources.Subtract(claim.Status.Allocatable, resources.RequestsForPods(pods...))
	}
	return claim
}

// nodes returns the nodes, including the nodes of vms, with the pods of taken, by provider
// ID, assigned to them. Nodes being deleted are returned separately. Nodes without pods of
// taken are Karpenter's own: copy them before a change.
func (s *clusterState) nodes(ctx context.Context, vms []*inflight, taken map[string][]*corev1.Pod) (active, deleting state.StateNodes, err error) {
	// Karpenter fills nodes in the order of their names.
	slices.SortFunc(vms, compareInflight)
	for i, vm := range vms {
		vm.claim.Name = fmt.Sprintf("inflight-%06d", i)
		if vm.Standby {
			vm.claim.Name = fmt.Sprintf("~standby-%06d", i) // after every NodeClaim
		}
	}

	for _, node := range s.taking(taken) {
		if node.Node == nil {
			s.karpenter.UpdateNodeClaim(without(node.NodeClaim, taken[node.ProviderID()]))
			defer s.karpenter.UpdateNodeClaim(node.NodeClaim)
		}
	}
	for _, vm := range vms {
		s.karpenter.UpdateNodeClaim(without(vm.claim, taken[vm.claim.Status.ProviderID]))
		defer s.karpenter.DeleteNodeClaim(vm.claim.Name)
	}
	for _, node := range s.taking(taken) {
		if node.Node == nil {
			continue
		}
		for _, pod := range taken[node.ProviderID()] {
			bound := pod.DeepCopy()
			bound.Spec.NodeName = node.Node.Name
			if err := s.karpenter.UpdatePod(ctx, bound); err != nil {
				return nil, nil, fmt.Errorf("counting pod %s/%s on node %s: %w", pod.Namespace, pod.Name, node.Node.Name, err)
			}
			defer s.karpenter.DeletePod(client.ObjectKeyFromObject(pod))
		}
	}

	var nodes state.StateNodes
	for node := range s.karpenter.Nodes() {
		if len(taken[node.ProviderID()]) > 0 {
			node = node.DeepCopy() // before its pods are deleted again
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b *state.StateNode) int { return cmp.Compare(a.Name(), b.Name()) })
	return nodes.Active(), nodes.Deleting(), nil
}

// taking returns the nodes that take pods.
func (s *clusterState) taking(taken map[string][]*corev1.Pod) []*state.StateNode {
	if len(taken) == 0 {
		return nil
	}
	var taking []*state.StateNode
	for node := range s.karpenter.Nodes() {
		if len(taken[node.ProviderID()]) > 0 {
			taking = append(taking, node)
		}
	}
	return taking
}
