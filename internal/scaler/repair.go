package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// UnfinishedError reports that a host's VMs are not repaired because an earlier change is
// unfinished there: the success of a repair would look like that change's.
type UnfinishedError struct{ Host topology.HostID }

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("host %s: an earlier change is unfinished there, so the drift of its VMs is not taken back: "+
		"run `numaform apply` first, which finishes it, then repair again", e.Host)
}

// ProposeRepair returns the change that reverts drift where an update in place can. It
// changes no files, and only the drifted VMs in Proxmox. It is empty if there is nothing
// to repair. It leaves other drift alone, and hosts with unfinished work: held contains
// an UnfinishedError for each.
func (s *Scaler) ProposeRepair(ctx context.Context, snapshot *topology.Snapshot, drift []ShardDrift) (change *Change, held, err error) {
	change, err = s.NewChange(ctx, snapshot)
	if err != nil {
		return nil, nil, err
	}
	change.Kind, change.narrow = audit.KindRepair, true
	holding := map[fleet.Shard]bool{}
	for _, vm := range change.repairable(drift) {
		if _, underWay := change.open[vm.Host]; !underWay {
			change.Repaired = append(change.Repaired, vm)
			continue
		}
		if !holding[vm.Host] {
			held = errors.Join(held, &UnfinishedError{Host: vm.Host})
		}
		holding[vm.Host] = true
	}
	change.Why = "drift of " + names(change.Repaired) + " is taken back"
	return change, held, s.render(change)
}

// repairable returns the VMs of the fleet whose drift an update in place reverts, in the
// order of the drift.
func (c *Change) repairable(drift []ShardDrift) []fleet.VM {
	var vms []fleet.VM
	for _, shard := range drift {
		for _, vm := range shard.VMs {
			if i := slices.IndexFunc(c.Before.VMs, func(v fleet.VM) bool { return v.Key == vm.VM.Key }); vm.Repairable && i >= 0 {
				vms = append(vms, c.Before.VMs[i])
			}
		}
	}
	return vms
}

// judgeRepair plans only the VMs of a host whose drift is to be reverted, so that other
// drift is neither changed nor an obstacle. It refuses if there is unfinished work, such
// as an engine that died.
func (s *Scaler) judgeRepair(ctx context.Context, plan *ShardPlan, w *wanted, repaired map[string]fleet.VM) (err error) {
	if err := w.repairable(repaired); err != nil {
		return err
	}
	options := state.PlanOptions{Refresh: true, Targets: compared(repaired, w.guests)}
	if plan.Plan, err = s.planWith(ctx, plan.workspace, options); err != nil {
		return err
	}
	plan.Intent = w.repairs(plan.Plan.JSON, repaired)
	for _, r := range w.repinned(plan.Plan.JSON) {
		if err := w.pinsFit(r.VM); err != nil {
			return err
		}
		plan.Repinned = append(plan.Repinned, r)
	}
	plan.Verdict = s.check(plan)
	return nil
}

// repairs returns what a plan has to do: update the VMs that still differ.
func (w *wanted) repairs(plan *tfjson.Plan, repaired map[string]fleet.VM) guard.Intent {
	differ := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		differ[change.Address] = !change.Change.Actions.NoOp()
	}
	intent := guard.Intent{ClusterID: w.clusterID, Targeted: true}
	for _, address := range slices.Sorted(maps.Keys(repaired)) {
		vm := repaired[address]
		if slices.ContainsFunc(generator.Addresses(&vm), func(address string) bool { return differ[address] }) {
			intent.Update = append(intent.Update, w.target(vm))
		}
	}
	return intent
}

// repairable returns an error if a VM must not be repaired now.
func (w *wanted) repairable(repaired map[string]fleet.VM) error {
	if w.interrupted {
		return &UnfinishedError{Host: w.shard}
	}
	for _, address := range slices.Sorted(maps.Keys(repaired)) {
		if err := w.stillThere(repaired[address]); err != nil {
			return err
		}
	}
	return nil
}

// stillThere returns an error if a VM no longer exists or is no longer provably ours.
func (w *wanted) stillThere(vm fleet.VM) error {
	guest, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
	switch {
	case exists && w.is(guest, vm):
		return nil
	case exists && guest.unread:
		return w.unknown(guest)
	case exists && guest.looksLike(vm.Name, w.clusterID):
		return w.markerLost(vm, guest)
	}
	return fmt.Errorf("repairing %s: VMID %d is not this VM any more: look again by `numaform drift`", vm.Name, vm.VMID)
}
