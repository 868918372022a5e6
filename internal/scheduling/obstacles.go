package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/topology"
)

// Obstacle is the first reason that keeps a pod off a NodePool's nodes.
type Obstacle string

// The obstacles, in the order of the checks.
const (
	// ObstacleTaint is a taint that the pod does not tolerate.
	ObstacleTaint Obstacle = "Taint"
	// ObstacleRequirement is a pod's requirement that no node meets.
	ObstacleRequirement Obstacle = "Requirement"
	// ObstacleSize means that the pod is larger than any instance type.
	ObstacleSize Obstacle = "Size"
	// ObstacleNodePool means that a NodePool or class creates no nodes.
	ObstacleNodePool Obstacle = "NodePool"
	// ObstacleLimit is a limit of the NodePool.
	ObstacleLimit Obstacle = "Limit"
	// ObstacleHost means that no host has room.
	ObstacleHost Obstacle = "Host"
	// ObstacleScheduler is a reason that only Karpenter's scheduler knows, above all
	// other pods that the pod counts.
	ObstacleScheduler Obstacle = "Scheduler"
)

// rank returns how many checks a pod passed.
func (o Obstacle) rank() int {
	return slices.Index([]Obstacle{
		ObstacleTaint, ObstacleRequirement, ObstacleSize, ObstacleNodePool, ObstacleLimit, ObstacleHost, ObstacleScheduler,
	}, o)
}

// explainer explains why pods were not placed, as of the end of a decision.
type explainer struct {
	*session
	// views adds the planner's view of hosts.
	views bool
	// full caches the planner's reasons about an offering, and types Karpenter's form of
	// it; without a host, it is about all hosts that the class uses.
	full  map[offering]string
	types map[offering]*cloudprovider.InstanceType
	used  map[string]corev1.ResourceList
}

func newExplainer(ctx context.Context, s *session) (*explainer, error) {
	e := &explainer{session: s, full: map[offering]string{}, types: map[offering]*cloudprovider.InstanceType{}, used: map[string]corev1.ResourceList{}}
	active, _, err := s.state.nodes(ctx, s.unjoined(), nil)
	if err != nil {
		return nil, err
	}
	for _, node := range active {
		name := node.Labels()[karpv1.NodePoolLabelKey]
		e.used[name] = resources.Merge(e.used[name], node.Capacity())
	}
	return e, nil
}

// explain returns, for each NodePool, what keeps the pod off its nodes, the closest
// NodePool first.
func (e *explainer) explain(pod *corev1.Pod, err error) string {
	if len(e.pools) == 0 {
		return "no NodePool refers to a ProxmoxNodeClass: create one"
	}
	var reasons []string
	pools := map[string][]string{}
	for _, r := range e.refuse(pod, err) {
		if pools[r.Reason] = append(pools[r.Reason], r.NodePool); len(pools[r.Reason]) == 1 {
			reasons = append(reasons, r.Reason)
		}
	}
	for i, reason := range reasons {
		kind := "NodePool"
		if len(pools[reason]) > 1 {
			kind = "NodePools"
		}
		reasons[i] = fmt.Sprintf("%s %s: %s", kind, strings.Join(pools[reason], ", "), reason)
	}
	return strings.Join(reasons, "; ")
}

// refuse returns for each NodePool why it has no node for the pod. The NodePool for which
// the pod passed the most checks is probably the intended one, so it comes first. If no
// obstacle is found, Karpenter's error is used.
func (e *explainer) refuse(pod *corev1.Pod, err error) []PoolReason {
	var reasons []PoolReason
	for _, p := range e.wantedPools(pod) {
		r := e.explainPool(p, pod)
		if r.Reason == "" {
			r.Obstacle, r.Reason = ObstacleScheduler, plainWords(err)
		}
		r.NodePool = p.Name
		reasons = append(reasons, r)
	}
	slices.SortStableFunc(reasons, func(a, b PoolReason) int { return cmp.Compare(b.Obstacle.rank(), a.Obstacle.rank()) })
	return reasons
}

// wantedPools returns the pools that the pod selects by name, or all if it selects none.
func (e *explainer) wantedPools(pod *corev1.Pod) []*pool {
	selects := scheduling.NewStrictPodRequirements(pod).Get(karpv1.NodePoolLabelKey)
	wanted := slices.DeleteFunc(slices.Clone(e.pools), func(p *pool) bool { return !selects.Has(p.Name) })
	if len(wanted) == 0 {
		return e.pools
	}
	return wanted
}

