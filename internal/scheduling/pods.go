package scheduling

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// judgePod returns the requirements of the pod's volumes for its node, or why Karpenter
// would ignore the pod. Karpenter's own check is a method of its Provisioner, which
// starts goroutines that never end.
func judgePod(ctx context.Context, topologies *karpscheduling.VolumeTopology, pod *corev1.Pod) ([]scheduling.Requirements, error) {
	for _, requirement := range scheduling.NewPodRequirements(pod) {
		if requirement.Key == karpv1.NodePoolLabelKey && requirement.Operator() == corev1.NodeSelectorOpDoesNotExist {
			return nil, fmt.Errorf("it wants no node of Karpenter: %s must not exist", karpv1.NodePoolLabelKey)
		}
	}
	for _, term := range requiredTerms(pod) {
		if len(term.MatchFields) > 0 {
			return nil, fmt.Errorf("its node affinity uses matchFields, which is not supported: use matchExpressions")
		}
		for _, r := range term.MatchExpressions {
			requirement := karpv1.NodeSelectorRequirementWithMinValues{Key: r.Key, Operator: r.Operator, Values: r.Values}
			if err := karpv1.ValidateRequirement(ctx, requirement); err != nil {
				return nil, fmt.Errorf("its node affinity is not valid: %w", err)
			}
		}
	}
	if err := topologies.ValidatePersistentVolumeClaims(ctx, pod); err != nil {
		return nil, fmt.Errorf("its volumes cannot be used: %w", err)
	}
	requirements, err := topologies.GetRequirements(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("its volumes cannot be used: %w", err)
	}
	return requirements, nil
}

// requiredTerms returns the pod's requirements for nodes: one term for each key of its
// node selector, all of which are required, then its node affinity terms, any one of
// which is sufficient.
func requiredTerms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	var terms []corev1.NodeSelectorTerm
	var keys []string
	for key := range pod.Spec.NodeSelector {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{pod.Spec.NodeSelector[key]}},
		}})
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms = append(terms, a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms...)
	}
	return terms
}
