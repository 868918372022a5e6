package scaler

import (
	"fmt"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// VanishedError says that somebody else removed a VM that was made.
type VanishedError struct {
	VM   string
	VMID fleet.VMID
	Host topology.HostID
}

func (e *VanishedError) Error() string {
	return fmt.Sprintf("vm %s: guest %d is not in Proxmox any more: somebody removed it from %s: its file goes too, and its pods get another node",
		e.VM, e.VMID, e.Host)
}

// vanishedAfter is how long a VM must have been made before its absence means that it
// was removed: what is known of Proxmox is a little old.
const vanishedAfter = 30 * time.Second

// loseVanished gives up VMs that were made and that are in Proxmox no more. To make one
// anew would be no help: its guest had joined as a Node, with a seed that is gone, and a
// VM of that id would keep the dead Node for ever.
func (w *Writer) loseVanished(m *move, known *nodes) {
	now := w.scaler.config.Clock.Now()
	for _, e := range w.absent(m.change.from, m.change.Snapshot) {
		made := e.Phase == PhaseMade && now.Sub(e.Since) > vanishedAfter
		if w.unseen(e) {
			joined, asked := known.joined[e.VM.Key]
			if !asked {
				continue
			}
			made = joined
		}
		w.loseIfMade(m, e, made)
	}
}

// absent returns the VMs that are in Proxmox no more, as far as one can tell, sorted.
func (w *Writer) absent(from *standing, snapshot *topology.Snapshot) []*member {
	guests, alive := locate(snapshot), aliveIn(snapshot, w.scaler.config.ClusterID)
	var absent []*member
	for _, state := range w.sorted() {
		vm, e := state.VM, w.members[state.VM.Key]
		_, listed := guests[guestID{vm.Host.Region, vm.VMID}]
		changing := e.moving || e.leaving || from.busy[vm.Host]
		if !listed && !alive[vm.Key] && !changing && shows(snapshot, vm.Host) {
			absent = append(absent, e)
		}
	}
	return absent
}

// unseen reports whether a VM may have been made before anybody looked: a writer that
// starts has never seen the VMs of its files. Their Nodes tell.
func (w *Writer) unseen(e *member) bool {
	return e.Phase == PhaseMaking && !e.Made && e.Filed && w.config.Joined != nil
}

// loseIfMade gives up a VM that was made, or that is given up already.
func (w *Writer) loseIfMade(m *move, e *member, made bool) {
	if made {
		e.vanished = true
		w.set(e, PhaseFailed, &VanishedError{VM: e.VM.Name, VMID: e.VM.VMID, Host: e.VM.Host})
	}
	if e.vanished && e.Filed {
		m.remove(e.VM.Key)
	}
}

// shows reports whether a snapshot lists all guests of a host's region, and the host
// itself was read.
func shows(snapshot *topology.Snapshot, host topology.HostID) bool {
	region, read := regionOf(snapshot, host.Region), snapshot.Host(host)
	return region.Quorate && !region.HidesGuests && read != nil && read.Online && read.Problem == ""
}