func (e *explainer) explainPool(p *pool, pod *corev1.Pod) PoolReason {
	for _, taint := range p.Spec.Template.Spec.Taints {
		if !tolerates(pod, taint) {
			return PoolReason{Obstacle: ObstacleTaint, Reason: fmt.Sprintf("the pod does not tolerate its taint %s", taint.ToString())}
		}
	}
	if p.problem != "" {
		return PoolReason{Obstacle: ObstacleNodePool, Reason: p.problem, Hosts: e.hosts(p, demand{}, nil)}
	}
	var best PoolReason
	for i, d := range e.demands(pod) {
		r := e.explainDemand(p, d)
		if r.Reason == "" {
			return r
		}
		if i == 0 || r.Obstacle.rank() > best.Obstacle.rank() {
			best = r
		}
	}
	return best
}

func tolerates(pod *corev1.Pod, taint corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectPreferNoSchedule || scheduling.Taints([]corev1.Taint{taint}).ToleratesPod(pod) == nil
}

// demand is one way to satisfy a pod's requirements for a node.
type demand struct {
	requests corev1.ResourceList
	// pod and volumes are the requirements of the pod and of its volumes.
	pod, volumes scheduling.Requirements
}

// demands returns the ways to satisfy a pod: any one of its node affinity terms, and any
// one of its volumes' places, is sufficient.
func (e *explainer) demands(pod *corev1.Pod) []demand {
	volumes := e.volumes[pod.UID]
	if len(volumes) == 0 {
		volumes = []scheduling.Requirements{{}}
	}
	var all []demand
	for _, w := range nodeAlternatives(pod) {
		delete(w, labelHostChoice)
		for _, v := range volumes {
			all = append(all, demand{resources.RequestsForPods(pod), w, v})
		}
	}
	return all
}

func (e *explainer) explainDemand(p *pool, d demand) PoolReason {
	wants, reason := p.requirements(d)
	if reason != "" {
		return PoolReason{Obstacle: ObstacleRequirement, Reason: reason}
	}
	fit, r := e.fittingTypes(p, d, wants)
	if r.Reason != "" {
		return r
	}
	d.pod = wants
	hosts := e.hosts(p, d, fit)
	if reason := e.overLimit(p, fit); reason != "" {
		return PoolReason{Obstacle: ObstacleLimit, Reason: reason, Hosts: hosts}
	}
	if reason := noHost(hosts); reason != "" {
		return PoolReason{Obstacle: ObstacleHost, Reason: reason, Hosts: hosts}
	}
	return PoolReason{Obstacle: ObstacleScheduler, Reason: e.tooFewValues(p, wants, fit), Hosts: hosts}
}

// requirements combines the requirements of the pool and the pod, or returns which of the
// pod's the pool excludes.
func (p *pool) requirements(d demand) (scheduling.Requirements, string) {
	template := p.anyHost().Spec.Template
	offered := scheduling.NewNodeSelectorRequirementsWithMinValues(template.Spec.Requirements...)
	offered.Add(scheduling.NewLabelRequirements(template.Labels).Values()...)
	offered.Add(scheduling.NewLabelRequirements(map[string]string{karpv1.NodePoolLabelKey: p.Name}).Values()...)
	delete(offered, labelHostChoice)
	for _, by := range []struct {
		who    string
		wanted scheduling.Requirements
	}{{"the pod wants", d.pod}, {"the pod's volumes want", d.volumes}} {
		for _, key := range slices.Sorted(maps.Keys(by.wanted)) {
			one := scheduling.NewRequirements(by.wanted[key])
			switch {
			case offered.Compatible(one, scheduling.AllowUndefinedWellKnownLabels) == nil:
			case !offered.Has(key):
				return nil, fmt.Sprintf("%s %s, a label that its nodes do not have: add it to the NodePool's spec.template, or take it from the pod", by.who, by.wanted[key])
			default:
				return nil, fmt.Sprintf("%s %s, but its nodes have %s: change either", by.who, by.wanted[key], offered[key])
			}
		}
		offered.Add(by.wanted.Values()...)
	}
	return offered, ""
}

// fittingTypes returns the types that the requirements allow on some host of the class,
// whatever is free there, and that are large enough for the pod.
func (e *explainer) fittingTypes(p *pool, d demand, wants scheduling.Requirements) ([]*InstanceType, PoolReason) {
	daemons := p.daemonRequests(e.daemons)
	requests := resources.Merge(d.requests, daemons)
	var fit []*InstanceType
	var nearest *cloudprovider.InstanceType
	allowed := 0
	for i := range p.types {
		it := e.offered(p, &p.types[i], topology.HostID{})
		if it.Requirements.Intersects(wants) != nil || !it.Offerings.HasCompatible(wants) {
			continue
		}
		allowed++
		if len(suiting(it, wants, requests)) > 0 {
			fit = append(fit, &p.types[i])
		} else if nearest == nil || lacks(requests, it.Allocatable()) < lacks(requests, nearest.Allocatable()) {
			nearest = it
		}
	}
	switch {
	case allowed == 0:
		return nil, PoolReason{Obstacle: ObstacleRequirement, Reason: e.noType(p, d, wants), Hosts: e.hosts(p, d, nil)}
	case len(fit) == 0:
		asks := "the pod asks for " + describe(d.requests, d.requests)
		if len(daemons) > 0 {
			asks += " and DaemonSets for " + describe(daemons, daemons)
		}
		return nil, PoolReason{Obstacle: ObstacleSize, Reason: fmt.Sprintf("%s; the nearest instance type, %s, leaves pods %s: "+
			"lower the requests, or %s", asks, nearest.Name, describe(nearest.Allocatable(), requests), p.growing())}
	}
	slices.SortFunc(fit, compareTypes)
	return fit, PoolReason{}
}

