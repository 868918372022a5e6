package scheduling

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// group is a set of pods that a scheduler cannot distinguish.
type group struct {
	// like is one of the pods; data is what Karpenter reads from it.
	like *corev1.Pod
	data *karpscheduling.PodData
	// full are the nodes and claims that cannot take another pod of the group. This never
	// changes: nodes only fill up, and claims only narrow.
	fullNodes  int
	fullClaims map[*karpscheduling.NodeClaim]bool
	// failed are the pods that were not placed. Once one fails, so do all later ones.
	failed []*corev1.Pod
}

// groupPods groups equal pods, and returns the group of each pod. It returns nil if there
// are none, or if placing one pod of the phase may make room for another: then pods must
// be tried one by one.
func (s *session) groupPods(pods []*corev1.Pod) map[types.UID]*group {
	if wide, narrow := findConstraints(pods); len(wide)+len(narrow) > 0 || s.request.ungrouped || s.labelsOpen(pods) {
		return nil
	}
	groups := map[types.UID]*group{}
	byRequests := map[string][]*group{}
	count := 0
	for _, pod := range pods {
		if selectedBy(s.world.repelling, pod) {
			return nil
		}
		if !s.isPlain(pod) {
			continue
		}
		requests := resources.RequestsForPods(pod)
		key := fmt.Sprintf("%d %d %d", requests.Cpu().MilliValue(), requests.Memory().Value(), len(requests))
		i := slices.IndexFunc(byRequests[key], func(g *group) bool { return g.has(pod, requests) })
		if i < 0 {
			i, count = len(byRequests[key]), count+1
			byRequests[key] = append(byRequests[key], newGroup(pod, requests))
		}
		groups[pod.UID] = byRequests[key][i]
	}
	if count == len(groups) {
		return nil
	}
	return groups
}

// labelsOpen reports whether the labels by which the pods select nodes may make room for
// other pods, or need the names of claims. Karpenter does not place a pod that requires a
// label on a node without it, but does so once the node has a pod that excludes values of
// the label.
func (s *session) labelsOpen(pods []*corev1.Pod) bool {
	wanted, shunned := map[string]bool{}, map[string]bool{}
	note := func(key string, operator corev1.NodeSelectorOperator) {
		if operator == corev1.NodeSelectorOpNotIn || operator == corev1.NodeSelectorOpDoesNotExist {
			shunned[key] = true
		} else {
			wanted[key] = true
		}
	}
	for _, pod := range pods {
		maps.Copy(wanted, keysOf(pod.Spec.NodeSelector))
		for _, expression := range expressionsOf(pod.Spec.Affinity) {
			note(expression.Key, expression.Operator)
		}
		for _, requirements := range s.volumes[pod.UID] {
			for key, requirement := range requirements {
				note(key, requirement.Operator())
			}
		}
	}
	for key := range shunned {
		if wanted[key] && !karpv1.WellKnownLabels.Has(key) {
			return true
		}
	}
	return wanted[corev1.LabelHostname] || shunned[corev1.LabelHostname]
}

func keysOf(labels map[string]string) map[string]bool {
	keys := map[string]bool{}
	for key := range labels {
		keys[key] = true
	}
	return keys
}

// expressionsOf returns the expressions of the terms about nodes, required and preferred.
func expressionsOf(affinity *corev1.Affinity) []corev1.NodeSelectorRequirement {
	if affinity == nil || affinity.NodeAffinity == nil {
		return nil
	}
	var all []corev1.NodeSelectorRequirement
	if required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for i := range required.NodeSelectorTerms {
			all = append(all, required.NodeSelectorTerms[i].MatchExpressions...)
		}
	}
	for i := range affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		all = append(all, affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference.MatchExpressions...)
	}
	return all
}

// isPlain reports whether only its requests, tolerations and node requirements determine
// a pod's placement: none of these can be relaxed, and other pods do not affect them in
// any other way.
func (s *session) isPlain(pod *corev1.Pod) bool {
	usesClaims := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	})
	if usesClaims || len(s.volumes[pod.UID]) > 0 || podutils.HasDRARequirements(pod) || len(scheduling.GetHostPorts(pod)) > 0 {
		return false
	}
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return true
	}
	affinity := pod.Spec.Affinity.NodeAffinity
	required := affinity.RequiredDuringSchedulingIgnoredDuringExecution
	return len(affinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 && (required == nil || len(required.NodeSelectorTerms) == 1)
}

