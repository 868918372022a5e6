package scaler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scratch"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// maxParallelShards limits how many hosts are planned or applied at once: each costs
// about a CPU second and the memory of an engine and its provider.
const maxParallelShards = 8

// ErrNoEngine is returned by Plan and Apply of a scaler without an engine.
var ErrNoEngine = errors.New("there is no engine to plan with: install OpenTofu or Terraform, or set engine.binary")

// ShardPlan is the plan for one host.
type ShardPlan struct {
	Shard fleet.Shard
	// Touched is set if the change is about the host, and not set if an earlier change
	// left it unfinished.
	Touched bool
	// InPlace is set for a plan that should change VMs while they run.
	InPlace bool
	Plan    *state.Plan
	Intent  guard.Intent
	Verdict guard.Verdict
	// TakenOut are VMs to be deleted because a person deleted their files, and Made are
	// VMs to be created that an earlier change, or a person, added to the files.
	TakenOut, Made []fleet.VM
	// Repinned are running VMs that the host agent is to pin to other CPUs.
	Repinned []Repin
	// Err is why the host could not be planned.
	Err error

	workspace *state.Workspace
	// outside are writes that no plan contains, for the record.
	outside []string
	// strays are guests with our marker that are in neither files nor state.
	strays []located
	// dry is set for a plan that must not change the state.
	dry bool
}

// Changes reports whether the plan does anything.
func (p *ShardPlan) Changes() bool {
	return len(p.Intent.Create)+len(p.Intent.Delete)+len(p.Intent.Import)+len(p.Intent.Update) > 0 ||
		(p.Plan != nil && p.Plan.Changes)
}

// Plan plans all hosts of the fleet in a separate directory, and changes neither the
// fleet nor a state.
func (s *Scaler) Plan(ctx context.Context, change *Change) (plans []ShardPlan, err error) {
	temporary, err := scratch.New("plan")
	if err != nil {
		return nil, fmt.Errorf("planning: %w", err)
	}
	defer func() { err = errors.Join(err, temporary.Remove()) }()
	at, err := dryPlaces(temporary.Path())
	if err != nil {
		return nil, fmt.Errorf("planning: %w", err)
	}
	plans, err = s.plan(ctx, change, planning{at: at, more: change.After.Hosts})
	return plans, errors.Join(err, closeAll(plans))
}

// planning says how to plan: in which directories, and which hosts in addition to the
// necessary ones. In dry places, the states stay unchanged.
type planning struct {
	at   places
	more []fleet.Shard
	// again is set once files were restored.
	again bool
}

