package scaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// Gate decides about plans that need approval.
type Gate interface {
	// Approver returns the approval of the plan of a host, or nil if it is pending approval.
	// An approval without a digest is not by a person, and only its By is recorded.
	Approver(ctx context.Context, plan *RootPlan) (*audit.Approval, error)
	// Asks reports whether a plan needs approval even though the guard allows it.
	Asks(ctx context.Context, plan *RootPlan) (bool, error)
	// Approved returns the approval of a plan for which Asks is false, because it was
	// approved before its VMs were reserved or drained; nil if it needed none.
	Approved(ctx context.Context, plan *RootPlan) (*audit.Approval, error)
	// Freeze returns the freeze window that blocks a change of templates now, or an empty
	// string. up is set if the change creates or changes templates, and down if it deletes
	// some.
	Freeze(up, down bool) string
}

// WriterConfig configures a Writer.
type WriterConfig struct {
	// Snapshot returns a recent snapshot of Proxmox.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Taken returns the VMIDs that Nodes and NodeClaims still refer to; nil means none.
	Taken func(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error)
	// Joined reports whether a VM had become a Node. If it had and then vanished
	// unobserved, it is not re-created. If Joined is nil, VMs that vanished unobserved are
	// re-created.
	Joined func(ctx context.Context, vm fleet.VM) (bool, error)
	// Gate decides about approval; nil approves nothing.
	Gate Gate
	// Paused is checked before anything is begun; nil means never paused.
	Paused func() bool
	// Changed is called when Proxmox may have changed: when the apply on a host of the region,
	// or a change of its templates, has ended, or a plan there was refused. It can be nil.
	Changed func(region topology.RegionName)
	// Poll is how often the fleet is read for changes by other clients; 0 means a minute.
	Poll time.Duration
	// Gather is how long the first removal on a host waits for further removals, because
	// a host that is being changed accepts none; 0 means a second, which is enough for
	// nodes that are drained together. It waits only while Leaving contains another VM of
	// the host.
	Gather time.Duration
	// Leaving returns the VMs whose NodeClaims are being deleted. They are removed once they
	// are drained. Nil means that they are unknown: each removal waits for Gather.
	Leaving func(ctx context.Context) (map[fleet.Key]bool, error)
}

// member is the writer's record of a VM.
type member struct {
	VMState
	// leaving is set if removal was requested, and moving if the VM is part of a change
	// in progress.
	leaving, moving bool
	// waking is set while the wake of a standby VM has not begun: its file still declares
	// standby.
	waking bool
	// unstarted is set if the VM's wake has begun, but the last attempt proved that it has not
	// started the VM. resting is set while such a VM waits until its file declares standby
	// again, because its wake was given up.
	unstarted, resting bool
	// misfiled is set while its file disagrees about standby.
	misfiled bool
	// importing is set while the removal waits because the state lacks the VM: a change that plans
	// its host completely imports it first.
	importing bool
	// vanished is set if the VM was created and then removed by another client.
	vanished bool
	// desired is the desired Spec of an update in place, or nil.
	desired *fleet.Spec
	retry   delay
}

// Writer accepts requests to create and remove VMs at any time, and applies them in the
// background. It combines requests for free hosts into changes; requests for a host that is
// being applied wait until it is free again. A fleet has one Writer: start it with Run, on
// the leader only.
type Writer struct {
	scaler *Scaler
	config WriterConfig

	wake   chan struct{}
	loaded chan struct{}
	// parsed parses the fleet's files once while Proxmox is read for the first time.
	parsed sync.Once
	group  sync.WaitGroup

	// mu guards the fields below.
	mu        sync.Mutex
	members   map[fleet.Key]*member
	rotations rotations
	backoff   map[topology.HostID]delay
	// quiet are hosts that look unfinished, but where a plan found nothing to do.
	quiet map[topology.HostID]delay
	// updating are the hosts where an earlier change's updates in place, and nothing else, are
	// unfinished and cannot be completed now, for example because a VM was moved.
	updating map[topology.HostID]delay
	// removing are the hosts where only removals of earlier changes are unfinished, and failed.
	removing map[topology.HostID]delay
	applying int
	// logged are the plans that were logged last, so that each is logged only once at the
	// info level, however often a host is planned again.
	logged map[topology.HostID]string
	// outages are the hosts whose state backend does not respond.
	outages map[topology.HostID]outage
	// whole is set if the next change must contain all requests, because a part of them
	// needs approval.
	whole bool
	// gathering is the time until which the removals on a host wait for further removals.
	gathering map[topology.HostID]time.Time
	// changed is closed and replaced when the phase of a VM changes.
	changed chan struct{}
	// cloning are the hosts on which clones of an earlier run are in progress.
	cloning []topology.HostID
	// changing are the hosts that a change in progress does more to than start standby VMs,
	// and planning such hosts of the change that is being planned. The value is true if the
	// change only removes VMs of the host.
	changing, planning map[topology.HostID]bool
	// outside are writes to Proxmox that no change has recorded yet.
	outside []string
	// outsideSince is the time of the first of these writes.
	outsideSince time.Time
	// templates are the requests of ProxmoxTemplates by name, templateRoots the roots of the
	// hosts' templates, and templatesKnown is set once they were compared with Proxmox.
	templates      map[string]TemplateRequest
	templateRoots  map[topology.HostID]*templateRoot
	templatesKnown bool
	// unlock releases the store's lock, which is held while anything is applied.
	unlock func() error
}

