package cloudprovider

import (
	"context"
	"fmt"
	"maps"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
)

// addExtra adds what NodeOverlays give a node to what is promised of it, or the pods that
// need it would ask for another node until this one has joined.
func (c *CloudProvider) addExtra(ctx context.Context, created *karpv1.NodeClaim, pool string) error {
	if !c.config.Overlays {
		return nil
	}
	extra, err := c.config.Cluster.Extra(ctx, pool, created.Labels)
	if err != nil {
		return fmt.Errorf("finding what NodeOverlays say of %s: %w", created.Name, err)
	}
	maps.Copy(created.Status.Capacity, extra)
	maps.Copy(created.Status.Allocatable, extra)
	return nil
}

// Everywhere returns the provider as NodeOverlays are judged by: it offers each type on
// each host, full or not, for what it costs without them.
func (c *CloudProvider) Everywhere() karpenter.CloudProvider { return everywhere{c} }

type everywhere struct{ *CloudProvider }

// GetInstanceTypes returns all that a NodePool may ever offer, and nothing of a NodePool
// that is not ours.
func (e everywhere) GetInstanceTypes(ctx context.Context, pool *karpv1.NodePool) ([]*karpenter.InstanceType, error) {
	if ref := pool.Spec.Template.Spec.NodeClassRef; ref == nil || ref.Group != v1alpha1.Group || ref.Kind != v1alpha1.KindProxmoxNodeClass {
		return nil, nil
	}
	snapshot, err := e.config.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading Proxmox: %w", err)
	}
	types, err := e.config.Cluster.InstanceTypes(ctx, scheduling.Request{
		ClusterID: e.config.ClusterID, Snapshot: snapshot, Types: e.config.Types, Everywhere: true,
	}, pool)
	return types, translate(err)
}