// plan plans the hosts that the change touches, the hosts that an earlier change left
// unfinished, and more, concurrently.
func (s *Scaler) plan(ctx context.Context, change *Change, how planning) ([]ShardPlan, error) {
	if s.config.Engine == nil {
		return nil, ErrNoEngine
	}
	if err := s.checkRootOnly(change); err != nil {
		return nil, err
	}
	touched := change.Shards()
	unfinished, differing := change.unfinished(), change.differing()
	shards := slices.Clone(touched)
	if !change.narrow {
		shards = slices.Concat(touched, unfinished, how.more)
	}
	slices.SortFunc(shards, topology.HostID.Compare)
	shards = slices.Compact(shards)
	if err := s.writeCAs(how.at.work); err != nil {
		return nil, err
	}
	plans := make([]ShardPlan, len(shards))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelShards)
	for i, shard := range shards {
		group.Go(func() error {
			plans[i] = ShardPlan{Shard: shard, Touched: slices.Contains(touched, shard), InPlace: len(on(change.Updated, shard)) > 0, dry: how.at.dry}
			s.planShard(groupCtx, change, &plans[i], how.at, slices.Contains(differing, shard) || change.cutOff(shard))
			return groupCtx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return plans, err
	}
	if !how.again {
		if found, err := s.takeIn(ctx, change, plans); found || err != nil {
			return s.planAgain(ctx, change, how, plans, err)
		}
	}
	s.limit(change, plans)
	return plans, nil
}

// planAgain discards plans made before some files were restored, and plans again.
func (s *Scaler) planAgain(ctx context.Context, change *Change, how planning, old []ShardPlan, err error) ([]ShardPlan, error) {
	if err := errors.Join(err, closeAll(old)); err != nil {
		return nil, err
	}
	how.again = true
	plans, err := s.plan(ctx, change, how)
	for i := range plans {
		for j := range old {
			if old[j].Shard == plans[i].Shard {
				plans[i].outside = slices.Concat(old[j].outside, plans[i].outside)
			}
		}
	}
	return plans, err
}

// Unfinished reports whether there is work besides the change: something that an earlier
// one began, or that people changed in files or in Proxmox.
func (c *Change) Unfinished() bool { return len(c.unfinished()) > 0 }

// unfinished returns the hosts with a change in progress, and the hosts whose desired and
// actual state differ.
func (c *Change) unfinished() []fleet.Shard {
	shards := c.differing()
	for shard := range c.open {
		shards = append(shards, shard)
	}
	return slices.DeleteFunc(shards, func(shard fleet.Shard) bool { return c.from.busy[shard] })
}

// cutOff reports whether a host has unfinished work other than updates in place.
func (c *Change) cutOff(shard fleet.Shard) bool { return cutOff(c.open, shard) }

func cutOff(under map[fleet.Shard]audit.Open, shard fleet.Shard) bool {
	open, underWay := under[shard]
	return underWay && (len(open.Updated) == 0 || len(open.Removed)+len(open.Made) > 0)
}

// differing returns the hosts whose desired and actual state differ.
func (c *Change) differing() []fleet.Shard {
	var shards []fleet.Shard
	guests := locate(c.Snapshot)
	for _, vm := range c.Before.VMs {
		if _, exists := guests[guestID{vm.Host.Region, vm.VMID}]; !exists {
			shards = append(shards, vm.Host)
		}
	}
	for _, guest := range c.unwanted() {
		shards = append(shards, guest.host)
	}
	return slices.DeleteFunc(shards, func(shard fleet.Shard) bool { return c.from.quiet[shard] || c.from.busy[shard] })
}

// checkRootOnly refuses a new VM that needs settings which the credential may not write:
// Proxmox would refuse them only after the clone.
func (s *Scaler) checkRootOnly(change *Change) error {
	for i := range change.Added {
		if err := s.mayMake(&change.Added[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scaler) mayMake(vm *fleet.VM) error {
	live := s.region(vm.Host.Region).Live
	if live == nil {
		return nil
	}
	if may, reason := live.CanSetAffinity(); !may && vm.Policy.Pinned() && vm.PinWith == fleet.PinWithAffinity {
		return &RootOnlyError{VM: vm.Name, Field: "pinWith: Affinity", Instead: "use pinWith: HostAgent", Reason: reason}
	}
	if may, reason := live.CanSetHugePages(); !may && vm.HugePages != "" {
		return &RootOnlyError{VM: vm.Name, Field: "hugePages: " + string(vm.HugePages), Instead: "remove hugePages", Reason: reason}
	}
	return nil
}

// planShard fills the plan of a host, or its Err.
func (s *Scaler) planShard(ctx context.Context, change *Change, plan *ShardPlan, at places, unfinished bool) {
	plan.workspace, plan.Err = s.workspace(change, at, plan.Shard)
	started := s.config.Clock.Now()
	if plan.Err == nil {
		plan.Err = s.judge(ctx, change, plan, unfinished)
	}
	s.config.Observe.PlanDone(plan.Shard, s.config.Clock.Since(started), plan.Err)
}

// look gathers what may happen on a host. If fresh is set, it reads the host's guests
// again.
func (s *Scaler) look(ctx context.Context, change *Change, shard fleet.Shard, fresh bool) (*wanted, error) {
	snapshot := change.Snapshot
	if live := s.region(shard.Region).Live; fresh && live != nil {
		var err error
		if snapshot, err = live.Refresh(ctx, snapshot, change.hostsOf(shard)); err != nil {
			return nil, err
		}
	}
	host := snapshot.Host(shard)
	if usable := host != nil && host.Online && host.Problem == ""; !usable && !change.elsewhere(shard) {
		return nil, &HostDownError{Host: shard, Problem: problem(host)}
	}
	region := regionOf(snapshot, shard.Region)
	if !region.Quorate {
		return nil, &HostDownError{Host: shard, Problem: "its cluster has lost its quorum"}
	}
	w := &wanted{
		clusterID: change.After.ClusterID, shard: shard, host: host, guests: locate(snapshot), complete: !region.HidesGuests,
		vms: byAddress(change.After.VMs, shard), added: byAddress(change.Added, shard),
		removed: byAddress(change.Removed, shard),
	}
	w.updating(change)
	open := change.open[shard]
	w.interrupted = change.cutOff(shard)
	for address, vm := range byAddress(open.Removed, shard) {
		if _, wantedAgain := w.vms[address]; !wantedAgain {
			w.removed[address] = vm
		}
	}
	return w, nil
}

func regionOf(snapshot *topology.Snapshot, name topology.RegionName) topology.Region {
	for _, region := range snapshot.Regions {
		if region.Name == name {
			return region
		}
	}
	return topology.Region{Name: name, HidesGuests: true}
}

func problem(host *topology.Host) string {
	switch {
	case host == nil:
		return "Proxmox does not know it"
	case host.Problem != "":
		return host.Problem
	}
	return "it is offline"
}

// workspace returns the workspace of a host.
func (s *Scaler) workspace(change *Change, at places, shard fleet.Shard) (*state.Workspace, error) {
	env, err := s.environment(at.work, shard)
	if err != nil {
		return nil, err
	}
	files, err := s.rendered(change, shard, at.dry)
	if err != nil {
		return nil, err
	}
	backend, err := s.states(change, at, shard)
	if err != nil {
		return nil, err
	}
	config := state.Config{
		Dir: at.dir(shard), Root: at.work, Files: files, Errored: at.state(shard, erroredFile), BackendConfig: backend,
		Engine: s.config.Engine, Env: env, PluginDir: s.config.PluginDir, Providers: s.config.Providers,
		Encryption:  s.config.Encryption,
		Parallelism: len(byAddress(change.Added, shard)) + len(byAddress(change.Removed, shard)),
		WaitDelay:   s.region(shard.Region).WaitDelay,
		Log:         s.config.Log,
		Progress: func(event state.Event) {
			if event.Kind != state.EventProgress {
				s.config.Progress(shard, event.Message)
			}
		},
	}
	if !at.dry {
		// A dry run has a directory of its own, and the lock that it meets may belong to
		// an apply of this very process.
		config.Gone = s.config.HolderGone
	}
	if config.Gone != nil {
		// No other live process works on this state.
		config.LockTimeout = 5 * time.Second
	}
	return state.New(config)
}

// environment returns the variables that log the provider in and make it trust the
// region's CA in addition to the system's.
func (s *Scaler) environment(work string, shard fleet.Shard) (map[string]string, error) {
	region := s.region(shard.Region)
	env := map[string]string{}
	if region.Live != nil {
		maps.Copy(env, region.Live.ProviderEnv())
	} else {
		// A dry run makes no requests, but the provider requires a credential.
		env["PROXMOX_VE_API_TOKEN"] = "numaform@pve!none=00000000-0000-0000-0000-000000000000"
		if region.Endpoint == "" {
			env["PROXMOX_VE_ENDPOINT"] = "https://proxmox.invalid:8006/"
		}
	}
	if region.CAFile != "" {
		dir, err := filepath.Abs(caDir(work, region))
		if err != nil {
			return nil, fmt.Errorf("finding the certificates of %s: %w", region.Name, err)
		}
		env["SSL_CERT_DIR"] = dir + ":/etc/ssl/certs:/etc/pki/tls/certs"
	}
	return env, nil
}

func sameFiles(a, b generator.Files) bool {
	return maps.EqualFunc(a, b, bytes.Equal)
}

func closeAll(plans []ShardPlan) error {
	var errs []error
	for i := range plans {
		if plans[i].workspace != nil {
			errs = append(errs, plans[i].workspace.Close())
		}
	}
	return errors.Join(errs...)
}
