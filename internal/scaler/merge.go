package scaler

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// hadJoined reports for each VM in unseen, which is not in Proxmox, whether it had become
// a Node.
func (w *Writer) hadJoined(ctx context.Context, unseen []fleet.VM) (joined map[fleet.Key]bool, err error) {
	joined = map[fleet.Key]bool{}
	for i := range unseen {
		if joined[unseen[i].Key], err = w.config.Joined(ctx, unseen[i]); err != nil {
			return nil, fmt.Errorf("checking whether vm %s, which is not in Proxmox, had joined the cluster: %w", unseen[i].Name, err)
		}
	}
	return joined, nil
}

// nodesFiledAsStandby returns the VMs whose files declare standby although they run as
// Nodes: a person edited the file, or reverted the wake. It excludes VMs that a person
// started.
func (w *Writer) nodesFiledAsStandby(ctx context.Context, from *reading, snapshot *topology.Snapshot) (map[fleet.Key]bool, error) {
	index := indexGuests(snapshot, w.scaler.config.ClusterID)
	woken := wokenIn(from.recent)
	nodes := map[fleet.Key]bool{}
	for i := range from.fleet.VMs {
		vm := &from.fleet.VMs[i]
		guest, ours := index.of(vm)
		if !vm.Standby || !ours || !guest.Running {
			continue
		}
		if nodes[vm.Key] = woken[vm.Key]; nodes[vm.Key] || w.config.Joined == nil {
			continue
		}
		var err error
		if nodes[vm.Key], err = w.config.Joined(ctx, *vm); err != nil {
			return nil, fmt.Errorf("checking whether standby vm %s, which runs, had joined the cluster: %w", vm.Name, err)
		}
	}
	return nodes, nil
}

// mergeStandby compares a VM's file with this writer's record, which takes precedence: a
// standby VM becomes a node only by a wake, or if node is set, and a node never becomes a
// standby VM again.
func (w *Writer) mergeStandby(ctx context.Context, m *member, filed *fleet.VM, node bool) {
	m.VM.Standby = m.VM.Standby && !node
	differs := filed.Standby != m.VM.Standby && !m.waking && !m.moving
	if differs && !m.misfiled {
		log.FromContext(ctx).Info("ignored the standby setting in the file of a VM, because the recorded one differs: restore the setting in the file, or remove the node",
			logkey.VM, m.VM.Name, logkey.Host, m.VM.Host.String(), "filed", filed.Standby, "standby", m.VM.Standby)
	}
	m.misfiled = differs
}

// mergeFiles applies changes by other clients to the fleet's files to the writer's
// members. nodes contains the VMs that run as Nodes although their files declare standby.
func (w *Writer) mergeFiles(ctx context.Context, from *reading, snapshot *topology.Snapshot, nodes map[fleet.Key]bool) {
	now := w.scaler.config.Clock.Now()
	index := indexGuests(snapshot, w.scaler.config.ClusterID)

	// Add or update the members for the VMs in the fleet's files.
	filed := map[fleet.Key]bool{}
	for i := range from.fleet.VMs {
		vm := &from.fleet.VMs[i]
		filed[vm.Key] = true
		if m := w.members[vm.Key]; m != nil {
			w.mergeMember(m, vm, slices.Contains(from.open[vm.Host].Woken, vm.Key))
			w.mergeStandby(ctx, m, vm, nodes[vm.Key])
			continue
		}
		m := &member{VMState: VMState{VM: *vm, Since: now, Filed: true}}
		m.Changing = slices.Contains(from.open[vm.Host].Updated, vm.Key)
		w.members[vm.Key] = m
		w.mergeStandby(ctx, m, vm, nodes[vm.Key])
		if _, exists := index.of(vm); exists && !interrupted(from.open, vm.Host) && !slices.Contains(from.open[vm.Host].Woken, vm.Key) {
			w.set(m, PhaseMade, nil)
		} else {
			w.set(m, PhaseMaking, nil)
		}
	}

	// Add members for VMs whose removal an earlier run began.
	for _, open := range from.open {
		for _, vm := range open.Removed {
			if _, exists := index.of(&vm); exists && w.members[vm.Key] == nil && !filed[vm.Key] {
				w.members[vm.Key] = &member{VMState: VMState{VM: vm, Phase: PhaseRemoving, Since: now, Made: true, Filed: true}, leaving: true}
			}
		}
	}

	w.mergeDeleted(filed, index)
}

// mergeMember updates a member whose VM is in the fleet's files. woken is set if a recorded
// change was to wake the VM and has not ended.
func (w *Writer) mergeMember(m *member, vm *fleet.VM, woken bool) {
	if m.Filed = true; !m.moving && !sameInPlace(&m.VM.Spec, &vm.Spec) {
		m.VM = inPlace(m.VM, &vm.Spec) // a person may have reverted an update
	}
	wakeBegun := woken && !vm.Standby
	switch {
	case m.Phase == PhaseReserved && (!m.waking || wakeBegun):
		// Its change was written, but the response was lost.
		m.waking = false
		w.set(m, PhaseMaking, nil)
	case m.VM.Standby && wakeBegun && !m.leaving:
		// So was its wake, and then the wake was withdrawn.
		m.VM.Standby = false
		m.unstarted, m.leaving, m.retry = true, true, delay{}
		w.set(m, PhaseRemoving, nil)
	case m.resting && vm.Standby:
		w.rested(m)
	}
}

