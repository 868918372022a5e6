package scheduling

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/daemonset"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
)

// The phases of a decision. Pods that count one another over hosts need room on certain
// hosts, so they are scheduled before the pods without such constraints. Virtual pods
// follow, so that they do not take room from real ones, and then the pods of standby
// buffers.
const (
	constrained = iota
	unconstrained
	virtualConstrained
	virtualUnconstrained
	standbyConstrained
	standbyUnconstrained
	phases
)

// readPods finds the pending pods: the ones for which the scheduler found no room, and
// the ones on nodes being deleted.
func (s *session) readPods(ctx context.Context) error {
	pending, err := nodeutils.GetProvisionablePods(ctx, s.client)
	if err != nil {
		return err
	}
	_, deleting, err := s.state.nodes(ctx, nil, nil)
	if err != nil {
		return err
	}
	moving, err := deleting.CurrentlyReschedulablePods(ctx, s.client, clock.RealClock{}, silence{})
	if err != nil {
		return fmt.Errorf("reading pods of nodes that are being deleted: %w", err)
	}
	pending = append(pending, moving...)
	slices.SortFunc(pending, compareKeys[*corev1.Pod])
	pending = slices.CompactFunc(pending, func(a, b *corev1.Pod) bool { return compareKeys(a, b) == 0 })

	virtual := virtualCopies(s.request.Virtual)
	standby := keepApart(virtualCopies(s.request.Standby))

	s.volumes = map[types.UID][]scheduling.Requirements{}
	s.pods[constrained], s.pods[unconstrained] = divide(s.validPods(ctx, pending), s.volumes)
	s.pods[virtualConstrained], s.pods[virtualUnconstrained] = divide(s.validPods(ctx, virtual), s.volumes)
	s.pods[standbyConstrained], s.pods[standbyUnconstrained] = divide(s.validPods(ctx, standby), s.volumes)
	return ctx.Err()
}

// virtualCopies returns copies of virtual pods, sorted and of the same age, because
// Karpenter creates them again for each call.
func virtualCopies(pods []*corev1.Pod) []*corev1.Pod {
	var sorted []*corev1.Pod
	for _, pod := range pods {
		pod = pod.DeepCopy()
		pod.CreationTimestamp = metav1.Unix(writtenAt, 0)
		sorted = append(sorted, pod)
	}
	slices.SortFunc(sorted, compareKeys[*corev1.Pod])
	return sorted
}

// labelStandby is a label within a decision, by which the pods of standby buffers avoid
// each other.
const labelStandby = "scheduling." + v1alpha1.Group + "/standby"

// keepApart adds an anti-affinity to the pods of standby buffers, so that each needs its own
// VM. A buffer then has as many VMs as replicas, and a real pod does not wake a VM sized for
// several.
func keepApart(pods []*corev1.Pod) []*corev1.Pod {
	var namespaces []string
	for _, pod := range pods {
		namespaces = append(namespaces, pod.Namespace)
	}
	slices.Sort(namespaces)
	term := corev1.PodAffinityTerm{
		TopologyKey:   corev1.LabelHostname,
		Namespaces:    slices.Compact(namespaces),
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelStandby: "true"}},
	}
	for _, pod := range pods {
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		pod.Labels[labelStandby] = "true"
		if pod.Spec.Affinity == nil {
			pod.Spec.Affinity = &corev1.Affinity{}
		}
		if pod.Spec.Affinity.PodAntiAffinity == nil {
			pod.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		anti := pod.Spec.Affinity.PodAntiAffinity
		anti.RequiredDuringSchedulingIgnoredDuringExecution = append(anti.RequiredDuringSchedulingIgnoredDuringExecution, term)
	}
	return pods
}

// validPods returns the pods that a decision can consider, and records the refusals of the
// others.
func (s *session) validPods(ctx context.Context, pods []*corev1.Pod) []*corev1.Pod {
	var valid []*corev1.Pod
	topologies := karpscheduling.NewVolumeTopology(s.client)
	for _, pod := range pods {
		err := validateNodeRequirements(ctx, pod)
		var requirements []scheduling.Requirements
		if err == nil {
			err = topologies.ValidatePersistentVolumeClaims(ctx, pod)
			if err == nil {
				requirements, err = topologies.GetRequirements(ctx, pod)
			}
			if err != nil {
				err = fmt.Errorf("its volumes cannot be used: %w", err)
			}
		}
		if err != nil {
			s.invalid = append(s.invalid, Refusal{Pod: client.ObjectKeyFromObject(pod), Reason: err.Error()})
			continue
		}
		if len(requirements) > 0 {
			s.volumes[pod.UID] = requirements
		}
		valid = append(valid, pod)
	}
	return valid
}

