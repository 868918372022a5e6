package approval

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

// RequestedByGuard is the requester of changes that the writer began and for which the guard
// requires approval, except in-place updates.
const RequestedByGuard = "guard"

// RequestedByStandby is the requester of wakes of standby VMs that the guard allows and that
// wait because of their NodePool's mode.
const RequestedByStandby = "standby"

// RequestedByClass is the requester of in-place updates of running VMs.
const RequestedByClass = "nodeclass"

// requestedByWriter reports whether a ScalePlan is about a change that the writer began.
func requestedByWriter(plan *v1alpha1.ScalePlan) bool {
	return slices.Contains([]string{RequestedByGuard, RequestedByStandby, RequestedByClass}, plan.Spec.RequestedBy)
}

// Asks reports whether a plan needs approval even if the guard allows it. A plan that
// updates VMs in place, or wakes standby VMs, does if the scale-up mode of one of the VMs'
// NodePools is manual. In a freeze window, every plan does that creates, deletes, updates
// or wakes VMs.
func (a *Approvals) Asks(ctx context.Context, plan *scaler.RootPlan) (bool, error) {
	intent := &plan.Intent
	if a.Frozen(v1alpha1.ScaleUp) && len(intent.Create)+len(intent.Update)+len(intent.Wake) > 0 || a.Frozen(v1alpha1.ScaleDown) && len(intent.Delete) > 0 {
		return true, nil
	}
	if len(intent.Update)+len(intent.Wake) == 0 {
		return false, nil
	}
	known, err := a.readPools(ctx)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(slices.Concat(plan.Intent.Update, plan.Intent.Wake), func(t guard.Target) bool {
		return a.mode(known, t.Pool, v1alpha1.ScaleUp) == ModeManual
	}), nil
}

// MayWake returns a function that reports whether pods may wake a standby VM. They may not
// if the scale-up mode of its NodePool is manual: pods then get new nodes, which an
// operator can review. They may not, either, if the VM's wake is pending approval or was
// recently refused.
func (a *Approvals) MayWake(ctx context.Context) (func(vm *fleet.VM) bool, error) {
	known, err := a.readPools(ctx)
	if err != nil {
		return nil, err
	}
	plans, err := a.readPlans(ctx)
	if err != nil {
		return nil, err
	}
	held := map[string]bool{} // by key
	for i := range plans {
		if a.undecided(&plans[i]) || a.refused(plans[i:i+1], plans[i].Spec.PlanHash) {
			maps.Copy(held, wakes(plans[i].Spec.VMs))
		}
	}
	return func(vm *fleet.VM) bool {
		return !held[string(vm.Key)] && a.mode(known, vm.Pool, v1alpha1.ScaleUp) != ModeManual
	}, nil
}

// Approver returns the approval of a plan for which the guard requires one: by the auto
// mode of its NodePools, or by the operator who approved a ScalePlan that covers it. It
// records that this ScalePlan has begun. If the plan has no approval, Approver returns nil
// and proposes a ScalePlan, unless the guard denies the plan, the host was not planned, or
// the same ScalePlan is pending or was recently refused.
func (a *Approvals) Approver(ctx context.Context, plan *scaler.RootPlan) (*audit.Approval, error) {
	if plan.Plan == nil || plan.Verdict.Decision == guard.Deny {
		return nil, nil
	}
	known, err := a.readPools(ctx)
	if err != nil {
		return nil, err
	}
	by, err := a.auto(known, plan)
	switch {
	case err != nil:
		return nil, err
	case by != "":
		return &audit.Approval{By: by}, nil
	}
	d, err := draftOf(plan)
	if err != nil {
		return nil, fmt.Errorf("requesting approval of the plan of host %s: %w", plan.Host, err)
	}
	a.explain(d, plan)
	plans, err := a.readPlans(ctx)
	if err != nil {
		return nil, err
	}
	for i := range plans {
		if !a.covers(&plans[i], d) {
			continue
		}
		// Exclude the VMs of the draft, which are already reserved.
		before := slices.DeleteFunc(keysLike(a.fleet.VMs(), &plans[i]), func(key string) bool {
			return slices.ContainsFunc(d.vms, func(vm v1alpha1.ScalePlanVM) bool { return vm.Key == key })
		})
		var keys []string
		for j := range d.vms {
			if d.vms[j].Action == v1alpha1.ScalePlanCreate {
				keys = append(keys, d.vms[j].Key)
			}
		}
		if err := a.begin(ctx, &plans[i], before, keys); err != nil {
			return nil, err
		}
		approval, err := a.consent(&plans[i])
		if err != nil {
			return nil, err
		}
		return &approval, nil
	}
	if current(plans, d.hash) != nil {
		return nil, nil
	}
	// Do not replace approved plans: their changes may be requested again.
	replaced := slices.DeleteFunc(plans, func(other v1alpha1.ScalePlan) bool {
		return !requestedByWriter(&other) || (pending(&other) && isApproved(&other)) ||
			!slices.ContainsFunc(other.Spec.Hosts, func(host v1alpha1.ScalePlanHost) bool { return host.Host == plan.Host.String() })
	})
	return nil, a.propose(ctx, replaced, d)
}

// explain adds to a draft why a plan that the guard allows needs approval.
func (a *Approvals) explain(d *draft, plan *scaler.RootPlan) {
	if plan.Verdict.Decision != guard.Allow {
		return
	}
	if active := a.frozen(d.direction); active != nil {
		d.reasons = []string{a.manualReason("", d.direction)}
		if d.requestedBy == RequestedByGuard {
			d.why = "it is requested in a freeze window"
		}
	}
}

