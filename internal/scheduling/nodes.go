package scheduling

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// VMIDs returns the VMIDs that Nodes and NodeClaims still refer to, by region: they must
// not be assigned again.
func (c *Cluster) VMIDs(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error) {
	if c.err != nil {
		return nil, c.err
	}
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	var claims karpv1.NodeClaimList
	if err := c.client.List(ctx, &claims); err != nil {
		return nil, fmt.Errorf("listing nodeclaims: %w", err)
	}
	var ids []string
	for i := range nodes.Items {
		ids = append(ids, nodes.Items[i].Spec.ProviderID)
	}
	for i := range claims.Items {
		ids = append(ids, namedBy(&claims.Items[i]))
	}
	named := map[topology.RegionName][]fleet.VMID{}
	for _, id := range ids {
		// Ignore nodes of other providers.
		if region, vmid, err := fleet.ParseProviderID(id); err == nil {
			named[region] = append(named[region], vmid)
		}
	}
	return named, nil
}

// podsOn returns the pods that a drain would have to move off a node, as namespace/name,
// sorted: without DaemonSets' pods, mirror pods, and completed ones. If Karpenter drains
// the node, it returns only the pods for which Karpenter waits.
func (c *Cluster) podsOn(ctx context.Context, node string, disrupted bool) ([]string, error) {
	var pods corev1.PodList
	if err := c.client.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return nil, fmt.Errorf("listing pods on node %s: %w", node, err)
	}
	var names []string
	for i := range pods.Items {
		pod := &pods.Items[i]
		if podutils.IsTerminal(pod) || podutils.IsOwnedByDaemonSet(pod) || podutils.IsOwnedByNode(pod) {
			continue
		}
		if disrupted && !podutils.IsDrainable(pod, clock.RealClock{}) {
			continue
		}
		names = append(names, client.ObjectKeyFromObject(pod).String())
	}
	slices.Sort(names)
	return names, nil
}

// HasNodes reports whether there is any Node. A cluster has some; manifests may not.
func (c *Cluster) HasNodes(ctx context.Context) (bool, error) {
	if c.err != nil {
		return false, c.err
	}
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes); err != nil {
		return false, fmt.Errorf("reading nodes: %w", err)
	}
	return len(nodes.Items) > 0, nil
}

// Drained returns why a node must not be removed yet: it runs pods, or may still get
// some. A Node that does not exist never joined. A node that Karpenter drains is drained
// when no pods are left for which Karpenter waits.
func (c *Cluster) Drained(ctx context.Context, name string) error {
	if c.err != nil {
		return c.err
	}
	var node corev1.Node
	err := c.client.Get(ctx, client.ObjectKey{Name: name}, &node)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading node %s: %w", name, err)
	}
	gone := apierrors.IsNotFound(err)
	disrupted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&karpv1.DisruptedNoScheduleTaint) })
	pods, err := c.podsOn(ctx, name, disrupted)
	switch {
	case err != nil:
		return err
	case len(pods) > 0:
		return fmt.Errorf("node %s still runs pods, %d in all, %s among them: kubectl drain it first", name, len(pods), pods[0])
	case gone || disrupted || node.Spec.Unschedulable:
		return nil
	}
	return fmt.Errorf("node %s is not cordoned and may get pods any time: kubectl drain it first", name)
}
