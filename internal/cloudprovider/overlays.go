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

// addExtra adds a node's resources from NodeOverlays to the NodeClaim; otherwise pods
// that need them would request another node until this one has joined.
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

// Everywhere returns a provider for validating NodeOverlays: it offers each type on each
// host, with or without room, at its price without overlays.
func (c *CloudProvider) Everywhere() karpenter.CloudProvider { return everywhere{c} }

type everywhere struct{ *CloudProvider }

// GetInstanceTypes returns all possible instance types of a NodePool, and none for a
// NodePool of another provider.
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