// mergeDeleted removes the VMs whose file was deleted. filed are the VMs with a file.
func (w *Writer) mergeDeleted(filed map[fleet.Key]bool, index guestIndex) {
	for key, m := range w.members {
		if !m.Filed || m.moving || filed[key] {
			continue
		}
		if _, exists := index.of(&m.VM); exists {
			m.leaving = true
			w.set(m, PhaseRemoving, m.Err)
		} else {
			w.drop(key)
		}
	}
}

// merge applies changes by other clients to the fleet, and marks hosts that must wait as
// busy. draining are the VMs that are being drained, or nil if they are unknown. It returns
// the VMs to look up in the cluster: VMs that may be removed, and VMs that this writer has
// not seen yet.
func (w *Writer) merge(
	ctx context.Context, from *reading, snapshot *topology.Snapshot, cloning []topology.HostID, nodes, draining map[fleet.Key]bool,
) (leaving, unseen []fleet.VM) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mergeFiles(ctx, from, snapshot, nodes)
	for key, origin := range originsIn(from.recent) {
		if m := w.members[key]; m != nil {
			m.Origin = origin
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

	// Hosts with a clone of an earlier run in progress wait, and so do hosts that failed
	// recently. On hosts where files and Proxmox differ but a recent plan found nothing to
	// do, only requested changes are planned.
	now := w.scaler.config.Clock.Now()
	w.cloning = cloning
	for _, host := range cloning {
		from.busy[host] = true
	}
	for host, d := range w.backoff {
		if d.until.After(now) {
			from.busy[host] = true
		}
	}
	from.gathering = map[topology.HostID]bool{}
	for host, until := range w.gathering {
		if from.gathering[host] = until.After(now) && w.expectsRemovals(host, draining); !from.gathering[host] {
			delete(w.gathering, host)
		}
	}
	from.updating = waiting(w.updating, now)
	from.removing = waiting(w.removing, now)
	from.quiet = waiting(w.quiet, now)

	for _, m := range w.sorted() {
		if m.leaving && m.Filed && m.ready(from, now) {
			leaving = append(leaving, m.VM)
		}
	}
	for _, m := range w.absent(from, snapshot) {
		if w.unseen(m) {
			unseen = append(unseen, m.VM)
		}
	}
	return leaving, unseen
}

// giveUpReused gives up VMs that do not exist and whose VMID now belongs to another guest:
// a NodeClaim cannot change its VM.
func (w *Writer) giveUpReused(b *batch) {
	index := b.change.index()
	for _, vm := range index.reused(w.fleet()) {
		m := w.members[vm.Key]
		if m.moving || b.change.from.busy[vm.Host] {
			continue
		}
		if !m.leaving {
			guest, _ := index.with(&vm)
			w.set(m, PhaseFailed, &VMIDTakenError{VM: vm.Name, VMID: vm.VMID, Guest: guest.Name, Host: guest.host})
		}
		if m.Filed {
			b.remove(vm.Key)
		}
	}
}

// giveUpVanished gives up VMs that were created and no longer exist in Proxmox. Creating
// such a VM again would not help: its guest may have joined as a Node, its seed no longer
// exists, and the dead Node would not be deleted as long as a VM with its ID exists.
func (w *Writer) giveUpVanished(b *batch, joined map[fleet.Key]bool) {
	now := w.scaler.config.Clock.Now()
	for _, m := range w.absent(b.change.from, b.change.Snapshot) {
		made := m.Phase == PhaseMade && now.Sub(m.Since) > vanishedAfter
		if w.unseen(m) {
			known := false
			if made, known = joined[m.VM.Key]; !known {
				continue
			}
		}
		if made {
			m.vanished = true
			w.set(m, PhaseFailed, &VanishedError{VM: m.VM.Name, VMID: m.VM.VMID, Host: m.VM.Host})
		}
		if m.vanished && m.Filed {
			b.remove(m.VM.Key)
		}
	}
}

// absent returns the VMs that are known to be missing from Proxmox, sorted: the snapshot
// lists all guests of their region, and their host was read. It omits VMs that are part of
// a change, are being removed or are on a busy host.
func (w *Writer) absent(from *reading, snapshot *topology.Snapshot) []*member {
	index := indexGuests(snapshot, w.scaler.config.ClusterID)
	var absent []*member
	for _, m := range w.sorted() {
		_, listed := index.with(&m.VM)
		if listed || m.moving || m.leaving || from.busy[m.VM.Host] {
			continue
		}
		region := regionOf(snapshot, m.VM.Host.Region)
		if region.Quorate && !region.HidesGuests && problemOf(snapshot.Host(m.VM.Host)) == "" {
			absent = append(absent, m)
		}
	}
	return absent
}

// unseen reports whether a VM may have been created before this writer first read
// Proxmox: after a start, the writer has never seen the VMs in its files. Their Nodes
// show whether they were created.
func (w *Writer) unseen(m *member) bool {
	return m.Phase == PhaseMaking && !m.Made && m.Filed && w.config.Joined != nil
}

// draining returns the VMs whose NodeClaims are being deleted, or nil if they are unknown or
// no removal waits for them.
func (w *Writer) draining(ctx context.Context) (map[fleet.Key]bool, error) {
	w.mu.Lock()
	waits := len(w.gathering) > 0
	w.mu.Unlock()
	if !waits || w.config.Leaving == nil {
		return nil, nil
	}
	return w.config.Leaving(ctx)
}

// expectsRemovals reports whether a VM of a host is being drained, whose removal will be
// requested next. If the VMs being drained are unknown, it reports true.
func (w *Writer) expectsRemovals(host topology.HostID, draining map[fleet.Key]bool) bool {
	if draining == nil {
		return true
	}
	for key := range draining {
		if m := w.members[key]; m != nil && m.VM.Host == host && !m.leaving {
			return true
		}
	}
	return false
}
