package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// batch is a change by a writer: all requests that can begin now, with the keys of the VMs
// that the change creates, removes, updates and wakes.
type batch struct {
	change                           *Change
	creates, removes, updates, wakes []fleet.Key
}

// nextBatch reads the fleet, merges others' changes, and returns the next change to begin,
// or nil.
func (w *Writer) nextBatch(ctx context.Context) (*batch, error) {
	// An apply that ends while Proxmox is read may have VMs that are not in the snapshot.
	w.scaler.mu.Lock()
	applying := maps.Clone(w.scaler.busy)
	w.scaler.mu.Unlock()
	snapshot, err := w.config.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	from, err := w.scaler.read(ctx)
	if err != nil {
		return nil, err
	}
	maps.Copy(from.busy, applying)
	cloning, snapshot, err := w.scaler.refreshCloning(ctx, cloningGuests(from, snapshot), snapshot)
	if err != nil {
		return nil, err
	}

	// The cluster may take long to answer, so it is asked without blocking other callers.
	nodes, err := w.nodesFiledAsStandby(ctx, from, snapshot)
	if err != nil {
		return nil, err
	}
	leaving, unseen := w.merge(ctx, from, snapshot, cloning, nodes)
	undrained := map[fleet.Key]error{}
	for i := range leaving {
		undrained[leaving[i].Key] = nil // without Drained, the guard reports why, with more context
		if w.scaler.config.Drained != nil {
			undrained[leaving[i].Key] = w.scaler.config.Drained(ctx, leaving[i].Name)
		}
	}
	joined, err := w.hadJoined(ctx, unseen)
	if err != nil {
		return nil, err
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	b := &batch{change: newChange(from, snapshot)}
	b.change.lean = true
	b.change.leaving = w.leaving()
	w.giveUpReused(b)
	w.giveUpVanished(b, joined)
	if w.addWakes(b); len(b.wakes) == 0 {
		w.addRequests(b, undrained)
	}
	if b.change.Empty() {
		// Creates and deletes do not wait for updates in place.
		w.addUpdates(b)
	}
	w.scaler.config.Observe.Queued(w.queued())
	if err := w.render(b); err != nil {
		return nil, err
	}

	// A fleet without files gets them with its first VM.
	unchanged := len(b.change.BeforeFiles) == 0 || sameFiles(b.change.BeforeFiles, withModules(b.change))
	if unchanged && b.change.Empty() && !b.change.Unfinished() && !w.outsideDue() {
		w.whole = false // no request of the burst is left
		return nil, nil
	}
	b.change.outside = slices.Clone(w.outside)
	b.change.rotations = maps.Clone(w.rotations)
	return b, nil
}

// hadJoined reports which VMs that are not in Proxmox had become Nodes.
func (w *Writer) hadJoined(ctx context.Context, unseen []fleet.VM) (joined map[fleet.Key]bool, err error) {
	joined = map[fleet.Key]bool{}
	for i := range unseen {
		if joined[unseen[i].Key], err = w.config.Joined(ctx, unseen[i]); err != nil {
			return nil, fmt.Errorf("checking whether %s, which is not in Proxmox, had joined: %w", unseen[i].Name, err)
		}
	}
	return joined, nil
}

// nodesFiledAsStandby returns the VMs whose files say standby although they run as Nodes:
// a person edited the file, or reverted the wake. A VM that a person started is not one of
// them.
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
			return nil, fmt.Errorf("checking whether %s, a standby VM that runs, had joined: %w", vm.Name, err)
		}
	}
	return nodes, nil
}

// mergeStandby compares a VM's file with what this writer knows, which decides: only a
// recorded wake makes a node of a standby VM, and a node never becomes a standby VM again.
func (w *Writer) mergeStandby(ctx context.Context, m *member, filed *fleet.VM, node bool) {
	m.VM.Standby = m.VM.Standby && !node
	differs := filed.Standby != m.VM.Standby && !m.waking && !m.moving
	if differs && !m.misfiled {
		log.FromContext(ctx).Info("the file of a vm disagrees about standby, and is not followed: restore its line, or remove the node",
			logkey.VM, m.VM.Name, logkey.Host, m.VM.Host.String(), "filed", filed.Standby, "standby", m.VM.Standby)
	}
	m.misfiled = differs
}

