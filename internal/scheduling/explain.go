package scheduling

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apitypes "k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// Explanation explains a pod's scheduling state.
type Explanation struct {
	Pod   string   `json:"pod"`
	State PodState `json:"state"`
	// Summary is one sentence that starts with the cause.
	Summary string `json:"summary"`
	// ScalePlan is the plan that creates the pod's VM and is pending approval, or empty.
	ScalePlan string `json:"scale_plan,omitempty"`
	// Pools explain why each NodePool has no node for the pod, the closest one first.
	// They are set only for refused pods.
	Pools []PoolReason `json:"node_pools,omitempty"`
}

// PodState is a pod's scheduling state.
type PodState string

// The states of pods.
const (
	// PodRefused pods cannot be placed.
	PodRefused PodState = "Refused"
	// PodNeedsVM pods need a VM that has not been requested yet.
	PodNeedsVM PodState = "NeedsVM"
	// PodWaits pods have room on a node, or on a VM that will become a node.
	PodWaits PodState = "Waits"
	// PodHasNode pods are on a node.
	PodHasNode PodState = "HasNode"
	// PodIgnored pods do not need to be placed, or not yet.
	PodIgnored PodState = "Ignored"
)

// PoolReason explains why a NodePool has no node for a pod.
type PoolReason struct {
	NodePool string   `json:"node_pool"`
	Obstacle Obstacle `json:"obstacle"`
	Reason   string   `json:"reason"`
	// Hosts are the Proxmox hosts, if they matter.
	Hosts []HostReason `json:"hosts,omitempty"`
}

// HostReason explains why a host cannot take a VM for a pod.
type HostReason struct {
	Host topology.HostID `json:"host"`
	// InstanceType is, if the host is allowed, the cheapest type that the pod fits and for
	// which the host has room, or the cheapest that the pod fits if there is room for none.
	InstanceType string `json:"instance_type,omitempty"`
	// Reason is empty if the host has room.
	Reason string `json:"reason,omitempty"`
	// View is the host's capacity for a VM of the type.
	View *planner.View `json:"room,omitempty"`
	// suited is set for hosts that the pool and the pod allow.
	suited bool
}

// Obstacle is the first reason that keeps a pod off a NodePool's nodes.
type Obstacle string

// The obstacles, in ascending order of rank.
const (
	// ObstacleTaint is a taint that the pod does not tolerate.
	ObstacleTaint Obstacle = "Taint"
	// ObstacleRequirement is a pod's requirement that no node meets.
	ObstacleRequirement Obstacle = "Requirement"
	// ObstacleSize means that the pod is larger than any instance type.
	ObstacleSize Obstacle = "Size"
	// ObstacleNodePool means that a NodePool or class creates no nodes.
	ObstacleNodePool Obstacle = "NodePool"
	// ObstacleLimit is a limit of the NodePool.
	ObstacleLimit Obstacle = "Limit"
	// ObstacleHost means that no host has room.
	ObstacleHost Obstacle = "Host"
	// ObstacleScheduler is a reason that only Karpenter's scheduler reports, mostly a
	// constraint that counts other pods.
	ObstacleScheduler Obstacle = "Scheduler"
)

// rank orders obstacles: of two NodePools, the one whose obstacle has the higher rank is more
// likely the one intended for the pod.
func (o Obstacle) rank() int {
	return slices.Index([]Obstacle{
		ObstacleTaint, ObstacleRequirement, ObstacleSize, ObstacleNodePool, ObstacleLimit, ObstacleHost, ObstacleScheduler,
	}, o)
}

