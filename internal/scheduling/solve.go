package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
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
	// claims are the further VMs that it needs.
	claims []fleet.Spec
	// landed are the pods on nodes and existing VMs, by provider ID; names are the names
	// of those nodes.
	landed map[string][]*corev1.Pod
	names  map[string]string
	failed map[types.UID]error
	// unmet is the number of pods that found no room on what exists.
	unmet int
}

// solve schedules the pods of each phase on what exists. It ends with the phase that
// needs further VMs.
func (s *session) solve(ctx context.Context) (*solution, error) {
	sol := &solution{landed: map[string][]*corev1.Pod{}, names: map[string]string{}, failed: map[types.UID]error{}}
	for sol.phase = choosy; ; sol.phase++ {
		if len(s.pods[sol.phase]) > 0 {
			results, err := s.runKarpenter(ctx, sol)
			if err != nil {
				return nil, err
			}
			if err := s.read(results, sol); err != nil {
				return nil, err
			}
		}
		if len(sol.claims) > 0 || sol.phase == phases-1 {
			return sol, nil
		}
	}
}

// runKarpenter runs Karpenter's scheduler for the pods of a phase, on everything that
// exists, minus what earlier phases used.
func (s *session) runKarpenter(ctx context.Context, sol *solution) (karpscheduling.Results, error) {
	defer s.request.timed(PartSolve, time.Now())
	var none karpscheduling.Results
	standing := s.standing()
	active, _, err := s.world.stateNodes(ctx, standing, sol.landed)
	if err != nil {
		return none, err
	}
	instanceTypes := map[string][]*cloudprovider.InstanceType{}
	var whole, split []*karpv1.NodePool
	for _, p := range s.pools {
		if p.problem != "" {
			continue
		}
		offers := makeOfferings(p, s.plan, s.closed, hostsOf(standing))
		instanceTypes[p.Name] = offers.types
		anyHost := p.anyHost()
		whole, split = append(whole, anyHost), append(split, anyHost)
		if sol.phase == choosy || sol.phase == virtualChoosy {
			split = append(split, s.perHost(p, anyHost, offers)...)
		}
	}
	opts := karpenterOptions(ctx)
	pods := slices.Clone(s.pods[sol.phase])
	domains, err := karpscheduling.NewTopology(ctx, s.client, s.world.state, active, whole, instanceTypes, pods, opts...)
	if err != nil {
		return none, fmt.Errorf("counting topology domains: %w", err)
	}
	daemons, err := s.daemonPods(ctx)
	if err != nil {
		return none, err
	}
	scheduler := karpscheduling.NewScheduler(ctx, s.client, split, s.world.state, active, domains, instanceTypes,
		daemons, silence{}, clock.RealClock{}, s.volumes, nil, opts...)
	results, err := scheduler.Solve(ctx, pods)
	if err != nil {
		return none, fmt.Errorf("scheduling pods: %w", err)
	}
	return results.TruncateInstanceTypes(ctx, karpscheduling.MaxInstanceTypes), nil
}

// perHost splits a NodePool by host and capacity type, the emptiest host first.
func (s *session) perHost(p *pool, anyHost *karpv1.NodePool, o offerings) []*karpv1.NodePool {
	var capacityTypes []string
	for i := range p.sizes {
		capacityTypes = append(capacityTypes, p.sizes[i].CapacityType)
	}
	slices.Sort(capacityTypes)
	// "spot" sorts last, and is the cheapest.
	capacityTypes = slices.Compact(capacityTypes)
	slices.Reverse(capacityTypes)
	hosts := slices.SortedFunc(maps.Keys(o.room), func(a, b topology.HostID) int {
		return cmp.Or(cmp.Compare(o.room[b], o.room[a]), a.Compare(b))
	})
	var pools []*karpv1.NodePool
	for _, host := range hosts {
		for _, capacityType := range capacityTypes {
			pools = append(pools, p.oneHost(anyHost, host, capacityType))
		}
	}
	return pools
}

func karpenterOptions(ctx context.Context) []karpscheduling.Options {
	o := options.FromContext(ctx)
	// One worker tries nodes in order: with more, the same input could give different
	// results.
	opts := []karpscheduling.Options{karpscheduling.NumConcurrentReconciles(1), karpscheduling.MinValuesPolicy(o.MinValuesPolicy)}
	if o.PreferencePolicy == options.PreferencePolicyIgnore {
		opts = append(opts, karpscheduling.IgnorePreferences)
	}
	return opts
}

// read extracts the needed parts of a phase's results and checks that no pod is missing.
func (s *session) read(results karpscheduling.Results, sol *solution) error {
	asked, landed, unmet := len(s.pods[sol.phase]), 0, len(results.PodErrors)
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
		spec, err := s.wanted(claim)
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
	if sol.unmet += unmet; landed+unmet != asked {
		return fmt.Errorf("%d pods asked, but Karpenter's scheduler placed %d and left %d", asked, landed, unmet)
	}
	slices.SortStableFunc(sol.claims, func(a, b fleet.Spec) int { return cmp.Compare(a.Pool, b.Pool) })
	return nil
}

