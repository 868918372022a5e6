package scaler

import (
	"context"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
)

// strays returns the guests of the host that carry our marker and are in neither files
// nor state.
func (w *wanted) strays(plan *tfjson.Plan) []located {
	known := map[fleet.Key]bool{}
	for _, entry := range w.entries(plan) {
		known[entry.vm.Key] = true
	}
	for _, vm := range w.vms {
		known[vm.Key] = true
	}
	var strays []located
	for _, guest := range w.guests {
		if guest.host == w.shard && guest.ClusterID == w.clusterID && !known[fleet.Key(guest.Key)] {
			strays = append(strays, guest)
		}
	}
	return strays
}

// takeIn restores the files of existing VMs that are only in the history, and reports
// whether there are any: the next plan imports them.
func (s *Scaler) takeIn(ctx context.Context, change *Change, plans []ShardPlan) (bool, error) {
	var strays []located
	for i := range plans {
		strays = append(strays, plans[i].strays...)
	}
	if len(strays) == 0 {
		return false, nil
	}
	entries, err := s.verifiedHistory(ctx)
	if err != nil {
		return false, err
	}
	made := everMade(entries)
	before := len(change.TakenIn)
	for _, guest := range strays {
		vm, known := made[fleet.Key(guest.Key)]
		if !known || vm.Host != guest.host || int(vm.VMID) != guest.VMID || change.holds(vm) {
			continue
		}
		s.config.Progress(vm.Host, "taking "+vm.Name+" in: no file wants it, the state does not have it, and the history knows it")
		change.TakenIn = append(change.TakenIn, vm)
		change.After.VMs = append(change.After.VMs, vm)
	}
	if len(change.TakenIn) == before {
		return false, nil
	}
	return true, s.render(change)
}

// holds reports whether the files before or after the change contain the VM, or another
// with its VMID.
func (c *Change) holds(vm fleet.VM) bool {
	return slices.ContainsFunc(slices.Concat(c.Before.VMs, c.After.VMs), func(other fleet.VM) bool {
		return other.Key == vm.Key || (other.VMID == vm.VMID && other.Host.Region == vm.Host.Region)
	})
}

// finishRemovals removes the VMs that a change adopted although their removal had begun.
func (s *Scaler) finishRemovals(ctx context.Context, change *Change, approve Approve) error {
	var leaving []string
	for _, vm := range change.TakenIn {
		if slices.ContainsFunc(change.open[vm.Host].Removed, func(removed fleet.VM) bool { return removed.Key == vm.Key }) {
			leaving = append(leaving, vm.Name)
		}
	}
	if len(leaving) == 0 {
		return nil
	}
	removal, err := s.ProposeRemoval(ctx, change.Snapshot, leaving)
	if err != nil {
		return err
	}
	removal.Why = "finish removing " + names(removal.Removed)
	_, err = s.apply(ctx, removal, approve)
	return err
}
