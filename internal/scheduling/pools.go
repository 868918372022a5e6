package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/topology"
)

// labelHostChoice is a requirement within a decision, never a label of a node: a new VM's
// host is either chosen by the planner (any), or fixed from the start (one) because its
// pods have constraints over hosts.
const (
	labelHostChoice = "scheduling." + v1alpha1.Group + "/host-choice"
	hostChoiceAny   = "any"
	hostChoiceOne   = "one"
)

// pool is a NodePool of numaform with its class.
type pool struct {
	*karpv1.NodePool
	class *class
	// types are the instance types that the class offers, as its nodes have them.
	types []InstanceType
	// overlays are the overlays for all pools.
	overlays overlays
	// problem is the reason why the pool creates no nodes, or empty.
	problem string
}

// pools are our NodePools, in the order in which Karpenter tries them.
type pools []*pool

// find returns the pool with that name, or nil.
func (all pools) find(name string) *pool {
	for _, p := range all {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// fixedSizeProblem explains why a NodePool with spec.replicas creates no nodes for pods.
const fixedSizeProblem = "it has spec.replicas, so no nodes are created for pods: raise spec.replicas, " +
	"or let the pods use another NodePool"

// readPools returns our NodePools, each with the types that it offers.
func readPools(ctx context.Context, c client.Client, request *Request, types []InstanceType) (pools, error) {
	var nodePools karpv1.NodePoolList
	if err := c.List(ctx, &nodePools); err != nil {
		return nil, fmt.Errorf("listing nodepools: %w", err)
	}
	var nodeClasses v1alpha1.ProxmoxNodeClassList
	if err := c.List(ctx, &nodeClasses); err != nil {
		return nil, fmt.Errorf("listing nodeclasses: %w", err)
	}
	overlays, err := readOverlays(ctx, c, request.Overlays)
	if err != nil {
		return nil, err
	}

	classes := map[string]*class{}
	offered := map[string][]InstanceType{}
	for i := range nodeClasses.Items {
		nc := &nodeClasses.Items[i]
		offered[nc.Name] = OfferedBy(nc, types)
		class := newClass(nc, request.Snapshot, request.ClusterID, offered[nc.Name])
		if len(offered[nc.Name]) == 0 {
			reason := OnlyExtended
			if s := nc.Spec.Sizing; s != nil && len(s.Families) > 0 {
				reason = fmt.Sprintf("no instance type belongs to the families in spec.sizing (%s): correct them", strings.Join(s.Families, ", "))
			}
			class.problem = fmt.Sprintf("%s %q: %s", v1alpha1.KindProxmoxNodeClass, nc.Name, reason)
		}
		if ready := readyCondition(nc.Status.Conditions); ready != nil && ready.IsFalse() {
			class.problem = fmt.Sprintf("%s %q is not ready: %s", v1alpha1.KindProxmoxNodeClass, nc.Name, ready.Message)
		}
		class.overlaid = overlays.resources()
		class.prices = request.Prices
		for j := range offered[nc.Name] {
			offered[nc.Name][j].Price = class.price(&offered[nc.Name][j])
		}
		classes[nc.Name] = class
	}

	var all pools
	for i := range nodePools.Items {
		np := &nodePools.Items[i]
		ref := np.Spec.Template.Spec.NodeClassRef
		if !isOurs(ref) {
			continue
		}
		p := &pool{NodePool: np, class: classes[ref.Name], types: offered[ref.Name], overlays: overlays}
		ready := readyCondition(p.Status.Conditions)
		mistake := LabelMistake(np)
		switch {
		case p.class == nil:
			p.problem = fmt.Sprintf("its %s %q does not exist: create it", v1alpha1.KindProxmoxNodeClass, ref.Name)
		case p.class.problem != "":
			p.problem = p.class.problem
		case !p.DeletionTimestamp.IsZero():
			p.problem = "it is being deleted"
		case mistake != "":
			p.problem = mistake
		case np.Spec.Replicas != nil:
			p.problem = fixedSizeProblem
		case ready != nil && ready.IsFalse():
			p.problem = "it is not ready: " + ready.Message
		}
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b *pool) int {
		return cmp.Or(cmp.Compare(ptr.Deref(b.Spec.Weight, 0), ptr.Deref(a.Spec.Weight, 0)), cmp.Compare(b.Name, a.Name))
	})
	return all, nil
}

// LabelMistake returns a message about a label of numaform's group, or of
// karpenter-provider-proxmox, that no node has, or "". Karpenter would add it to the nodes
// like any other label of the user, so a mistake in a requirement would go unnoticed.
func LabelMistake(np *karpv1.NodePool) string {
	template := &np.Spec.Template
	var keys []string
	for i := range template.Spec.Requirements {
		keys = append(keys, template.Spec.Requirements[i].Key)
	}
	keys = append(keys, slices.Sorted(maps.Keys(template.Labels))...)
	for _, key := range keys {
		if meant := meantLabel(key); meant != "" {
			return fmt.Sprintf("its spec.template contains the label %s, which numaform does not set: %s", key, meant)
		}
	}
	return ""
}

// AnnotationMistake returns a message about an annotation of numaform's group that numaform
// does not read on the object, a NodePool or ProxmoxNodeClass, or "". known are the
// annotations that it reads or writes.
func AnnotationMistake(object client.Object, known []string) string {
	for _, key := range slices.Sorted(maps.Keys(object.GetAnnotations())) {
		if group, _, _ := strings.Cut(key, "/"); ofGroup(group) && !slices.Contains(known, key) {
			return fmt.Sprintf("it has the annotation %s, which numaform does not read: %s", key, nearest(key, known))
		}
	}
	return ""
}

// kppLabels maps the labels of karpenter-provider-proxmox v0.12.0 to numaform's labels
// (pkg/apis/v1alpha1/labels.go and, for the class, Karpenter's NodeClassLabelKey).
func kppLabels() map[string]string {
	return map[string]string{
		kppGroup + "/instance-family":   v1alpha1.LabelInstanceFamily,
		kppGroup + "/instance-cpu-type": v1alpha1.LabelCPUType,
		kppGroup + "/instance-image-id": v1alpha1.LabelTemplate + ", which is the template's name",
		kppGroup + "/proxmoxnodeclass":  v1alpha1.LabelNodeClass,
	}
}

// meantLabel returns the fix for a label that looks like numaform's, or that
// karpenter-provider-proxmox sets, but that no node has; "" for all other labels.
func meantLabel(key string) string {
	group, _, _ := strings.Cut(key, "/")
	switch {
	case kppLabels()[key] != "":
		return "karpenter-provider-proxmox sets it: use " + kppLabels()[key]
	case !ofGroup(group) && group != kppGroup || slices.Contains(v1alpha1.NodeLabels(), key):
		return ""
	}
	return nearest(key, v1alpha1.NodeLabels())
}

// ofGroup reports whether labels and annotations with that prefix are numaform's.
func ofGroup(prefix string) bool {
	return prefix == v1alpha1.Group || strings.HasSuffix(prefix, "."+v1alpha1.Group)
}

// nearest suggests the known key that differs from key by at most two letters, or lists
// all of them.
func nearest(key string, known []string) string {
	_, name, _ := strings.Cut(key, "/")
	for _, candidate := range known {
		if levenshtein.Distance(strings.TrimPrefix(candidate, v1alpha1.Group+"/"), name, nil) <= 2 {
			return "did you mean " + candidate + "?"
		}
	}
	return "it must be one of " + strings.Join(known, ", ")
}

func readyCondition(conditions []status.Condition) *status.Condition {
	i := slices.IndexFunc(conditions, func(c status.Condition) bool { return c.Type == status.ConditionReady })
	if i < 0 {
		return nil
	}
	return &conditions[i]
}

// labelValue returns a Proxmox name as the value of a label, or "" if it is not valid as
// one: Proxmox allows more names than Kubernetes.
func labelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) > 0 {
		return ""
	}
	return name
}

