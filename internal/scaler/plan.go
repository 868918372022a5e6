package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/tracing"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// maxParallelHosts limits how many hosts one change applies at once: each costs the memory
// of an engine and its provider.
const maxParallelHosts = 8

// parallelPlans returns how many hosts are planned at once. Plans are CPU-bound, so more
// plans than cores do not end earlier but need more memory.
func parallelPlans() int { return min(maxParallelHosts, runtime.GOMAXPROCS(0)+1) }

// ErrNoEngine is returned by operations that need an engine if the scaler has none.
var ErrNoEngine = errors.New("no engine found: install OpenTofu or Terraform, or set engine.binary in numaform.yaml")

// RootPlan is the plan for one host.
type RootPlan struct {
	Host topology.HostID
	// Touched is set if the change contains a request for the host, and not set if the host
	// is planned for another reason, such as unfinished work of an earlier change.
	Touched bool
	// InPlace is set if the change updates VMs of the host while they run.
	InPlace bool
	Plan    *state.Plan
	Intent  guard.Intent
	Verdict guard.Verdict
	// TakenOut are VMs to be deleted because a person deleted their files, and Made are
	// VMs to be created that an earlier change, or a person, added to the files.
	TakenOut, Made []fleet.VM
	// Missing are the addresses of the stale entries that were removed from the state: see
	// hostView.stale.
	Missing []string
	// Repinned are running VMs that the host agent is to pin to other CPUs.
	Repinned []Repin
	// Err is why the host could not be planned.
	Err error

	workspace *state.Workspace
	// approval is the approval of this plan, if its host has its own one.
	approval *audit.Approval
	// outside are writes to Proxmox or the state that no plan contains, for the record.
	outside []string
	// orphans are guests with our marker that are in neither files nor state.
	orphans []located
	// retried are the VMs of earlier changes that the plan updates after a refresh, if they
	// differ from their files.
	retried []fleet.Key
	// dry is set for a plan that must not change the state.
	dry bool
	// templates is the change of the host's templates that the plan is for, or nil.
	templates *templateChange
	// left is set if the host left its Proxmox cluster: see planLeft.
	left bool
}

// Changes reports whether the plan changes anything, including the state.
func (p *RootPlan) Changes() bool {
	return len(p.Intent.Create)+len(p.Intent.Delete)+len(p.Intent.Import)+len(p.Intent.Update)+len(p.Intent.Wake) > 0 ||
		(p.Plan != nil && p.Plan.Changes)
}

// onlyDeletes reports whether the plan deletes VMs and does nothing else.
func (p *RootPlan) onlyDeletes() bool {
	i := &p.Intent
	return len(i.Delete) > 0 && len(i.Create)+len(i.Import)+len(i.Update)+len(i.Wake) == 0
}

// Plan plans all hosts of the fleet or, for a narrow change, the hosts that it touches, in
// a separate directory. It changes neither the fleet nor a state.
func (s *Scaler) Plan(ctx context.Context, change *Change) (plans []RootPlan, err error) {
	err = s.inScratch("plan", "planning", func(at places) (err error) {
		plans, err = s.planHosts(ctx, change, at, change.After.Hosts)
		return errors.Join(err, closeAll(plans))
	})
	return plans, err
}

// planHosts plans the hosts that the change touches and, unless the change is narrow, the
// hosts with unfinished work and the hosts in more. If the plans find existing VMs that
// only the history contains, it adopts them and plans again. It then checks the limits on
// all plans together. If at is dry, the states do not change.
func (s *Scaler) planHosts(ctx context.Context, change *Change, at places, more []topology.HostID) ([]RootPlan, error) {
	if s.config.Engine == nil {
		return nil, ErrNoEngine
	}
	for i := range change.Added {
		if err := s.checkRootOnly(&change.Added[i]); err != nil {
			return nil, err
		}
	}
	plans, err := s.planEach(ctx, change, at, more)
	if err != nil {
		return plans, err
	}

	// Adopted VMs are in the files from now on, so the hosts are planned again.
	adopted, err := s.adopt(ctx, change, plans)
	if adopted || err != nil {
		if err := errors.Join(err, closeAll(plans)); err != nil {
			return nil, err
		}
		first := plans
		if plans, err = s.planEach(ctx, change, at, more); err != nil {
			return plans, err
		}
		for i := range plans {
			if j := slices.IndexFunc(first, func(p RootPlan) bool { return p.Host == plans[i].Host }); j >= 0 {
				plans[i].outside = slices.Concat(first[j].outside, plans[i].outside)
			}
		}
	}

	// Check the limits on all plans together, with the VMs that wait for a later part of a
	// burst, and with the recent changes.
	var parts []guard.HostIntent
	for i := range plans {
		if plans[i].Err == nil {
			parts = append(parts, guard.HostIntent{Host: plans[i].Host, Intent: plans[i].Intent})
		}
	}
	for _, vm := range change.later {
		intent := guard.Intent{Create: []guard.Target{{Pool: vm.Pool}}}
		parts = append(parts, guard.HostIntent{Host: vm.Host, Intent: intent})
	}
	limits := guard.CheckLimits(parts, events(change.from, s.config.Clock.Now(), parts), s.config.Rules.Limits)
	for i := range plans {
		if plans[i].Err == nil {
			plans[i].Verdict = plans[i].Verdict.And(limits.On(plans[i].Host))
		}
	}
	return plans, nil
}