// NewWriter returns the writer of a scaler's fleet. It does nothing before Run.
func NewWriter(scaler *Scaler, config WriterConfig) *Writer {
	config.Poll = cmp.Or(config.Poll, time.Minute)
	config.Gather = cmp.Or(config.Gather, time.Second)
	if config.Taken == nil {
		config.Taken = func(context.Context) (map[topology.RegionName][]fleet.VMID, error) { return nil, nil }
	}
	if config.Changed == nil {
		config.Changed = func(topology.RegionName) {}
	}
	if config.Paused == nil {
		config.Paused = func() bool { return false }
	}
	return &Writer{
		scaler: scaler, config: config,
		wake: make(chan struct{}, 1), loaded: make(chan struct{}), changed: make(chan struct{}),
		members: map[fleet.Key]*member{}, rotations: rotations{}, backoff: map[topology.HostID]delay{}, quiet: map[topology.HostID]delay{},
		updating: map[topology.HostID]delay{}, removing: map[topology.HostID]delay{},
		gathering: map[topology.HostID]time.Time{}, outages: map[topology.HostID]outage{}, logged: map[topology.HostID]string{},
		templates: map[string]TemplateRequest{}, templateRoots: map[topology.HostID]*templateRoot{},
		changing: map[topology.HostID]bool{},
	}
}

// soon is the delay before the next attempt after a failure.
const soon = 2 * time.Second

// Run applies the requests until ctx ends, which cancels the applies in progress. It waits
// for them and releases the fleet's lock before it returns.
func (w *Writer) Run(ctx context.Context) error {
	defer w.group.Wait()
	for {
		pause := w.config.Poll
		again, err := w.step(ctx)
		if err == nil {
			var next time.Duration
			if next, err = w.stepTemplates(ctx); next > 0 && (again <= 0 || next < again) {
				again = next
			}
		}
		switch {
		case err != nil && ctx.Err() == nil:
			log.FromContext(ctx).Error(err, "postponed a change of the fleet")
			pause = soon
		case again > 0:
			pause = min(pause, again)
		}
		// Others can change the fleet while this writer waits, also if a step ended without a
		// change.
		if err := w.release(); err != nil {
			log.FromContext(ctx).Error(err, "failed to release the fleet's lock")
		}
		timer := time.NewTimer(pause)
		select {
		case <-w.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			w.group.Wait()
			return w.release()
		}
		timer.Stop()
		if err := w.release(); err != nil {
			log.FromContext(ctx).Error(err, "failed to release the fleet's lock")
		}
	}
}

// release releases the fleet's lock if nothing is being applied.
func (w *Writer) release() error {
	if w.Busy() || w.unlock == nil {
		return nil
	}
	unlock := w.unlock
	w.unlock = nil
	return unlock()
}

// attemptsPerStep limits how many changes are begun, reduced or rebuilt in one step.
const attemptsPerStep = 8

// errReduced reports that a change has to continue without some hosts or VMs.
var errReduced = errors.New("some hosts or VMs cannot take part in the change")

// step begins the changes that can begin now. again is the time until the next attempt; 0
// means at the next poll.
func (w *Writer) step(ctx context.Context) (again time.Duration, err error) {
	for range attemptsPerStep {
		if w.config.Paused() { // possibly since the previous part of a burst
			return soon, nil
		}
		b, err := w.nextBatch(ctx)
		if err == nil && b != nil && w.unlock == nil {
			w.unlock, err = w.scaler.config.Store.Lock(ctx)
		}
		if err != nil && ctx.Err() == nil {
			w.postpone(err)
		}
		if err == nil {
			w.endOutage()
		}
		if err != nil || b == nil {
			return w.due(), err
		}
		err = w.begin(ctx, b)
		switch {
		case errors.Is(err, errReduced), errors.Is(err, ErrFleetChanged):
			log.FromContext(ctx).V(1).Info("rebuilt the change", logkey.Reason, err.Error())
		case err != nil:
			w.postponeBatch(b, func(m *member) error { return w.postponed(m, err) })
			return soon, err
		}
	}
	return soon, nil
}