// validateNodeRequirements returns why Karpenter would ignore the pod. Karpenter's own
// check is a method of its Provisioner, which starts goroutines that never end.
func validateNodeRequirements(ctx context.Context, pod *corev1.Pod) error {
	for _, requirement := range scheduling.NewPodRequirements(pod) {
		if requirement.Key == karpv1.NodePoolLabelKey && requirement.Operator() == corev1.NodeSelectorOpDoesNotExist {
			return fmt.Errorf("it excludes Karpenter's nodes: it requires that label %s does not exist; remove that requirement", karpv1.NodePoolLabelKey)
		}
	}

	var expressions []corev1.NodeSelectorRequirement
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		expressions = append(expressions, corev1.NodeSelectorRequirement{
			Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{pod.Spec.NodeSelector[key]},
		})
	}
	for _, term := range nodeAffinityTerms(pod) {
		if len(term.MatchFields) > 0 {
			return fmt.Errorf("its node affinity uses matchFields, which is not supported: use matchExpressions")
		}
		expressions = append(expressions, term.MatchExpressions...)
	}
	for _, r := range expressions {
		requirement := karpv1.NodeSelectorRequirementWithMinValues{Key: r.Key, Operator: r.Operator, Values: r.Values}
		if err := karpv1.ValidateRequirement(ctx, requirement); err != nil {
			return fmt.Errorf("its nodeSelector or node affinity is invalid: %w", err)
		}
	}
	return nil
}

// nodeAffinityTerms returns the pod's required node affinity terms, any one of which is
// sufficient.
func nodeAffinityTerms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// nodeAlternatives returns a pod's requirements for a node, one for each of its node
// affinity terms: any one of them is sufficient.
func nodeAlternatives(pod *corev1.Pod) []scheduling.Requirements {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return []scheduling.Requirements{scheduling.NewStrictPodRequirements(pod)}
	}
	var alternatives []scheduling.Requirements
	for _, term := range nodeAffinityTerms(pod) {
		one := pod.DeepCopy()
		one.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = []corev1.NodeSelectorTerm{term}
		alternatives = append(alternatives, scheduling.NewStrictPodRequirements(one))
	}
	return alternatives
}

// divide separates the pods that must be scheduled first: pods that are restricted to
// some hosts, and pods that count others, or are counted, in domains larger than a node.
// If there are any, all pods that count others on their node, or use its ports, are
// added, because these are counted in one phase only. The other pods are unconstrained.
// Pods that count in domains larger than a node accept only new VMs whose host is fixed
// from the start: Karpenter would choose among equal hosts at random, and treat a VM with
// several possible hosts as being on all of them.
func divide(pods []*corev1.Pod, volumes map[types.UID][]scheduling.Requirements) (constrained, unconstrained []*corev1.Pod) {
	restricted := func(pod *corev1.Pod) bool {
		for _, requirements := range append([]scheduling.Requirements{scheduling.NewStrictPodRequirements(pod)}, volumes[pod.UID]...) {
			for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelHostname, corev1.LabelArchStable} {
				if requirements.Has(key) {
					return true
				}
			}
		}
		return false
	}
	wide, narrow := findConstraints(pods)
	if len(wide) == 0 && !slices.ContainsFunc(pods, restricted) {
		return nil, pods
	}
	for _, pod := range pods {
		ownWide, ownNarrow := findConstraints([]*corev1.Pod{pod})
		switch {
		case len(ownWide) > 0 || selectedBy(wide, pod):
			constrained = append(constrained, refuseAnyHost(pod))
		case restricted(pod) || len(ownNarrow) > 0 || selectedBy(narrow, pod) || len(scheduling.GetHostPorts(pod)) > 0:
			constrained = append(constrained, pod)
		default:
			unconstrained = append(unconstrained, pod)
		}
	}
	return constrained, unconstrained
}

// constraint is a pod's rule that counts other pods in a topology domain.
type constraint struct {
	namespaces []string // nil means all
	selector   labels.Selector
}