// routine reports a step that each change has.
func (s *Scaler) routine(host topology.HostID, message string) {
	if !s.config.Quiet {
		s.config.Progress(host, message)
	}
}

// ProgressPlanning is the message of Progress when the planning of a host begins.
const ProgressPlanning = "planning"

// Steps of a change, for Count.
const (
	stepPlanning = "planning hosts"
	stepApplying = "applying plans of hosts"
)

// planEach plans hosts concurrently. A host that cannot be planned has an Err.
func (s *Scaler) planEach(ctx context.Context, change *Change, at places, more []topology.HostID) ([]RootPlan, error) {
	touched := change.Hosts()
	differing := change.differing()
	hosts := slices.Clone(touched)
	if !change.narrow {
		hosts = slices.Concat(touched, change.unfinished(), more)
	}
	slices.SortFunc(hosts, topology.HostID.Compare)
	hosts = slices.DeleteFunc(slices.Compact(hosts), func(host topology.HostID) bool { return !slices.Contains(touched, host) && change.abandoned(host) })

	plans := make([]RootPlan, len(hosts))
	var done atomic.Int32
	s.config.Count(stepPlanning, 0, len(hosts))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelPlans())
	for i, host := range hosts {
		plans[i] = RootPlan{Host: host, Touched: slices.Contains(touched, host), InPlace: len(on(change.Updated, host)) > 0, dry: at.dry, templates: change.templates}
		whole := slices.Contains(differing, host) || slices.Contains(change.importing, host) || interrupted(change.open, host)
		group.Go(func() error {
			defer s.engines.plan(ctx)()
			plans[i].Err = s.planHost(ctx, change, &plans[i], at, whole)
			s.config.Count(stepPlanning, int(done.Add(1)), len(hosts))
			return ctx.Err()
		})
	}
	return plans, group.Wait()
}

// checkRootOnly refuses a new VM that needs settings which the credential may not write:
// Proxmox would refuse them only after the clone.
func (s *Scaler) checkRootOnly(vm *fleet.VM) error {
	live := s.region(vm.Host.Region).Live
	if live == nil {
		return nil
	}
	if may, reason := live.CanSetAffinity(); !may && vm.Policy.Pinned() && vm.PinWith == fleet.PinWithAffinity {
		return &RootOnlyError{VM: vm.Name, Field: "pinWith: Affinity", Reason: reason}
	}
	if may, reason := live.CanSetHugePages(); !may && vm.HugePages != "" {
		return &RootOnlyError{VM: vm.Name, Field: "hugePages: " + string(vm.HugePages), Reason: reason}
	}
	return nil
}

