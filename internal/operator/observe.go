package operator

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/controllers/provisioning"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// observe creates the parts of a controller that only observes: it decides and plans as
// usual, logs what it would do, and writes nothing.
func (b *builder) observe(ctx context.Context, config *scaler.Config) (*parts, error) {
	onlooker := &onlooker{scaler: scaler.New(*config), taken: b.liveCluster.VMIDs}
	provider := cloudprovider.New(cloudprovider.Config{
		ClusterID: b.config.ClusterID,
		Client:    b.manager.GetClient(),
		Fleet:     onlooker,
		Cluster:   b.cluster,
		Snapshot:  b.inventory.Snapshot,
		Recent:    b.inventory.Recent,
		Types:     b.types,
		Prices:    b.config.Prices,
		Evacuated: b.control.evacuated,
		Overlays:  b.karpenter.FeatureGates.NodeOverlay,
		Placing:   &b.placing,
		Clock:     b.clock,
	})
	core := newCore(ctx, b, provider, silence{})
	provisioner := provisioning.New(provisioning.Config{
		Client:      b.manager.GetClient(),
		Cluster:     b.cluster,
		State:       core.state,
		Recorder:    silence{},
		Writer:      onlooker,
		Approvals:   onlooker,
		Snapshot:    b.inventory.Snapshot,
		Unavailable: b.closed,
		Evacuated:   b.control.evacuated,
		Request:     b.request(),
		BatchIdle:   b.settings.BatchIdle,
		BatchMax:    b.settings.BatchMax,
		Placing:     &b.placing,
		Clock:       b.clock,
	})
	return b.assemble(ctx, core, nil, append(core.watchers(), provisioner))
}

// silence discards events, because publishing one is a write.
type silence struct{}

// Publish discards the events.
func (silence) Publish(...events.Event) {}

// onlooker replaces the writer and the approvals in observe mode: it allows no VM.
type onlooker struct {
	scaler *scaler.Scaler
	taken  func(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error)
	// reported is the digest of the last report, to avoid repeating it.
	reported string
}

// Synced is always true: the fleet is read each time.
func (o *onlooker) Synced() bool { return true }

// States returns the fleet's VMs as created: failures are unknown in observe mode.
func (o *onlooker) States(ctx context.Context) ([]scaler.VMState, error) {
	current, _, err := o.scaler.Fleet(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the fleet's vms: %w", err)
	}
	states := make([]scaler.VMState, len(current.VMs))
	for i, vm := range current.VMs {
		states[i] = scaler.VMState{VM: vm, Phase: scaler.PhaseMade, Filed: true}
	}
	return states, nil
}

// PlacesDigest is scaler.PlacesDigest of States.
func (o *onlooker) PlacesDigest(ctx context.Context) (uint64, error) {
	states, err := o.States(ctx)
	return scaler.PlacesDigest(states), err
}

// State returns one of States.
func (o *onlooker) State(ctx context.Context, key fleet.Key) (state scaler.VMState, exists bool, err error) {
	states, err := o.States(ctx)
	for i := range states {
		if states[i].VM.Key == key {
			return states[i], true, err
		}
	}
	return state, false, err
}

// Ensure is never called, because Up allows nothing.
func (o *onlooker) Ensure(context.Context, []scaler.Request) ([]fleet.VM, error) {
	return nil, fmt.Errorf("reserving vms: this controller only observes: start it with --mode apply")
}

// Wake is never called, because MayWake allows nothing.
func (o *onlooker) Wake(context.Context, ...fleet.Key) ([]fleet.VM, error) {
	return nil, fmt.Errorf("waking vms: this controller only observes: start it with --mode apply")
}

// Remove does nothing.
func (o *onlooker) Remove(...fleet.Key) {}

// Up plans the VMs that would be created, and reports the plans.
func (o *onlooker) Up(ctx context.Context, snapshot *topology.Snapshot, placed []scheduling.Placed) ([]scheduling.Placed, error) {
	if len(placed) == 0 {
		return nil, nil
	}
	requests := make([]scaler.Request, len(placed))
	for i := range placed {
		requests[i] = scaler.Request{
			Spec: placed[i].Spec, Placement: placed[i].Placement, Standby: placed[i].Standby, Reserve: placed[i].Reserve,
		}
	}
	taken, err := o.taken(ctx)
	if err != nil {
		return nil, err
	}
	change, err := o.scaler.Propose(ctx, snapshot, requests, taken)
	if err != nil {
		return nil, err
	}
	plans, err := o.scaler.Plan(ctx, change)
	if err != nil {
		return nil, err
	}

	digest := ""
	for i := range plans {
		if plans[i].Plan != nil {
			digest += plans[i].Plan.Digest
		}
	}
	if digest == o.reported {
		return nil, nil
	}
	o.reported = digest
	logger := log.FromContext(ctx)
	for _, vm := range change.Added {
		logger.Info("would create a vm", logkey.VM, vm.Name, logkey.Host, vm.Host.String(),
			logkey.InstanceType, vm.InstanceType, logkey.NodePool, vm.Pool, logkey.Reason, vm.Reason)
	}
	for i := range plans {
		plan := &plans[i]
		if plan.Err != nil {
			logger.Info("could not plan a host", logkey.Host, plan.Host.String(), logkey.Reason, plan.Err.Error())
			continue
		}
		logger.Info("planned a host", logkey.Host, plan.Host.String(),
			"create", len(plan.Intent.Create), "delete", len(plan.Intent.Delete), "verdict", plan.Verdict.String(), logkey.PlanSHA256, plan.Plan.SHA256)
	}
	return nil, nil
}

// MayWake allows no VM, because nothing may start in observe mode.
func (o *onlooker) MayWake(context.Context) (func(*fleet.VM) bool, error) {
	return func(*fleet.VM) bool { return false }, nil
}

// Created does nothing: in observe mode, no ScalePlan is approved.
func (o *onlooker) Created(context.Context, string, []fleet.VM) error { return nil }

// Draft does nothing: in observe mode, Up plans immediately.
func (o *onlooker) Draft(context.Context) error { return nil }

// Waits returns nothing: in observe mode, no VM waits for anything.
func (o *onlooker) Waits() []scheduling.Wait { return nil }
