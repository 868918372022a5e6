package approval

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// RequestedByProvisioning is the requester of VMs for pods.
const RequestedByProvisioning = "provisioning"

// planned is a dry plan of a NodePool's new VMs, and its inputs.
type planned struct {
	fingerprint string
	at          time.Time
	draft       *draft
	// decided is set if the ScalePlan with the same hash was already approved when this dry
	// plan was made.
	decided bool
}

// Up returns the new VMs of a decision that may be created now; none while numaform is
// paused. For the remaining VMs, Draft creates ScalePlans, one for each NodePool. Call Up
// with each decision, including an empty one, because plans end when no pod requests their
// VMs. Errors concern only VMs that are not in the result.
func (a *Approvals) Up(ctx context.Context, snapshot *topology.Snapshot, placed []scheduling.Placed) ([]scheduling.Placed, error) {
	if a.config.Paused() {
		return nil, nil
	}
	a.mu.Lock()
	a.due = nil
	a.mu.Unlock()
	known, err := a.readPools(ctx)
	if err != nil {
		return nil, err
	}
	plans, err := a.readPlans(ctx)
	if err != nil {
		return nil, err
	}
	groups := map[string][]scheduling.Placed{}
	for i := range placed {
		groups[placed[i].NodePool] = append(groups[placed[i].NodePool], placed[i])
	}
	a.keepWaits(groups)
	var approved []scheduling.Placed
	var errs []error
	for _, pool := range slices.Sorted(maps.Keys(groups)) {
		g := &group{pool: pool, mode: a.mode(known, pool, v1alpha1.ScaleUp), placed: groups[pool], snapshot: snapshot}
		for i := range plans {
			// Plans for updates of running VMs do not matter to pending pods.
			if spec := &plans[i].Spec; spec.Direction == v1alpha1.ScaleUp && spec.RequestedBy != RequestedByClass && slices.Contains(spec.NodePools, pool) {
				g.plans = append(g.plans, plans[i])
			}
		}
		ok, err := a.mayCreate(ctx, g)
		if err != nil {
			errs = append(errs, fmt.Errorf("checking approval of nodepool %s: %w", pool, err))
		}
		if ok {
			a.proceed(g)
			for i := range g.placed {
				g.placed[i].ScalePlan = g.begun
			}
			approved = append(approved, g.placed...)
		}
	}

	err = a.supersede(ctx, plans, "", "pods no longer need it", func(plan *v1alpha1.ScalePlan) bool {
		if !a.unrequested(plan) {
			return false
		}
		pool := plan.Spec.NodePools[0]
		if unread(plan, snapshot) {
			a.setRequested(pool)
			return false
		}
		_, requested := groups[pool]
		return !requested
	})
	return approved, errors.Join(append(errs, err)...)
}

// unrequested reports whether a plan creates VMs for pods, but no pod has requested VMs of
// its NodePool for a while.
func (a *Approvals) unrequested(plan *v1alpha1.ScalePlan) bool {
	if plan.Spec.Direction != v1alpha1.ScaleUp || plan.Spec.RequestedBy != RequestedByProvisioning || len(plan.Spec.NodePools) == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	last, known := a.requested[plan.Spec.NodePools[0]]
	if !known {
		last = a.started()
	}
	return a.config.Clock.Since(last) > unrequestedFor
}

// setRequested records that pods request VMs of a NodePool now.
func (a *Approvals) setRequested(pool string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requested[pool] = a.config.Clock.Now()
}

// unread reports whether a host of a plan cannot be read. Pods can then not be placed there,
// although they may still need the plan.
func unread(plan *v1alpha1.ScalePlan, snapshot *topology.Snapshot) bool {
	return slices.ContainsFunc(plan.Spec.Hosts, func(planned v1alpha1.ScalePlanHost) bool {
		var id topology.HostID
		if err := id.UnmarshalText([]byte(planned.Host)); err != nil {
			return false
		}
		host := snapshot.Host(id)
		return host == nil || host.Problem != ""
	})
}

// group is the new VMs of a NodePool.
type group struct {
	pool     string
	mode     Mode
	placed   []scheduling.Placed
	snapshot *topology.Snapshot
	plans    []v1alpha1.ScalePlan
	// fingerprint is the fingerprint of placed.
	fingerprint string
	// begun is the approved plan that begins now, or empty.
	begun string
}