// begin begins a change, and continues it in the background.
func (w *Writer) begin(ctx context.Context, b *batch) error {
	ctx, span := w.startChange(ctx, b)
	w.setPlanning(b)
	begun, err := w.scaler.begin(ctx, b.change, func(plans []RootPlan) (string, error) { return "", w.approve(ctx, b, plans) })
	if err != nil {
		w.setPlanning(nil)
		endChange(span, err)
		return err
	}
	setBegun(span, begun)
	s := w.scaler
	s.mu.Lock()
	for i := range begun.plans {
		s.busy[begun.plans[i].Host] = true
	}
	s.mu.Unlock()
	w.batchBegun(b, begun, span.SpanContext())
	ctx = logBegun(ctx, begun)
	w.group.Go(func() {
		_, err := s.finish(ctx, begun, func(result Result) { w.hostApplied(ctx, b, begun.id, result) })
		logEnded(ctx, begun, s.config.Clock.Since(begun.started), err)
		endChange(span, err)
		// The change has its outcome now.
		s.mu.Lock()
		maps.DeleteFunc(s.done, func(part hostPart, _ bool) bool { return part.change == begun.id })
		s.mu.Unlock()
		w.mu.Lock()
		w.applying--
		w.mu.Unlock()
		w.nudge()
	})
	return nil
}

// Ensure waits until the fleet has been read, reserves a name, a VMID and a key for each
// request, and returns the VMs in the order of the requests; they are created afterwards.
// For a request with the key of a desired VM, it returns that VM.
func (w *Writer) Ensure(ctx context.Context, requests []Request) (vms []fleet.VM, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("reserving vms: %w", err)
		}
	}()
	select {
	case <-w.loaded:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the fleet has not been read yet", context.Cause(ctx))
	}
	snapshot, err := w.config.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var taken inUse
	if taken.vmids, err = w.config.Taken(ctx); err != nil {
		return nil, err
	}
	if taken.nodes, err = w.scaler.nodeAddresses(ctx, snapshot); err != nil {
		return nil, err
	}
	if taken.classes, err = w.scaler.config.ClassVMIDs(ctx); err != nil {
		return nil, err
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	vms = make([]fleet.VM, len(requests))
	var unknown []Request
	for i, request := range requests {
		if m := w.members[request.Key]; request.Key != "" && m != nil && !m.leaving {
			vms[i] = m.VM
			continue
		}
		unknown = append(unknown, request)
	}
	existing := w.fleet()
	reserved, err := w.scaler.newVMs(unknown, snapshot, existing, existing, taken, w.rotations)
	if err != nil {
		return nil, err
	}
	for i := range vms {
		if vms[i].Key == "" {
			vms[i] = reserved[0]
			reserved = reserved[1:]
			w.members[vms[i].Key] = &member{VMState: VMState{
				VM: vms[i], Phase: PhaseReserved, Since: w.scaler.config.Clock.Now(), Trace: trace.SpanContextFromContext(ctx),
			}}
		}
	}
	w.nudge()
	return vms, nil
}

// Wake requests that standby VMs start and become Nodes, and returns them as ordinary
// VMs. From then on each is like a new VM, in PhaseReserved. Wake refuses all of them
// with a *NotStandbyError if one is unknown, or is not a standby VM in PhaseMade, and
// with a *StartedByHandError if one runs already: it has no join data.
func (w *Writer) Wake(ctx context.Context, keys ...fleet.Key) (vms []fleet.VM, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("waking vms: %w", err)
		}
	}()
	select {
	case <-w.loaded:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the fleet has not been read yet", context.Cause(ctx))
	}
	snapshot, err := w.config.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	index := indexGuests(snapshot, w.scaler.config.ClusterID)

	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		m := w.members[key]
		if m == nil {
			return nil, &NotStandbyError{Key: key}
		}
		if !m.VM.Standby || m.Phase != PhaseMade || m.leaving || m.moving {
			return nil, &NotStandbyError{Key: key, VM: m.VM.Name, Phase: m.Phase}
		}
		if guest, ours := index.of(&m.VM); ours && guest.Running {
			return nil, &StartedByHandError{VM: m.VM.Name, Key: key, VMID: m.VM.VMID, Host: m.VM.Host}
		}
	}
	for _, key := range keys {
		m := w.members[key]
		m.VM.Standby = false
		m.waking = true
		m.retry = delay{}
		m.Made = false
		m.Trace = trace.SpanContextFromContext(ctx)
		w.set(m, PhaseReserved, nil)
		vms = append(vms, m.VM)
	}
	w.nudge()
	return vms, nil
}