func newGroup(pod *corev1.Pod, requests corev1.ResourceList) *group {
	requirements := scheduling.NewStrictPodRequirements(pod)
	return &group{
		like:       pod,
		data:       &karpscheduling.PodData{Requests: requests, Requirements: requirements, StrictRequirements: requirements},
		fullClaims: map[*karpscheduling.NodeClaim]bool{},
	}
}

// has reports whether the plain pod belongs to the group.
func (g *group) has(pod *corev1.Pod, requests corev1.ResourceList) bool {
	a, b := &g.like.Spec, &pod.Spec
	return apiequality.Semantic.DeepEqual(g.data.Requests, requests) &&
		apiequality.Semantic.DeepEqual(a.NodeSelector, b.NodeSelector) &&
		apiequality.Semantic.DeepEqual(a.Affinity, b.Affinity) &&
		apiequality.Semantic.DeepEqual(a.Tolerations, b.Tolerations)
}

// times returns the data of n pods as if they were one.
func (g *group) times(n int) *karpscheduling.PodData {
	data := *g.data
	data.Requests = corev1.ResourceList{}
	for name, amount := range g.data.Requests {
		amount = amount.DeepCopy()
		amount.Mul(int64(n))
		data.Requests[name] = amount
	}
	return &data
}

// atMost returns how many pods of the group fit, up to a limit. A place that fits some of
// them fits any smaller number.
func atMost(limit int, fits func(n int) bool) int {
	return sort.Search(limit, func(n int) bool { return !fits(n + 1) })
}

// grouped runs Karpenter's scheduler with equal pods handled together. The result is the
// same as Scheduler.Solve's for all pods at once: pods come in the same order, and each
// is placed where Solve would place it. One pod of a group is solved whenever it needs a
// new claim; equal pods are added where Karpenter would find that they fit.
type grouped struct {
	scheduler *karpscheduling.Scheduler
	groups    map[types.UID]*group
	nodes     []*karpscheduling.ExistingNode
	// claims is the scheduler's own list, in the order in which the scheduler left it,
	// because that order decides between equal claims.
	claims []*karpscheduling.NodeClaim
	errors map[*corev1.Pod]error
	// failed are the pods that were not placed, one of each group, in order.
	failed []*corev1.Pod
}

func solveGrouped(ctx context.Context, scheduler *karpscheduling.Scheduler, pods []*corev1.Pod, groups map[types.UID]*group) (karpscheduling.Results, error) {
	g := &grouped{scheduler: scheduler, groups: groups, errors: map[*corev1.Pod]error{}}
	none, err := scheduler.Solve(ctx, nil)
	if err != nil {
		return none, err
	}
	g.nodes = none.ExistingNodes
	data := map[types.UID]*karpscheduling.PodData{}
	for _, pod := range pods {
		if group := groups[pod.UID]; group != nil {
			data[pod.UID] = group.data
		} else {
			data[pod.UID] = &karpscheduling.PodData{Requests: resources.RequestsForPods(pod)}
		}
	}
	// NewQueue sorts its argument; the order is Solve's.
	queue := karpscheduling.NewQueue(slices.Clone(pods), data).List()
	for len(queue) > 0 {
		run := 1
		group := groups[queue[0].UID]
		for group != nil && run < len(queue) && groups[queue[run].UID] == group {
			run++
		}
		if group == nil {
			_, err = g.solve(ctx, queue[0], data[queue[0].UID])
		} else {
			err = g.place(ctx, group, queue[:run])
		}
		if err != nil {
			return none, err
		}
		queue = queue[run:]
	}
	if err := g.retry(ctx, data); err != nil {
		return none, err
	}
	return karpscheduling.Results{NewNodeClaims: g.claims, ExistingNodes: g.nodes, PodErrors: g.errors}, nil
}

// place places pods of a group: on nodes, then on claims, then on new claims.
func (g *grouped) place(ctx context.Context, group *group, pods []*corev1.Pod) error {
	pods = pods[g.onNodes(ctx, group, pods):]
	for len(pods) > 0 && len(group.failed) == 0 {
		pods = pods[g.onClaims(ctx, group, pods):]
		if len(pods) == 0 {
			return nil
		}
		placed, err := g.solve(ctx, pods[0], group.data)
		if err != nil {
			return err
		}
		if !placed {
			break
		}
		pods = pods[1:]
	}
	group.failed = append(group.failed, pods...)
	return nil
}

