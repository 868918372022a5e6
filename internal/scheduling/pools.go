package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/topology"
)

// labelHostChoice is a requirement within a decision, never a label of a node: a new VM's
// host is either chosen by the planner (any), or fixed from the start (one) because its
// pods have constraints that count hosts.
const (
	labelHostChoice = "scheduling." + v1alpha1.Group + "/host-choice"
	hostChoiceAny   = "any"
	hostChoiceOne   = "one"
)

// pool is a NodePool of numaform with its class.
type pool struct {
	*karpv1.NodePool
	class *class
	// sizes are the instance types that the class offers, as its nodes have them.
	sizes []InstanceType
	// overlays are the overlays for all pools.
	overlays overlays
	// problem says why the pool creates no nodes, or is empty.
	problem string
}

// readPools returns our NodePools in the order in which Karpenter tries them, each with
// the types that it offers.
func readPools(ctx context.Context, c client.Client, request *Request, types []InstanceType) ([]*pool, error) {
	var nodePools karpv1.NodePoolList
	if err := c.List(ctx, &nodePools); err != nil {
		return nil, fmt.Errorf("listing nodepools: %w", err)
	}
	var nodeClasses v1alpha1.ProxmoxNodeClassList
	if err := c.List(ctx, &nodeClasses); err != nil {
		return nil, fmt.Errorf("listing nodeclasses: %w", err)
	}
	laid, err := readOverlays(ctx, c, request)
	if err != nil {
		return nil, err
	}
	classes := map[string]*class{}
	sizes := map[string][]InstanceType{}
	for i := range nodeClasses.Items {
		nc := &nodeClasses.Items[i]
		sizes[nc.Name] = OfferedBy(nc, types)
		classes[nc.Name] = newClass(nc, request.Snapshot, request.ClusterID, sizes[nc.Name])
		if len(sizes[nc.Name]) == 0 {
			classes[nc.Name].problem = fmt.Sprintf("%s %q: %s", v1alpha1.KindProxmoxNodeClass, nc.Name, noTypes(&nc.Spec))
		}
		if ready := readyCondition(nc.Status.Conditions); ready != nil && ready.IsFalse() {
			classes[nc.Name].problem = fmt.Sprintf("%s %q is not ready: %s", v1alpha1.KindProxmoxNodeClass, nc.Name, ready.Message)
		}
		classes[nc.Name].overlaid = laid.resources()
	}
	var pools []*pool
	for i := range nodePools.Items {
		np := &nodePools.Items[i]
		ref := np.Spec.Template.Spec.NodeClassRef
		if !isOurs(ref) {
			continue
		}
		p := &pool{NodePool: np, class: classes[ref.Name], sizes: sizes[ref.Name], overlays: laid}
		p.problem = p.findProblem(ref.Name)
		pools = append(pools, p)
	}
	slices.SortStableFunc(pools, func(a, b *pool) int {
		return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(b.Name, a.Name))
	})
	return pools, nil
}

func weight(p *pool) int32 {
	if p.Spec.Weight == nil {
		return 0
	}
	return *p.Spec.Weight
}

// FixedSizeProblem explains why a NodePool with spec.replicas creates no nodes.
const FixedSizeProblem = "it has spec.replicas, and numaform makes no nodes for a number: " +
	"make the NodePool anew without spec.replicas, then it is scaled by pods"

func (p *pool) findProblem(className string) string {
	ready := readyCondition(p.Status.Conditions)
	switch {
	case p.class == nil:
		return fmt.Sprintf("its %s %q does not exist: create it", v1alpha1.KindProxmoxNodeClass, className)
	case p.class.problem != "":
		return p.class.problem
	case !p.DeletionTimestamp.IsZero():
		return "it is being deleted"
	case p.Spec.Replicas != nil:
		return FixedSizeProblem
	case ready != nil && ready.IsFalse():
		return "it is not ready: " + ready.Message
	}
	return ""
}

func readyCondition(conditions []status.Condition) *status.Condition {
	i := slices.IndexFunc(conditions, func(c status.Condition) bool { return c.Type == status.ConditionReady })
	if i < 0 {
		return nil
	}
	return &conditions[i]
}

// labels returns the labels that every node of the pool has because of its class.
func (p *pool) labels() map[string]string {
	labels := map[string]string{
		v1alpha1.LabelNodeClass: p.class.name,
		v1alpha1.LabelPlacement: string(p.class.base.Policy),
	}
	if value := labelValue(p.class.base.CPUType); value != "" {
		labels[v1alpha1.LabelCPUType] = value
	}
	return labels
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
	for key, value := range p.labels() {
		np.Spec.Template.Labels[key] = value
	}
	var families []string
	for i := range p.sizes {
		families = append(families, p.sizes[i].Family())
	}
	slices.Sort(families)
	p.require(np, v1alpha1.LabelInstanceFamily, slices.Compact(families)...)
	p.require(np, labelHostChoice, hostChoiceAny)
	return np
}

// oneHost returns the NodePool restricted to one host and capacity type.
func (p *pool) oneHost(anyHost *karpv1.NodePool, host topology.HostID, capacityType string) *karpv1.NodePool {
	np := anyHost.DeepCopy()
	requirements := np.Spec.Template.Spec.Requirements
	np.Spec.Template.Spec.Requirements = slices.DeleteFunc(requirements, func(r karpv1.NodeSelectorRequirementWithMinValues) bool {
		return r.Key == labelHostChoice
	})
	p.require(np, labelHostChoice, hostChoiceOne)
	p.require(np, corev1.LabelTopologyRegion, string(host.Region))
	p.require(np, corev1.LabelTopologyZone, string(host.Host))
	p.require(np, karpv1.CapacityTypeLabelKey, capacityType)
	return np
}

func (p *pool) require(np *karpv1.NodePool, key string, values ...string) {
	np.Spec.Template.Spec.Requirements = append(np.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
		Key: key, Operator: corev1.NodeSelectorOpIn, Values: values,
	})
}