// growing returns how the pool's nodes can become larger.
func (p *pool) growing() string {
	if p.class.flexible() {
		return fmt.Sprintf("raise spec.sizing of %s %q", v1alpha1.KindProxmoxNodeClass, p.class.name)
	}
	return "let the pool use larger types or hosts"
}

// offered returns a type with its offering on a host, or on all hosts of the class.
func (e *explainer) offered(p *pool, t *InstanceType, host topology.HostID) *cloudprovider.InstanceType {
	key := offering{p.Name, t.Name, host}
	if e.types[key] == nil {
		hosts := p.class.hosts
		if host != (topology.HostID{}) {
			hosts = []topology.HostID{host}
		}
		e.types[key] = p.overlay(karpenterType(p.class, t, hosts, nil))
	}
	return e.types[key]
}

// noType returns which of the requirements no type on any usable host meets.
func (e *explainer) noType(p *pool, d demand, wants scheduling.Requirements) string {
	if len(p.class.hosts) == 0 {
		return "no host can take its nodes: " + describeHosts(p.class.excluded)
	}
	for _, key := range []string{
		corev1.LabelTopologyRegion, corev1.LabelTopologyZone, corev1.LabelArchStable,
		karpv1.CapacityTypeLabelKey, corev1.LabelInstanceTypeStable, corev1.LabelOSStable,
	} {
		if !wants.Has(key) {
			continue
		}
		has := scheduling.NewRequirement(key, corev1.NodeSelectorOpIn)
		for i := range p.types {
			has.Insert(e.offered(p, &p.types[i], topology.HostID{}).Requirements.Get(key).Values()...)
		}
		if !has.HasIntersection(wants[key]) {
			who := "pool and pod want"
			if d.volumes.Has(key) {
				who = "the pod's volumes want"
			}
			text := fmt.Sprintf("%s %s, but there is only %s", who, wants[key], someOf(slices.Sorted(slices.Values(has.Values()))))
			if len(p.class.excluded) > 0 && key == corev1.LabelTopologyZone {
				text += "; " + describeHosts(p.class.excluded)
			}
			return text + ": correct what is wanted, or add such a host"
		}
	}
	return fmt.Sprintf("no instance type on any host meets all of %s", wants)
}

// someOf lists the first of many names.
func someOf(names []string) string {
	const some = 24 // more than the number of default types
	if more := len(names) - some; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:some], ", "), more)
	}
	return strings.Join(names, ", ")
}

// overLimit returns which of the pool's limits leaves no room for the smallest type.
func (e *explainer) overLimit(p *pool, fit []*InstanceType) string {
	var reason string
	for _, t := range fit {
		left := resources.Subtract(corev1.ResourceList(p.Spec.Limits), e.used[p.Name])
		capacity := t.capacity(p.class.disk(t))
		capacity[resources.Node] = *resource.NewQuantity(1, resource.DecimalSI)
		over := ""
		for _, name := range slices.Sorted(maps.Keys(p.Spec.Limits)) {
			if want, have := capacity[name], left[name]; over == "" && want.Cmp(have) > 0 {
				limit, used := p.Spec.Limits[name], e.used[p.Name][name]
				over = fmt.Sprintf("its limit of %s %s leaves no room for another node (%s used): raise spec.limits",
					name, limit.String(), readable(name, used))
			}
		}
		if over == "" {
			return ""
		}
		reason = cmp.Or(reason, over)
	}
	return reason
}

// tooFewValues returns which of the pool's minValues the remaining types do not satisfy.
func (e *explainer) tooFewValues(p *pool, wants scheduling.Requirements, fit []*InstanceType) string {
	if !wants.HasMinValues() || e.request.RelaxMinValues {
		return ""
	}
	var left cloudprovider.InstanceTypes
	for _, it := range makeOfferings(p, e.site.Fits, e.closed, nil).types {
		if it.Offerings.HasCompatible(wants) && slices.ContainsFunc(fit, func(t *InstanceType) bool { return t.Name == it.Name }) {
			left = append(left, it)
		}
	}
	_, missed, err := left.SatisfiesMinValues(wants)
	if err == nil {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(missed)) {
		return fmt.Sprintf("its requirement on %s has minValues %d, but the instance types that suit the pod and have room come to %d: lower minValues, or allow more types",
			key, *wants.Get(key).MinValues, missed[key])
	}
	return ""
}