// anyHost returns the NodePool as Karpenter sees it, with the labels that our nodes get,
// so that pods can select by them.
func (p *pool) anyHost() *karpv1.NodePool {
	np := p.DeepCopy()
	if np.Spec.Template.Labels == nil {
		np.Spec.Template.Labels = map[string]string{}
	}
	np.Spec.Template.Labels[v1alpha1.LabelNodeClass] = p.class.name
	np.Spec.Template.Labels[v1alpha1.LabelPlacement] = string(p.class.base.Policy)
	if value := labelValue(p.class.base.CPUType); value != "" {
		np.Spec.Template.Labels[v1alpha1.LabelCPUType] = value
	}
	var families []string
	for i := range p.types {
		families = append(families, p.types[i].Family())
	}
	slices.Sort(families)
	require(np, v1alpha1.LabelInstanceFamily, slices.Compact(families)...)
	require(np, labelHostChoice, hostChoiceAny)
	return np
}

// perHost splits the NodePool by host and capacity type, the host with the most room
// first.
func (p *pool) perHost(anyHost *karpv1.NodePool, room map[topology.HostID]int) []*karpv1.NodePool {
	var capacityTypes []string
	for i := range p.types {
		capacityTypes = append(capacityTypes, p.types[i].CapacityType)
	}
	slices.Sort(capacityTypes)
	capacityTypes = slices.Compact(capacityTypes)
	slices.Reverse(capacityTypes) // "spot" sorts last, and is the cheapest
	hosts := slices.SortedFunc(maps.Keys(room), func(a, b topology.HostID) int {
		return cmp.Or(cmp.Compare(room[b], room[a]), a.Compare(b))
	})

	var split []*karpv1.NodePool
	for _, host := range hosts {
		for _, capacityType := range capacityTypes {
			np := anyHost.DeepCopy()
			spec := &np.Spec.Template.Spec
			spec.Requirements = slices.DeleteFunc(spec.Requirements, func(r karpv1.NodeSelectorRequirementWithMinValues) bool {
				return r.Key == labelHostChoice
			})
			require(np, labelHostChoice, hostChoiceOne)
			require(np, corev1.LabelTopologyRegion, string(host.Region))
			require(np, corev1.LabelTopologyZone, string(host.Host))
			require(np, karpv1.CapacityTypeLabelKey, capacityType)
			split = append(split, np)
		}
	}
	return split
}

func require(np *karpv1.NodePool, key string, values ...string) {
	np.Spec.Template.Spec.Requirements = append(np.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
		Key: key, Operator: corev1.NodeSelectorOpIn, Values: values,
	})
}
