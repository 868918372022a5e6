package scaler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// ProposeRepair returns the change that takes drift back where an update in place
// can: no file changes, and nothing of Proxmox but those VMs. It is empty if there
// is nothing to repair. What needs more than that is left alone.
func (s *Scaler) ProposeRepair(ctx context.Context, snapshot *topology.Snapshot, drift []ShardDrift) (*Change, error) {
	change, err := s.newChange(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	change.Kind = audit.KindRepair
	var names []string
	for _, shard := range drift {
		for _, vm := range shard.VMs {
			if i := slices.IndexFunc(change.Before.VMs, func(v fleet.VM) bool { return v.Key == vm.VM.Key }); vm.Repairable && i >= 0 {
				change.Repaired = append(change.Repaired, change.Before.VMs[i])
				names = append(names, vm.VM.Name)
			}
		}
	}
	change.Why = "drift of " + strings.Join(names, ", ") + " is taken back"
	return change, s.render(change)
}

// judgeRepair plans the VMs of a shard whose drift is to be taken back, and nothing
// else of it, so that other drift is neither changed nor in the way.
func (s *Scaler) judgeRepair(ctx context.Context, plan *ShardPlan, w *wanted, repaired map[string]fleet.VM) (err error) {
	for _, address := range slices.Sorted(maps.Keys(repaired)) {
		if err := w.stillThere(repaired[address]); err != nil {
			return err
		}
	}
	options := state.PlanOptions{Refresh: true, Targets: compared(repaired, w.guests)}
	if plan.Plan, err = s.planWith(ctx, plan.workspace, options); err != nil {
		return err
	}
	plan.Intent = w.repairs(plan.Plan.JSON, repaired)
	plan.Verdict = guard.Check(plan.Plan.JSON, plan.Intent, s.config.Rules)
	return nil
}

// repairs says what a plan has to do: update those of the VMs that still differ.
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

// stillThere refuses a VM that is gone, or not provably ours, by now.
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