func selectedBy(constraints []constraint, pod *corev1.Pod) bool {
	return slices.ContainsFunc(constraints, func(c constraint) bool {
		return (c.namespaces == nil || slices.Contains(c.namespaces, pod.Namespace)) && c.selector.Matches(labels.Set(pod.Labels))
	})
}

// findConstraints returns the pods' rules that count pods in domains larger than a node,
// and the rules that count pods on single nodes.
func findConstraints(pods []*corev1.Pod) (wide, narrow []constraint) {
	seen := map[string]bool{}
	add := func(namespaces []string, key string, selector *metav1.LabelSelector) {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return
		}
		id := fmt.Sprintf("%s %t %q %s", key, namespaces == nil, namespaces, parsed)
		if seen[id] {
			return
		}
		seen[id] = true
		if key == corev1.LabelHostname {
			narrow = append(narrow, constraint{namespaces: namespaces, selector: parsed})
		} else {
			wide = append(wide, constraint{namespaces: namespaces, selector: parsed})
		}
	}
	for _, pod := range pods {
		for _, spread := range pod.Spec.TopologySpreadConstraints {
			add([]string{pod.Namespace}, spread.TopologyKey, spread.LabelSelector)
		}
		for _, term := range podTerms(pod.Spec.Affinity) {
			namespaces := term.Namespaces
			if term.NamespaceSelector == nil && len(namespaces) == 0 {
				namespaces = []string{pod.Namespace}
			}
			if term.NamespaceSelector != nil {
				namespaces = nil
			}
			add(namespaces, term.TopologyKey, term.LabelSelector)
		}
	}
	return wide, narrow
}

// podTerms returns the terms, required and preferred, about other pods.
func podTerms(affinity *corev1.Affinity) []corev1.PodAffinityTerm {
	if affinity == nil {
		return nil
	}
	var terms []corev1.PodAffinityTerm
	if a := affinity.PodAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
		for _, preferred := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, preferred.PodAffinityTerm)
		}
	}
	if a := affinity.PodAntiAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
		for _, preferred := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, preferred.PodAffinityTerm)
		}
	}
	return terms
}

// refuseAnyHost returns a copy of the pod that does not fit a VM without a fixed host.
func refuseAnyHost(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	affinity := pod.Spec.Affinity.NodeAffinity
	if affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{}
	}
	required := affinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(required.NodeSelectorTerms) == 0 {
		required.NodeSelectorTerms = make([]corev1.NodeSelectorTerm, 1)
	}
	for i := range required.NodeSelectorTerms {
		term := &required.NodeSelectorTerms[i]
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: labelHostChoice, Operator: corev1.NodeSelectorOpNotIn, Values: []string{hostChoiceAny},
		})
	}
	return pod
}

// daemonPods returns a pod for each DaemonSet, as nodes run it.
func (s *session) daemonPods(ctx context.Context) ([]*corev1.Pod, error) {
	var sets appsv1.DaemonSetList
	if err := s.client.List(ctx, &sets); err != nil {
		return nil, fmt.Errorf("listing daemonsets: %w", err)
	}
	var pods []*corev1.Pod
	for i := range sets.Items {
		pod := s.state.karpenter.GetDaemonSetPod(&sets.Items[i])
		if pod == nil {
			pods = append(pods, daemonset.PodForDaemonSet(&sets.Items[i]))
			continue
		}
		// The DaemonSet controller replaces the required node affinity with the node's
		// name.
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
	return requestsOf(daemons, template.Spec.Taints, func(required scheduling.Requirements) bool {
		return offered.IsCompatible(required, scheduling.AllowUndefinedWellKnownLabels)
	})
}

// requestsOf returns the requests of the pods that tolerate the taints and for which met
// returns true for at least one of their alternatives.
func requestsOf(pods []*corev1.Pod, taints []corev1.Taint, met func(scheduling.Requirements) bool) corev1.ResourceList {
	var on []*corev1.Pod
	for _, pod := range pods {
		if slices.ContainsFunc(nodeAlternatives(pod), met) &&
			!slices.ContainsFunc(taints, func(taint corev1.Taint) bool { return !tolerates(pod, taint) }) {
			on = append(on, pod)
		}
	}
	if len(on) == 0 {
		return nil
	}
	return resources.RequestsForPods(on...)
}
