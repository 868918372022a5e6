package scaler

import (
	"fmt"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// VanishedError reports that another client removed a VM after it was created.
type VanishedError struct {
	VM   string
	VMID fleet.VMID
	Host topology.HostID
}

func (e *VanishedError) Error() string {
	return fmt.Sprintf("vm %s: guest %d is not in Proxmox any more: somebody removed it from %s: its file goes too, and its pods get another node",
		e.VM, e.VMID, e.Host)
}

// vanishedAfter is the minimum age from which a VM's absence means that it was removed,
// because the snapshot of Proxmox is slightly outdated.
const vanishedAfter = 30 * time.Second

// loseVanished gives up VMs that were created and no longer exist in Proxmox. Creating
// such a VM again would not help: its guest had joined as a Node, with a seed that no
// longer exists, and a VM with that ID would keep the dead Node forever.
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

// absent returns the VMs that are known to be missing from Proxmox, sorted.
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

// unseen reports whether a VM may have been created before this writer first read
// Proxmox: after a start, the writer has never seen the VMs in its files. Their Nodes
// answer that.
func (w *Writer) unseen(e *member) bool {
	return e.Phase == PhaseMaking && !e.Made && e.Filed && w.config.Joined != nil
}

// loseIfMade gives up a VM that was created or has already been given up.
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