// auto returns the approver of a plan that the auto modes of all its NodePools allow, such
// as "auto mode of NodePool a", or "". A mode cannot replace required signatures.
func (a *Approvals) auto(known pools, plan *scaler.RootPlan) (string, error) {
	policy, err := a.signatures()
	if err != nil || policy.Requires(scopeOfPlan(plan)) {
		return "", err
	}
	names, ours := map[string]bool{}, map[string]bool{}
	for _, t := range targets(plan.Intent) {
		if a.mode(known, t.Pool, t.direction) != ModeAuto {
			return "", nil
		}
		names[t.Pool], ours[t.Address] = true, true
	}
	for _, finding := range plan.Verdict.Findings {
		// Auto mode does not apply to a change that no NodePool requested.
		if address := finding.Address; address != "" && !ours[address] && !ours[guard.VMOf(address)] {
			return "", nil
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	return "auto mode of NodePool " + strings.Join(slices.Sorted(maps.Keys(names)), ", "), nil
}

// target is a VM of an intent, with the change to it.
type target struct {
	guard.Target
	action    v1alpha1.ScalePlanAction
	direction v1alpha1.ScaleDirection
}

func targets(intent guard.Intent) []target {
	var list []target
	add := func(action v1alpha1.ScalePlanAction, direction v1alpha1.ScaleDirection, of []guard.Target) {
		for _, t := range of {
			list = append(list, target{Target: t, action: action, direction: direction})
		}
	}
	add(v1alpha1.ScalePlanCreate, v1alpha1.ScaleUp, intent.Create)
	add(v1alpha1.ScalePlanUpdate, v1alpha1.ScaleUp, intent.Import)
	add(v1alpha1.ScalePlanUpdate, v1alpha1.ScaleUp, intent.Update)
	add(v1alpha1.ScalePlanWake, v1alpha1.ScaleUp, intent.Wake)
	add(v1alpha1.ScalePlanDelete, v1alpha1.ScaleDown, intent.Delete)
	return list
}

// draftOf returns a draft of a plan for which the guard or, for in-place updates and wakes,
// the mode of a NodePool requires approval.
func draftOf(plan *scaler.RootPlan) (*draft, error) {
	d := &draft{direction: v1alpha1.ScaleDown, requestedBy: RequestedByGuard, why: "the guard requires approval for this change"}
	switch {
	case plan.InPlace:
		d.requestedBy = RequestedByClass
		d.why = "tags, pool, security groups or emulator of a ProxmoxNodeClass changed: its running nodes get the new values"
		if plan.Verdict.Decision == guard.Allow {
			d.reasons = append(d.reasons, "scale-up of a NodePool of these nodes is manual")
		}
	case len(plan.Intent.Wake) > 0 && plan.Verdict.Decision == guard.Allow:
		d.requestedBy = RequestedByStandby
		d.why = "pods need these standby VMs"
		d.reasons = append(d.reasons, "scale-up of a NodePool of these VMs is manual")
	}
	for _, t := range targets(plan.Intent) {
		line := v1alpha1.ScalePlanVM{
			Action: t.action, Name: t.Name(), Key: string(t.Key), Host: plan.Host.String(), NodePool: t.Pool,
			InstanceType: typeOf(plan.Plan.JSON, t.Address),
		}
		if t.action != v1alpha1.ScalePlanDelete {
			var err error
			if line.Change, err = changeOf(plan.Plan.JSON, t.Target); err != nil {
				return nil, err
			}
			d.direction = v1alpha1.ScaleUp
		}
		d.vms = append(d.vms, line)
		if t.Pool != "" {
			d.pools = append(d.pools, t.Pool)
		}
	}
	slices.Sort(d.pools)
	d.pools = slices.Compact(d.pools)
	if len(d.pools) == 0 {
		d.pools = []string{"fleet"}
	}
	touched := *plan
	touched.Touched = true
	return d, d.addPlans([]scaler.RootPlan{touched})
}

// covers reports whether a ScalePlan is approved and covers a whole draft: each VM of the
// draft has the same change in the plan, and each existing VM also the same key; no other
// rule of the guard requires approval; the draft is not based on an older or another
// Terraform state; and no more VMs are in progress than the plan creates. A plan that the
// writer requested must also have the draft's hash.
func (a *Approvals) covers(plan *v1alpha1.ScalePlan, d *draft) bool {
	if !a.approved(plan, plan.Spec.PlanHash) || unforeseen(plan, d.verdict) != "" || otherState(plan, d.hosts) != "" || len(d.vms) == 0 {
		return false
	}
	if requestedByWriter(plan) && plan.Spec.PlanHash != d.hash {
		return false
	}
	if plan.Status.Phase == v1alpha1.ScalePlanApproved && plan.Spec.Direction == v1alpha1.ScaleUp && len(a.created(plan)) > creates(plan) {
		return false // all approved VMs are in progress already, and these are additional ones
	}

	// Each VM must match a different VM of the plan.
	left := slices.Clone(plan.Spec.VMs)
	for i := range d.vms {
		vm := &d.vms[i]
		at := slices.IndexFunc(left, func(line v1alpha1.ScalePlanVM) bool {
			return line.Action == vm.Action && line.Host == vm.Host && line.NodePool == vm.NodePool && line.Change == vm.Change &&
				(line.Action == v1alpha1.ScalePlanCreate || line.Key == vm.Key)
		})
		if at < 0 {
			return false
		}
		left = slices.Delete(left, at, at+1)
	}
	return true
}
