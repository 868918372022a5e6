package scheduling

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// Explanation explains a pod's scheduling state.
type Explanation struct {
	Pod   string   `json:"pod"`
	State PodState `json:"state"`
	// Summary is one sentence that starts with the cause.
	Summary string `json:"summary"`
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
	// PodIgnored pods do not need to be placed.
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
	// InstanceType is the smallest one that the pod fits, if the host is allowed.
	InstanceType string `json:"instance_type,omitempty"`
	// Reason is empty if the host has room.
	Reason string `json:"reason,omitempty"`
	// View is the host's capacity for a VM of the type.
	View *planner.View `json:"room,omitempty"`
	// suited is set for hosts that the pool and the pod allow.
	suited bool
}

// Explain explains a pod's scheduling state, using the same decision as Decide.
func (c *Cluster) Explain(ctx context.Context, request Request, name types.NamespacedName) (*Explanation, error) {
	pod := &corev1.Pod{}
	if err := c.client.Get(ctx, name, pod); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("explaining pod %s: there is no such pod: write NAMESPACE/NAME as kubectl get pods -A lists them", name)
	} else if err != nil {
		return nil, fmt.Errorf("explaining pod %s: %w", name, err)
	}
	s, d, err := c.decide(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("explaining pod %s: %w", name, err)
	}
	x := &Explanation{Pod: name.String()}
	if i := slices.IndexFunc(d.Refused, func(r Refusal) bool { return r.Pod == name }); i >= 0 {
		x.State, x.Summary = PodRefused, d.Refused[i].Reason
		return x, s.explainRefused(withKarpenter(ctx, request), x, pod)
	}
	if x.State, x.Summary = d.landing(name); x.State == PodWaits {
		err = c.explainWaiting(ctx, x, pod, d.nodeFor(name))
	}
	if x.State == "" {
		x.State, x.Summary = ignored(pod)
	}
	return x, err
}

// explainRefused adds what each NodePool lacks for a refused pod.
func (s *session) explainRefused(ctx context.Context, x *Explanation, pod *corev1.Pod) error {
	asking := slices.Concat(s.pods[:]...)
	i := slices.IndexFunc(asking, func(p *corev1.Pod) bool { return client.ObjectKeyFromObject(p) == client.ObjectKeyFromObject(pod) })
	if i < 0 {
		return nil // it is invalid
	}
	e, err := newExplainer(ctx, s)
	if err != nil {
		return err
	}
	e.views = true
	x.Pools = e.refuse(asking[i], s.last.failed[asking[i].UID])
	if len(x.Pools) > 0 {
		x.Summary = fmt.Sprintf("NodePool %s: %s", x.Pools[0].NodePool, x.Pools[0].Reason)
	}
	return nil
}

// landing returns where the decision places a pod, or "".
func (d *Decision) landing(pod types.NamespacedName) (PodState, string) {
	for i := range d.New {
		n := &d.New[i]
		if slices.Contains(n.Pods, pod) {
			return PodNeedsVM, fmt.Sprintf("a VM has to be made for it: %s of NodePool %s on %s, %s: numaform apply makes it, or the controller once its plan is let pass",
				n.Spec.InstanceType, n.NodePool, n.Placement.Host, n.Placement.Reason)
		}
	}
	for _, l := range d.InFlight {
		if slices.Contains(l.Pods, pod) {
			return PodWaits, fmt.Sprintf("VM %s has room for it and is on its way to be a node: wait until it joins", l.Name)
		}
	}
	for _, l := range d.Existing {
		if slices.Contains(l.Pods, pod) {
			return PodWaits, fmt.Sprintf("node %s has room for it: kube-scheduler should put it there, see the events of kubectl describe pod", l.Name)
		}
	}
	return "", ""
}

// nodeFor returns the node that has room for a pod.
func (d *Decision) nodeFor(pod types.NamespacedName) string {
	for _, l := range d.Existing {
		if slices.Contains(l.Pods, pod) {
			return l.Name
		}
	}
	return ""
}

// explainWaiting explains what still keeps the pod off a node that has room.
func (c *Cluster) explainWaiting(ctx context.Context, x *Explanation, pod *corev1.Pod, name string) error {
	if name == "" {
		return nil
	}
	node := &corev1.Node{}
	if err := c.client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return client.IgnoreNotFound(err)
	}
	var missing []string
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			missing = append(missing, "is not ready yet")
		}
	}
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && scheduling.Taints([]corev1.Taint{taint}).ToleratesPod(pod) != nil {
			missing = append(missing, "still has the taint "+taint.ToString())
		}
	}
	if len(missing) > 0 {
		x.Summary = fmt.Sprintf("node %s has room for it, but %s: wait until it has joined, or see why it does not", name, strings.Join(missing, " and "))
	}
	return nil
}

// ignored returns why a pod does not need to be placed.
func ignored(pod *corev1.Pod) (PodState, string) {
	var gates []string
	for _, gate := range pod.Spec.SchedulingGates {
		gates = append(gates, gate.Name)
	}
	switch {
	case podutils.IsTerminal(pod):
		return PodIgnored, "it has ended: its phase is " + string(pod.Status.Phase)
	case podutils.IsScheduled(pod):
		return PodHasNode, fmt.Sprintf("it has its place on node %s", pod.Spec.NodeName)
	case podutils.IsTerminating(pod):
		return PodIgnored, "it is being deleted"
	case podutils.IsOwnedByDaemonSet(pod), podutils.IsOwnedByNode(pod):
		return PodIgnored, "it belongs to a DaemonSet or to a node: no node is made for such pods, they go where their node is"
	case len(gates) > 0:
		return PodIgnored, fmt.Sprintf("it has the scheduling gates %s: nobody looks for a place until they are removed", strings.Join(gates, ", "))
	case podutils.IsPreempting(pod):
		return PodIgnored, fmt.Sprintf("kube-scheduler makes room for it on node %s", pod.Status.NominatedNodeName)
	case !podutils.FailedToSchedule(pod):
		return PodIgnored, "kube-scheduler has not found it unschedulable: wait a moment, and see that its spec.schedulerName is that of a running scheduler"
	}
	return PodIgnored, "it asks for no place"
}
