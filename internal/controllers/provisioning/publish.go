package provisioning

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/controllers/event"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
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

// readPods reads the pods of a decision, omitting deleted ones.
func (c *Controller) readPods(ctx context.Context, d *scheduling.Decision) (podIndex, error) {
	var names []types.NamespacedName
	for i := range d.New {
		names = append(names, d.New[i].Pods...)
	}
	for i := range d.Woken {
		names = append(names, d.Woken[i].Pods...)
	}
	for _, landing := range slices.Concat(d.Existing, d.InFlight) {
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
		// A different reason is published immediately, because the first one may be
		// temporary, such as a class that is not validated yet.
		event := karpscheduling.PodFailedToScheduleEvent(pod, failed[pod])
		event.DedupeValues = append(event.DedupeValues, event.Message)
		c.config.Recorder.Publish(event)
		log.FromContext(ctx).V(1).Info("found no place for pod", logkey.Pods, refusal.Pod.String(), logkey.Reason, refusal.Reason)
	}
	karpscheduling.UnschedulablePodsCount.Set(float64(len(failed)), map[string]string{karpscheduling.ControllerLabel: c.Name()})

	byPool := map[string][]*corev1.Pod{}
	byClaim := map[string][]*corev1.Pod{}
	nodes := c.nodesByName()
	for i := range d.New {
		byPool[d.New[i].NodePool] = append(byPool[d.New[i].NodePool], pods.of(d.New[i].Pods)...)
	}
	for i := range d.Woken {
		byPool[d.Woken[i].VM.Pool] = append(byPool[d.Woken[i].VM.Pool], pods.of(d.Woken[i].Pods)...)
	}
	for _, landing := range slices.Concat(d.Existing, d.InFlight) {
		// Virtual pods are not in the index, because they do not exist in the API server.
		landed := pods.of(landing.Pods)
		node := nodes[landing.Name]
		if node == nil || len(landed) == 0 {
			continue
		}
		// A nominated node is protected from disruption.
		c.config.State.NominateNodeForPod(ctx, node.ProviderID())
		for _, pod := range landed {
			c.config.Recorder.Publish(karpscheduling.NominatePodEvent(pod, node.Node, node.NodeClaim))
		}
		pool := node.Labels()[karpv1.NodePoolLabelKey]
		byPool[pool] = append(byPool[pool], landed...)
		if node.NodeClaim != nil {
			byClaim[node.NodeClaim.Name] = append(byClaim[node.NodeClaim.Name], landed...)
		}
	}
	c.config.State.MarkPodSchedulingDecisions(ctx, failed, byPool, byClaim)
}

// Decided reports whether a decision has ended since the start. Until then, Limited is
// empty.
func (c *Controller) Decided() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.decided
}

// Limited returns the NodePools whose limit was the only obstacle for pods in the last
// decision.
func (c *Controller) Limited() []scheduling.Wait {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.limited))
}

func limited(d *scheduling.Decision) map[string]scheduling.Wait {
	waits := map[string]scheduling.Wait{}
	for _, refusal := range d.Refused {
		pool := refusal.Limited
		if pool == "" {
			continue
		}
		pods := append(waits[pool].Pods, refusal.Pod)
		waits[pool] = scheduling.Wait{
			NodePool: pool, Reason: v1alpha1.ReasonLimitReached, Pods: pods,
			Message: fmt.Sprintf("spec.limits leaves no room for another node (pods that need one: %d): raise spec.limits", len(pods)),
		}
	}
	return waits
}

// publishApprovals publishes an event on each pod that waits for a plan.
func (c *Controller) publishApprovals(ctx context.Context) error {
	for _, wait := range c.config.Approvals.Waits() {
		for _, name := range wait.Pods {
			pod := &corev1.Pod{}
			switch err := c.config.Client.Get(ctx, name, pod); {
			case apierrors.IsNotFound(err):
			case err != nil:
				return fmt.Errorf("reading pod %s: %w", name, err)
			default:
				c.publishWait(pod, &wait)
			}
		}
	}
	return nil
}

// publishOutages publishes an event on each pod whose VM waits for the end of an outage.
func (c *Controller) publishOutages(d *scheduling.Decision, states []scaler.VMState, pods podIndex) {
	outages := map[string]scaler.Outage{}
	for i := range states {
		outages[states[i].VM.Name] = scaler.OutageOf(&states[i])
	}
	for _, landing := range slices.Concat(d.Existing, d.InFlight) {
		if outage := outages[landing.Name]; outage != nil {
			reason, since := outage.Cause()
			for _, pod := range pods.of(landing.Pods) {
				c.publishWait(pod, &scheduling.Wait{Reason: reason, Since: since})
			}
		}
	}
}

// publishWait publishes an event about a pod that waits. Everyone who may read the pod's
// namespace can read the event, so it contains neither the backend's response nor an
// operator's comment.
func (c *Controller) publishWait(pod *corev1.Pod, wait *scheduling.Wait) {
	kind := corev1.EventTypeWarning
	since := wait.Since.UTC().Format(time.RFC3339)
	var message string
	switch wait.Reason {
	case v1alpha1.ReasonPendingApproval:
		kind = corev1.EventTypeNormal
		message = fmt.Sprintf("waits for approval of plan %s: to approve it, run numaform approve %s", wait.ScalePlan, wait.ScalePlan)
	case v1alpha1.ReasonPlanRejected:
		message = fmt.Sprintf("plan %s was rejected: to see why, run numaform plans %s; the same plan is not proposed again for a day, unless someone deletes it",
			wait.ScalePlan, wait.ScalePlan)
	case v1alpha1.ReasonPlanDenied:
		message = fmt.Sprintf("the guard denies plan %s: to list the rules, run numaform plans %s", wait.ScalePlan, wait.ScalePlan)
	case v1alpha1.ReasonStateBackendUnreachable:
		message = fmt.Sprintf("waits: numaform's state backend has been unreachable since %s: see the condition ScaleUpReady of the NodePool; numaform retries", since)
	case v1alpha1.ReasonChangePostponed:
		message = fmt.Sprintf("waits: numaform has been unable to begin changes since %s: see the condition ScaleUpReady of the NodePool; numaform retries", since)
	}
	c.config.Recorder.Publish(event.New(pod, kind, wait.Reason, message, wait.ScalePlan, since))
}

// nodesByName returns the nodes by name, and the NodeClaims that will become nodes by the
// names of their VMs.
func (c *Controller) nodesByName() map[string]*state.StateNode {
	nodes := map[string]*state.StateNode{}
	for node := range c.config.State.Nodes() {
		if node.Node != nil {
			nodes[node.Node.Name] = node
		}
		if node.NodeClaim != nil {
			nodes[node.NodeClaim.Annotations[v1alpha1.AnnotationVM]] = node
		}
	}
	return nodes
}