// planHost recovers a host after a crash, plans it, and checks the plan with the guard. A
// change on a host without unfinished work first plans only its own VMs (planTargets); if
// that does not suffice, the whole host is planned. A dry run always plans the whole host,
// and a repair plans only the VMs to repair.
func (s *Scaler) planHost(ctx context.Context, change *Change, plan *RootPlan, at places, whole bool) (err error) { //nolint:gocyclo // one story, whose branches are checked errors
	started := s.config.Clock.Now()
	ctx, span := tracing.Start(ctx, tracing.SpanPlan)
	defer func() {
		s.config.Observe.PlanDone(plan.Host, s.config.Clock.Since(started), err)
		if span.IsRecording() {
			span.SetAttributes(planAttributes(plan)...)
		}
		tracing.End(span, err)
	}()
	if plan.workspace, err = s.workspace(change, at, plan.Host); err != nil {
		return err
	}

	// Recover the working directory and the backend.
	s.routine(plan.Host, ProgressPlanning)
	recovery, err := plan.workspace.Recover(ctx)
	plan.outside = append(plan.outside, recovery.Outside...)
	if err != nil {
		return err
	}
	if plan.templates != nil {
		return s.planTemplates(ctx, change, plan)
	}
	whole = whole || recovery.Crashed || len(recovery.Lost) > 0 || len(on(change.Foreign, plan.Host)) > 0

	// Read the guests again if more than a create may be necessary.
	touching := len(on(change.Removed, plan.Host))+len(on(change.Updated, plan.Host))+len(on(change.Rested, plan.Host)) > 0
	v, err := s.viewHost(ctx, change, plan.Host, whole || touching || change.Snapshot.Left(plan.Host))
	if err != nil {
		return err
	}
	if v.left {
		s.planLeft(ctx, plan, v)
		return nil
	}
	v.interrupted = v.interrupted || recovery.Crashed
	if _, err := s.followMoved(ctx, plan, v); err != nil {
		return err
	}

	if err := s.refreshRested(ctx, plan, v); err != nil {
		return err
	}

	if repaired := byAddress(change.Repaired, plan.Host); len(repaired) > 0 {
		return s.planRepair(ctx, plan, v, repaired)
	}
	changeSuffices := plan.Touched && !plan.dry && len(on(change.Renumbered, plan.Host)) == 0
	if !whole && (changeSuffices || (v.retrying && !plan.dry)) {
		suffices, err := s.planTargets(ctx, plan, v)
		for v.leaveOut(plan, err) {
			suffices, err = s.planTargets(ctx, plan, v)
		}
		if suffices || err != nil {
			return err
		}
	}
	if err := s.planWhole(ctx, plan, v); err != nil || plan.Touched || plan.dry || !plan.onlyDeletes() {
		return err
	}
	// A removal that the apply would refuse again is not recorded again: see Writer.blocked.
	return v.stillAsPlanned(plan.Plan.JSON, plan.Intent)
}

// planTargets plans only the VMs of the change, which costs a fraction of a complete plan.
// It reports whether that suffices: the guard allows the plan, and the plan shows nothing
// that must be recovered first.
func (s *Scaler) planTargets(ctx context.Context, plan *RootPlan, v *hostView) (suffices bool, err error) {
	// Refresh after a failed change in place, because the state wrongly records it as
	// done. A plan of the whole host would show no difference.
	options := state.PlanOptions{Targets: v.targets(), Refresh: v.retrying}
	if plan.Plan, err = v.change.plan(ctx, plan.workspace, v.id, options); err != nil {
		return false, err
	}
	todo, err := v.compare(plan.Plan.JSON)
	if unfinished := len(todo.forget)+len(todo.imports)+len(todo.partial) > 0; err != nil || unfinished || v.hasLost(plan.Plan) {
		if err == nil && len(v.retried) > 0 && !plan.Touched {
			// Only the refresh shows that something is missing.
			err = s.refreshState(ctx, plan, v, v.targets(), "updated "+strings.Join(v.targets(), ", ")+" in the state")
		}
		return false, err
	}
	s.checkNodes(ctx, v, nil)
	plan.Intent = v.intent(plan.Plan.JSON, nil)
	plan.Intent.Targeted = true
	if err := v.repin(plan); err != nil {
		return false, err
	}
	s.check(ctx, plan)
	onlyRetries := len(v.retried) > 0 && !plan.Touched
	approvable := plan.Verdict.Decision == guard.NeedsApproval && onlyRetries && plan.Changes()
	if plan.Verdict.Decision != guard.Allow && !approvable {
		return onlyRetries, nil
	}
	for _, vm := range v.retried {
		plan.retried = append(plan.retried, vm.Key)
	}
	if len(v.retried) == 0 || plan.Changes() {
		return true, nil
	}
	// Files and Proxmox agree, because the update was reverted, for example.
	return true, s.refreshState(ctx, plan, v, v.targets(), "updated "+strings.Join(v.targets(), ", ")+" in the state")
}

