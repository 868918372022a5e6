package scheduling

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// constraint is a pod's rule that counts other pods in a topology domain.
type constraint struct {
	namespaces []string // nil means all
	selector   labels.Selector
}

// divide separates the pods that must be scheduled first: pods that are restricted to
// some hosts, and pods that count others, or are counted, in domains larger than a node.
// If there are any, all pods that count others on their node, or use its ports, are
// added, because these are counted in one phase only. The other pods are easy. Choosy
// pods that count in domains larger than a node accept only new VMs whose host is fixed
// from the start: Karpenter would choose among equal hosts at random, and treat a VM with
// several possible hosts as being on all of them.
func divide(pods []*corev1.Pod, volumes map[types.UID][]scheduling.Requirements) (choosy, easy []*corev1.Pod) {
	wide, narrow := findConstraints(pods)
	bound := func(pod *corev1.Pod) bool { return isBound(pod, volumes[pod.UID]) }
	if len(wide) == 0 && !slices.ContainsFunc(pods, bound) {
		return nil, pods
	}
	for _, pod := range pods {
		ownWide, ownNarrow := findConstraints([]*corev1.Pod{pod})
		switch {
		case len(ownWide) > 0 || selectedBy(wide, pod):
			choosy = append(choosy, refuseAnyHost(pod))
		case bound(pod) || len(ownNarrow) > 0 || selectedBy(narrow, pod) || len(scheduling.GetHostPorts(pod)) > 0:
			choosy = append(choosy, pod)
		default:
			easy = append(easy, pod)
		}
	}
	return choosy, easy
}

// isBound reports whether the pod or its volumes are restricted to some hosts.
func isBound(pod *corev1.Pod, volumes []scheduling.Requirements) bool {
	for _, requirements := range append([]scheduling.Requirements{scheduling.NewStrictPodRequirements(pod)}, volumes...) {
		for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelHostname, corev1.LabelArchStable} {
			if requirements.Has(key) {
				return true
			}
		}
	}
	return false
}

func selectedBy(constraints []constraint, pod *corev1.Pod) bool {
	return slices.ContainsFunc(constraints, func(c constraint) bool { return c.selects(pod) })
}

func (c *constraint) selects(pod *corev1.Pod) bool {
	return (c.namespaces == nil || slices.Contains(c.namespaces, pod.Namespace)) && c.selector.Matches(labels.Set(pod.Labels))
}

// findConstraints returns the pods' rules that count in domains larger than a node, and
// the rules that count on single nodes.
func findConstraints(pods []*corev1.Pod) (wide, narrow []constraint) {
	seen := map[string]bool{}
	add := func(namespaces []string, key string, selector *metav1.LabelSelector) {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		id := key + " " + constraintID(namespaces, parsed)
		if err != nil || seen[id] {
			return
		}
		seen[id] = true
		if key == corev1.LabelHostname {
			narrow = append(narrow, constraint{namespaces, parsed})
		} else {
			wide = append(wide, constraint{namespaces, parsed})
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

func constraintID(namespaces []string, selector labels.Selector) string {
	id := "*"
	if namespaces != nil {
		id = ""
	}
	for _, namespace := range namespaces {
		id += namespace + "/"
	}
	if selector != nil {
		id += "?" + selector.String()
	}
	return id
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
