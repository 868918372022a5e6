package scaler

import (
	"context"
	"fmt"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// UndoError reports why a change cannot be reverted.
type UndoError struct{ ID, Problem string }

func (e *UndoError) Error() string { return fmt.Sprintf("undoing %s: %s", e.ID, e.Problem) }

// ProposeUndo renders the reverse of a change: it removes the VMs that the change
// created, and re-creates the VMs that it removed, on their hosts if there is room, with
// new VMIDs and keys.
func (s *Scaler) ProposeUndo(
	ctx context.Context, snapshot *topology.Snapshot, undone *audit.Change, taken map[topology.RegionName][]fleet.VMID,
) (*Change, error) {
	change, err := s.NewChange(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	change.Kind, change.Undoes = audit.KindUndo, undone.ID
	change.Why = fmt.Sprintf("undo %s (%s)", undone.ID, undone.Why)
	change.remove(func(vm fleet.VM) bool {
		return slices.ContainsFunc(undone.Added, func(made fleet.VM) bool { return made.Key == vm.Key })
	})
	requests, err := s.again(ctx, change, undone)
	if err != nil {
		return nil, err
	}
	if undone.Kind == audit.KindUpdate {
		return nil, &UndoError{ID: undone.ID, Problem: "its VMs follow their ProxmoxNodeClass: change the class back"}
	}
	if len(requests) == 0 && len(change.Removed) == 0 {
		return nil, &UndoError{ID: undone.ID, Problem: "nothing of it is left to take back: its VMs are gone, and none was removed by it"}
	}
	return change, s.AddVMs(change, requests, taken)
}

// again places the VMs that a change removed.
func (s *Scaler) again(ctx context.Context, change *Change, undone *audit.Change) ([]Request, error) {
	specs, homes, err := s.removedSpecs(ctx, change, undone)
	if err != nil || len(specs) == 0 {
		return nil, err
	}
	place := planner.New(change.Snapshot, change.After.VMs)
	requests := make([]Request, 0, len(specs))
	for i, spec := range specs {
		home := spec
		home.Hosts = []topology.HostID{homes[i]}
		placed, unplaced := place.Place([]fleet.Spec{home})
		if len(unplaced) > 0 {
			home.Hosts = withTemplate(change.Snapshot, homes[i].Region, spec.Template)
			placed, unplaced = place.Place([]fleet.Spec{home})
		}
		if len(unplaced) > 0 {
			return nil, &UndoError{ID: undone.ID, Problem: fmt.Sprintf("there is no room for a %s of pool %s any more: %s",
				spec.InstanceType, spec.Pool, unplaced[0].Reason)}
		}
		requests = append(requests, Request{Spec: spec, Placement: placed[0].Placement})
	}
	return requests, nil
}

// removedSpecs returns the specs of the VMs that a change removed, and their hosts. For a
// VM whose file a person deleted, only the change that created it contains them.
func (s *Scaler) removedSpecs(ctx context.Context, change *Change, undone *audit.Change) (specs []fleet.Spec, homes []topology.HostID, err error) {
	if len(undone.Removed) == 0 {
		return nil, nil, nil
	}
	entries, err := s.verifiedHistory(ctx)
	if err != nil {
		return nil, nil, err
	}
	made, back := everMade(entries), alreadyBack(entries, change, undone.ID)
	for _, vm := range undone.Removed {
		if vm.VCPUs == 0 {
			known, ok := made[vm.Key]
			if !ok {
				return nil, nil, &UndoError{ID: undone.ID, Problem: fmt.Sprintf("the history does not say what %s was: "+
					"restore its file from version control", vm.Name)}
			}
			vm = known
		}
		if i := slices.IndexFunc(back, func(b fleet.VM) bool { return b.Pool == vm.Pool && b.InstanceType == vm.InstanceType }); i >= 0 {
			back = slices.Delete(back, i, i+1)
			continue
		}
		specs, homes = append(specs, vm.Spec), append(homes, vm.Host)
	}
	return specs, homes, nil
}

// alreadyBack returns the VMs of the fleet that an earlier undo of the same change
// created.
func alreadyBack(entries []audit.Entry, change *Change, undone string) []fleet.VM {
	var back []fleet.VM
	for i := range entries {
		if entries[i].Change.Undoes != undone {
			continue
		}
		for _, vm := range entries[i].Change.Added {
			if slices.ContainsFunc(change.After.VMs, func(kept fleet.VM) bool { return kept.Key == vm.Key }) {
				back = append(back, vm)
			}
		}
	}
	return back
}

// withTemplate returns the hosts of a region that have a template.
func withTemplate(snapshot *topology.Snapshot, region topology.RegionName, template string) []topology.HostID {
	var hosts []topology.HostID
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		has := slices.ContainsFunc(host.Templates, func(t topology.Template) bool { return t.Name == template })
		if host.Region == region && has {
			hosts = append(hosts, host.ID())
		}
	}
	return hosts
}

// everMade returns all VMs in the history, by key.
func everMade(entries []audit.Entry) map[fleet.Key]fleet.VM {
	made := map[fleet.Key]fleet.VM{}
	for i := range entries {
		for _, vm := range slices.Concat(entries[i].Change.Added, entries[i].Change.Removed) {
			if vm.VCPUs > 0 {
				made[vm.Key] = vm
			}
		}
	}
	return made
}