// planWhole plans a whole host until files, state and Proxmox are consistent, and checks
// the last plan.
func (s *Scaler) planWhole(ctx context.Context, plan *RootPlan, v *hostView) (err error) {
	// A dry run takes no lock: it changes nothing, and the lock would block a concurrent
	// apply.
	options := state.PlanOptions{Unlocked: plan.dry}
	if plan.Plan, err = v.change.plan(ctx, plan.workspace, v.id, options); err != nil {
		return err
	}

	// Forget stale entries: desired VMs that exist are then imported, and missing ones are
	// created.
	todo, err := v.compare(plan.Plan.JSON)
	if err == nil && len(todo.forget) > 0 {
		if plan.dry && !s.keepsStates() {
			return &StaleStateError{Addresses: todo.forget}
		}
		forgotten := "removing stale entries from the state: " + strings.Join(todo.forget, ", ")
		s.config.Progress(plan.Host, forgotten)
		plan.outside = append(plan.outside, forgotten)
		plan.Missing = todo.forget
		if err := plan.workspace.Forget(ctx, todo.forget...); err != nil {
			return err
		}
		if plan.Plan, err = v.change.plan(ctx, plan.workspace, v.id, options); err != nil {
			return err
		}
		todo, err = v.compare(plan.Plan.JSON)
	}
	plan.orphans = v.orphans(plan.Plan.JSON)
	if err != nil {
		return err
	}

	// Import what exists, follow moved VMs, and plan again if that was necessary.
	recovered := slices.Concat(todo.imports, todo.partial)
	if len(recovered) > 0 {
		s.config.Progress(plan.Host, fmt.Sprintf("recovering %s, missing or incomplete in the state", topology.Count(len(recovered), "VM")))
	}
	for i := range recovered {
		options.Imports = append(options.Imports, generator.Imports(&recovered[i])...)
	}
	again := len(options.Imports) > 0
	if plan.TakenOut = v.takenOut(plan.Plan.JSON); len(plan.TakenOut) > 0 {
		followed, err := s.followMoved(ctx, plan, v)
		if err != nil {
			return err
		}
		again = again || followed
	}
	if again {
		if plan.Plan, err = v.change.plan(ctx, plan.workspace, v.id, options); err != nil {
			return err
		}
	}

	s.checkNodes(ctx, v, plan.TakenOut)
	plan.Intent = v.intent(plan.Plan.JSON, todo.imports)
	if err := v.stillExist(plan.Intent.Create); err != nil {
		return err
	}
	for _, target := range plan.Intent.Create {
		if _, requested := v.added[target.Address]; !requested {
			plan.Made = append(plan.Made, v.vms[target.Address])
		}
	}
	plan.Intent.Update = v.alsoUpdate(plan.Intent.Update, todo.partial)
	if err := v.repin(plan); err != nil {
		return err
	}
	s.check(ctx, plan)
	return nil
}

// planRepair plans only the VMs to repair on a host. Drift of other VMs is ignored and
// does not block the plan. planRepair returns an error if there is unfinished work, such
// as an apply whose engine died.
func (s *Scaler) planRepair(ctx context.Context, plan *RootPlan, v *hostView, repaired map[string]fleet.VM) (err error) {
	if err := v.repairable(repaired); err != nil {
		return err
	}
	options := state.PlanOptions{Refresh: true, Targets: refreshTargets(repaired, v.guestIndex)}
	if plan.Plan, err = v.change.plan(ctx, plan.workspace, v.id, options); err != nil {
		return err
	}

	// Update the VMs that still differ.
	differ := map[string]bool{}
	for _, change := range plan.Plan.JSON.ResourceChanges {
		differ[change.Address] = !change.Change.Actions.NoOp()
	}
	plan.Intent = guard.Intent{ClusterID: v.clusterID, Targeted: true}
	for _, address := range slices.Sorted(maps.Keys(repaired)) {
		vm := repaired[address]
		if slices.ContainsFunc(generator.Addresses(&vm), func(address string) bool { return differ[address] }) {
			plan.Intent.Update = append(plan.Intent.Update, targetOf(v.clusterID, &vm))
		}
	}
	if err := v.repin(plan); err != nil {
		return err
	}
	s.check(ctx, plan)
	return nil
}

// plan runs the engine's plan for a host, on the files of the targets or of all VMs.
func (c *Change) plan(ctx context.Context, workspace *state.Workspace, host topology.HostID, options state.PlanOptions) (*state.Plan, error) {
	options.Files = map[string][]byte{}
	for i := range c.After.VMs {
		vm := &c.After.VMs[i]
		targeted := func(call string) bool { return slices.Contains(options.Targets, call) }
		if vm.Host == host && (options.Targets == nil || slices.ContainsFunc(generator.Calls(vm), targeted)) {
			options.Files[generator.NodeFile(vm)] = c.AfterFiles[generator.NodeFile(vm)]
		}
	}
	ctx, span := tracing.Start(ctx, tracing.SpanEnginePlan)
	plan, err := workspace.Plan(ctx, options)
	tracing.End(span, err)
	return plan, err
}

