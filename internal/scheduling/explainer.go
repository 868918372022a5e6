package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// explainer explains why pods were not placed, from the state at the end of a decision.
type explainer struct {
	*session
	// views is set if the result includes the planner's view of each host.
	views bool
	// refusal caches why the planner refuses an offering, and offered the offering in
	// Karpenter's form. A key without a host covers all hosts that the class uses.
	refusal map[offering]string
	offered map[offering]*cloudprovider.InstanceType
	// used are the resources of each NodePool's nodes.
	used map[string]corev1.ResourceList
	// otherPool describes a NodePool of another provider, if no other NodePool exists.
	otherPool string
}

func newExplainer(ctx context.Context, s *session) (*explainer, error) {
	e := &explainer{
		session: s,
		refusal: map[offering]string{},
		offered: map[offering]*cloudprovider.InstanceType{},
		used:    map[string]corev1.ResourceList{},
	}
	if len(s.pools) == 0 {
		var all karpv1.NodePoolList
		if err := s.client.List(ctx, &all); err != nil {
			return nil, fmt.Errorf("listing nodepools: %w", err)
		}
		if len(all.Items) > 0 {
			np := &all.Items[0]
			ref := np.Spec.Template.Spec.NodeClassRef
			if ref == nil {
				ref = &karpv1.NodeClassReference{}
			}
			e.otherPool = fmt.Sprintf("no NodePool refers to a ProxmoxNodeClass: NodePool %s refers to kind %q of group %q: set its spec.template.spec.nodeClassRef to a %s of group %s, or create another NodePool",
				np.Name, ref.Kind, ref.Group, v1alpha1.KindProxmoxNodeClass, v1alpha1.Group)
		}
	}
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

// explain returns a refusal with, for each NodePool, what keeps the pod off its nodes, the
// closest NodePool first.
func (e *explainer) explain(pod *corev1.Pod, err error) Refusal {
	refusal := Refusal{Pod: client.ObjectKeyFromObject(pod)}
	if len(e.pools) == 0 {
		refusal.Reason = cmp.Or(e.otherPool, "no NodePool refers to a ProxmoxNodeClass: create one that does")
		return refusal
	}
	var reasons []string
	pools := map[string][]string{}
	for i, r := range e.explainPools(pod, err) {
		if i == 0 && r.Obstacle == ObstacleLimit {
			refusal.Limited = r.NodePool
		}
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
	refusal.Reason = strings.Join(reasons, "; ")
	return refusal
}

// explainPools returns for each NodePool that the pod selects by name, or for all if it
// selects none, why it has no node for the pod. The NodePool whose obstacle has the highest
// rank is probably the intended one, so it comes first. If no obstacle is found, Karpenter's
// error is used.
func (e *explainer) explainPools(pod *corev1.Pod, err error) []PoolReason {
	selects := scheduling.NewStrictPodRequirements(pod).Get(karpv1.NodePoolLabelKey)
	selected := slices.DeleteFunc(slices.Clone(e.pools), func(p *pool) bool { return !selects.Has(p.Name) })
	if len(selected) == 0 {
		selected = e.pools
	}
	var reasons []PoolReason
	for _, p := range selected {
		r := e.explainPool(p, pod)
		if r.Reason == "" {
			r.Obstacle = ObstacleScheduler
			r.Reason = describeSchedulerError(err)
		}
		r.NodePool = p.Name
		reasons = append(reasons, r)
	}
	slices.SortStableFunc(reasons, func(a, b PoolReason) int { return cmp.Compare(b.Obstacle.rank(), a.Obstacle.rank()) })
	return reasons
}

// demand is one way to satisfy a pod's requirements for a node.
type demand struct {
	requests corev1.ResourceList
	// pod and volumes are the requirements of the pod and of its volumes.
	pod, volumes scheduling.Requirements
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

	// Karpenter's own support for dynamic resources is experimental: it is off unless its
	// option IgnoreDRARequests is false.
	if len(pod.Spec.ResourceClaims) > 0 {
		return PoolReason{Obstacle: ObstacleScheduler, Reason: "the pod has resourceClaims, for which Karpenter 1.14 creates no nodes: " +
			"request the device as an extended resource, as an instance type or a NodeOverlay provides it"}
	}

	// Any one of the pod's node affinity terms, with any one of its volumes' places, is
	// sufficient.
	volumes := e.volumes[pod.UID]
	if len(volumes) == 0 {
		volumes = []scheduling.Requirements{{}}
	}
	var closest PoolReason
	for i, alternative := range nodeAlternatives(pod) {
		delete(alternative, labelHostChoice)
		for j, v := range volumes {
			r := e.explainDemand(p, demand{requests: resources.RequestsForPods(pod), pod: alternative, volumes: v})
			if r.Reason == "" {
				return r
			}
			if i+j == 0 || r.Obstacle.rank() > closest.Obstacle.rank() {
				closest = r
			}
		}
	}
	return closest
}

func tolerates(pod *corev1.Pod, taint corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectPreferNoSchedule || scheduling.Taints([]corev1.Taint{taint}).ToleratesPod(pod) == nil
}

func (e *explainer) explainDemand(p *pool, d demand) PoolReason {
	required, reason := p.requirements(d)
	if reason != "" {
		return PoolReason{Obstacle: ObstacleRequirement, Reason: reason}
	}
	fit, r := e.fittingTypes(p, d, required)
	if r.Reason != "" {
		return r
	}
	d.pod = required
	hosts := e.hosts(p, d, fit)
	if reason := e.overLimit(p, fit); reason != "" {
		return PoolReason{Obstacle: ObstacleLimit, Reason: reason, Hosts: hosts}
	}

	var full []topology.HostFact
	for _, h := range hosts {
		switch {
		case !h.suited:
		case h.Reason == "":
			return PoolReason{Obstacle: ObstacleScheduler, Reason: e.tooFewValues(p, required, fit), Hosts: hosts}
		case h.InstanceType == "":
			full = append(full, topology.HostFact{Host: h.Host, Text: fmt.Sprintf("%s %s", h.Host, h.Reason)})
		default:
			full = append(full, topology.HostFact{Host: h.Host, Text: h.InstanceType + ": " + h.Reason})
		}
	}
	causes := topology.OverHosts(full)
	if more := len(causes) - mostHosts; more > 0 {
		causes = append(causes[:mostHosts], fmt.Sprintf("%d more causes", more))
	}
	return PoolReason{Obstacle: ObstacleHost, Reason: "no host has room: " + strings.Join(causes, "; "), Hosts: hosts}
}

// requirements combines the requirements of the pool, the pod and its volumes. If the pool
// excludes one of them, it returns a message with a fix instead.
func (p *pool) requirements(d demand) (scheduling.Requirements, string) {
	template := p.anyHost().Spec.Template
	offered := scheduling.NewNodeSelectorRequirementsWithMinValues(template.Spec.Requirements...)
	offered.Add(scheduling.NewLabelRequirements(template.Labels).Values()...)
	offered.Add(scheduling.NewLabelRequirements(map[string]string{karpv1.NodePoolLabelKey: p.Name}).Values()...)
	delete(offered, labelHostChoice)
	for _, by := range []struct {
		who      string
		required scheduling.Requirements
		// conflict is the format of a message with the offered values.
		conflict string
	}{
		{"the pod requires", d.pod, "but nodes of the NodePool have %s: change the NodePool's requirements, or the pod's node selector or affinity"},
		{"the pod's volumes require", d.volumes, "but the NodePool and the pod allow only %s: change their requirements, or use a volume that such nodes can reach"},
	} {
		for _, key := range slices.Sorted(maps.Keys(by.required)) {
			one := scheduling.NewRequirements(by.required[key])
			switch {
			case offered.Compatible(one, scheduling.AllowUndefinedWellKnownLabels) == nil:
			case !offered.Has(key) && meantLabel(key) != "":
				return nil, fmt.Sprintf("%s %s, a label that numaform does not set: %s", by.who, by.required[key], meantLabel(key))
			case !offered.Has(key):
				return nil, fmt.Sprintf("%s %s, a label that nodes of the NodePool do not have: add it to the NodePool's spec.template, or remove it from the pod", by.who, by.required[key])
			default:
				return nil, fmt.Sprintf("%s %s, "+by.conflict, by.who, by.required[key], offered[key])
			}
		}
		offered.Add(by.required.Values()...)
	}
	return offered, ""
}

// fittingTypes returns the types that the requirements allow on some host of the class,
// full or not, and that are large enough for the pod.
func (e *explainer) fittingTypes(p *pool, d demand, required scheduling.Requirements) ([]*InstanceType, PoolReason) {
	daemons := p.daemonRequests(e.daemons)
	requests := resources.Merge(d.requests, daemons)
	var fit []*InstanceType
	var nearest *cloudprovider.InstanceType
	var nearestType *InstanceType
	allowed := 0
	for i := range p.types {
		it := e.offer(p, &p.types[i], topology.HostID{})
		if it.Requirements.Intersects(required) != nil || !it.Offerings.HasCompatible(required) {
			continue
		}
		allowed++
		if len(suiting(it, required, requests)) > 0 {
			fit = append(fit, &p.types[i])
		} else if nearest == nil || lacks(requests, it.Allocatable()) < lacks(requests, nearest.Allocatable()) {
			nearest = it
			nearestType = &p.types[i]
		}
	}
	switch {
	case allowed == 0:
		return nil, PoolReason{Obstacle: ObstacleRequirement, Reason: e.noType(p, d, required), Hosts: e.hosts(p, d, nil)}
	case len(fit) == 0:
		asks := "the pod requests " + describe(d.requests, d.requests)
		if len(daemons) > 0 {
			asks += " and DaemonSets request " + describe(daemons, daemons)
		}
		larger := "allow larger types or hosts in the pool"
		if p.class.flexible() {
			larger = fmt.Sprintf("raise spec.sizing of %s %q", v1alpha1.KindProxmoxNodeClass, p.class.name)
		}
		if disk := p.class.largerDisk(nearestType, requests); disk != "" {
			rest := maps.Clone(requests)
			delete(rest, corev1.ResourceEphemeralStorage)
			if lacks(rest, nearest.Allocatable()) == 0 {
				larger = disk
			} else {
				larger += ", and " + disk
			}
		}
		return nil, PoolReason{Obstacle: ObstacleSize, Reason: fmt.Sprintf("%s; the closest instance type, %s, has %s for pods: "+
			"lower the requests, or %s", asks, nearest.Name, describe(nearest.Allocatable(), requests), larger)}
	}
	slices.SortFunc(fit, compareTypes)
	return fit, PoolReason{}
}

// offer returns a type with its offering on a host, or on all hosts of the class.
func (e *explainer) offer(p *pool, t *InstanceType, host topology.HostID) *cloudprovider.InstanceType {
	key := offering{p.Name, t.Name, host}
	if e.offered[key] == nil {
		hosts := p.class.hosts
		if host != (topology.HostID{}) {
			hosts = []topology.HostID{host}
		}
		e.offered[key] = p.overlay(karpenterType(p.class, t, hosts, nil))
	}
	return e.offered[key]
}

// mostNames is the maximum number of names in a message. It exceeds the number of default
// types.
const mostNames = 24

// noType returns a message about the requirement that no type on any usable host meets.
func (e *explainer) noType(p *pool, d demand, required scheduling.Requirements) string {
	if len(p.class.hosts) == 0 {
		return fmt.Sprintf("no host can take its nodes: %s: fix this on the hosts, or change %s %q",
			describeHosts(p.class.excluded), v1alpha1.KindProxmoxNodeClass, p.class.name)
	}
	for _, key := range []string{
		corev1.LabelTopologyRegion, corev1.LabelTopologyZone, corev1.LabelArchStable,
		karpv1.CapacityTypeLabelKey, corev1.LabelInstanceTypeStable, corev1.LabelOSStable,
	} {
		if !required.Has(key) {
			continue
		}
		has := scheduling.NewRequirement(key, corev1.NodeSelectorOpIn)
		for i := range p.types {
			has.Insert(e.offer(p, &p.types[i], topology.HostID{}).Requirements.Get(key).Values()...)
		}
		if !has.HasIntersection(required[key]) {
			who := "pool and pod require"
			if d.volumes.Has(key) {
				who = "the pod's volumes require"
			}
			names := slices.Sorted(slices.Values(has.Values()))
			only := strings.Join(names[:min(len(names), mostNames)], ", ")
			if more := len(names) - mostNames; more > 0 {
				only += fmt.Sprintf(" and %d more", more)
			}
			text := fmt.Sprintf("%s %s, but the hosts have only %s", who, required[key], only)
			if len(p.class.excluded) > 0 && key == corev1.LabelTopologyZone {
				text += "; " + describeHosts(p.class.excluded)
			}
			return text + ": correct the requirement, or add such a host"
		}
	}
	return fmt.Sprintf("no instance type on any host meets all of %s: correct the requirements of the NodePool or the pod", required)
}

// overLimit returns the limit of the pool that leaves no room for the smallest type in fit,
// as a message with a fix. It returns "" if there is room for at least one type.
func (e *explainer) overLimit(p *pool, fit []*InstanceType) string {
	var reason string
	for _, t := range fit {
		left := resources.Subtract(corev1.ResourceList(p.Spec.Limits), e.used[p.Name])
		capacity := t.capacity(p.class.disk(t))
		capacity[resources.Node] = *resource.NewQuantity(1, resource.DecimalSI)
		over := ""
		for _, name := range slices.Sorted(maps.Keys(p.Spec.Limits)) {
			if needed, available := capacity[name], left[name]; over == "" && needed.Cmp(available) > 0 {
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

// tooFewValues returns which of the pool's minValues the remaining types do not satisfy, as
// a message with a fix, or "" if they satisfy all.
func (e *explainer) tooFewValues(p *pool, required scheduling.Requirements, fit []*InstanceType) string {
	if !required.HasMinValues() || e.request.RelaxMinValues {
		return ""
	}
	var left cloudprovider.InstanceTypes
	for _, it := range makeOfferings(p, e.site.Fits, e.closed, nil).types {
		if it.Offerings.HasCompatible(required) && slices.ContainsFunc(fit, func(t *InstanceType) bool { return t.Name == it.Name }) {
			left = append(left, it)
		}
	}
	_, missed, err := left.SatisfiesMinValues(required)
	if err == nil {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(missed)) {
		return fmt.Sprintf("its requirement on %s has minValues %d, but the instance types that suit the pod and have room provide only %d: lower minValues, or allow more types",
			key, *required.Get(key).MinValues, missed[key])
	}
	return ""
}

// hosts returns for every host why it cannot take a VM of the types in fit, which are sorted
// by price; d.pod are the combined requirements of pool and pod. If d.pod is nil, it returns
// only the hosts that the class does not use.
func (e *explainer) hosts(p *pool, d demand, fit []*InstanceType) []HostReason {
	if p.class == nil {
		return nil
	}
	var reasons []HostReason
	for i := range e.request.Snapshot.Hosts {
		id := e.request.Snapshot.Hosts[i].ID()
		excluded := slices.IndexFunc(p.class.excluded, func(x Exclusion) bool { return x.Host == id })
		r := HostReason{Host: id}
		switch {
		case excluded >= 0:
			r.Reason = p.class.excluded[excluded].Reason
			r.suited = d.pod == nil || d.pod.Get(corev1.LabelTopologyZone).Has(string(id.Host))
		case !slices.Contains(p.class.hosts, id):
			r.Reason = fmt.Sprintf("is not in spec.region and spec.hosts of %s %q", v1alpha1.KindProxmoxNodeClass, p.class.name)
		case d.pod == nil:
			continue // there are no requirements to check
		default:
			r = e.host(p, d, fit, id)
		}
		reasons = append(reasons, r)
	}
	slices.SortFunc(reasons, func(a, b HostReason) int { return a.Host.Compare(b.Host) })
	return reasons
}

// host returns why a host that the class uses cannot take any of the types. If the host can
// take one, its Reason is empty, and its InstanceType and View are about the cheapest such
// type, otherwise about the cheapest type.
func (e *explainer) host(p *pool, d demand, fit []*InstanceType, id topology.HostID) HostReason {
	r := HostReason{Host: id}
	for _, t := range fit {
		if !e.offer(p, t, id).Offerings.HasCompatible(d.pod) {
			continue
		}
		refusal := e.refuse(p, t, id)
		if r.suited && refusal != "" {
			continue
		}
		r.suited = true
		r.InstanceType = t.Name
		r.Reason = refusal
		if e.views {
			view := e.site.View(p.class.spec(p.Name, t, []topology.HostID{id}), id)
			r.View = &view
		}
		if refusal == "" {
			break
		}
	}
	if r.suited {
		return r
	}

	for _, label := range []struct{ key, value string }{
		{corev1.LabelTopologyRegion, string(id.Region)},
		{corev1.LabelTopologyZone, string(id.Host)},
		{corev1.LabelArchStable, p.class.arch[id]},
	} {
		switch {
		case d.volumes.Has(label.key) && !d.volumes.Get(label.key).Has(label.value):
			r.Reason = fmt.Sprintf("is not where the pod's volumes are: %s", d.volumes.Get(label.key))
			return r
		case d.pod.Has(label.key) && !d.pod.Get(label.key).Has(label.value):
			r.Reason = fmt.Sprintf("does not meet the requirements of pool and pod: %s", d.pod.Get(label.key))
			return r
		}
	}
	r.Reason = "has none of the instance types that pool and pod require"
	return r
}

func describeHosts(excluded []Exclusion) string {
	var facts []topology.HostFact
	for _, x := range excluded {
		facts = append(facts, topology.HostFact{Host: x.Host, Text: fmt.Sprintf("%s %s", x.Host, x.Reason)})
	}
	return strings.Join(topology.OverHosts(facts), ", ")
}

// refuse returns why the planner refuses the type on the host, or "".
func (e *explainer) refuse(p *pool, t *InstanceType, host topology.HostID) string {
	key := offering{p.Name, t.Name, host}
	if reason, known := e.refusal[key]; known {
		return reason
	}
	spec := p.class.spec(p.Name, t, []topology.HostID{host})
	reason := ""
	switch {
	case e.closed.byRequest(key):
		reason = fmt.Sprintf("%s is temporarily unavailable: VMs could not be created there, or it is being evacuated", host)
	case !e.site.Fits(spec, host):
		if _, unplaced := e.site.Clone().Place([]fleet.Spec{spec}); len(unplaced) > 0 {
			reason = unplaced[0].Reason
		}
	case e.closed.has(key):
		reason = "VMs created for such pods did not accept them: the NodePool's requirements include labels that its nodes do not have; remove these labels"
	}
	e.refusal[key] = reason
	return reason
}

// largerDisk returns the fix if a node with that type has too little ephemeral storage for
// the requests, or "".
func (c *class) largerDisk(t *InstanceType, requests corev1.ResourceList) string {
	request := requests[corev1.ResourceEphemeralStorage]
	suffices := func(gib int) bool {
		has := t.allocatable(int64(gib))[corev1.ResourceEphemeralStorage]
		return request.Cmp(has) <= 0
	}
	const most = 1 << 20 // 1 PiB
	least := sort.Search(most, suffices)
	if suffices(int(c.disk(t))) || least == most {
		return ""
	}
	if b, flexible := c.fields.Flexible(); flexible {
		return fmt.Sprintf("raise spec.sizing.maxDiskGiB of %s %q to at least %d", v1alpha1.KindProxmoxNodeClass, c.name, roundUp(int64(least), b.StepDiskGiB))
	}
	return fmt.Sprintf("set spec.bootDevice.size of %s %q to at least %dG", v1alpha1.KindProxmoxNodeClass, c.name, least)
}

// lacks returns how far the available resources fall short of the requests: the sum of the
// missing shares, which are 1 for a resource of which nothing is available.
func lacks(requests, available corev1.ResourceList) float64 {
	lack := 0.0
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		requested, have := requests[name], available[name]
		if requested.Cmp(have) > 0 {
			lack += 1 - have.AsApproximateFloat64()/requested.AsApproximateFloat64()
		}
	}
	return lack
}

func describe(list, keys corev1.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if amount, ok := list[name]; ok && name != corev1.ResourcePods {
			parts = append(parts, fmt.Sprintf("%s %s", name, readable(name, amount)))
		} else if !ok {
			parts = append(parts, fmt.Sprintf("no %s", name))
		}
	}
	return strings.Join(parts, ", ")
}

func readable(name corev1.ResourceName, amount resource.Quantity) string {
	if name == corev1.ResourceMemory && amount.Value() >= mebibyte {
		return fmt.Sprintf("%dMi", amount.Value()/mebibyte)
	}
	return amount.String()
}

// The parts of Karpenter's errors that describeSchedulerError replaces.
var (
	topologyError = regexp.MustCompile(`unsatisfiable topology constraint for (.+), key=(\S+) \(counts = (.*), podDomains = .*`)
	fullHostError = regexp.MustCompile(`no instance type .*, requirements=.*` + regexp.QuoteMeta(corev1.LabelTopologyZone) + ` In \[([^\]]+)\].*`)
	noTypeError   = regexp.MustCompile(`(no instance type .*), requirements=.*, resources=`)
	ownLabels     = regexp.MustCompile(`(?:` + regexp.QuoteMeta(labelHostChoice) + `|karpenter\.sh/(?:initialized|registered)) In \[\w+\],? ?`)
)

// describeSchedulerError turns Karpenter's errors into one line. Karpenter joins an error
// for each way to create a node; repetitions, and errors about our own host choice, are
// dropped.
func describeSchedulerError(err error) string {
	if err == nil {
		return "Karpenter's scheduler gave no reason"
	}
	counts := false
	var parts []string
	for part := range strings.SplitSeq(err.Error(), "; ") {
		part = strings.Join(strings.Fields(part), " ")
		if part == "" || strings.Contains(part, labelHostChoice+" NotIn") {
			continue
		}
		counts = counts || topologyError.MatchString(part)
		part = topologyError.ReplaceAllString(part, "the pod's $1 over $2 cannot be satisfied (pods there: $3)")
		part = noTypeError.ReplaceAllString(fullHostError.ReplaceAllString(part, "$1 has no room"), "$1 for ")
		part = ownLabels.ReplaceAllString(part, "")
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	switch text := strings.Join(parts, ", and "); {
	case len(parts) == 0:
		return err.Error()
	case counts:
		return text + ": add a host, free capacity where the pod may run, or make it a preference"
	default:
		return text
	}
}