// mergeFiles applies others' changes of the fleet's files to the writer's members. In nodes
// are VMs that are no standby VMs, although their files say so.
func (w *Writer) mergeFiles(ctx context.Context, from *reading, snapshot *topology.Snapshot, nodes map[fleet.Key]bool) {
	now := w.scaler.config.Clock.Now()
	alive := indexGuests(snapshot, w.scaler.config.ClusterID).keys()

	// Add or update the members for the VMs in the fleet's files.
	filed := map[fleet.Key]bool{}
	for _, vm := range from.fleet.VMs {
		filed[vm.Key] = true
		if m := w.members[vm.Key]; m != nil {
			if m.Filed = true; !m.moving {
				m.VM = inPlace(m.VM, &vm.Spec) // people may have reverted it
			}
			w.mergeStandby(ctx, m, &vm, nodes[vm.Key])
			if m.Phase == PhaseReserved && (!m.waking || slices.Contains(from.open[vm.Host].Woken, vm.Key)) {
				// Its change was written, but the response was lost.
				m.waking = false
				w.set(m, PhaseMaking, nil)
			}
			continue
		}
		m := &member{VMState: VMState{VM: vm, Since: now, Filed: true}}
		m.Changing = slices.Contains(from.open[vm.Host].Updated, vm.Key)
		w.members[vm.Key] = m
		w.mergeStandby(ctx, m, &vm, nodes[vm.Key])
		if alive[vm.Key] && !interrupted(from.open, vm.Host) && !slices.Contains(from.open[vm.Host].Woken, vm.Key) {
			w.set(m, PhaseMade, nil)
		} else {
			w.set(m, PhaseMaking, nil)
		}
	}

	// Add members for VMs whose removal an earlier run began.
	for _, open := range from.open {
		for _, vm := range open.Removed {
			if w.members[vm.Key] == nil && !filed[vm.Key] && alive[vm.Key] {
				w.members[vm.Key] = &member{VMState: VMState{VM: vm, Phase: PhaseRemoving, Since: now, Made: true, Filed: true}, leaving: true}
			}
		}
	}

	// Remove the VMs whose file was deleted.
	for key, m := range w.members {
		switch {
		case !m.Filed || m.moving || filed[key]:
		case alive[key]:
			m.leaving = true
			w.set(m, PhaseRemoving, m.Err)
		default:
			w.drop(key)
		}
	}
}

// merge applies others' changes of the fleet, and marks hosts that must wait as busy. It
// returns the VMs to look up in the cluster: VMs that may be removed, and VMs that this
// writer has not seen yet.
func (w *Writer) merge(
	ctx context.Context, from *reading, snapshot *topology.Snapshot, cloning []topology.HostID, nodes map[fleet.Key]bool,
) (leaving, unseen []fleet.VM) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mergeFiles(ctx, from, snapshot, nodes)
	for region, rotation := range from.rotations {
		if rotation.Compare(w.rotations[region]) > 0 {
			w.rotations[region] = rotation
		}
	}
	if !w.Synced() {
		close(w.loaded)
	}

	// Hosts where an earlier run's clone is in progress wait, and hosts that failed
	// recently. On hosts where files and Proxmox differ but a recent plan found nothing to
	// do, only requested changes are planned.
	now := w.scaler.config.Clock.Now()
	w.cloning = len(cloning) > 0
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
		if from.gathering[host] = until.After(now); !from.gathering[host] {
			delete(w.gathering, host)
		}
	}
	from.quiet = map[topology.HostID]bool{}
	for host, d := range w.quiet {
		from.quiet[host] = d.until.After(now)
	}

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

// ready reports whether the VM can be part of a change now.
func (m *member) ready(from *reading, now time.Time) bool {
	gathers := m.leaving && from.gathering[m.VM.Host]
	return !m.moving && !m.retry.until.After(now) && !from.busy[m.VM.Host] && !gathers
}

