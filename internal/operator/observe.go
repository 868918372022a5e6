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
func (w *workshop) observe(ctx context.Context) (*parts, error) {
	config, err := w.scalerConfig(ctx)
	if err != nil {
		return nil, err
	}
	fleetScaler := scaler.New(*config)
	onlooker := &onlooker{scaler: fleetScaler, taken: w.liveCluster.VMIDs}
	provider := cloudprovider.New(cloudprovider.Config{
		ClusterID: w.config.ClusterID, Client: w.manager.GetClient(), Fleet: onlooker, Cluster: w.cluster,
		Snapshot: w.inventory.Snapshot, Types: w.types, Overlays: w.gates().NodeOverlay, Placing: &w.placing, Clock: w.clock,
	})
	core := newCore(ctx, w, provider, silence{})
	provisioner := provisioning.New(provisioning.Config{
		Client: w.manager.GetClient(), Cluster: w.cluster, State: core.state, Recorder: silence{}, Writer: onlooker, Approvals: onlooker,
		Snapshot: w.inventory.Snapshot, Request: w.request(),
		BatchIdle: w.settings.BatchIdle, BatchMax: w.settings.BatchMax, Placing: &w.placing, Clock: w.clock,
	})
	for _, one := range append(core.watchers(), provisioner) {
		if err := one.Register(ctx, w.manager); err != nil {
			return nil, fmt.Errorf("registering a controller: %w", err)
		}
	}
	return &parts{manager: w.manager}, nil
}

// silence discards events, because publishing one is a write.
type silence struct{}

// Publish discards the events.
func (silence) Publish(...events.Event) {}

// onlooker replaces the writer and the approvals in observe mode: it allows no VM.
type onlooker struct {
	scaler *scaler.Scaler
	taken  func(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error)
	// told is the digest of the last report, to avoid repeating it.
	told string
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

// Ensure is never called, because Up allows nothing.
func (o *onlooker) Ensure(context.Context, []scaler.Request) ([]fleet.VM, error) {
	return nil, fmt.Errorf("reserving vms: this controller only observes")
}

// Remove does nothing.
func (o *onlooker) Remove(...fleet.Key) {}

// Up plans what would be created, and reports it.
func (o *onlooker) Up(ctx context.Context, snapshot *topology.Snapshot, placed []scheduling.Placed) ([]scheduling.Placed, error) {
	if len(placed) == 0 {
		return nil, nil
	}
	requests := make([]scaler.Request, len(placed))
	for i := range placed {
		requests[i] = scaler.Request{Spec: placed[i].Spec, Placement: placed[i].Placement}
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
	if !o.news(plans) {
		return nil, nil
	}
	for _, vm := range change.Added {
		log.FromContext(ctx).Info("would make a vm", logkey.VM, vm.Name, logkey.Host, vm.Host.String(),
			logkey.InstanceType, vm.InstanceType, logkey.NodePool, vm.Pool, logkey.Reason, vm.Reason)
	}
	for i := range plans {
		tell(ctx, &plans[i])
	}
	return nil, nil
}

// Draft does nothing: in observe mode, Up can take as long as a plan.
func (o *onlooker) Draft(context.Context) error { return nil }

// news reports whether the plans differ from the last reported ones.
func (o *onlooker) news(plans []scaler.ShardPlan) bool {
	digest := ""
	for i := range plans {
		if plans[i].Plan != nil {
			digest += plans[i].Plan.Digest
		}
	}
	known := digest == o.told
	o.told = digest
	return !known
}

// tell logs what would happen to a host.
func tell(ctx context.Context, plan *scaler.ShardPlan) {
	if plan.Err != nil {
		log.FromContext(ctx).Info("could not plan a host", logkey.Host, plan.Shard.String(), logkey.Reason, plan.Err.Error())
		return
	}
	log.FromContext(ctx).Info("planned a host", logkey.Host, plan.Shard.String(),
		"create", len(plan.Intent.Create), "delete", len(plan.Intent.Delete), "verdict", plan.Verdict.String(), logkey.PlanSHA256, plan.Plan.SHA256)
}
