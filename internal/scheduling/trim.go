package scheduling

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// Pods that move between rounds leave behind VMs with few pods. trim tries up to this
// many of the VMs whose usage is below trimBelow.
const (
	trimTries = 10
	trimBelow = 0.6
)

// trim removes new VMs whose pods fit on the others, the least used first. It returns the
// solution without them, which like the given one needs no further VM.
func (s *session) trim(ctx context.Context, sol *solution) (*solution, error) {
	tried := map[*inflight]bool{}
	for range trimTries {
		candidates := slices.DeleteFunc(s.littleUsed(sol), func(vm *inflight) bool { return tried[vm] })
		if len(candidates) == 0 {
			break
		}
		vm, before, plan := candidates[0], slices.Clone(s.added), s.plan.Clone()
		tried[vm] = true
		s.drop([]*inflight{vm})
		without, err := s.solve(ctx)
		if err != nil {
			return nil, err
		}
		if len(without.claims) == 0 && without.unmet <= sol.unmet && len(s.idle(without)) == 0 {
			sol = without
			continue
		}
		s.added, s.plan = before, plan
	}
	return sol, nil
}

// littleUsed returns the new VMs with low usage, the least used first.
func (s *session) littleUsed(sol *solution) []*inflight {
	share := map[*inflight]float64{}
	var candidates []*inflight
	for _, vm := range s.added {
		share[vm] = usedShare(sol.landed[providerID(&vm.VM)], vm.claim.Status.Allocatable)
		if share[vm] < trimBelow {
			candidates = append(candidates, vm)
		}
	}
	slices.SortFunc(candidates, func(a, b *inflight) int {
		return cmp.Or(cmp.Compare(share[a], share[b]), compareInflight(a, b))
	})
	return candidates
}

// usedShare returns the pods' share of the node's scarcest resource, from 0 to 1.
func usedShare(pods []*corev1.Pod, allocatable corev1.ResourceList) float64 {
	used := 0.0
	requests := resources.RequestsForPods(pods...)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		have, want := allocatable[name], requests[name]
		if have.Sign() > 0 {
			used = max(used, want.AsApproximateFloat64()/have.AsApproximateFloat64())
		}
	}
	return used
}
