package scaler

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// batch is a change by a Writer, with the keys of the VMs that the change creates, removes,
// updates and wakes.
type batch struct {
	change                           *Change
	creates, removes, updates, wakes []fleet.Key
}

// nextBatch reads the fleet, merges changes by other clients, and returns the next change
// to begin, or nil if there is nothing to do now.
func (w *Writer) nextBatch(ctx context.Context) (*batch, error) {
	// An apply that ends while Proxmox is read may have created VMs that are not in the
	// snapshot.
	w.scaler.mu.Lock()
	applying := maps.Clone(w.scaler.busy)
	w.scaler.mu.Unlock()
	var parsing sync.WaitGroup
	if !w.Synced() {
		// The first readings of Proxmox and of the files take long, so begin both. The
		// second read below finds the parsed files in memory.
		parsing.Go(func() { w.parsed.Do(func() { _, _ = w.scaler.read(ctx) }) })
	}
	snapshot, err := w.config.Snapshot(ctx)
	parsing.Wait()
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

	// The cluster may respond slowly, so query it without blocking other callers.
	nodes, err := w.nodesFiledAsStandby(ctx, from, snapshot)
	if err != nil {
		return nil, err
	}
	draining, err := w.draining(ctx)
	if err != nil {
		return nil, err
	}
	leaving, unseen := w.merge(ctx, from, snapshot, cloning, nodes, draining)
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
	w.addRests(b)
	if w.addWakes(b); len(b.wakes) == 0 {
		w.addRequests(b, undrained)
	}
	if b.change.Empty() {
		// Creates and deletes do not wait for updates in place.
		w.addUpdates(b)
	}
	w.addImports(b)
	w.scaler.config.Observe.Queued(w.queued())
	if err := w.render(b); err != nil {
		return nil, err
	}

	// A fleet without files gets its files with its first VM.
	unchanged := len(b.change.BeforeFiles) == 0 || sameFiles(b.change.BeforeFiles, withModules(b.change))
	if unchanged && b.change.Empty() && !b.change.Unfinished() && !w.outsideDue() {
		w.whole = false // no request of the burst is left
		return nil, nil
	}
	b.change.outside = slices.Clone(w.outside)
	b.change.rotations = maps.Clone(w.rotations)
	return b, nil
}

// ready reports whether the VM can be part of a change now.
func (m *member) ready(from *reading, now time.Time) bool {
	gathers := m.leaving && from.gathering[m.VM.Host]
	return !m.moving && !m.retry.until.After(now) && !from.busy[m.VM.Host] && !gathers
}

// vanishedAfter is the minimum age at which a VM that is missing from a snapshot counts as
// removed, because the snapshot can be slightly outdated.
const vanishedAfter = 30 * time.Second

// partSize is the number of new VMs at which a change accepts no more hosts, if it has at
// least one host for two cores, which a plan of many VMs uses. Planning them takes a second
// or two, and they are cloned while the other hosts are planned.
const partSize = 32

// firstPartSize is partSize for the first part of a burst on many hosts: its clones begin sooner.
// It has a host for each core, because a plan of a few VMs uses one core.
const firstPartSize = partSize / 4

