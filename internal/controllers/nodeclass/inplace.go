package nodeclass

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// ReasonPoolKept is the event reason of a class whose VMs remain in their Proxmox pool.
const ReasonPoolKept = "PoolKept"

// Fleet updates VMs while they run; *scaler.Writer implements it.
type Fleet interface {
	Synced() bool
	VMs() []scaler.VMState
	Update(vms ...fleet.VM)
}

// InPlaceConfig configures InPlace.
type InPlaceConfig struct {
	Client   client.Client
	Recorder events.Recorder
	Fleet    Fleet
	// MayMove returns an error if the VMs of a region cannot move between two pools. An
	// empty name means no pool.
	MayMove func(ctx context.Context, region topology.RegionName, from, to string) error
}

// InPlace updates the VMs of each class to its tags, pool, security groups and emulator
// setting. These can change while a VM runs, without replacing its node.
type InPlace struct{ config InPlaceConfig }

// NewInPlace returns a controller. It does nothing before its manager starts it.
func NewInPlace(config InPlaceConfig) *InPlace { return &InPlace{config: config} }

const (
	// inPlaceEvery is the interval between comparisons of classes and VMs, and inPlacePerVM its
	// minimum for each VM.
	inPlaceEvery = 5 * time.Second
	inPlacePerVM = 5 * time.Millisecond
)

// Name returns the controller's name.
func (c *InPlace) Name() string { return "nodeclass.inplace" }

// Register adds the controller to a manager.
func (c *InPlace) Register(_ context.Context, m manager.Manager) error {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](conflictDelay, period)
	return controllerruntime.NewControllerManagedBy(m).Named(c.Name()).WithOptions(controller.Options{RateLimiter: limit}).
		WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(c))
}

// Reconcile compares all classes with their VMs.
func (c *InPlace) Reconcile(ctx context.Context) (reconciler.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	if !c.config.Fleet.Synced() {
		return reconciler.Result{RequeueAfter: inPlaceEvery}, nil
	}
	var classes v1alpha1.ProxmoxNodeClassList
	if err := c.config.Client.List(ctx, &classes); err != nil {
		return reconciler.Result{}, fmt.Errorf("reading classes: %w", err)
	}
	states := c.config.Fleet.VMs()
	for i := range classes.Items {
		if nc := &classes.Items[i]; validated(nc) {
			c.update(ctx, nc, states)
		}
	}
	return reconciler.Result{RequeueAfter: max(inPlaceEvery, time.Duration(len(states))*inPlacePerVM)}, nil
}

// validated reports whether the class's current generation was validated and is valid, so
// that no missing pool is requested.
func validated(nc *v1alpha1.ProxmoxNodeClass) bool {
	if !nc.DeletionTimestamp.IsZero() {
		return false
	}
	for _, name := range []string{v1alpha1.ConditionValid, v1alpha1.ConditionPlacementReady} {
		condition := nc.StatusConditions().Get(name)
		if !condition.IsTrue() || condition.ObservedGeneration != nc.Generation {
			return false
		}
	}
	return true
}

// update requests the updates of the VMs of a class, and reports VMs that must remain in
// their pools.
func (c *InPlace) update(ctx context.Context, nc *v1alpha1.ProxmoxNodeClass, states []scaler.VMState) {
	// move is a move of VMs between two pools, either of which may be "".
	type move struct {
		region   topology.RegionName
		from, to string
	}
	checked := map[move]error{} // query Proxmox once for all VMs of a pool
	var messages []string
	var vms []fleet.VM
	for i := range states {
		vm := states[i].VM
		if vm.NodeClass != nc.Name || states[i].Phase == scaler.PhaseRemoving || vm.Standby {
			continue // a standby VM is updated once it has become a node
		}
		from := vm.ResourcePool
		scheduling.InPlace(nc, &vm.Spec, vm.Module)
		if vm.ResourcePool != from {
			m := move{region: vm.Host.Region, from: from, to: vm.ResourcePool}
			if _, known := checked[m]; !known {
				checked[m] = c.config.MayMove(ctx, m.region, m.from, m.to)
				if err := checked[m]; err != nil {
					messages = append(messages, fmt.Sprintf("VMs remain in resource pool %q of region %s: %v", m.from, m.region, err))
				}
			}
			if checked[m] != nil {
				vm.ResourcePool = from
			}
		}
		vms = append(vms, vm)
	}
	slices.Sort(messages)
	for _, message := range messages {
		c.config.Recorder.Publish(event(nc, corev1.EventTypeWarning, ReasonPoolKept, message))
	}
	c.config.Fleet.Update(vms...)
}