// Explain explains a pod's scheduling state, using the same decision as Decide.
func (c *Cluster) Explain(ctx context.Context, request Request, name apitypes.NamespacedName) (*Explanation, error) {
	pod := &corev1.Pod{}
	if err := c.client.Get(ctx, name, pod); apierrors.IsNotFound(err) {
		return nil, c.podNotFound(ctx, name)
	} else if err != nil {
		return nil, fmt.Errorf("explaining pod %s: %w", name, err)
	}
	s, d, err := c.decide(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("explaining pod %s: %w", name, err)
	}

	x := &Explanation{Pod: name.String()}
	if i := slices.IndexFunc(d.Refused, func(r Refusal) bool { return r.Pod == name }); i >= 0 {
		x.State = PodRefused
		x.Summary = d.Refused[i].Reason
		pending := slices.Concat(s.pods[:]...)
		at := slices.IndexFunc(pending, func(p *corev1.Pod) bool { return client.ObjectKeyFromObject(p) == name })
		if at < 0 {
			return x, nil // the pod is invalid
		}
		e, err := newExplainer(withKarpenter(ctx, request), s)
		if err != nil {
			return nil, err
		}
		e.views = true
		x.Pools = e.explainPools(pending[at], s.last.failed[pending[at].UID])
		if len(x.Pools) > 0 {
			x.Summary = fmt.Sprintf("NodePool %s: %s", x.Pools[0].NodePool, x.Pools[0].Reason)
		}
		return x, nil
	}

	for i := range d.New {
		if n := &d.New[i]; slices.Contains(n.Pods, name) {
			x.State = PodNeedsVM
			if x.ScalePlan, err = c.pendingPlan(ctx, name, n.NodePool); err != nil {
				return nil, fmt.Errorf("explaining pod %s: %w", name, err)
			}
			next := "numaform apply or the controller creates it, after approval if that is required"
			if x.ScalePlan != "" {
				next = fmt.Sprintf("it waits for approval of plan %s: to approve it, run numaform approve %s", x.ScalePlan, x.ScalePlan)
			} else if problem := s.blocked(n.NodePool); problem != "" {
				next = "the controller reports: " + problem
			}
			x.Summary = fmt.Sprintf("it needs a new VM: %s of NodePool %s on %s, %s: %s", n.Spec.InstanceType, n.NodePool, n.Placement.Host, n.Placement.Reason, next)
			return x, nil
		}
	}
	for i := range d.Woken {
		if w := &d.Woken[i]; slices.Contains(w.Pods, name) {
			x.State = PodWaits
			x.Summary = fmt.Sprintf("standby VM %s has room for it: the controller starts it", w.VM.Name)
			return x, nil
		}
	}
	for _, l := range d.InFlight {
		if slices.Contains(l.Pods, name) {
			x.State = PodWaits
			x.Summary, err = c.explainJoining(ctx, s, l.Name)
			return x, err
		}
	}
	for _, l := range d.Existing {
		if slices.Contains(l.Pods, name) {
			x.State = PodWaits
			x.Summary, err = c.explainWaiting(ctx, s, pod, l.Name)
			return x, err
		}
	}
	x.State, x.Summary = ignored(pod)
	return x, nil
}

// podNotFound returns an error that names the pods of the manifests, or the command that
// lists the pods of the cluster.
func (c *Cluster) podNotFound(ctx context.Context, name apitypes.NamespacedName) error {
	if c.config != nil {
		return fmt.Errorf("explaining pod %s: not found: write NAMESPACE/NAME, as listed by kubectl get pods -A", name)
	}
	var pods corev1.PodList
	if err := c.client.List(ctx, &pods); err != nil {
		return fmt.Errorf("explaining pod %s: reading pods: %w", name, err)
	}
	if len(pods.Items) == 0 {
		return fmt.Errorf("explaining pod %s: not found: the manifests contain no pods: add its manifest with -f, or read a cluster with --kubeconfig", name)
	}
	names := make([]string, len(pods.Items))
	for i := range pods.Items {
		names[i] = client.ObjectKeyFromObject(&pods.Items[i]).String()
	}
	return fmt.Errorf("explaining pod %s: not found: the manifests contain %s", name, topology.Named(names))
}

// pendingPlan returns the name of the ScalePlan that is pending approval and creates the VM
// of a pod in a NodePool, or "".
func (c *Cluster) pendingPlan(ctx context.Context, pod apitypes.NamespacedName, pool string) (string, error) {
	var plans v1alpha1.ScalePlanList
	if err := c.client.List(ctx, &plans); err != nil {
		return "", fmt.Errorf("reading scaleplans: %w", err)
	}
	more := "" // a plan that does not list all of its pods
	for i := range plans.Items {
		plan := &plans.Items[i]
		approved, _ := plan.Approval()
		rejected, _ := plan.Rejection()
		decided := approved != "" || rejected != "" || plan.Status.Phase != "" && plan.Status.Phase != v1alpha1.ScalePlanPending
		if decided || plan.Spec.Direction != v1alpha1.ScaleUp || !slices.Contains(plan.Spec.NodePools, pool) {
			continue
		}
		for j := range plan.Spec.VMs {
			pods := plan.Spec.VMs[j].Pods
			if slices.Contains(pods, pod.String()) {
				return plan.Name, nil
			}
			if len(pods) > 0 && !strings.Contains(pods[len(pods)-1], "/") {
				more = plan.Name
			}
		}
	}
	return more, nil
}