// giveUpReused gives up VMs that were never created and whose VMID now belongs to another
// guest: a NodeClaim cannot change its VM.
func (w *Writer) giveUpReused(b *batch) {
	for _, vm := range b.change.index().reused(w.fleet()) {
		m := w.members[vm.Key]
		if m.moving || b.change.from.busy[vm.Host] {
			continue
		}
		if !m.leaving {
			w.set(m, PhaseFailed, &VMIDTakenError{VM: vm.Name, VMID: vm.VMID, Guest: "another guest", Host: vm.Host})
		}
		if m.Filed {
			b.remove(vm.Key)
		}
	}
}

// vanishedAfter is the minimum age from which a VM's absence means that it was removed,
// because the snapshot of Proxmox is slightly outdated.
const vanishedAfter = 30 * time.Second

// giveUpVanished gives up VMs that were created and no longer exist in Proxmox. Creating
// such a VM again would not help: its guest had joined as a Node, with a seed that no
// longer exists, and a VM with that ID would keep the dead Node forever.
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
// lists all guests of their region, and their host was read.
func (w *Writer) absent(from *reading, snapshot *topology.Snapshot) []*member {
	index := indexGuests(snapshot, w.scaler.config.ClusterID)
	alive := index.keys()
	var absent []*member
	for _, m := range w.sorted() {
		_, listed := index.with(&m.VM)
		if listed || alive[m.VM.Key] || m.moving || m.leaving || from.busy[m.VM.Host] {
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
// answer that.
func (w *Writer) unseen(m *member) bool {
	return m.Phase == PhaseMaking && !m.Made && m.Filed && w.config.Joined != nil
}

// partSize is the number of new VMs from which on a change takes no further hosts, if it
// has one for each core: planning them takes a second or two, and they are cloned while
// the others are planned.
const partSize = 32

// laterHosts returns the hosts whose new VMs wait for the next change, because this one
// has enough of them.
func (w *Writer) laterHosts(from *reading, now time.Time) map[topology.HostID]bool {
	waiting := map[topology.HostID]int{}
	for _, m := range w.members {
		if m.Phase == PhaseReserved && !m.leaving && !m.waking && m.ready(from, now) {
			waiting[m.VM.Host]++
		}
	}
	later := map[topology.HostID]bool{}
	vms := 0
	for i, host := range slices.SortedFunc(maps.Keys(waiting), topology.HostID.Compare) {
		later[host] = !w.whole && i >= runtime.GOMAXPROCS(0) && vms >= partSize
		vms += waiting[host]
	}
	return later
}

// leaving returns the VMs whose removal was requested.
func (w *Writer) leaving() map[fleet.Key]bool {
	keys := map[fleet.Key]bool{}
	for key, m := range w.members {
		if m.leaving {
			keys[key] = true
		}
	}
	return keys
}

// addWakes adds the standby VMs to wake on free hosts. A wake is a change of its own, so
// that it waits for no clone. If the wake of a VM on the host was interrupted, and the VM
// does not run and is to be removed now, that removal comes first: a plan of the whole host
// would start the VM.
func (w *Writer) addWakes(b *batch) {
	now := w.scaler.config.Clock.Now()
	change := b.change
	running := map[fleet.Key]bool{}
	for _, guest := range change.index().guests {
		if guest.ClusterID == w.scaler.config.ClusterID && guest.Running {
			running[fleet.Key(guest.Key)] = true
		}
	}
	for _, m := range w.sorted() {
		at := slices.IndexFunc(change.After.VMs, func(vm fleet.VM) bool { return vm.Key == m.VM.Key })
		if !m.waking || m.leaving || m.Phase != PhaseReserved || at < 0 || !m.ready(change.from, now) {
			continue
		}
		if slices.ContainsFunc(change.from.open[m.VM.Host].Woken, func(key fleet.Key) bool { return change.leaving[key] && !running[key] }) {
			continue
		}
		b.wakes = append(b.wakes, m.VM.Key)
		change.After.VMs[at] = m.VM
		change.Woken = append(change.Woken, m.VM)
	}
	if len(b.wakes) > 0 {
		change.Kind = audit.KindWake
	}
}

// addRequests adds the requests for free hosts to the change.
func (w *Writer) addRequests(b *batch, undrained map[fleet.Key]error) {
	now := w.scaler.config.Clock.Now()
	change := b.change
	later := w.laterHosts(change.from, now)
	for _, m := range w.sorted() {
		key := m.VM.Key
		if !m.ready(change.from, now) {
			continue
		}
		switch {
		case m.leaving && m.Filed:
			// If the removal was requested while the cluster was being asked, the next step
			// handles it at once.
			reason, known := undrained[key]
			if known && reason == nil {
				b.remove(key)
			} else if known {
				m.Err, m.retry = reason, delay{until: now.Add(shortestDelay)}
			}
		case m.Phase == PhaseReserved && !m.leaving && !m.waking:
			if err := w.scaler.checkRootOnly(&m.VM); err != nil {
				w.set(m, PhaseFailed, err)
				continue
			}
			if later[m.VM.Host] {
				change.later = append(change.later, m.VM)
				continue
			}
			b.creates = append(b.creates, key)
			change.Added = append(change.Added, m.VM)
			change.After.VMs = append(change.After.VMs, m.VM)
		}
	}
	change.Kind = audit.KindScaleUp
	if len(change.Added) == 0 {
		change.Kind = audit.KindScaleDown
	}
}

// addUpdates adds the VMs to update while they run. A VM that does not exist now waits: a
// plan that cannot be made would not help the others.
func (w *Writer) addUpdates(b *batch) {
	now := w.scaler.config.Clock.Now()
	change := b.change
	index := change.index()
	for _, m := range w.sorted() {
		if m.desired == nil || !m.Filed || m.leaving || m.Phase != PhaseMade || !m.ready(change.from, now) {
			continue
		}
		at := slices.IndexFunc(change.After.VMs, func(other fleet.VM) bool { return other.Key == m.VM.Key })
		guest, ours := index.of(&m.VM)
		if at < 0 || !ours || guest.host != m.VM.Host {
			continue
		}
		vm := inPlace(m.VM, m.desired)
		b.updates = append(b.updates, vm.Key)
		change.After.VMs[at] = vm
		change.Updated = append(change.Updated, vm)
	}
	if len(b.updates) > 0 {
		change.Kind = audit.KindUpdate
		change.Why = fmt.Sprintf("tags, pool, security groups or emulator of %s follow their class", names(change.Updated))
	}
}

// render renders a change. VMs that cannot be rendered fail, or stay unchanged, and the
// others continue without them.
func (w *Writer) render(b *batch) error {
	err := w.scaler.render(b.change)
	if err == nil {
		return nil
	}
	now := w.scaler.config.Clock.Now()
	refused := false
	for _, vm := range slices.Concat(b.change.Added, b.change.Updated, b.change.Woken) {
		alone := b.change.After
		alone.VMs = []fleet.VM{vm}
		alone.Hosts = []topology.HostID{vm.Host}
		_, reason := w.scaler.config.Release.Render(alone)
		if reason == nil {
			continue
		}
		refused = true
		if m := w.members[vm.Key]; slices.Contains(b.updates, vm.Key) {
			m.ChangeErr, m.retry = reason, m.retry.grown(now)
		} else {
			w.set(m, PhaseFailed, reason)
		}
		b.drop(vm.Key)
	}
	if !refused {
		return err
	}
	return w.scaler.render(b.change)
}

func (b *batch) remove(key fleet.Key) {
	if slices.Contains(b.removes, key) {
		return
	}
	b.removes = append(b.removes, key)
	b.change.remove(func(vm fleet.VM) bool { return vm.Key == key })
}

// drop removes a VM from the requests of a change, so that the VM stays unchanged.
func (b *batch) drop(key fleet.Key) {
	c := b.change
	isVM := func(vm fleet.VM) bool { return vm.Key == key }
	c.Added = slices.DeleteFunc(c.Added, isVM)
	c.Updated = slices.DeleteFunc(c.Updated, isVM)
	c.Woken = slices.DeleteFunc(c.Woken, isVM)
	c.After.VMs = slices.DeleteFunc(c.After.VMs, isVM)
	if at := slices.IndexFunc(c.Before.VMs, isVM); at >= 0 {
		c.After.VMs = append(c.After.VMs, c.Before.VMs[at])
	}
	isKey := func(k fleet.Key) bool { return k == key }
	b.creates = slices.DeleteFunc(b.creates, isKey)
	b.updates = slices.DeleteFunc(b.updates, isKey)
	b.wakes = slices.DeleteFunc(b.wakes, isKey)
}

// queued returns how many VMs wait for a change that creates or removes them. The caller
// holds w.mu.
func (w *Writer) queued() int {
	waiting := 0
	for _, m := range w.members {
		if !m.moving && (m.Phase == PhaseReserved || m.leaving) {
			waiting++
		}
	}
	return waiting
}

// approve decides for each host whether its plan may be applied. It removes the requests
// for the other hosts from the change.
func (w *Writer) approve(ctx context.Context, b *batch, plans []RootPlan) (approver string, err error) {
	if len(b.change.later) > 0 && slices.ContainsFunc(plans, func(p RootPlan) bool { return p.Verdict.Decision == guard.NeedsApproval }) {
		// Limits count the whole burst, so that no part of it passes them alone.
		w.mu.Lock()
		defer w.mu.Unlock()
		w.whole = true
		return "", errReduced
	}
	excluded := map[topology.HostID]error{}
	var approvers []string
	for i := range plans {
		plan := &plans[i]
		by, err := w.allow(ctx, plan)
		switch {
		case err == nil && by != "" && !slices.Contains(approvers, by):
			approvers = append(approvers, by)
		case err != nil && plan.Touched:
			excluded[plan.Host] = err
		case err != nil:
			plan.Err = err // nothing is requested there now
		}
	}
	if len(excluded) == 0 {
		excluded = w.blocked(ctx, b, plans)
	}

	if len(excluded) > 0 {
		// Removals and updates are retried later; VMs to be created fail or wait for approval.
		w.postponeBatch(b, func(m *member) error {
			err := excluded[m.VM.Host]
			if err == nil || m.leaving || slices.Contains(b.updates, m.VM.Key) {
				return err
			}
			phase := PhaseFailed
			if held := new(PendingApprovalError); errors.As(err, &held) {
				phase = PhasePendingApproval
			}
			w.set(m, phase, err)
			return nil
		})
		for _, host := range slices.SortedFunc(maps.Keys(excluded), topology.HostID.Compare) {
			if vms := on(b.change.Updated, host); len(vms) > 0 {
				log.FromContext(ctx).Info("postponed an update of vms in place", logkey.Host, host.String(), logkey.VM, names(vms),
					logkey.Reason, excluded[host].Error())
			}
		}
		return "", errReduced
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.withdrawn(b) {
		return "", errReduced
	}
	slices.Sort(approvers)
	return strings.Join(approvers, ", "), nil
}

// withdrawn reports whether the removal of a VM that the change creates or wakes was
// requested while it was planned. The caller holds w.mu.
func (w *Writer) withdrawn(b *batch) bool {
	for _, key := range b.creates {
		if w.members[key] == nil {
			return true
		}
	}
	for _, key := range b.wakes {
		if m := w.members[key]; m == nil || !m.waking {
			return true
		}
	}
	return false
}

// allow returns why a plan may not be applied, or who approved it if the guard does not
// allow it by itself, or the NodePool requires approval of updates of running VMs or of
// wakes.
func (w *Writer) allow(ctx context.Context, plan *RootPlan) (approver string, err error) {
	switch {
	case plan.Err != nil:
		return "", &PlanError{Host: plan.Host, Err: plan.Err}
	case plan.Verdict.Decision == guard.Allow:
		if !plan.InPlace && len(plan.Intent.Wake) == 0 || w.config.Gate == nil {
			return "", nil
		}
		if asks, err := w.config.Gate.Asks(ctx, plan); err != nil || !asks {
			return "", err
		}
	case plan.Verdict.Decision != guard.NeedsApproval:
		return "", &DeniedError{Host: plan.Host, Verdict: plan.Verdict}
	}
	if w.config.Gate != nil {
		approver, err = w.config.Gate.Approver(ctx, plan)
	}
	if err == nil && approver == "" {
		err = &PendingApprovalError{Host: plan.Host, Verdict: plan.Verdict}
	}
	return approver, err
}

// blocked excludes hosts with unfinished work where nothing can be done, if the change has
// no other content: otherwise each attempt would appear in the history.
func (w *Writer) blocked(ctx context.Context, b *batch, plans []RootPlan) map[topology.HostID]error {
	if c := b.change; !c.Empty() || len(c.outside) > 0 || !sameFiles(c.BeforeFiles, withModules(c)) {
		return nil
	}
	found := map[topology.HostID]error{}
	for i := range plans {
		_, unfinished := b.change.open[plans[i].Host]
		switch {
		case plans[i].Err != nil:
			found[plans[i].Host] = plans[i].Err
		case plans[i].Changes() || unfinished || len(plans[i].outside) > 0:
			return nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for host, err := range found {
		w.backoff[host] = w.backoff[host].grown(w.scaler.config.Clock.Now())
		log.FromContext(ctx).Info("postponed unfinished work on a host", logkey.Host, host.String(), logkey.Reason, err.Error())
	}
	return found
}

// postponeBatch schedules a retry for each VM of a change that has a reason.
func (w *Writer) postponeBatch(b *batch, reason func(*member) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.scaler.config.Clock.Now()
	for _, key := range slices.Concat(b.creates, b.removes, b.updates, b.wakes) {
		m := w.members[key]
		if m == nil {
			continue
		}
		err := reason(m)
		switch {
		case err == nil:
		case slices.Contains(b.updates, key):
			m.ChangeErr, m.retry = err, m.retry.grown(now)
		default:
			m.Err, m.retry = err, m.retry.grown(now)
		}
	}
}

// batchBegun updates the writer after a change has become the desired state.
func (w *Writer) batchBegun(b *batch, begun *begun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applying++
	w.whole = false
	if begun.id != "" {
		w.outside = w.outside[len(begun.change.outside):]
	}
	for _, key := range b.creates {
		if m := w.members[key]; m != nil {
			w.scaler.config.Observe.QueueDone(m.VM.Host, begun.started.Sub(m.Since))
			m.Filed = true
			m.moving = true
			if !m.leaving {
				w.set(m, PhaseMaking, nil)
			}
		}
	}
	for _, key := range b.removes {
		if m := w.members[key]; m != nil {
			m.moving = true
		}
	}
	for _, key := range b.wakes {
		if m := w.members[key]; m != nil {
			w.scaler.config.Observe.QueueDone(m.VM.Host, begun.started.Sub(m.Since))
			m.moving = true
			if !m.waking { // its removal was requested meanwhile
				m.VM.Standby = false
				m.leaving = true
				w.set(m, PhaseRemoving, nil)
			} else {
				m.waking = false
				w.set(m, PhaseMaking, nil)
			}
		}
	}
	for _, vm := range begun.change.Updated {
		if m := w.members[vm.Key]; m != nil {
			m.moving = true
			m.VM = vm
		}
	}
	for _, vm := range begun.change.Adopted {
		leaving := hasKey(begun.change.open[vm.Host].Removed, vm.Key)
		w.members[vm.Key] = &member{VMState: VMState{VM: vm, Phase: PhaseMaking, Since: begun.started, Filed: true}, leaving: leaving}
	}
}

// hostApplied updates the writer after the apply on a host has ended.
func (w *Writer) hostApplied(ctx context.Context, b *batch, id string, result Result) {
	guests := map[fleet.Key]located{}
	if result.Err != nil {
		guests = w.readGuests(ctx, b.change.Snapshot, result.Host)
		log.FromContext(ctx).Info("an apply failed on a host", logkey.Host, result.Host.String(), logkey.Reason, result.Err.Error())
		conflict := &ConflictError{}
		if errors.As(result.Err, &conflict) {
			for i := range conflict.VMs {
				delete(guests, conflict.VMs[i].Key)
			}
		}
		if errors.As(result.Err, new(*StartedByHandError)) {
			clear(guests) // nothing was applied, and a guest that runs has no join data
		}
	}
	// Until all this is recorded the host is busy, or a failed change would begin again
	// at once.
	defer w.nudge()
	defer func() {
		s := w.scaler
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, result.Host)
		if result.Err == nil && id != "" {
			s.done[hostPart{id, result.Host}] = true
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()

	// Delay the next attempt after a failure, and after an apply that found nothing to do,
	// because the situation may be unchanged.
	now := w.scaler.config.Clock.Now()
	switch {
	case result.Err != nil:
		w.backoff[result.Host] = w.backoff[result.Host].grown(now)
	case len(result.Created)+len(result.Imported)+len(result.Deleted)+len(result.Updated)+len(result.Woken) > 0:
		delete(w.backoff, result.Host)
		delete(w.quiet, result.Host)
	default:
		delete(w.backoff, result.Host)
		w.quiet[result.Host] = w.quiet[result.Host].grown(now)
	}
	for key, m := range w.members {
		if m.VM.Host == result.Host {
			guest, exists := guests[key]
			w.vmApplied(m, b, result.Err, exists && m.complete(guest))
		}
	}
}

// readGuests returns the cluster's guests on a host, by key.
func (w *Writer) readGuests(ctx context.Context, snapshot *topology.Snapshot, host topology.HostID) map[fleet.Key]located {
	guests := map[fleet.Key]located{}
	live := w.scaler.region(host.Region).Live
	if live == nil {
		return guests
	}
	now, err := live.Refresh(context.WithoutCancel(ctx), snapshot, []topology.HostName{host.Host})
	if err != nil {
		return guests
	}
	index := indexGuests(now, w.scaler.config.ClusterID)
	for _, guest := range index.guests {
		if guest.host == host && guest.ClusterID == index.clusterID {
			guests[fleet.Key(guest.Key)] = guest
		}
	}
	return guests
}

// complete reports whether a VM's guest is what an apply was to make of it, although the
// apply failed: it runs, or it is a standby VM, which does not run, and is cloned.
func (m *member) complete(guest located) bool {
	if m.VM.Standby {
		return guest.Lock != "clone" && guest.Lock != "create"
	}
	return guest.Running
}

// vmApplied updates a VM of a host whose apply has ended.
func (w *Writer) vmApplied(m *member, b *batch, err error, complete bool) {
	key := m.VM.Key
	if slices.Contains(b.updates, key) {
		// If the update failed, its file has the desired values, and the unfinished work is
		// retried.
		m.moving = false
		m.ChangeErr = err
		if m.desired != nil && sameInPlace(&m.VM.Spec, m.desired) {
			m.desired = nil
		}
		m.Changing = m.desired != nil || err != nil
		return
	}
	if err == nil && m.desired == nil {
		m.Changing, m.ChangeErr = false, nil // completes an earlier change, too
	}

	removed := slices.Contains(b.removes, key)
	unfinished := m.Phase == PhaseMaking || (m.Phase == PhaseFailed && m.Filed)
	if part := removed || slices.Contains(b.creates, key) || slices.Contains(b.wakes, key); !part && (err != nil || !unfinished) {
		return // part of an earlier change, and unchanged
	}
	m.moving = false
	switch {
	case removed && err == nil:
		w.drop(key)
		w.config.Changed()
	case removed:
		m.Filed = true // assume so: the removal is in progress until a change succeeds
		m.Err, m.retry = err, m.retry.grown(w.scaler.config.Clock.Now())
	case m.leaving:
	case err == nil || complete:
		w.set(m, PhaseMade, nil)
	default:
		w.set(m, PhaseFailed, err)
	}
}