// Begun waits until no VM with these keys is in PhaseReserved: each is being created or
// woken, was refused, or was removed. It returns early when ctx ends.
func (w *Writer) Begun(ctx context.Context, keys ...fleet.Key) {
	for {
		w.mu.Lock()
		changed := w.changed
		waits := slices.ContainsFunc(keys, func(key fleet.Key) bool {
			m := w.members[key]
			return m != nil && m.Phase == PhaseReserved
		})
		w.mu.Unlock()
		if !waits {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Remove requests deletion of the VMs with these keys. Unknown keys are ignored. A VM not
// yet written to a file is dropped immediately. A VM whose wake has not begun is a standby
// VM again, and the next change makes one of a VM whose wake failed before it started the VM.
func (w *Writer) Remove(keys ...fleet.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		m := w.members[key]
		switch {
		case m == nil || m.leaving || m.resting:
		case !m.Filed && !m.moving:
			w.drop(key)
		case m.waking:
			m.waking = false
			m.VM.Standby = true
			w.set(m, PhaseMade, nil)
		default:
			m.leaving = true
			w.set(m, PhaseRemoving, nil)
			if _, gathers := w.gathering[m.VM.Host]; !gathers {
				w.gathering[m.VM.Host] = w.scaler.config.Clock.Now().Add(w.config.Gather)
			}
		}
	}
	w.nudge()
}

// Update requests that VMs get the tags, the pool, the security groups and the emulator
// given here, while they run; it ignores their other fields. It is idempotent: a VM that
// already matches is not changed. It ignores unknown VMs and VMs that are being removed.
// The update of a VM that does not exist yet waits until it does.
func (w *Writer) Update(vms ...fleet.VM) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range vms {
		m := w.members[vms[i].Key]
		if m == nil {
			continue
		}
		spec := &vms[i].Spec
		switch {
		case m.leaving || sameInPlace(&m.VM.Spec, spec):
			if m.desired != nil {
				m.desired = nil
				m.Changing = m.moving
				m.ChangeErr = nil
			}
		case m.desired == nil || !sameInPlace(m.desired, spec):
			m.desired = spec
			m.Changing = true
			m.retry = delay{}
			w.nudge()
		}
	}
}

// sameInPlace reports whether two VMs are equal in everything that changes in place.
func sameInPlace(a, b *fleet.Spec) bool {
	return a.ResourcePool == b.ResourcePool && a.Emulator == b.Emulator && slices.Equal(a.Tags, b.Tags) && slices.Equal(a.SecurityGroups, b.SecurityGroups)
}

// Record stores lines about writes to Proxmox that no plan contains, for the record of
// the next change.
func (w *Writer) Record(written []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.outside) == 0 {
		w.outsideSince = w.scaler.config.Clock.Now()
	}
	w.outside = append(w.outside, written...)
	w.nudge()
}

// outsideDue reports whether lines about writes to Proxmox have waited long enough to be
// recorded without another change: they are lost if the process dies.
func (w *Writer) outsideDue() bool {
	return len(w.outside) > 0 && w.scaler.config.Clock.Since(w.outsideSince) >= soon
}

// VMs returns all desired VMs and all VMs that are still being removed, sorted by region
// and VMID.
func (w *Writer) VMs() []VMState {
	w.mu.Lock()
	defer w.mu.Unlock()
	states := make([]VMState, 0, len(w.members))
	for _, m := range w.sorted() {
		states = append(states, m.VMState)
	}
	return states
}

// Any reports whether one of the VMs that VMs returns satisfies a condition. The condition
// must not change the VM or call the writer.
func (w *Writer) Any(condition func(*VMState) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if condition(&m.VMState) {
			return true
		}
	}
	return false
}

// VM returns the VM with a key, and whether VMs contains it.
func (w *Writer) VM(key fleet.Key) (state VMState, exists bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, exists := w.members[key]
	if !exists {
		return VMState{}, false
	}
	return m.VMState, true
}

