package scheduling

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/daemonset"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// daemonPods returns a pod for each DaemonSet, as its nodes will run it.
func (s *session) daemonPods(ctx context.Context) ([]*corev1.Pod, error) {
	var sets appsv1.DaemonSetList
	if err := s.client.List(ctx, &sets); err != nil {
		return nil, fmt.Errorf("listing daemonsets: %w", err)
	}
	var pods []*corev1.Pod
	for i := range sets.Items {
		pod := s.world.state.GetDaemonSetPod(&sets.Items[i])
		if pod == nil {
			pods = append(pods, daemonset.PodForDaemonSet(&sets.Items[i]))
			continue
		}
		// The controller replaces the required node affinity by the node's name.
		pod.Spec.Affinity = sets.Items[i].Spec.Template.Spec.Affinity.DeepCopy()
		pods = append(pods, pod)
	}
	return pods, nil
}

// daemonRequests returns the resources that DaemonSets use on each node of the pool.
func (p *pool) daemonRequests(daemons []*corev1.Pod) corev1.ResourceList {
	template := p.anyHost().Spec.Template
	offered := scheduling.NewNodeSelectorRequirementsWithMinValues(template.Spec.Requirements...)
	offered.Add(scheduling.NewLabelRequirements(template.Labels).Values()...)
	return requestsOf(daemons, template.Spec.Taints, func(wanted scheduling.Requirements) bool {
		return offered.IsCompatible(wanted, scheduling.AllowUndefinedWellKnownLabels)
	})
}

// requestsOn returns the resources that DaemonSets use on a claim's node.
func requestsOn(claim *karpv1.NodeClaim, daemons []*corev1.Pod) corev1.ResourceList {
	labels := scheduling.NewLabelRequirements(claim.Labels)
	return requestsOf(daemons, claim.Spec.Taints, func(wanted scheduling.Requirements) bool { return labels.IsCompatible(wanted) })
}

// requestsOf returns the requests of the pods that tolerate the taints and for which met
// returns true in at least one of their ways.
func requestsOf(pods []*corev1.Pod, taints []corev1.Taint, met func(scheduling.Requirements) bool) corev1.ResourceList {
	var on []*corev1.Pod
	for _, pod := range pods {
		if slices.ContainsFunc(waysOf(pod), met) &&
			!slices.ContainsFunc(taints, func(taint corev1.Taint) bool { return !tolerates(pod, taint) }) {
			on = append(on, pod)
		}
	}
	if len(on) == 0 {
		return nil
	}
	return resources.RequestsForPods(on...)
}

// waysOf returns a pod's requirements for a node, one for each of its node affinity
// terms: any one of them is sufficient.
func waysOf(pod *corev1.Pod) []scheduling.Requirements {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return []scheduling.Requirements{scheduling.NewStrictPodRequirements(pod)}
	}
	var ways []scheduling.Requirements
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		one := pod.DeepCopy()
		one.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = []corev1.NodeSelectorTerm{term}
		ways = append(ways, scheduling.NewStrictPodRequirements(one))
	}
	return ways
}
