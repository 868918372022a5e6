package provisioning

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scheduling"
)

// podIndex finds pods by name.
type podIndex map[types.NamespacedName]*corev1.Pod

func (p podIndex) of(names []types.NamespacedName) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, len(names))
	for _, name := range names {
		if pod := p[name]; pod != nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// podsOf reads the pods of a decision, omitting deleted ones.
func (c *Controller) podsOf(ctx context.Context, d *scheduling.Decision) (podIndex, error) {
	var names []types.NamespacedName
	for i := range d.New {
		names = append(names, d.New[i].Pods...)
	}
	for _, landing := range append(d.Existing, d.InFlight...) {
		names = append(names, landing.Pods...)
	}
	for _, refusal := range d.Refused {
		names = append(names, refusal.Pod)
	}
	pods := podIndex{}
	for _, name := range names {
		pod := &corev1.Pod{}
		switch err := c.config.Client.Get(ctx, name, pod); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading pod %s: %w", name, err)
		default:
			pods[name] = pod
		}
	}
	return pods, nil
}

// publish reports the decision to pods and to Karpenter's cluster state.
func (c *Controller) publish(ctx context.Context, d *scheduling.Decision, pods podIndex) {
	failed := map[*corev1.Pod]error{}
	for _, refusal := range d.Refused {
		pod := pods[refusal.Pod]
		if pod == nil {
			continue
		}
		failed[pod] = errors.New(refusal.Reason)
		c.config.Recorder.Publish(unplaced(pod, failed[pod]))
		log.FromContext(ctx).V(1).Info("found no place for pod", logkey.Pods, refusal.Pod.String(), logkey.Reason, refusal.Reason)
	}
	karpscheduling.UnschedulablePodsCount.Set(float64(len(failed)), map[string]string{karpscheduling.ControllerLabel: c.Name()})
	byPool, byClaim := map[string][]*corev1.Pod{}, map[string][]*corev1.Pod{}
	for i := range d.New {
		byPool[d.New[i].NodePool] = append(byPool[d.New[i].NodePool], pods.of(d.New[i].Pods)...)
	}
	for _, landing := range append(d.Existing, d.InFlight...) {
		node := c.nominate(ctx, landing, pods)
		if node == nil {
			continue
		}
		pool := node.Labels()[karpv1.NodePoolLabelKey]
		byPool[pool] = append(byPool[pool], pods.of(landing.Pods)...)
		if node.NodeClaim != nil {
			byClaim[node.NodeClaim.Name] = append(byClaim[node.NodeClaim.Name], pods.of(landing.Pods)...)
		}
	}
	c.config.State.MarkPodSchedulingDecisions(ctx, failed, byPool, byClaim)
}

// unplaced returns Karpenter's event for a pod without a place. A different reason is
// published immediately, because the first may only have been a class that was not
// validated yet.
func unplaced(pod *corev1.Pod, reason error) events.Event {
	event := karpscheduling.PodFailedToScheduleEvent(pod, reason)
	event.DedupeValues = append(event.DedupeValues, event.Message)
	return event
}

// nominate protects a node from disruption if pods are about to be bound to it. Virtual
// pods are not in the index, because they are never bound.
func (c *Controller) nominate(ctx context.Context, landing scheduling.Landing, pods podIndex) *stateNode {
	node := c.find(landing.Name)
	if node == nil || len(pods.of(landing.Pods)) == 0 {
		return nil
	}
	c.config.State.NominateNodeForPod(ctx, node.ProviderID())
	for _, pod := range pods.of(landing.Pods) {
		c.config.Recorder.Publish(nominated(pod, node.Node, node.NodeClaim))
	}
	return node
}

// nominated returns Karpenter's event for a pod that will be bound to a node.
func nominated(pod *corev1.Pod, node *corev1.Node, claim *karpv1.NodeClaim) events.Event {
	return karpscheduling.NominatePodEvent(pod, node, claim)
}

// stateNode is a node in Karpenter's cluster state.
type stateNode = state.StateNode

// find returns the node with a name, or the NodeClaim that will become it.
func (c *Controller) find(name string) *stateNode {
	for node := range c.config.State.Nodes() {
		named := node.Node != nil && node.Node.Name == name
		claimed := node.NodeClaim != nil && node.NodeClaim.Annotations[v1alpha1.AnnotationVM] == name
		if named || claimed {
			return node
		}
	}
	return nil
}
