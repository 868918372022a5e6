package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// solution is the scheduler's result, up to a phase.
type solution struct {
	phase int
	// claims are the further VMs that the pods need.
	claims []fleet.Spec
	// wakes are the standby VMs that real pods need.
	wakes []*inflight
	// landed are the pods on nodes and existing VMs, by provider ID; names are the names
	// of these nodes.
	landed map[string][]*corev1.Pod
	names  map[string]string
	failed map[types.UID]error
	// unmet is the number of pods that found no room on existing nodes and added VMs.
	unmet int
}

// solve schedules the pods of each phase on existing nodes and added VMs. It ends with the
// phase that needs further VMs, or standby VMs.
func (s *session) solve(ctx context.Context) (*solution, error) {
	sol := &solution{landed: map[string][]*corev1.Pod{}, names: map[string]string{}, failed: map[types.UID]error{}}
	for sol.phase = constrained; ; sol.phase++ {
		if len(s.pods[sol.phase]) > 0 {
			results, err := s.runKarpenter(ctx, sol)
			if err != nil {
				return nil, err
			}
			if err := s.addResults(results, sol); err != nil {
				return nil, err
			}
		}
		if len(sol.claims) > 0 || len(sol.wakes) > 0 || sol.phase == phases-1 {
			return sol, nil
		}
	}
}

// runKarpenter runs Karpenter's scheduler for the pods of a phase, on existing nodes and
// added VMs, minus the resources that earlier phases used.
func (s *session) runKarpenter(ctx context.Context, sol *solution) (karpscheduling.Results, error) {
	defer s.request.timed(PartSolve, time.Now())
	var none karpscheduling.Results
	unjoined := s.unjoined()
	nodes, _, err := s.state.nodes(ctx, unjoined, sol.landed)
	if err != nil {
		return none, err
	}
	s.closeNodes(nodes, sol.phase)
	pods := slices.Clone(s.pods[sol.phase])
	open, full := split(nodes, pods)

	// Pods spread over the hosts of the VMs that can take pods, even if these are full.
	var known []topology.HostID
	for _, vm := range unjoined {
		if !vm.lost && vm.takes(sol.phase) {
			known = append(known, vm.Host)
		}
	}
	slices.SortFunc(known, topology.HostID.Compare)
	known = slices.Compact(known)

	instanceTypes := map[string][]*cloudprovider.InstanceType{}
	var whole, byHost []*karpv1.NodePool
	for _, p := range s.pools {
		if p.problem != "" {
			continue
		}
		offerings := makeOfferings(p, s.site.Fits, s.closed, known)
		instanceTypes[p.Name] = offerings.types
		anyHost := p.anyHost()
		for _, node := range full {
			if node.Labels()[karpv1.NodePoolLabelKey] == p.Name {
				anyHost.Spec.Limits = karpv1.Limits(resources.Subtract(corev1.ResourceList(anyHost.Spec.Limits), node.Capacity()))
			}
		}
		whole = append(whole, anyHost)
		byHost = append(byHost, anyHost)
		if sol.phase == constrained || sol.phase == virtualConstrained || sol.phase == standbyConstrained {
			byHost = append(byHost, p.perHost(anyHost, offerings.room)...)
		}
	}

	// One worker tries nodes in order: with more, the same input could give different
	// results.
	opts := []karpscheduling.Options{
		karpscheduling.NumConcurrentReconciles(1),
		karpscheduling.MinValuesPolicy(options.FromContext(ctx).MinValuesPolicy),
	}
	if s.request.IgnorePreferences {
		opts = append(opts, karpscheduling.IgnorePreferences)
	}
	domains, err := karpscheduling.NewTopology(ctx, s.client, s.state.karpenter, nodes, whole, instanceTypes, pods, opts...)
	if err != nil {
		return none, fmt.Errorf("counting topology domains: %w", err)
	}
	daemons, err := s.daemonPods(ctx)
	if err != nil {
		return none, err
	}
	scheduler := karpscheduling.NewScheduler(ctx, s.client, byHost, s.state.karpenter, open, domains, instanceTypes,
		daemons, silence{}, clock.RealClock{}, s.volumes, nil, opts...)
	results, err := scheduler.Solve(ctx, pods)
	if err != nil {
		return none, fmt.Errorf("scheduling pods: %w", err)
	}
	return results.TruncateInstanceTypes(ctx, karpscheduling.MaxInstanceTypes), nil
}

// split returns copies of the nodes that may have room for one of the pods, and the nodes
// that have too little of some resource for all of them. For Karpenter, to copy a node and
// to compare it with each pod are most of the cost of a decision in a large fleet.
func split(nodes []*state.StateNode, pods []*corev1.Pod) (open, full []*state.StateNode) {
	var least corev1.ResourceList // of each resource that all pods request
	for i, pod := range pods {
		requests := resources.RequestsForPods(pod)
		if i == 0 {
			least = requests
		}
		for name, quantity := range least {
			if other, requested := requests[name]; !requested {
				delete(least, name)
			} else if other.Cmp(quantity) < 0 {
				least[name] = other
			}
		}
	}
	for _, node := range nodes {
		if resources.Fits(least, node.Available()) {
			open = append(open, node.DeepCopy())
		} else {
			full = append(full, node)
		}
	}
	return open, full
}