// retry tries pods that were not placed once more, as Solve does: few can be placed now,
// but the reasons are the final ones.
func (g *grouped) retry(ctx context.Context, data map[types.UID]*karpscheduling.PodData) error {
	for _, pod := range slices.Clone(g.failed) {
		placed, err := g.solve(ctx, pod, data[pod.UID])
		if err != nil {
			return err
		}
		group := g.groups[pod.UID]
		if group == nil {
			continue
		}
		for _, like := range group.failed[1:] { // the first is the pod itself
			if !placed {
				g.errors[like] = g.errors[pod]
			} else if _, err := g.solve(ctx, like, group.data); err != nil {
				return err
			}
		}
	}
	return nil
}

// onNodes adds pods to the nodes in order and returns how many.
func (g *grouped) onNodes(ctx context.Context, group *group, pods []*corev1.Pod) int {
	added := 0
	for ; group.fullNodes < len(g.nodes); group.fullNodes++ {
		node := g.nodes[group.fullNodes]
		n := atMost(len(pods)-added, func(n int) bool {
			_, _, err := node.CanAdd(ctx, group.like, group.times(n), nil, nil)
			return err == nil
		})
		if n > 0 {
			data := group.times(n)
			requirements, _, _ := node.CanAdd(ctx, pods[added], data, nil, nil)
			node.Add(ctx, pods[added], data, requirements, nil, nil)
			node.Pods = append(node.Pods, pods[added+1:added+n]...)
			added += n
		}
		if added == len(pods) {
			break
		}
	}
	return added
}

// onClaims adds each pod to the claim with the fewest pods, and returns how many it
// added.
func (g *grouped) onClaims(ctx context.Context, group *group, pods []*corev1.Pod) int {
	room, taken := map[*karpscheduling.NodeClaim]int{}, map[*karpscheduling.NodeClaim][]*corev1.Pod{}
	added := 0
	for ; added < len(pods); added++ {
		claim := g.next(ctx, group, room, len(pods)-added)
		if claim == nil {
			break
		}
		room[claim]--
		taken[claim] = append(taken[claim], pods[added])
		claim.Pods = append(claim.Pods, pods[added])
	}
	for _, claim := range g.claims {
		if n := len(taken[claim]); n > 0 {
			data := group.times(n)
			requirements, instanceTypes, offerings, _, _ := claim.CanAdd(ctx, taken[claim][0], data, false, nil)
			claim.Pods = claim.Pods[:len(claim.Pods)-n]
			claim.Add(ctx, taken[claim][0], data, requirements, instanceTypes, offerings, nil, nil)
			claim.Pods = append(claim.Pods, taken[claim][1:]...)
		}
	}
	return added
}

// next returns the claim for the next pod, or nil. room is how many more pods of the
// group a claim can take, where that is known.
func (g *grouped) next(ctx context.Context, group *group, room map[*karpscheduling.NodeClaim]int, limit int) *karpscheduling.NodeClaim {
	sort.Slice(g.claims, func(a, b int) bool { return len(g.claims[a].Pods) < len(g.claims[b].Pods) })
	for _, claim := range g.claims {
		if group.fullClaims[claim] {
			continue
		}
		if _, known := room[claim]; !known {
			room[claim] = atMost(limit, func(n int) bool {
				_, _, _, _, err := claim.CanAdd(ctx, group.like, group.times(n), false, nil)
				return err == nil
			})
		}
		if room[claim] > 0 {
			return claim
		}
		group.fullClaims[claim] = true
	}
	return nil
}

// solve passes one pod to Karpenter's scheduler, and reports whether it was placed. Solve
// ends with changes to all claims that should happen only once, at the very end: solve
// reverts the resources that these add. The name that a claim also loses matters only to
// pods that count others on their node.
func (g *grouped) solve(ctx context.Context, pod *corev1.Pod, data *karpscheduling.PodData) (placed bool, err error) {
	before, pods := map[*karpscheduling.NodeClaim]corev1.ResourceList{}, map[*karpscheduling.NodeClaim]int{}
	for _, claim := range g.claims {
		before[claim], pods[claim] = claim.Spec.Resources.Requests, len(claim.Pods)
	}
	results, err := g.scheduler.Solve(ctx, []*corev1.Pod{pod})
	if err != nil {
		return false, err
	}
	g.claims = results.NewNodeClaims
	for _, claim := range g.claims {
		claim.Spec.Resources.Requests = before[claim]
		if len(claim.Pods) > pods[claim] {
			claim.Spec.Resources.Requests = resources.Merge(before[claim], data.Requests)
		}
	}
	if len(results.PodErrors) == 0 {
		delete(g.errors, pod)
		return true, nil
	}
	for _, reason := range results.PodErrors {
		if g.errors[pod] == nil {
			g.failed = append(g.failed, pod)
		}
		g.errors[pod] = reason
	}
	return false, nil
}
