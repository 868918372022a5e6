package nodepool

import (
	"context"
	"fmt"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/numaform/numaform/api/v1alpha1"
)

// MinNodesError reports an invalid minimum number of nodes in a NodePool's annotation.
type MinNodesError struct{ NodePool, Value string }

func (e *MinNodesError) Error() string {
	return fmt.Sprintf("nodepool %s: annotation %s: %q is no number of nodes: want 0 or more, such as \"2\"; until then none of its nodes is consolidated",
		e.NodePool, v1alpha1.AnnotationMinNodes, e.Value)
}

// MinNodes returns how many nodes of a NodePool consolidation must leave: 0 without an
// annotation, and a MinNodesError if the annotation is invalid.
func MinNodes(pool *karpv1.NodePool) (int, error) {
	value, set := pool.Annotations[v1alpha1.AnnotationMinNodes]
	if !set {
		return 0, nil
	}
	least, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0, &MinNodesError{NodePool: pool.Name, Value: value}
	}
	return int(least), nil
}

// WithFloors returns a client for Karpenter's disruption, which reads the budgets of
// NodePools from it: NodePools with a minimum number of nodes have an additional budget,
// the number of nodes above the minimum.
func WithFloors(api client.Client, cluster *state.Cluster) client.Client {
	return &floors{Client: api, cluster: cluster}
}

type floors struct {
	client.Client
	cluster *state.Cluster
}

// List lists objects, and adds the budgets to NodePools.
func (f *floors) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := f.Client.List(ctx, list, opts...); err != nil {
		return err
	}
	pools, ok := list.(*karpv1.NodePoolList)
	if !ok {
		return nil
	}
	var nodes map[string]int
	for i := range pools.Items {
		pool := &pools.Items[i]
		if _, set := pool.Annotations[v1alpha1.AnnotationMinNodes]; !set {
			continue
		}
		if nodes == nil {
			nodes = f.count()
		}
		pool.Spec.Disruption.Budgets = append(pool.Spec.Disruption.Budgets, budget(pool, nodes[pool.Name]))
	}
	return nil
}

// budget returns how many of a NodePool's nodes consolidation may remove. Karpenter
// subtracts nodes that are being deleted or not ready.
func budget(pool *karpv1.NodePool, nodes int) karpv1.Budget {
	spare := 0
	if least, err := MinNodes(pool); err == nil {
		spare = max(0, nodes-least)
	}
	return karpv1.Budget{
		Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty, karpv1.DisruptionReasonUnderutilized},
		Nodes:   strconv.Itoa(spare),
	}
}

// count returns the number of nodes of each NodePool, counted as in
// BuildDisruptionBudgetMapping of Karpenter v1.14.1: without nodes that are still
// starting or already gone.
func (f *floors) count() map[string]int {
	nodes := map[string]int{}
	for _, node := range f.cluster.DeepCopyNodes() {
		if node.Managed() && node.Initialized() && !node.NodeClaim.StatusConditions().Get(karpv1.ConditionTypeInstanceTerminating).IsTrue() {
			nodes[node.Labels()[karpv1.NodePoolLabelKey]]++
		}
	}
	return nodes
}
