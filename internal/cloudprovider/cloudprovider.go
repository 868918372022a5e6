// Package cloudprovider is numaform as Karpenter's engine sees it: NodeClaims find
// their VMs, which the fleet's writer reserves, makes and removes. It does no work
// of its own in Proxmox, and it decides on no VM but those of NodeClaims that
// Karpenter made. Start at New; DESIGN.md beside this file says which answer is
// given when.
package cloudprovider

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// Fleet is the writer of the fleet.
type Fleet interface {
	// States returns all VMs that are desired or still being removed, or an error if the
	// fleet is not known.
	States(ctx context.Context) ([]scaler.VMState, error)
	// Ensure reserves VMs, which are made afterwards.
	Ensure(ctx context.Context, requests []scaler.Request) ([]fleet.VM, error)
	// Remove asks that VMs go.
	Remove(keys ...fleet.Key)
}

// Cluster knows what NodePools want, and which of that has room.
type Cluster interface {
	// Resolve returns the VMs that suit a NodeClaim, the cheapest first.
	Resolve(ctx context.Context, request scheduling.Request, claim *karpv1.NodeClaim) ([]fleet.Spec, error)
	// InstanceTypes returns the types of a NodePool and where they have room.
	InstanceTypes(ctx context.Context, request scheduling.Request, pool *karpv1.NodePool) ([]*karpenter.InstanceType, error)
	// Extra returns the resources that a pool's node of those labels has by NodeOverlays.
	Extra(ctx context.Context, pool string, labels map[string]string) (corev1.ResourceList, error)
}

// Config is what New needs.
type Config struct {
	ClusterID string
	// Client reads NodeClasses.
	Client  client.Reader
	Fleet   Fleet
	Cluster Cluster
	// Snapshot returns Proxmox as it was a moment ago. It is cheap.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Types are the instance types; nil means the default ones.
	Types []scheduling.InstanceType
	// Overlays has NodeOverlays count.
	Overlays bool
	// Closed are the offers that are not made for now; nil means none ever.
	Closed *Closed
	// Evacuated returns the hosts that are to be left; nil means none.
	Evacuated func(ctx context.Context) ([]topology.HostID, error)
	// Placing is held from looking at what stands until a place is reserved. Whoever
	// else reserves places holds the same; nil means that nobody does.
	Placing sync.Locker
	// Clock is the real one by default.
	Clock clock.PassiveClock
}

// CloudProvider answers Karpenter's questions about VMs.
type CloudProvider struct{ config Config }

var _ karpenter.CloudProvider = (*CloudProvider)(nil)

// New returns the cloud provider of a fleet. It does nothing by itself.
func New(config Config) *CloudProvider {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Closed == nil {
		config.Closed = NewClosed(config.Clock)
	}
	if config.Evacuated == nil {
		config.Evacuated = func(context.Context) ([]topology.HostID, error) { return nil, nil }
	}
	if config.Placing == nil {
		config.Placing = &sync.Mutex{}
	}
	return &CloudProvider{config: config}
}

// Name is the name of the provider, in Karpenter's metrics.
func (c *CloudProvider) Name() string { return "numaform" }

// GetSupportedNodeClasses returns the one kind of NodeClass that is ours.
func (c *CloudProvider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ProxmoxNodeClass{}}
}

// unhealthyAfter is how long a Node may be silent before it is replaced, if that is
// switched on in Karpenter.
const unhealthyAfter = 15 * time.Minute

// RepairPolicies says when a Node is beyond help.
func (c *CloudProvider) RepairPolicies() []karpenter.RepairPolicy {
	return []karpenter.RepairPolicy{
		{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: unhealthyAfter},
		{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, TolerationDuration: unhealthyAfter},
	}
}

// GetInstanceTypes returns the types of a NodePool with the hosts that have room for
// them.
func (c *CloudProvider) GetInstanceTypes(ctx context.Context, pool *karpv1.NodePool) ([]*karpenter.InstanceType, error) {
	if pool == nil {
		return nil, fmt.Errorf("finding instance types: there is no NodePool to find them for")
	}
	request, err := c.request(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding instance types of NodePool %q: %w", pool.Name, err)
	}
	types, err := c.config.Cluster.InstanceTypes(ctx, request, pool)
	return types, translate(err)
}

// request says how things stand.
func (c *CloudProvider) request(ctx context.Context) (scheduling.Request, error) {
	var none scheduling.Request
	states, err := c.config.Fleet.States(ctx)
	if err != nil {
		return none, err
	}
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		return none, fmt.Errorf("reading Proxmox: %w", err)
	}
	evacuated, err := c.config.Evacuated(ctx)
	if err != nil {
		return none, fmt.Errorf("reading which hosts are evacuated: %w", err)
	}
	pods, rest := scaler.Places(states)
	closed := c.config.Closed.List()
	for _, host := range evacuated {
		closed = append(closed, scheduling.Offer{Host: host})
	}
	return scheduling.Request{
		ClusterID: c.config.ClusterID, Snapshot: snapshot, Kept: slices.Concat(pods, rest),
		Types: c.config.Types, Overlays: c.config.Overlays, Closed: closed, Now: c.config.Clock.Now(),
	}, nil
}

// find returns the VM of a key.
func (c *CloudProvider) find(ctx context.Context, key fleet.Key) (state scaler.VMState, found bool, err error) {
	states, err := c.config.Fleet.States(ctx)
	if err != nil {
		return state, false, err
	}
	for i := range states {
		if states[i].VM.Key == key {
			return states[i], true, nil
		}
	}
	return state, false, nil
}