// checkNodes records why VMs to be deleted must not be deleted yet, and whether they have
// lost their Nodes. takenOut are VMs that would be deleted only because their files were
// deleted: they are not deleted if Config.Blind is set, because a Node that the scaler
// does not find may then still exist.
func (s *Scaler) checkNodes(ctx context.Context, v *hostView, takenOut []fleet.VM) {
	v.blocked = map[string]string{}
	v.gone = map[string]bool{}
	for address, vm := range v.removed {
		if s.config.Drained == nil {
			v.blocked[address] = "the cluster's Nodes are unknown: pass manifests with -f, or the cluster with --kubeconfig"
		} else if err := s.config.Drained(ctx, vm.Name); err != nil {
			v.blocked[address] = err.Error()
		}
		exists := false
		if s.config.NodeExists != nil && v.blocked[address] == "" {
			var err error
			if exists, err = s.config.NodeExists(ctx, vm.Name); err != nil {
				v.blocked[address] = fmt.Sprintf("checking whether its Node exists: %v: plan again when the cluster responds", err)
				exists = true // not proven to be gone
			}
		}
		// A standby VM that never ran has lost no Node.
		guest, _ := v.of(&vm)
		v.gone[address] = !exists && (!vm.Standby || guest.Running)
	}
	for i := range takenOut {
		if address := generator.Address(&takenOut[i]); s.config.Blind != "" && v.blocked[address] == "" {
			v.blocked[address] = s.config.Blind
		}
	}
}

// check runs the guard.
func (s *Scaler) check(ctx context.Context, plan *RootPlan) {
	started := s.config.Clock.Now()
	_, span := tracing.Start(ctx, tracing.SpanGuard)
	defer func() {
		if span.IsRecording() {
			span.SetAttributes(verdictAttributes(plan.Verdict)...)
		}
		span.End()
	}()
	if plan.templates != nil {
		plan.Verdict = guard.CheckTemplates(plan.Plan.JSON, plan.templates.intent, s.config.Rules)
	} else {
		plan.Intent.VMIDs = s.region(plan.Host.Region).VMIDs
		plan.Verdict = guard.Check(plan.Plan.JSON, plan.Intent, s.config.Rules)
	}
	s.config.Observe.GuardDone(s.config.Clock.Since(started), plan.Verdict.Decision)
}

// adopt restores the files of existing VMs that are only in the history, and reports
// whether it restored any: the next plan imports them.
func (s *Scaler) adopt(ctx context.Context, change *Change, plans []RootPlan) (bool, error) {
	var orphans []located
	for i := range plans {
		orphans = append(orphans, plans[i].orphans...)
	}
	if len(orphans) == 0 {
		return false, nil
	}
	entries, err := s.verifiedHistory(ctx)
	if err != nil {
		return false, err
	}
	recorded := recordedVMs(entries)
	adopted := false
	for _, guest := range orphans {
		vm, known := recorded[fleet.Key(guest.Key)]
		if !known || vm.Host != guest.host || int(vm.VMID) != guest.VMID {
			continue
		}
		inFiles := slices.ContainsFunc(slices.Concat(change.Before.VMs, change.After.VMs), func(other fleet.VM) bool {
			return other.Key == vm.Key || (other.VMID == vm.VMID && other.Host.Region == vm.Host.Region)
		})
		if inFiles {
			continue
		}
		s.config.Progress(vm.Host, "restoring the file of "+vm.Name+": the VM exists with our marker, but only the history contains it")
		change.Adopted = append(change.Adopted, vm)
		change.After.VMs = append(change.After.VMs, vm)
		adopted = true
	}
	if !adopted {
		return false, nil
	}
	return true, s.render(change)
}

// closeAll closes the workspaces of the plans.
func closeAll(plans []RootPlan) error {
	var errs []error
	for i := range plans {
		if plans[i].workspace != nil {
			errs = append(errs, plans[i].workspace.Close())
		}
	}
	return errors.Join(errs...)
}

// on returns the VMs of a host.
func on(vms []fleet.VM, host topology.HostID) []fleet.VM {
	var found []fleet.VM
	for i := range vms {
		if vms[i].Host == host {
			found = append(found, vms[i])
		}
	}
	return found
}

// byAddress returns the VMs of a host by the addresses of their resources.
func byAddress(vms []fleet.VM, host topology.HostID) map[string]fleet.VM {
	found := map[string]fleet.VM{}
	for i := range vms {
		if vms[i].Host == host {
			found[generator.Address(&vms[i])] = vms[i]
		}
	}
	return found
}
