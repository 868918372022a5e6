// Package cloudprovider implements Karpenter's CloudProvider for numaform: it maps
// NodeClaims to VMs, which the fleet's writer reserves, creates and removes. It does not
// talk to Proxmox itself, and chooses VMs only for NodeClaims that Karpenter created.
// Start at New; DESIGN.md in this directory describes the result of each method.
package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// Fleet is the writer of the fleet.
type Fleet interface {
	// States returns all VMs that are desired or still being removed, or an error if the
	// fleet is not known.
	States(ctx context.Context) ([]scaler.VMState, error)
	// PlacesDigest is scaler.PlacesDigest of these VMs.
	PlacesDigest(ctx context.Context) (uint64, error)
	// State returns one of them, and whether it exists.
	State(ctx context.Context, key fleet.Key) (state scaler.VMState, exists bool, err error)
	// Ensure reserves VMs, which are created afterwards.
	Ensure(ctx context.Context, requests []scaler.Request) ([]fleet.VM, error)
	// Remove requests deletion of VMs.
	Remove(keys ...fleet.Key)
}

// Cluster resolves the requirements of NodePools against the available capacity.
type Cluster interface {
	// Resolve returns the VMs that satisfy a NodeClaim, the cheapest first.
	Resolve(ctx context.Context, request scheduling.Request, claim *karpv1.NodeClaim) ([]fleet.Spec, error)
	// InstanceTypes returns the types of a NodePool with their offerings.
	InstanceTypes(ctx context.Context, request scheduling.Request, pool *karpv1.NodePool) ([]*karpenter.InstanceType, error)
	// Extra returns the resources that NodeOverlays add to a pool's node with those
	// labels.
	Extra(ctx context.Context, pool string, labels map[string]string) (corev1.ResourceList, error)
}

// Config configures a CloudProvider.
type Config struct {
	ClusterID string
	// Client reads NodeClasses.
	Client  client.Reader
	Fleet   Fleet
	Cluster Cluster
	// Snapshot returns a snapshot of Proxmox on which VMs can be placed.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Recent returns a snapshot that may be older but is cheaper, for everything except
	// placing VMs. Callers must not modify it.
	Recent func(ctx context.Context) (*topology.Snapshot, error)
	// Types are the instance types; nil means the default ones.
	Types []scheduling.InstanceType
	// Prices determine the prices of the types.
	Prices scheduling.Prices
	// Overlays enables NodeOverlays.
	Overlays bool
	// Unavailable are the temporarily unavailable offerings; nil means none.
	Unavailable *UnavailableOfferings
	// Evacuated returns the hosts being evacuated; nil means none.
	Evacuated func() []topology.HostID
	// Placing is locked from reading the current VMs until a placement is reserved. Every
	// other component that reserves placements must use the same lock.
	Placing sync.Locker
	Clock   clock.PassiveClock
}

// CloudProvider implements Karpenter's CloudProvider.
type CloudProvider struct {
	config Config
	memo   memo
}

var _ karpenter.CloudProvider = (*CloudProvider)(nil)

// New returns the cloud provider of a fleet. It does no I/O.
func New(config Config) *CloudProvider {
	if config.Unavailable == nil {
		config.Unavailable = NewUnavailableOfferings(config.Clock)
	}
	if config.Evacuated == nil {
		config.Evacuated = func() []topology.HostID { return nil }
	}
	return &CloudProvider{config: config}
}

// Name returns the name of the provider in Karpenter's metrics.
func (c *CloudProvider) Name() string { return "numaform" }

// GetSupportedNodeClasses returns the only supported kind of NodeClass.
func (c *CloudProvider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ProxmoxNodeClass{}}
}

// unhealthyAfter is how long a Node may be unready or unresponsive before it is replaced,
// if node repair is enabled in Karpenter.
const unhealthyAfter = 15 * time.Minute

// RepairPolicies returns the conditions under which a Node is replaced.
func (c *CloudProvider) RepairPolicies() []karpenter.RepairPolicy {
	return []karpenter.RepairPolicy{
		{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: unhealthyAfter},
		{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, TolerationDuration: unhealthyAfter},
	}
}

// GetInstanceTypes returns the types of a NodePool with an offering for each host that
// has room.
func (c *CloudProvider) GetInstanceTypes(ctx context.Context, pool *karpv1.NodePool) ([]*karpenter.InstanceType, error) {
	if pool == nil {
		return nil, fmt.Errorf("finding instance types: no NodePool given")
	}
	types, err := c.instanceTypes(ctx, pool)
	if err != nil {
		return nil, translate(err)
	}
	return slices.Clone(types), nil
}

// versions returns the versions of all objects that determine the instance types of a
// NodePool.
func (c *CloudProvider) versions(ctx context.Context) (string, error) {
	var versions []string
	for _, list := range []client.ObjectList{&karpv1.NodePoolList{}, &v1alpha1.ProxmoxNodeClassList{}, &karpv1alpha1.NodeOverlayList{}} {
		if _, overlays := list.(*karpv1alpha1.NodeOverlayList); overlays && !c.config.Overlays {
			continue
		}
		if err := c.config.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("listing NodePools, ProxmoxNodeClasses and NodeOverlays: %w", err)
		}
		err := apimeta.EachListItem(list, func(o runtime.Object) error {
			object, err := apimeta.Accessor(o)
			if err == nil {
				versions = append(versions, object.GetName()+" "+object.GetResourceVersion())
			}
			return err
		})
		if err != nil {
			return "", fmt.Errorf("listing NodePools, ProxmoxNodeClasses and NodeOverlays: %w", err)
		}
	}
	slices.Sort(versions) // a cache lists objects in random order
	return strings.Join(versions, "\n"), nil
}

