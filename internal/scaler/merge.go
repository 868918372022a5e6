package scaler

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/topology"
)

// merge applies others' changes of the fleet's files to the writer's members.
func (w *Writer) merge(from *standing, snapshot *topology.Snapshot) {
	alive := aliveIn(snapshot, w.scaler.config.ClusterID)
	open := from.open()
	filed := w.takeFiled(from, alive, open)
	for _, shard := range open {
		w.takeLeaving(shard, filed, alive)
	}
	for key, e := range w.members {
		if e.Filed && !e.moving && !filed[key] {
			w.unfile(e, alive[key])
		}
	}
	for region, rotation := range from.rotations {
		if rotation.Compare(w.rotations[region]) > 0 {
			w.rotations[region] = rotation
		}
	}
	if !w.Synced() {
		close(w.loaded)
	}
}

// takeFiled adds or updates the members for the VMs in the fleet's files, and returns
// their keys.
func (w *Writer) takeFiled(from *standing, alive map[fleet.Key]bool, open map[fleet.Shard]audit.Open) map[fleet.Key]bool {
	filed := map[fleet.Key]bool{}
	for _, vm := range from.fleet.VMs {
		filed[vm.Key] = true
		if e := w.members[vm.Key]; e != nil {
			if e.Filed = true; !e.moving {
				e.VM = inPlace(e.VM, &vm.Spec) // people may have reverted it
			}
			if e.Phase == PhaseReserved {
				// Its change was written, but the response was lost.
				w.set(e, PhaseMaking, nil)
			}
			continue
		}
		e := &member{VMState: VMState{VM: vm, Since: w.scaler.config.Clock.Now(), Filed: true}}
		e.Changing = slices.Contains(open[vm.Host].Updated, vm.Key)
		w.members[vm.Key] = e
		if alive[vm.Key] && !cutOff(open, vm.Host) {
			w.set(e, PhaseMade, nil)
			continue
		}
		w.set(e, PhaseMaking, nil)
	}
	return filed
}

// takeLeaving adds members for VMs whose removal an earlier run began.
func (w *Writer) takeLeaving(open audit.Open, filed, alive map[fleet.Key]bool) {
	for _, vm := range open.Removed {
		if w.members[vm.Key] == nil && !filed[vm.Key] && alive[vm.Key] {
			w.members[vm.Key] = &member{VMState: VMState{VM: vm, Phase: PhaseRemoving, Since: w.scaler.config.Clock.Now(), Made: true, Filed: true}, leaving: true}
		}
	}
}

// unfile handles the deletion of a VM's file.
func (w *Writer) unfile(e *member, alive bool) {
	if !alive {
		w.drop(e.VM.Key)
		return
	}
	e.leaving = true
	w.set(e, PhaseRemoving, e.Err)
}

// aliveIn returns the keys of the cluster's guests.
func aliveIn(snapshot *topology.Snapshot, clusterID string) map[fleet.Key]bool {
	alive := map[fleet.Key]bool{}
	for _, guest := range locate(snapshot) {
		if guest.ClusterID == clusterID {
			alive[fleet.Key(guest.Key)] = true
		}
	}
	return alive
}

// loseNumbers gives up VMs that were never created and whose VMID now belongs to another
// guest: a NodeClaim cannot change its VM.
func (w *Writer) loseNumbers(m *move) {
	_, lost := splitLost(w.scaler.config.ClusterID, w.fleet(), m.change.Snapshot)
	for _, vm := range lost {
		e := w.members[vm.Key]
		if e.moving || m.change.from.busy[vm.Host] {
			continue
		}
		if !e.leaving {
			w.set(e, PhaseFailed, &VMIDTakenError{VM: vm.Name, VMID: vm.VMID, Guest: "another guest", Host: vm.Host})
		}
		if e.Filed {
			m.remove(vm.Key)
		}
	}
}
