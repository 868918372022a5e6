package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// explainer says why pods got no place, as of the end of a decision.
type explainer struct {
	*session
	// full is what the planner said about an offer.
	full map[offer]string
	used map[string]corev1.ResourceList
}

func newExplainer(ctx context.Context, s *session) (*explainer, error) {
	e := &explainer{session: s, full: map[offer]string{}, used: map[string]corev1.ResourceList{}}
	active, _, err := s.world.stateNodes(ctx, s.standing(), nil)
	if err != nil {
		return nil, err
	}
	for _, node := range active {
		name := node.Labels()[karpv1.NodePoolLabelKey]
		e.used[name] = resources.Merge(e.used[name], node.Capacity())
	}
	return e, nil
}

// explain names, for each NodePool, what keeps the pod from its nodes. What it
// cannot name is left to Karpenter's words.
func (e *explainer) explain(pod *corev1.Pod, err error) string {
	if len(e.pools) == 0 {
		return "no NodePool refers to a ProxmoxNodeClass: create one"
	}
	var reasons []string
	pools := map[string][]string{}
	for _, p := range e.wantedPools(pod) {
		reason := p.problem
		if reason == "" {
			reason = e.explainPool(p, pod)
		}
		if reason == "" {
			reason = plainWords(err)
		}
		if pools[reason] = append(pools[reason], p.Name); len(pools[reason]) == 1 {
			reasons = append(reasons, reason)
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

// wantedPools returns the pools that the pod selects by name; all, if there is none.
func (e *explainer) wantedPools(pod *corev1.Pod) []*pool {
	selects := scheduling.NewStrictPodRequirements(pod).Get(karpv1.NodePoolLabelKey)
	wanted := slices.DeleteFunc(slices.Clone(e.pools), func(p *pool) bool { return !selects.Has(p.Name) })
	if len(wanted) == 0 {
		return e.pools
	}
	return wanted
}

func (e *explainer) explainPool(p *pool, pod *corev1.Pod) string {
	for _, taint := range p.Spec.Template.Spec.Taints {
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if scheduling.Taints([]corev1.Taint{taint}).ToleratesPod(pod) != nil {
			return fmt.Sprintf("the pod does not tolerate its taint %s", taint.ToString())
		}
	}
	wants, reason := e.requirements(p, pod)
	if reason != "" {
		return reason
	}
	fit, reason := e.fittingTypes(p, pod, wants)
	if reason != "" {
		return reason
	}
	if reason := e.overLimit(p, fit); reason != "" {
		return reason
	}
	return e.explainHosts(p, wants, fit)
}

// requirements joins what the pool and the pod want of a node, or says which of
// the pod's wants the pool excludes.
func (e *explainer) requirements(p *pool, pod *corev1.Pod) (scheduling.Requirements, string) {
	template := p.anyHost().Spec.Template
	offered := scheduling.NewNodeSelectorRequirementsWithMinValues(template.Spec.Requirements...)
	offered.Add(scheduling.NewLabelRequirements(template.Labels).Values()...)
	offered.Add(scheduling.NewLabelRequirements(map[string]string{karpv1.NodePoolLabelKey: p.Name}).Values()...)
	delete(offered, labelHostChoice)
	wanted := scheduling.NewStrictPodRequirements(pod)
	delete(wanted, labelHostChoice)
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		one := scheduling.NewRequirements(wanted[key])
		if offered.Compatible(one, scheduling.AllowUndefinedWellKnownLabels) == nil {
			continue
		}
		if !offered.Has(key) {
			return nil, fmt.Sprintf("the pod wants %s, a label that its nodes do not have", wanted[key])
		}
		return nil, fmt.Sprintf("the pod wants %s, but its nodes have %s", wanted[key], offered[key])
	}
	offered.Add(wanted.Values()...)
	return offered, ""
}

// fittingTypes returns the types that the requirements allow on some host of the
// class, whatever is free there, and that are large enough for the pod.
func (e *explainer) fittingTypes(p *pool, pod *corev1.Pod, wants scheduling.Requirements) ([]*InstanceType, string) {
	requests := resources.RequestsForPods(pod)
	var fit []*InstanceType
	var nearest *cloudprovider.InstanceType
	allowed := 0
	for i := range p.sizes {
		it := karpenterType(p.class, &p.sizes[i], p.class.hosts, nil)
		if it.Requirements.Intersects(wants) != nil || !it.Offerings.HasCompatible(wants) {
			continue
		}
		allowed++
		if resources.Fits(requests, it.Allocatable()) {
			fit = append(fit, &p.sizes[i])
		} else if nearest == nil || lacks(requests, it.Allocatable()) < lacks(requests, nearest.Allocatable()) {
			nearest = it
		}
	}
	switch {
	case allowed == 0:
		return nil, e.noType(p, wants)
	case len(fit) == 0:
		return nil, fmt.Sprintf("the pod asks for %s; the nearest instance type, %s, leaves pods %s: "+
			"lower the requests, or let the pool use larger types or hosts",
			describe(requests, requests), nearest.Name, describe(nearest.Allocatable(), requests))
	}
	slices.SortFunc(fit, compareSizes)
	return fit, ""
}

// lacks says how far what is there falls short of the requests: 1 for each of
// which nothing is there.
func lacks(requests, available corev1.ResourceList) float64 {
	lack := 0.0
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		want, have := requests[name], available[name]
		if want.Cmp(have) > 0 {
			lack += 1 - have.AsApproximateFloat64()/want.AsApproximateFloat64()
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

// noType says which of the wants no type on any usable host meets.
func (e *explainer) noType(p *pool, wants scheduling.Requirements) string {
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
		for i := range p.sizes {
			has.Insert(karpenterType(p.class, &p.sizes[i], p.class.hosts, nil).Requirements.Get(key).Values()...)
		}
		if !has.HasIntersection(wants[key]) {
			text := fmt.Sprintf("pool and pod want %s, but there is only %s", wants[key], strings.Join(slices.Sorted(slices.Values(has.Values())), ", "))
			if len(p.class.excluded) > 0 && key == corev1.LabelTopologyZone {
				text += "; " + describeHosts(p.class.excluded)
			}
			return text
		}
	}
	return fmt.Sprintf("no instance type on any host meets all of %s", wants)
}

func describeHosts(excluded []Exclusion) string {
	var parts []string
	for _, x := range excluded {
		parts = append(parts, fmt.Sprintf("%s %s", x.Host, x.Reason))
	}
	return strings.Join(parts, ", ")
}

// overLimit says which of the pool's limits leaves no room for the smallest type.
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

// explainHosts says what each host lacks for the smallest type, or nothing if one
// could take it.
func (e *explainer) explainHosts(p *pool, wants scheduling.Requirements, fit []*InstanceType) string {
	var parts []string
	for _, host := range p.class.hosts {
		reason, considered := "", false
		for _, t := range fit {
			it := karpenterType(p.class, t, []topology.HostID{host}, nil)
			if !it.Offerings.HasCompatible(wants) {
				continue
			}
			considered = true
			said := e.ask(p, t, host)
			if said == "" && e.closed.has(offer{p.Name, t.Name, host}) {
				return "VMs made for such pods did not take them: its requirements promise labels that its nodes do not have"
			}
			if said == "" {
				return ""
			}
			reason = cmp.Or(reason, t.Name+": "+said)
		}
		if considered {
			parts = append(parts, reason)
		}
	}
	for _, x := range p.class.excluded {
		if zone := wants.Get(corev1.LabelTopologyZone); zone.Has(string(x.Host.Host)) {
			parts = append(parts, fmt.Sprintf("%s %s", x.Host, x.Reason))
		}
	}
	return "no host has room: " + strings.Join(slices.Compact(parts), "; ")
}

// ask returns what the planner says against the type on the host, or nothing.
func (e *explainer) ask(p *pool, t *InstanceType, host topology.HostID) string {
	key := offer{p.Name, t.Name, host}
	if said, known := e.full[key]; known {
		return said
	}
	spec := p.class.spec(p.Name, t, []topology.HostID{host})
	said := ""
	switch {
	case e.closed.byRequest(key):
		said = fmt.Sprintf("%s is not offered for now: VMs could not be made there, or it is evacuated", host)
	case !e.plan.Fits(spec, host):
		if _, unplaced := e.plan.Clone().Place([]fleet.Spec{spec}); len(unplaced) > 0 {
			said = unplaced[0].Reason
		}
	}
	e.full[key] = said
	return said
}

// plainWords makes one line of Karpenter's errors. It joins one for each way to
// make a node; those about our own host choice, and repetitions, say nothing.
func plainWords(err error) string {
	if err == nil {
		return "Karpenter's scheduler gave no reason"
	}
	topology := regexp.MustCompile(`unsatisfiable topology constraint for (.+), key=(\S+) \(counts = (.*), podDomains = .*`)
	inside := regexp.MustCompile(`(?:` + regexp.QuoteMeta(labelHostChoice) + `|karpenter\.sh/(?:initialized|registered)) In \[\w+\],? ?`)
	var parts []string
	for part := range strings.SplitSeq(err.Error(), "; ") {
		part = strings.Join(strings.Fields(part), " ")
		if part == "" || strings.Contains(part, labelHostChoice+" NotIn") {
			continue
		}
		part = topology.ReplaceAllString(part, "the pod's $1 over $2 leaves no place (pods there: $3)")
		part = inside.ReplaceAllString(part, "")
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return err.Error()
	}
	return strings.Join(parts, ", or ")
}