// mayCreate reports whether the VMs of a NodePool may be created now. If that needs a new dry
// plan, it leaves the group for Draft.
func (a *Approvals) mayCreate(ctx context.Context, g *group) (bool, error) {
	a.setRequested(g.pool)

	// In auto mode, the VMs need no ScalePlan. In policy mode, they need one only if other
	// VMs of the NodePool wait for approval because of the guard: new VMs would then be
	// reserved only to wait as well. Pods need new VMs because they may not wake the standby
	// VMs that wait.
	waiting := slices.ContainsFunc(g.plans, func(plan v1alpha1.ScalePlan) bool {
		return pending(&plan) && plan.Spec.Verdict.Decision != v1alpha1.VerdictAllow && !onlyWakes(&plan)
	})
	if g.mode == ModeAuto || g.mode == ModePolicy && !waiting {
		return true, a.supersede(ctx, g.plans, "", "the NodePool's mode is "+string(g.mode)+" now", func(plan *v1alpha1.ScalePlan) bool {
			return g.mode == ModeAuto || plan.Spec.Verdict.Decision == v1alpha1.VerdictAllow
		})
	}

	var err error
	if g.fingerprint, err = fingerprint(g.placed); err != nil {
		return false, err
	}
	a.mu.Lock()
	last := a.planned[g.pool]
	a.mu.Unlock()
	if last.fingerprint == g.fingerprint {
		plan := current(g.plans, last.draft.hash)
		age := a.config.Clock.Since(last.at)
		if age < planFresh && (a.undecided(plan) || a.refused(g.plans, last.draft.hash)) {
			a.wait(g, last.draft)
			return false, nil
		}
		if last.decided && age < draftGood && plan != nil {
			ok, err := a.mayBegin(ctx, plan, last.draft)
			g.begun = plan.Name
			if ok || err != nil {
				return ok && err == nil, err
			}
		}
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	a.due = append(a.due, g)
	return false, nil
}

// fingerprint returns a hash that changes if the VMs or their placements change.
func fingerprint(placed []scheduling.Placed) (string, error) {
	type place struct {
		Spec      fleet.Spec
		Placement fleet.Placement
		Standby   bool
		Reserve   bool
	}
	places := make([]place, len(placed))
	for i := range placed {
		places[i] = place{Spec: placed[i].Spec, Placement: placed[i].Placement, Standby: placed[i].Standby, Reserve: placed[i].Reserve}
		places[i].Spec.Demand, places[i].Spec.Hosts, places[i].Placement.Reason = fleet.Demand{}, nil, ""
	}
	return digest(places)
}

// Draft makes the dry plans that the last Up required, and creates the ScalePlans. The
// next Up may return VMs that are already approved. Draft runs the engine, which takes
// time: do not call it while you hold a lock that placements need.
func (a *Approvals) Draft(ctx context.Context) error {
	a.mu.Lock()
	due := a.due
	a.due = nil
	a.mu.Unlock()
	if len(due) == 0 {
		return nil
	}
	a.planning.Lock()
	defer a.planning.Unlock()
	var errs []error
	for _, g := range due {
		if err := a.draft(ctx, g); err != nil {
			a.waitForOutage(g, err)
			errs = append(errs, fmt.Errorf("checking approval of nodepool %s: %w", g.pool, err))
		}
	}
	return errors.Join(errs...)
}

// draft plans the new VMs of one NodePool, and proposes them unless they are approved.
func (a *Approvals) draft(ctx context.Context, g *group) error {
	requests := make([]scaler.Request, len(g.placed))
	pods := 0
	for i := range g.placed {
		placed := &g.placed[i]
		requests[i] = scaler.Request{Spec: placed.Spec, Placement: placed.Placement, Standby: placed.Standby, Reserve: placed.Reserve}
		pods += len(g.placed[i].Pods)
	}
	taken, err := a.config.Taken(ctx)
	if err != nil {
		return err
	}
	proposing, cancel := context.WithTimeout(ctx, proposeWithin)
	defer cancel()
	change, err := a.config.Scaler.Propose(proposing, g.snapshot, requests, taken)
	if err != nil {
		return err
	}
	change.Narrow()
	// Exclude VMs that are only renumbered because another guest uses their VMID.
	change.Added = slices.DeleteFunc(change.Added, func(vm fleet.VM) bool {
		return vm.Pool != g.pool || !slices.ContainsFunc(g.placed, func(p scheduling.Placed) bool {
			return p.Standby == vm.Standby && p.Reserve == vm.Reserve && likeness(&p.Spec, &p.Placement) == likeness(&vm.Spec, &vm.Placement)
		})
	})
	dry, err := a.config.Scaler.Plan(ctx, change)
	if err != nil {
		return err
	}
	d := &draft{
		direction: v1alpha1.ScaleUp, pools: []string{g.pool}, requestedBy: RequestedByProvisioning,
		why: fmt.Sprintf("%d pods need new nodes", pods),
	}
	if pods == 1 {
		d.why = "1 pod needs a new node"
	}
	if g.mode == ModeManual {
		d.reasons = append(d.reasons, a.manualReason(g.pool, v1alpha1.ScaleUp))
	}
	if err := d.addCreates(change, dry, g.placed); err != nil {
		return err
	}

	plan := current(g.plans, d.hash)
	decided := plan != nil && a.approved(plan, d.hash)
	a.mu.Lock()
	a.planned[g.pool] = planned{fingerprint: g.fingerprint, at: a.config.Clock.Now(), draft: d, decided: decided}
	a.mu.Unlock()
	if decided {
		a.proceed(g)
		a.config.Decide()
		return nil
	}
	if err := a.propose(ctx, g.plans, d); err != nil {
		return err
	}
	a.wait(g, d)
	return nil
}

// current returns the unfinished plan with that hash, or nil.
func current(plans []v1alpha1.ScalePlan, hash string) *v1alpha1.ScalePlan {
	for i := range plans {
		if plans[i].Spec.PlanHash == hash && !plans[i].Status.Phase.Over() {
			return &plans[i]
		}
	}
	return nil
}

// mayBegin reports whether a draft's change was approved and may begin, and records that
// it has begun. It ends an approved plan if the guard's verdict or the Terraform state no
// longer matches it.
func (a *Approvals) mayBegin(ctx context.Context, plan *v1alpha1.ScalePlan, d *draft) (bool, error) {
	if !a.approved(plan, d.hash) {
		return false, nil
	}
	for _, changed := range []string{unforeseen(plan, d.verdict), otherState(plan, d.hosts)} {
		if changed != "" {
			return false, a.end(ctx, plan, v1alpha1.ScalePlanSuperseded, "it differs from the approved plan: "+changed)
		}
	}
	if plan.Status.Phase == v1alpha1.ScalePlanApproved {
		// The plan has already begun. Its removals may start again. If none of its new VMs
		// exist, numaform stopped in between, and they may be created.
		return d.direction == v1alpha1.ScaleDown || len(a.created(plan)) == 0, nil
	}
	return true, a.begin(ctx, plan, keysLike(a.fleet.VMs(), plan), nil)
}

// Created records in an approved plan the keys of VMs that Up returned with its name.
func (a *Approvals) Created(ctx context.Context, plan string, vms []fleet.VM) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	plans, err := a.plansNow(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(plans, func(p v1alpha1.ScalePlan) bool { return p.Name == plan })
	if i < 0 {
		return nil // deleted meanwhile
	}
	for j := range vms {
		if key := string(vms[j].Key); !slices.Contains(plans[i].Status.Keys, key) {
			plans[i].Status.Keys = append(plans[i].Status.Keys, key)
		}
	}
	if err := a.write(ctx, &plans[i]); err != nil {
		return fmt.Errorf("recording the VMs of scaleplan %s: %w", plan, err)
	}
	return nil
}

// undecided reports whether a plan is pending without a decision that is sufficient.
func (a *Approvals) undecided(plan *v1alpha1.ScalePlan) bool {
	return plan != nil && pending(plan) && !isRejected(plan) && !a.expired(plan) && !a.approved(plan, plan.Spec.PlanHash)
}

// refused reports whether an operator rejected, or the guard denied, a plan with that hash
// too recently to propose it again.
func (a *Approvals) refused(plans []v1alpha1.ScalePlan, hash string) bool {
	return slices.ContainsFunc(plans, func(plan v1alpha1.ScalePlan) bool {
		if plan.Spec.PlanHash != hash {
			return false
		}
		wait := time.Duration(0)
		switch {
		case plan.Status.Phase == v1alpha1.ScalePlanRejected, pending(&plan) && isRejected(&plan):
			wait = rejectedFor
		case plan.Status.Phase == v1alpha1.ScalePlanFailed && plan.Spec.Verdict.Decision == v1alpha1.VerdictDeny:
			wait = planFresh
		}
		since := plan.CreationTimestamp.Time
		if plan.Status.DecidedAt != nil {
			since = plan.Status.DecidedAt.Time
		}
		return wait > 0 && a.config.Clock.Since(since) < wait
	})
}

// keysLike returns the keys of VMs that look like the ones that a plan creates.
func keysLike(states []scaler.VMState, plan *v1alpha1.ScalePlan) []string {
	var keys []string
	for i := range states {
		if isLike(&states[i].VM, plan) {
			keys = append(keys, string(states[i].VM.Key))
		}
	}
	return keys
}

// isLike reports whether a VM has the pool, host and instance type of one that a plan
// creates.
func isLike(vm *fleet.VM, plan *v1alpha1.ScalePlan) bool {
	return slices.ContainsFunc(plan.Spec.VMs, func(line v1alpha1.ScalePlanVM) bool {
		return line.Action == v1alpha1.ScalePlanCreate && line.NodePool == vm.Pool && line.Host == vm.Host.String() && line.InstanceType == vm.InstanceType
	})
}

// created returns the VMs, reserved or created, that belong to a plan that was begun: the
// similar VMs that did not exist before.
func (a *Approvals) created(plan *v1alpha1.ScalePlan) []scaler.VMState {
	// The keys recorded by begin.
	before := map[string]bool{}
	for _, condition := range plan.Status.Conditions {
		if condition.Type != conditionBegun {
			continue
		}
		for key := range strings.SplitSeq(condition.Message, ",") {
			before[key] = true
		}
	}
	return slices.DeleteFunc(a.fleet.VMs(), func(state scaler.VMState) bool {
		return before[string(state.VM.Key)] || !isLike(&state.VM, plan)
	})
}