// addResults adds the needed parts of a phase's results to the solution, and checks that
// no pod is missing.
func (s *session) addResults(results karpscheduling.Results, sol *solution) error {
	pending := len(s.pods[sol.phase])
	landed := 0
	unmet := len(results.PodErrors)
	for _, node := range results.ExistingNodes {
		if len(node.Pods) == 0 {
			continue
		}
		id := node.ProviderID()
		sol.landed[id] = append(sol.landed[id], node.Pods...)
		sol.names[id] = node.Name()
		landed += len(node.Pods)
	}
	for _, claim := range results.NewNodeClaims {
		unmet += len(claim.Pods)
		spec, err := s.specFor(claim)
		if err != nil {
			for _, pod := range claim.Pods {
				sol.failed[pod.UID] = err
			}
			continue
		}
		sol.claims = append(sol.claims, spec)
	}
	for pod, err := range results.PodErrors {
		sol.failed[pod.UID] = err
	}
	if landed+unmet != pending {
		return fmt.Errorf("of %d pods, Karpenter's scheduler placed %d and refused %d", pending, landed, unmet)
	}
	for _, vm := range s.resting() {
		if pods := sol.landed[providerID(&vm.VM)]; len(pods) > 0 && sol.phase < virtualConstrained {
			sol.wakes = append(sol.wakes, vm)
			unmet += len(pods)
		}
	}
	sol.unmet += unmet
	slices.SortStableFunc(sol.claims, func(a, b fleet.Spec) int { return cmp.Compare(a.Pool, b.Pool) })
	return nil
}

// specFor returns the Spec of the VM that Karpenter needs: the cheapest type that fits, on
// any host that offers it at that price and satisfies the pods.
func (s *session) specFor(claim *karpscheduling.NodeClaim) (fleet.Spec, error) {
	pool := s.pools.find(claim.NodePoolName)
	if pool == nil {
		return fleet.Spec{}, fmt.Errorf("NodePool %q no longer exists", claim.NodePoolName)
	}
	var best candidate
	for _, it := range claim.InstanceTypeOptions {
		i := slices.IndexFunc(pool.types, func(t InstanceType) bool { return t.Name == it.Name })
		suits := byPrice(suiting(it, claim.Requirements, resources.RequestsForPods(claim.Pods...)))
		if i < 0 || len(suits) == 0 {
			continue
		}
		if next := newCandidate(&pool.types[i], suits[0]); best.size == nil || compareTypes(best.size, next.size) > 0 {
			best = next
		}
	}
	if best.size == nil {
		return fleet.Spec{}, fmt.Errorf("NodePool %q: no suitable instance type is available on any host any longer", claim.NodePoolName)
	}
	spec := pool.class.spec(pool.Name, best.size, slices.Compact(best.hosts))
	spec.Labels = chosenLabels(pool, claim.Requirements)
	spec.Demand = demandOf(claim.Pods)
	return spec, nil
}

func compareTypes(a, b *InstanceType) int {
	return cmp.Or(cmp.Compare(a.Price, b.Price), cmp.Compare(a.VCPUs, b.VCPUs), cmp.Compare(a.MemoryMiB, b.MemoryMiB),
		cmp.Compare(a.DiskGiB, b.DiskGiB), cmp.Compare(a.Name, b.Name))
}

// chosenLabels returns the labels for which the pool allows several values and the pods
// left a choice: the first of these values, or the first number if any value is allowed.
func chosenLabels(p *pool, requirements scheduling.Requirements) map[string]string {
	var labels map[string]string
	for _, r := range p.Spec.Template.Spec.Requirements {
		requirement := requirements.Get(r.Key)
		value, some := firstValue(requirement)
		if karpv1.WellKnownLabels.Has(r.Key) || r.Key == v1alpha1.LabelInstanceFamily || r.Key == corev1.LabelHostname ||
			!some || r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 {
			continue
		}
		if labels == nil {
			labels = map[string]string{}
		}
		labels[r.Key] = value
	}
	return labels
}

func firstValue(requirement *scheduling.Requirement) (string, bool) {
	switch requirement.Operator() {
	case corev1.NodeSelectorOpIn:
		return slices.Min(requirement.Values()), true
	case corev1.NodeSelectorOpDoesNotExist:
		return "", false
	}
	for i := range 10_000 {
		if value := strconv.Itoa(i); requirement.Has(value) {
			return value, true
		}
	}
	return "", false
}