// laterHosts reports, for each host with reserved VMs, whether they wait for the next
// change because this one has enough VMs.
func (w *Writer) laterHosts(from *reading, now time.Time) map[topology.HostID]bool {
	waiting := map[topology.HostID]int{}
	for _, m := range w.members {
		if m.Phase == PhaseReserved && !m.leaving && !m.waking && m.ready(from, now) {
			waiting[m.VM.Host]++
		}
	}
	total := 0
	for _, n := range waiting {
		total += n
	}
	first := w.applying == 0 && total > 2*partSize
	later := map[topology.HostID]bool{}
	vms := 0
	hosts := max(1, runtime.GOMAXPROCS(0)/2)
	for i, host := range slices.SortedFunc(maps.Keys(waiting), topology.HostID.Compare) {
		enough := i >= hosts && vms >= partSize || first && i >= 2*hosts && vms >= firstPartSize
		later[host] = !w.whole && enough
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

// addWakes adds the standby VMs to wake on free hosts. A change with wakes contains no
// other requests, so that the wakes do not wait for clones. If a VM on the host is stopped
// after an interrupted wake and is now to be removed, that removal comes first: a plan of
// the whole host would start the VM.
func (w *Writer) addWakes(b *batch) {
	now := w.scaler.config.Clock.Now()
	change := b.change
	index := change.index()
	leavesStopped := func(key fleet.Key) bool {
		m := w.members[key]
		if m == nil || !change.leaving[key] {
			return false
		}
		guest, ours := index.of(&m.VM)
		return !ours || !guest.Running
	}
	for _, m := range w.sorted() {
		if !m.waking || m.leaving || m.Phase != PhaseReserved || !m.ready(change.from, now) {
			continue
		}
		at := slices.IndexFunc(change.After.VMs, func(vm fleet.VM) bool { return vm.Key == m.VM.Key })
		if at < 0 {
			continue
		}
		if slices.ContainsFunc(change.from.open[m.VM.Host].Woken, leavesStopped) {
			continue
		}
		if guest, ours := index.of(&m.VM); ours && guest.host != m.VM.Host {
			// It was moved after the decision. The plan would fail, also for the other VMs.
			w.set(m, PhaseFailed, &MovedError{VM: m.VM.Name, Host: m.VM.Host, Now: guest.host})
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

// addRests declares VMs on free hosts as standby VMs again if their wake was given up, or if
// their removal was requested before it started them. Only their files change, so they are
// part of any change.
func (w *Writer) addRests(b *batch) {
	now := w.scaler.config.Clock.Now()
	change := b.change
	for _, m := range w.sorted() {
		if rests := m.resting || m.unstarted && m.leaving; !rests || !m.ready(change.from, now) {
			continue
		}
		at := slices.IndexFunc(change.After.VMs, func(vm fleet.VM) bool { return vm.Key == m.VM.Key })
		if at < 0 {
			continue
		}
		m.leaving, m.resting = false, true
		change.After.VMs[at].Standby = true
		change.Rested = append(change.Rested, change.After.VMs[at])
	}
}

// rested records that a VM is a standby VM again. The caller holds w.mu.
func (w *Writer) rested(m *member) {
	m.unstarted, m.resting = false, false
	m.VM.Standby = true
	w.set(m, PhaseMade, nil)
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
		case m.leaving && m.importing:
		case m.leaving && m.Filed:
			// The next change handles a removal that was requested while the cluster was
			// queried.
			reason, known := undrained[key]
			if known && reason == nil && change.excludesRemoval(&m.VM) {
				continue // the next change removes it
			}
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

// addUpdates adds the VMs to update while they run. A VM that does not exist, or is not on
// its host, waits, because it would make the plan fail for the others.
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
		change.Why = whyUpdate(change.Updated)
	}
}

// inPlace returns a VM with the fields of spec that change in place.
func inPlace(vm fleet.VM, spec *fleet.Spec) fleet.VM {
	vm.Tags = slices.Clone(spec.Tags)
	vm.ResourcePool = spec.ResourcePool
	vm.SecurityGroups = slices.Clone(spec.SecurityGroups)
	vm.Emulator = spec.Emulator
	return vm
}

// render renders a change. VMs to create or wake that cannot be rendered fail, VMs to
// update stay unchanged, and the change continues without them.
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
			m.ChangeErr, m.retry = reason, m.retry.grown(now, longestDelay)
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

// queued returns how many VMs wait for a change that creates, wakes or removes them. The
// caller holds w.mu.
func (w *Writer) queued() int {
	waiting := 0
	for _, m := range w.members {
		if !m.moving && (m.Phase == PhaseReserved || m.leaving) {
			waiting++
		}
	}
	return waiting
}

// approve decides for each host whether its plan may be applied. If a plan with requests
// may not be applied, its VMs fail, wait for approval or for the state backend, or are
// retried later, and approve returns errReduced, so that the change is rebuilt without
// them. It also returns errReduced if a part of a burst needs approval, or if the removal
// of a VM to be created or woken was requested meanwhile. It records in each plan who
// approved it.
func (w *Writer) approve(ctx context.Context, b *batch, plans []RootPlan) error {
	if len(b.change.later) > 0 && slices.ContainsFunc(plans, func(p RootPlan) bool { return p.Verdict.Decision == guard.NeedsApproval }) {
		// Apply limits to the whole burst: its parts might pass them separately.
		w.mu.Lock()
		defer w.mu.Unlock()
		w.whole = true
		return errReduced
	}
	excluded := map[topology.HostID]error{}
	for i := range plans {
		plan := &plans[i]
		plan.Err = w.noteBackend(ctx, plan.Host, plan.Err)
		approval, err := w.allow(ctx, plan)
		w.logPlan(ctx, plan, approval, err)
		switch {
		case err == nil:
			plan.approval = approval
		case plan.Touched:
			excluded[plan.Host] = err
		default:
			plan.Err = err // nothing is requested there now
		}
	}
	if len(excluded) == 0 {
		excluded = w.blocked(ctx, b, plans)
	}

	if len(excluded) > 0 {
		// Removals and updates are retried later; VMs to be created or woken fail or wait.
		w.postponeBatch(b, func(m *member) error {
			err := excluded[m.VM.Host]
			if outside := b.outsideState(err); len(outside) > 0 && !slices.Contains(outside, m.VM.Key) {
				return nil // it is planned again without these VMs
			}
			if err == nil || m.leaving || slices.Contains(b.updates, m.VM.Key) || BackendDown(err, time.Time{}) != nil {
				return err // a VM that waits for the backend stays reserved
			}
			w.set(m, refusedPhase(err), err)
			return nil
		})
		for _, host := range slices.SortedFunc(maps.Keys(excluded), topology.HostID.Compare) {
			w.config.Changed(host.Region) // the plan may have read newer guests
			w.importNext(b.outsideState(excluded[host]))
			if vms := on(b.change.Updated, host); len(vms) > 0 {
				log.FromContext(ctx).Info("postponed an in-place update", logkey.Host, host.String(), logkey.VM, names(vms),
					logkey.Reason, excluded[host].Error())
			}
		}
		return errReduced
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.withdrawn(b) {
		return errReduced
	}
	return nil
}

// refusedPhase returns the phase of a VM whose plan may not be applied.
func refusedPhase(err error) Phase {
	if held := new(PendingApprovalError); errors.As(err, &held) {
		return PhasePendingApproval
	}
	return PhaseFailed
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

// allow returns an error if a plan may not be applied. Otherwise it returns the plan's
// approval, if it needed one: because the guard requires it, because the NodePool does, or
// because of a freeze window.
func (w *Writer) allow(ctx context.Context, plan *RootPlan) (approval *audit.Approval, err error) {
	switch {
	case plan.Err != nil:
		return nil, &PlanError{Host: plan.Host, Err: plan.Err}
	case plan.Verdict.Decision == guard.Allow:
		if w.config.Gate == nil || !plan.Changes() {
			return nil, nil
		}
		asks, err := w.config.Gate.Asks(ctx, plan)
		if err != nil {
			return nil, err
		}
		if !asks {
			return w.config.Gate.Approved(ctx, plan)
		}
	case plan.Verdict.Decision != guard.NeedsApproval:
		return nil, &DeniedError{Host: plan.Host, Verdict: plan.Verdict}
	}
	if w.config.Gate != nil {
		approval, err = w.config.Gate.Approver(ctx, plan)
	}
	if err == nil && approval == nil {
		err = &PendingApprovalError{Host: plan.Host, Verdict: plan.Verdict}
	}
	return approval, err
}

// postponeBatch schedules a retry for each VM of a change for which reason returns an
// error.
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
			m.ChangeErr, m.retry = err, m.retry.grown(now, longestDelay)
		default:
			m.Err, m.retry = err, m.retry.grown(now, longestDelay)
		}
	}
}

// batchBegun updates the writer after a change has become the desired state.
func (w *Writer) batchBegun(b *batch, begun *begun, span trace.SpanContext) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applying++
	w.whole = false
	w.planning = nil
	w.noteChanging(begun.plans)
	for i := range begun.plans {
		if plan := &begun.plans[i]; plan.Err == nil && slices.Contains(begun.change.importing, plan.Host) {
			w.endImports(plan.Host, nil)
		}
	}
	if begun.id != "" {
		w.outside = w.outside[len(begun.change.outside):]
	}
	for _, key := range b.creates {
		if m := w.members[key]; m != nil {
			w.scaler.config.Observe.QueueDone(m.VM.Host, begun.started.Sub(m.Since))
			m.Filed = true
			m.moving = true
			m.Trace = span
			if !m.leaving {
				w.set(m, PhaseMaking, nil)
			}
		}
	}
	for _, key := range b.removes {
		// A removal without a file waits if its host is not planned.
		if m := w.members[key]; m != nil && slices.ContainsFunc(begun.plans, func(p RootPlan) bool { return p.Host == m.VM.Host }) {
			m.moving = true
		}
	}
	for _, key := range b.wakes {
		if m := w.members[key]; m != nil {
			w.scaler.config.Observe.QueueDone(m.VM.Host, begun.started.Sub(m.Since))
			m.Trace = span
			w.wakeBegun(m)
		}
	}
	for _, vm := range begun.change.Rested {
		if m := w.members[vm.Key]; m != nil && m.resting {
			w.rested(m)
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

// noteChanging records which hosts are busy with the plans of a change that has begun, except
// those on which it only wakes VMs. The caller holds w.mu.
func (w *Writer) noteChanging(plans []RootPlan) {
	for i := range plans {
		plan := &plans[i]
		intent := &plan.Intent
		others := len(intent.Create) + len(intent.Import) + len(intent.Update)
		onlyWakes := len(intent.Wake) > 0 && others+len(intent.Delete) == 0
		if plan.Err == nil && plan.Changes() && !onlyWakes {
			w.changing[plan.Host] = others == 0 && len(intent.Delete) > 0
		}
	}
}

// wakeBegun records that the wake of a standby VM has begun. The caller holds w.mu.
func (w *Writer) wakeBegun(m *member) {
	m.moving = true
	if !m.waking { // its removal was requested meanwhile
		m.VM.Standby = false
		m.leaving = true
		w.set(m, PhaseRemoving, nil)
		return
	}
	m.waking = false
	w.set(m, PhaseMaking, nil)
}

// hostApplied updates the writer after the apply on a host has ended.
func (w *Writer) hostApplied(ctx context.Context, b *batch, id string, result Result) {
	result.Err = w.noteBackend(ctx, result.Host, result.Err)
	logApplied(ctx, &result)
	var guests guestIndex
	conflict := &ConflictError{}
	if result.Err != nil {
		guests = w.readGuests(ctx, b.change.Snapshot, result.Host)
		errors.As(result.Err, &conflict)
	}
	// The host stays busy until all this is recorded; otherwise a failed change would
	// begin again at once. A step reads the whole fleet, so only a failure or a waiting request
	// begins one before the change ends.
	defer func() {
		if result.Err != nil || w.awaited(result.Host) {
			w.nudge()
		}
	}()
	defer func() {
		s := w.scaler
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, result.Host)
		if result.Err == nil && id != "" {
			s.done[hostPart{id, result.Host}] = true
		}
	}()
	w.config.Changed(result.Host.Region)
	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.changing, result.Host)
	w.delayNext(b, &result)
	for key, m := range w.members {
		// A host that left has none of its VMs, but those without a request stay as they are.
		stays := result.left && !slices.Contains(b.removes, key)
		if m.VM.Host == result.Host && !stays {
			guest, ours := guests.of(&m.VM)
			complete := ours && guest.host == result.Host && !hasKey(conflict.VMs, key) && m.complete(guest)
			// Without the hash of a plan, nothing was applied.
			m.unstarted = result.Err != nil && !hasKey(conflict.VMs, key) &&
				(slices.Contains(result.Unstarted, key) || m.unstarted && result.PlanSHA256 == "")
			w.vmApplied(m, b, &result, complete)
		}
	}
}

// awaited reports whether a VM of a host waits for its next change.
func (w *Writer) awaited(host topology.HostID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if m.VM.Host == host && !m.moving && (m.Phase == PhaseReserved || m.leaving || m.desired != nil) {
			return true
		}
	}
	return false
}

// readGuests reads a host again and returns the guests; none if Proxmox cannot be read.
func (w *Writer) readGuests(ctx context.Context, snapshot *topology.Snapshot, host topology.HostID) guestIndex {
	live := w.scaler.region(host.Region).Live
	if live == nil {
		return guestIndex{}
	}
	now, err := live.Refresh(context.WithoutCancel(ctx), snapshot, []topology.HostName{host.Host})
	if err != nil {
		return guestIndex{}
	}
	return indexGuests(now, w.scaler.config.ClusterID)
}

// complete reports whether a VM's guest is in its desired state although the apply
// failed: it runs or, if it is a standby VM, is completely cloned.
func (m *member) complete(guest located) bool {
	if m.VM.Standby {
		return guest.Lock != "clone" && guest.Lock != "create"
	}
	return guest.Running
}

// unfinished reports whether a VM has a file but may not have been created yet.
func (m *member) unfinished() bool {
	return m.Phase == PhaseMaking || (m.Phase == PhaseFailed && m.Filed)
}

// interrupted reports whether the creation or wake of a VM failed for a reason that does not
// concern the VM: the state backend did not respond, or other VMs prevented its wake.
func (m *member) interrupted() bool { return m.Phase == PhaseMaking && m.Err != nil }

// starts reports whether the change creates or wakes the VM with a key.
func (b *batch) starts(key fleet.Key) bool {
	return slices.Contains(b.creates, key) || slices.Contains(b.wakes, key)
}

// vmApplied updates a VM of a host whose apply has ended.
func (w *Writer) vmApplied(m *member, b *batch, result *Result, complete bool) {
	key, err := m.VM.Key, result.Err
	if slices.Contains(b.updates, key) {
		m.updateApplied(err, slices.Contains(result.Later, key))
		return
	}
	if m.desired == nil && result.completesUpdates(key) {
		m.Changing, m.ChangeErr = false, nil
	}

	removed := slices.Contains(b.removes, key)
	part := removed || b.starts(key) || m.interrupted() || m.unstarted
	if !part && (err != nil || !m.unfinished()) {
		return // not part of the change, and not completed by it
	}
	m.moving = false
	switch {
	case removed && err == nil:
		w.drop(key)
	case removed:
		m.Filed = true // assume so: the removal is in progress until a change succeeds
		m.Err, m.retry = err, m.retry.grown(w.scaler.config.Clock.Now(), longestDelay)
	case m.leaving:
	case m.unstarted && result.preventedByOthers(key):
		w.set(m, PhaseMaking, err) // the next run wakes it without the VMs that prevented it
	case m.unstarted:
		m.resting, m.retry = true, delay{}
		w.set(m, PhaseFailed, err)
	case err == nil || complete:
		w.set(m, PhaseMade, nil)
	case BackendDown(err, time.Time{}) != nil:
		w.set(m, PhaseMaking, err) // the next run completes it
	default:
		w.set(m, PhaseFailed, err)
	}
}

// updateApplied records the end of an apply that updates the VM in place. If it failed, or
// if a part of it is left for later, the VM's file has the desired values, and the unfinished
// work is retried.
func (m *member) updateApplied(err error, later bool) {
	m.moving = false
	m.ChangeErr = err
	if m.desired != nil && sameInPlace(&m.VM.Spec, m.desired) {
		m.desired = nil
	}
	m.Changing = m.desired != nil || err != nil || later
}

// completesUpdates reports whether the apply also completed the earlier updates of a VM.
func (r *Result) completesUpdates(key fleet.Key) bool {
	return r.Err == nil && !slices.Contains(r.Later, key)
}

// preventedByOthers reports whether only other VMs to wake, which now become standby VMs again,
// prevented the wake of the VM with a key.
func (r *Result) preventedByOthers(key fleet.Key) bool {
	var partial PartialError
	return errors.As(r.Err, &partial) && !partial.Concerns(key) && slices.ContainsFunc(r.Unstarted, partial.Concerns)
}