// instanceTypes implements GetInstanceTypes. Karpenter calls it for each NodePool, host and
// type when it starts, so it copies no VMs if the result is known.
func (c *CloudProvider) instanceTypes(ctx context.Context, pool *karpv1.NodePool) ([]*karpenter.InstanceType, error) {
	failed := func(err error) error { return fmt.Errorf("finding instance types of NodePool %q: %w", pool.Name, err) }
	digest, err := c.config.Fleet.PlacesDigest(ctx)
	if err != nil {
		return nil, failed(err)
	}
	snapshot, err := c.config.Recent(ctx)
	if err != nil {
		return nil, failed(fmt.Errorf("reading Proxmox: %w", err))
	}
	versions, err := c.versions(ctx)
	if err != nil {
		return nil, failed(err)
	}
	unavailable := c.unavailable()
	key := typesKey{pool: pool.Name, versions: versions, unavailable: fmt.Sprint(unavailable), fleet: digest}
	if types, known := recalled[[]*karpenter.InstanceType](&c.memo, snapshot, key); known {
		return types, nil
	}
	states, err := c.config.Fleet.States(ctx)
	if err != nil {
		return nil, failed(err)
	}
	key.fleet = scaler.PlacesDigest(states) // it may have changed
	types, err := c.config.Cluster.InstanceTypes(ctx, c.request(snapshot, states, unavailable), pool)
	if err == nil {
		remember(&c.memo, snapshot, key, types)
	}
	return types, err
}

// typesKey identifies the instance types of a NodePool on one snapshot.
type typesKey struct {
	pool, versions, unavailable string
	fleet                       uint64
}

// unavailable returns the offerings that must not be used now.
func (c *CloudProvider) unavailable() []scheduling.OfferingSelector {
	offerings := c.config.Unavailable.List()
	for _, host := range c.config.Evacuated() {
		offerings = append(offerings, scheduling.OfferingSelector{Host: host})
	}
	return offerings
}

// request returns a scheduling request.
func (c *CloudProvider) request(snapshot *topology.Snapshot, states []scaler.VMState, unavailable []scheduling.OfferingSelector) scheduling.Request {
	pods, rest := scaler.Places(states)
	return scheduling.Request{
		ClusterID: c.config.ClusterID, Snapshot: snapshot, Existing: append(pods, rest...),
		Types: c.config.Types, Prices: c.config.Prices, Overlays: c.config.Overlays, Unavailable: unavailable, Now: c.config.Clock.Now(),
	}
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
	snapshot, err := e.config.Recent(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading Proxmox: %w", err)
	}
	types, err := e.config.Cluster.InstanceTypes(ctx, scheduling.Request{
		ClusterID: e.config.ClusterID, Snapshot: snapshot, Types: e.config.Types, Prices: e.config.Prices, Everywhere: true,
	}, pool)
	return types, translate(err)
}

// ReasonClassUnknown is the reason on a NodeClaim whose class has not been validated yet.
const ReasonClassUnknown = "NodeClassReadinessUnknown"

// unusableError reports why a NodeClaim's VM will not become its node.
type unusableError struct{ nodeClaim, vm, reason string }

func (e *unusableError) Error() string {
	return fmt.Sprintf("NodeClaim %q: VM %s %s: Karpenter deletes the NodeClaim, and its pods are scheduled again", e.nodeClaim, e.vm, e.reason)
}

// classUnknownError reports that it is unknown whether a class is ready.
type classUnknownError struct{ class string }

func (e *classUnknownError) Error() string {
	return fmt.Sprintf("ProxmoxNodeClass %q has not been evaluated yet: check its conditions if this persists", e.class)
}

// goneError reports that a VM certainly does not exist.
type goneError struct{ vm string }

func (e *goneError) Error() string {
	return fmt.Sprintf("vm %s: not found in the fleet or in Proxmox", e.vm)
}

// translate converts an error to the type on which Karpenter acts: if a VM cannot be
// created or its class is not ready, Karpenter deletes the NodeClaim and reschedules its
// pods; a missing VM completes a deletion; other errors are retried.
func translate(err error) error {
	var room *scheduling.NoRoomError
	var unusable *unusableError
	var exhausted *fleet.RangeExhaustedError
	var outside *fleet.RangeOutsideError
	var addresses *ipam.ExhaustedError
	var notReady *scheduling.ClassNotReadyError
	var unknown *classUnknownError
	var gone *goneError
	switch {
	case errors.As(err, &room), errors.As(err, &unusable), errors.As(err, &exhausted), errors.As(err, &outside), errors.As(err, &addresses):
		return karpenter.NewInsufficientCapacityError(err)
	case errors.As(err, &notReady):
		return karpenter.NewNodeClassNotReadyError(err)
	case errors.As(err, &unknown):
		return karpenter.NewCreateError(err, ReasonClassUnknown, unknown.Error())
	case errors.As(err, &gone):
		return karpenter.NewNodeClaimNotFoundError(err)
	}
	return err
}