// blocked returns the message of a NodePool's condition if no new node of it can be created
// now, or "".
func (s *session) blocked(pool string) string {
	p := s.pools.find(pool)
	if p == nil {
		return ""
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == v1alpha1.ConditionScaleUpReady && condition.IsFalse() {
			return condition.Message
		}
	}
	return ""
}

// poolOf returns the NodePool of an existing VM.
func (s *session) poolOf(vm string) string {
	for i := range s.request.Existing {
		if s.request.Existing[i].Name == vm {
			return s.request.Existing[i].Pool
		}
	}
	return ""
}

// explainWaiting explains what still keeps the pod off a node that has room.
func (c *Cluster) explainWaiting(ctx context.Context, s *session, pod *corev1.Pod, name string) (string, error) {
	node := &corev1.Node{}
	err := c.client.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return c.explainJoining(ctx, s, name)
	}
	if err != nil {
		return "", err
	}
	var missing []string
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			missing = append(missing, "is not ready yet")
		}
	}
	for _, taint := range node.Spec.Taints {
		if !tolerates(pod, taint) {
			missing = append(missing, "still has the taint "+taint.ToString())
		}
	}
	if len(missing) > 0 {
		return fmt.Sprintf("node %s has room for it, but it %s: wait, or find the cause with kubectl describe node %s", name, strings.Join(missing, " and "), name), nil
	}
	return fmt.Sprintf("node %s has room for it: kube-scheduler should bind it there; see the events in kubectl describe pod", name), nil
}

// explainJoining explains what still keeps a VM with a NodeClaim from joining.
func (c *Cluster) explainJoining(ctx context.Context, s *session, name string) (string, error) {
	pool := s.poolOf(name)
	var claims karpv1.NodeClaimList
	if err := c.client.List(ctx, &claims); err != nil {
		return "", err
	}
	for i := range claims.Items {
		if claim := &claims.Items[i]; pool == "" && (claim.Name == name || claim.Annotations[v1alpha1.AnnotationVM] == name) {
			pool = claim.Labels[karpv1.NodePoolLabelKey]
		}
	}
	if problem := s.blocked(pool); problem != "" {
		return fmt.Sprintf("VM %s has room for it, but the controller reports: %s", name, problem), nil
	}
	classes, err := c.NodeClasses(ctx)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(s.request.Existing, func(vm fleet.VM) bool { return vm.Name == name })
	for i := range classes {
		class := &classes[i]
		if at >= 0 && class.Name == s.request.Existing[at].NodeClass && !class.Seeded() && !class.ByAgent() {
			return fmt.Sprintf("VM %s has room for it, but numaform gives the VM no join data (metadata of type none in ProxmoxNodeClass %s): "+
				"it joins the cluster only if its template contains everything that a node needs to join", name, class.Name), nil
		}
	}
	return fmt.Sprintf("VM %s has room for it and is joining the cluster: wait until it has joined", name), nil
}

// ignored returns why a pod does not need to be placed.
func ignored(pod *corev1.Pod) (PodState, string) {
	var gates []string
	for _, gate := range pod.Spec.SchedulingGates {
		gates = append(gates, gate.Name)
	}
	switch {
	case podutils.IsTerminal(pod):
		return PodIgnored, "it has finished: its phase is " + string(pod.Status.Phase)
	case podutils.IsScheduled(pod):
		return PodHasNode, fmt.Sprintf("it is bound to node %s", pod.Spec.NodeName)
	case podutils.IsTerminating(pod):
		return PodIgnored, "it is being deleted"
	case podutils.IsOwnedByDaemonSet(pod), podutils.IsOwnedByNode(pod):
		return PodIgnored, "it belongs to a DaemonSet or is a static pod: numaform creates no nodes for such pods"
	case len(gates) > 0:
		return PodIgnored, fmt.Sprintf("it has scheduling gates: %s; kube-scheduler ignores it until they are removed", strings.Join(gates, ", "))
	case podutils.IsPreempting(pod):
		return PodIgnored, fmt.Sprintf("kube-scheduler is preempting other pods for it on node %s", pod.Status.NominatedNodeName)
	case !podutils.FailedToSchedule(pod):
		return PodIgnored, "kube-scheduler has not marked it unschedulable: wait a moment, and check that its spec.schedulerName names a running scheduler"
	}
	return PodIgnored, "it does not need to be placed"
}
