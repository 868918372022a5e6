package approval

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

// RequestedByGuard is who asks about a change that was begun and that the guard does
// not let pass alone.
const RequestedByGuard = "guard"

// RequestedByClass is who asks about changes of VMs that run.
const RequestedByClass = "nodeclass"

// heldByWriter reports whether a ScalePlan is about a change that the writer holds.
func heldByWriter(plan *v1alpha1.ScalePlan) bool {
	return plan.Spec.RequestedBy == RequestedByGuard || plan.Spec.RequestedBy == RequestedByClass
}

// Asks reports whether a plan that changes VMs in place, and that the guard allows,
// waits for a person: changes count as scale-up, and that of one of its NodePools is
// manual.
func (a *Approvals) Asks(ctx context.Context, plan *scaler.ShardPlan) (bool, error) {
	known, err := a.readPools(ctx)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(plan.Intent.Update, func(t guard.Target) bool {
		return a.mode(known, t.Pool, v1alpha1.ScaleUp) == ModeManual
	}), nil
}

// Approver returns who lets a plan pass that the guard does not allow alone: the auto
// mode of its NodePools, or the person who approved a ScalePlan that has all of it.
// Else it is "", and a ScalePlan waits for a person.
func (a *Approvals) Approver(ctx context.Context, plan *scaler.ShardPlan) (string, error) {
	if plan.Plan == nil || plan.Verdict.Decision == guard.Deny {
		return "", nil
	}
	known, err := a.readPools(ctx)
	if err != nil {
		return "", err
	}
	if by := a.auto(known, plan); by != "" {
		return by, nil
	}
	d, err := draftHeld(plan)
	if err != nil {
		return "", fmt.Errorf("asking for approval of %s: %w", plan.Shard, err)
	}
	plans, err := a.readPlans(ctx)
	if err != nil {
		return "", err
	}
	for i := range plans {
		if a.covers(&plans[i], d) {
			return plans[i].Spec.ApprovedBy, a.begin(ctx, &plans[i], others(keysLike(a.vms(), &plans[i]), d))
		}
	}
	if current(plans, d.hash) != nil {
		return "", nil
	}
	return "", a.offer(ctx, heldOn(plans, plan.Shard.String()), d)
}

// others returns those of the keys that a draft does not name: what the guard holds is
// reserved already.
func others(keys []string, d *draft) []string {
	return slices.DeleteFunc(keys, func(key string) bool {
		return slices.ContainsFunc(d.vms, func(vm v1alpha1.ScalePlanVM) bool { return vm.Key == key })
	})
}

// heldOn returns the plans that the guard holds on a host. What was approved is not
// among them: it may be asked for again.
func heldOn(plans []v1alpha1.ScalePlan, host string) []v1alpha1.ScalePlan {
	return slices.DeleteFunc(slices.Clone(plans), func(plan v1alpha1.ScalePlan) bool {
		if !heldByWriter(&plan) || (pending(&plan) && plan.Spec.Approve != "") {
			return true
		}
		return !slices.ContainsFunc(plan.Spec.Shards, func(shard v1alpha1.ScalePlanShard) bool { return shard.Host == host })
	})
}

// auto returns whose auto mode lets a plan pass, or "".
func (a *Approvals) auto(known pools, plan *scaler.ShardPlan) string {
	names, ours := map[string]bool{}, map[string]bool{}
	for _, t := range targets(plan.Intent) {
		if a.mode(known, t.Pool, t.direction) != ModeAuto {
			return ""
		}
		names[t.Pool], ours[t.Address] = true, true
	}
	for _, finding := range plan.Verdict.Findings {
		// Nobody speaks for what no NodePool asked for.
		if address := finding.Address; address != "" && !ours[address] && !ours[guard.VMOf(address)] {
			return ""
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "auto mode of NodePool " + strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// target is a VM of an intent and what is done to it.
type target struct {
	guard.Target
	action    v1alpha1.ScalePlanAction
	direction v1alpha1.ScaleDirection
}

func targets(intent guard.Intent) []target {
	var list []target
	add := func(action v1alpha1.ScalePlanAction, direction v1alpha1.ScaleDirection, of []guard.Target) {
		for _, t := range of {
			list = append(list, target{t, action, direction})
		}
	}
	add(v1alpha1.ScalePlanCreate, v1alpha1.ScaleUp, intent.Create)
	add(v1alpha1.ScalePlanUpdate, v1alpha1.ScaleUp, intent.Import)
	add(v1alpha1.ScalePlanUpdate, v1alpha1.ScaleUp, intent.Update)
	add(v1alpha1.ScalePlanDelete, v1alpha1.ScaleDown, intent.Delete)
	return list
}

// draftHeld makes a draft of a plan that the guard holds.
func draftHeld(plan *scaler.ShardPlan) (*draft, error) {
	d := &draft{direction: v1alpha1.ScaleDown, requestedBy: RequestedByGuard, why: "the guard does not let this pass alone"}
	if plan.InPlace {
		d.requestedBy, d.why = RequestedByClass, "tags, pool, security groups or emulator of a ProxmoxNodeClass changed: its nodes take them over while they run"
		if plan.Verdict.Decision == guard.Allow {
			d.reasons = append(d.reasons, "scale-up of a NodePool of these nodes is manual")
		}
	}
	for _, t := range targets(plan.Intent) {
		line := v1alpha1.ScalePlanVM{
			Action: t.action, Name: nameAt(t.Address), Key: string(t.Key), Host: plan.Shard.String(), NodePool: t.Pool,
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
		d.pools = append(d.pools, t.Pool)
	}
	slices.Sort(d.pools)
	d.pools = slices.DeleteFunc(slices.Compact(d.pools), func(pool string) bool { return pool == "" })
	if len(d.pools) == 0 {
		d.pools = []string{"fleet"}
	}
	held := *plan
	held.Touched = true
	return d, d.planned([]scaler.ShardPlan{held})
}

// covers reports whether a person approved all that a held plan does: its deletes by
// their keys, what it makes by what it is, and the guard asks about nothing else.
func (a *Approvals) covers(plan *v1alpha1.ScalePlan, d *draft) bool {
	if !a.said(plan, plan.Spec.PlanHash) || unforeseen(plan, d.verdict) != "" || otherState(plan, d.shards) != "" || len(d.vms) == 0 {
		return false
	}
	if heldByWriter(plan) && plan.Spec.PlanHash != d.hash {
		return false
	}
	if plan.Status.Phase == v1alpha1.ScalePlanApproved && plan.Spec.Direction == v1alpha1.ScaleUp && len(a.made(plan)) > creates(plan) {
		return false // all that was approved is under way, and this is more of the same
	}
	return within(d.vms, plan.Spec.VMs)
}

// within reports whether each of the VMs is among those of a plan, each one once.
func within(vms, planned []v1alpha1.ScalePlanVM) bool {
	left := slices.Clone(planned)
	for i := range vms {
		at := slices.IndexFunc(left, func(line v1alpha1.ScalePlanVM) bool { return sameVM(&line, &vms[i]) })
		if at < 0 {
			return false
		}
		left = slices.Delete(left, at, at+1)
	}
	return true
}

// sameVM reports whether two lines are of the same change of a VM.
func sameVM(a, b *v1alpha1.ScalePlanVM) bool {
	if a.Action != b.Action || a.Host != b.Host || a.NodePool != b.NodePool || a.Change != b.Change {
		return false
	}
	return a.Action == v1alpha1.ScalePlanCreate || a.Key == b.Key
}