// wanted returns the Spec of the VM that Karpenter needs: the cheapest type that fits, on
// any host that offers it at that price and satisfies the pods.
func (s *session) wanted(claim *karpscheduling.NodeClaim) (fleet.Spec, error) {
	i := slices.IndexFunc(s.pools, func(p *pool) bool { return p.Name == claim.NodePoolName })
	if i < 0 {
		return fleet.Spec{}, fmt.Errorf("NodePool %q is gone", claim.NodePoolName)
	}
	sizes := s.pools[i].sizes
	var best candidate
	for _, it := range claim.InstanceTypeOptions {
		at := slices.IndexFunc(sizes, func(t InstanceType) bool { return t.Name == it.Name })
		suits := byPrice(suiting(it, claim.Requirements, resources.RequestsForPods(claim.Pods...)))
		if at < 0 || len(suits) == 0 {
			continue
		}
		if next := newCandidate(&sizes[at], suits[0]); best.size == nil || compareSizes(best.size, next.size) > 0 {
			best = next
		}
	}
	if best.size == nil {
		return fleet.Spec{}, fmt.Errorf("NodePool %q: no host offers a type that fits any more", claim.NodePoolName)
	}
	spec := s.pools[i].class.spec(s.pools[i].Name, best.size, slices.Compact(best.hosts))
	spec.Labels = chosenLabels(s.pools[i], claim.Requirements)
	spec.Demand = demandOf(claim.Pods)
	return spec, nil
}

func compareSizes(a, b *InstanceType) int {
	return cmp.Or(cmp.Compare(a.Price, b.Price), cmp.Compare(a.VCPUs, b.VCPUs), cmp.Compare(a.MemoryMiB, b.MemoryMiB), cmp.Compare(a.Name, b.Name))
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

func demandOf(pods []*corev1.Pod) fleet.Demand {
	requests := resources.RequestsForPods(pods...)
	return fleet.Demand{Pods: len(pods), CPUMilli: requests.Cpu().MilliValue(), MemoryMiB: requests.Memory().Value() / mebibyte}
}

func namesOf(pods []*corev1.Pod) []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(pods))
	for _, pod := range pods {
		names = append(names, client.ObjectKeyFromObject(pod))
	}
	slices.SortFunc(names, compareNames)
	return names
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// decision returns the decision of the last solution.
func (s *session) decision(ctx context.Context, sol *solution) (*Decision, error) {
	s.last = sol
	d := &Decision{Refused: slices.Clone(s.invalid), Asked: s.asked() + len(s.invalid)}
	standing := map[string]*inflight{}
	for _, vm := range s.standing() {
		standing[providerID(&vm.VM)] = vm
	}
	for id, pods := range sol.landed {
		d.Placed += len(pods)
		vm := standing[id]
		switch {
		case vm == nil && s.world.kept[id] != nil:
			d.Existing = append(d.Existing, Landing{Name: s.world.kept[id].Name, Pods: namesOf(pods)})
		case vm == nil:
			d.Existing = append(d.Existing, Landing{Name: sol.names[id], Pods: namesOf(pods)})
		case vm.VMID < newVMIDs:
			d.InFlight = append(d.InFlight, Landing{Name: vm.Name, Pods: namesOf(pods)})
		default:
			placed := Placed{Spec: vm.Spec, Placement: vm.Placement, NodePool: vm.Pool, Pods: namesOf(pods)}
			placed.Spec.Demand, placed.ClassHash = demandOf(pods), s.classHash(vm.Pool)
			d.New = append(d.New, placed)
		}
	}
	slices.SortFunc(d.New, comparePlaced)
	byName := func(a, b Landing) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(d.InFlight, byName)
	slices.SortFunc(d.Existing, byName)
	if err := s.refusals(ctx, d); err != nil {
		return nil, err
	}
	slices.SortFunc(d.Refused, func(a, b Refusal) int { return compareNames(a.Pod, b.Pod) })
	return d, nil
}

// refusals adds the pods that were not placed, with the reasons.
func (s *session) refusals(ctx context.Context, d *Decision) error {
	if len(s.last.failed) == 0 {
		return nil
	}
	e, err := newExplainer(ctx, s)
	if err != nil {
		return err
	}
	for _, pod := range slices.Concat(s.pods[:]...) {
		if err, failed := s.last.failed[pod.UID]; failed {
			d.Refused = append(d.Refused, Refusal{Pod: client.ObjectKeyFromObject(pod), Reason: e.explain(pod, err)})
		}
	}
	return nil
}