// readWithin is the maximum time that a call of States waits until the fleet has been read.
const readWithin = time.Minute

// States is like VMs, but waits until the fleet has been read. It returns ErrNotRead if
// that takes too long, because Proxmox or the fleet's store does not respond.
func (w *Writer) States(ctx context.Context) ([]VMState, error) {
	if err := w.awaitRead(ctx); err != nil {
		return nil, err
	}
	return w.VMs(), nil
}

// PlacesDigest is PlacesDigest of all VMs, without copying them. It waits until the fleet has
// been read, like States.
func (w *Writer) PlacesDigest(ctx context.Context) (digest uint64, err error) {
	if err := w.awaitRead(ctx); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		digest += m.placeDigest()
	}
	return digest, nil
}

// State is like VM, but waits until the fleet has been read, like States.
func (w *Writer) State(ctx context.Context, key fleet.Key) (state VMState, exists bool, err error) {
	if err := w.awaitRead(ctx); err != nil {
		return state, false, err
	}
	state, exists = w.VM(key)
	return state, exists, nil
}

func (w *Writer) awaitRead(ctx context.Context) error {
	if w.Synced() {
		return nil
	}
	timer := w.scaler.config.Clock.NewTimer(readWithin)
	defer timer.Stop()
	select {
	case <-w.loaded:
		return nil
	case <-timer.C():
		return ErrNotRead
	case <-ctx.Done():
		return fmt.Errorf("%w (%w)", ErrNotRead, context.Cause(ctx))
	}
}

// Synced reports whether the fleet has been read: before that, VMs returns none.
func (w *Writer) Synced() bool {
	select {
	case <-w.loaded:
		return true
	default:
		return false
	}
}

// Busy reports whether a change is being applied.
func (w *Writer) Busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.applying > 0
}

// BusyHosts returns the hosts on which a wake would wait, sorted: on removing, only for the
// removal of VMs; on busy, for another change, or for the next attempt after a failure. It
// omits hosts that only start standby VMs, which takes a second or two.
func (w *Writer) BusyHosts() (busy, removing []topology.HostID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	onlyRemoves := maps.Clone(w.changing)
	maps.Copy(onlyRemoves, w.planning)
	for _, host := range w.cloning {
		onlyRemoves[host] = false
	}
	now := w.scaler.config.Clock.Now()
	for host, d := range w.backoff {
		if d.until.After(now) {
			onlyRemoves[host] = false
		}
	}
	for _, host := range slices.SortedFunc(maps.Keys(onlyRemoves), topology.HostID.Compare) {
		if onlyRemoves[host] {
			removing = append(removing, host)
		} else {
			busy = append(busy, host)
		}
	}
	return busy, removing
}

// setPlanning records which hosts the change that is being planned does more to than start
// standby VMs; nil means that none is being planned.
func (w *Writer) setPlanning(b *batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.planning = map[topology.HostID]bool{}
	if b == nil {
		return
	}
	for _, key := range b.removes {
		if m := w.members[key]; m != nil {
			w.planning[m.VM.Host] = true
		}
	}
	for _, key := range slices.Concat(b.creates, b.updates) {
		if m := w.members[key]; m != nil {
			w.planning[m.VM.Host] = false
		}
	}
}

// sorted returns the members by region and VMID.
func (w *Writer) sorted() []*member {
	return slices.SortedFunc(maps.Values(w.members), func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.VM.Host.Region, b.VM.Host.Region), cmp.Compare(a.VM.VMID, b.VM.VMID), cmp.Compare(a.VM.Key, b.VM.Key))
	})
}

// fleet returns the VMs of all members.
func (w *Writer) fleet() []fleet.VM {
	vms := make([]fleet.VM, 0, len(w.members))
	for _, m := range w.members {
		vms = append(vms, m.VM)
	}
	return vms
}

// nudge wakes up Run.
func (w *Writer) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// set changes the phase of a VM.
func (w *Writer) set(m *member, phase Phase, err error) {
	m.Made = m.Made || phase == PhaseMade
	if m.Phase != phase {
		if phase == PhaseFailed && !errors.Is(err, context.Canceled) {
			w.scaler.config.Observe.VMFailed(m.VM.Host)
		}
		m.Phase = phase
		m.Since = w.scaler.config.Clock.Now()
	}
	m.Err = err
	w.notify()
}

// drop forgets a VM.
func (w *Writer) drop(key fleet.Key) {
	delete(w.members, key)
	w.notify()
}

// notify wakes the goroutines that wait for phases of VMs.
func (w *Writer) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}
