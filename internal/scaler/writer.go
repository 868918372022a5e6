package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// Gate decides about plans that the guard does not allow by itself.
type Gate interface {
	// Approver returns who approved the plan of a host, or "" if it is pending approval.
	Approver(ctx context.Context, plan *ShardPlan) (approver string, err error)
	// Asks reports whether a plan with updates in place needs approval even though the
	// guard allows it.
	Asks(ctx context.Context, plan *ShardPlan) (bool, error)
}

// WriterConfig configures a Writer.
type WriterConfig struct {
	// Snapshot returns a recent snapshot of Proxmox.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Taken returns the VMIDs that Nodes and NodeClaims still refer to; nil means none.
	Taken func(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error)
	// Joined reports whether a VM had become a Node. If it had and then vanished
	// unobserved, it is not re-created. If Joined is nil, all VMs are re-created.
	Joined func(ctx context.Context, vm fleet.VM) (bool, error)
	// Gate decides about approval; nil approves nothing.
	Gate Gate
	// Paused is checked before anything is begun; nil means never paused.
	Paused func() bool
	// Changed is called when the phase of a VM has changed; may be nil.
	Changed func()
	// Poll is how often the fleet is read for others' changes; 0 means a minute.
	Poll time.Duration
}

// Writer accepts requests to create and remove VMs at any time, and applies them in the
// background. All requests for free hosts go into one change; requests for a host that is
// being applied wait until it is free again. There is one Writer for a fleet: start it
// with Run, on the leader only.
type Writer struct {
	scaler *Scaler
	config WriterConfig

	wake   chan struct{}
	loaded chan struct{}
	group  sync.WaitGroup

	// mu guards the fields below.
	mu        sync.Mutex
	members   map[fleet.Key]*member
	rotations rotations
	backoff   map[fleet.Shard]delay
	// quiet are hosts that look unfinished, but where a plan found nothing to do.
	quiet    map[fleet.Shard]delay
	applying int
	// told is closed and replaced when the phase of a VM changes.
	told chan struct{}
	// awaiting is set while clones of an earlier run are in progress.
	awaiting bool
	// outside are writes to Proxmox that no change has recorded yet.
	outside []string
	// outsideSince is the time of the first of these writes.
	outsideSince time.Time
	// unlock releases the store's lock, which is held while anything is applied.
	unlock func() error
}

// NewWriter returns the writer of a scaler's fleet. It does nothing before Run.
func NewWriter(scaler *Scaler, config WriterConfig) *Writer {
	if config.Poll == 0 {
		config.Poll = time.Minute
	}
	if config.Taken == nil {
		config.Taken = func(context.Context) (map[topology.RegionName][]fleet.VMID, error) { return nil, nil }
	}
	if config.Changed == nil {
		config.Changed = func() {}
	}
	if config.Paused == nil {
		config.Paused = func() bool { return false }
	}
	return &Writer{
		scaler: scaler, config: config,
		wake: make(chan struct{}, 1), loaded: make(chan struct{}), told: make(chan struct{}),
		members: map[fleet.Key]*member{}, rotations: rotations{}, backoff: map[fleet.Shard]delay{}, quiet: map[fleet.Shard]delay{},
	}
}

// soon is the delay before the next attempt after a failure.
const soon = 2 * time.Second

// Run creates and removes VMs until ctx ends. It then cancels the applies in progress and
// waits for them.
func (w *Writer) Run(ctx context.Context) error {
	defer w.group.Wait()
	for {
		pause := w.config.Poll
		again, err := w.step(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			log.FromContext(ctx).Error(err, "changing the fleet was put off")
			pause = soon
		case again > 0:
			pause = min(pause, again)
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
			log.FromContext(ctx).Error(err, "giving the fleet's lock back failed")
		}
	}
}

// Ensure reserves a name, a VMID and a key for each request, and returns the VMs in the
// order of the requests; they are created afterwards. For a request with the key of a
// desired VM, it returns that VM.
func (w *Writer) Ensure(ctx context.Context, requests []Request) ([]fleet.VM, error) {
	select {
	case <-w.loaded:
	case <-ctx.Done():
		return nil, fmt.Errorf("reserving vms: %w: the fleet is not read yet", context.Cause(ctx))
	}
	snapshot, err := w.config.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("reserving vms: %w", err)
	}
	taken, err := w.config.Taken(ctx)
	if err != nil {
		return nil, fmt.Errorf("reserving vms: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	vms, err := w.reserve(snapshot, requests, taken)
	if err != nil {
		return nil, fmt.Errorf("reserving vms: %w", err)
	}
	w.nudge()
	return vms, nil
}

// reserve names all of the requests, or none.
func (w *Writer) reserve(snapshot *topology.Snapshot, requests []Request, taken map[topology.RegionName][]fleet.VMID) ([]fleet.VM, error) {
	if unknown := w.scaler.unknownRegions(requests); len(unknown) > 0 {
		return nil, fmt.Errorf("regions %q are not configured: add them under clusters in numaform.yaml", unknown)
	}
	known := w.fleet()
	allocators := map[topology.RegionName]*fleet.Allocator{}
	vms := make([]fleet.VM, len(requests))
	var fresh []fleet.VM
	for i, request := range requests {
		if e := w.members[request.Key]; request.Key != "" && e != nil && !e.leaving {
			vms[i] = e.VM
			continue
		}
		region := request.Placement.Host.Region
		if allocators[region] == nil {
			used := usedVMIDs(region, known, snapshot, taken[region])
			allocators[region] = fleet.NewAllocator(region, w.scaler.region(region).VMIDs, w.rotations[region], used)
		}
		vm, err := w.scaler.name(allocators[region], snapshot, request)
		if err != nil {
			return nil, err
		}
		vms[i] = vm
		fresh = append(fresh, vm)
	}
	for region, allocator := range allocators {
		w.rotations[region] = allocator.Rotation()
	}
	for _, vm := range fresh {
		w.members[vm.Key] = &member{VMState: VMState{VM: vm, Phase: PhaseReserved, Since: w.scaler.config.Clock.Now()}}
	}
	return vms, nil
}

// Remove requests deletion of the VMs with these keys. Unknown keys are ignored. A VM not
// yet written to a file is dropped immediately.
func (w *Writer) Remove(keys ...fleet.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		e := w.members[key]
		switch {
		case e == nil || e.leaving:
		case !e.Filed && !e.moving:
			w.drop(key)
		default:
			e.leaving = true
			w.set(e, PhaseRemoving, nil)
		}
	}
	w.nudge()
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

// notes reports whether lines about writes to Proxmox have waited for a change long
// enough: they are lost if the process dies.
func (w *Writer) notes() bool {
	return len(w.outside) > 0 && w.scaler.config.Clock.Since(w.outsideSince) >= soon
}

// VMs returns all desired VMs and all VMs that are still being removed, sorted by region
// and VMID.
func (w *Writer) VMs() []VMState {
	w.mu.Lock()
	defer w.mu.Unlock()
	states := make([]VMState, 0, len(w.members))
	for _, e := range w.members {
		states = append(states, e.VMState)
	}
	slices.SortFunc(states, compareStates)
	return states
}

// ErrNotRead is returned until the fleet's files have been read.
var ErrNotRead = errors.New("the fleet's files are not read yet: this is tried again until they are")

// States returns the same as VMs, and ErrNotRead as long as no VM is known.
func (w *Writer) States(context.Context) ([]VMState, error) {
	if !w.Synced() {
		return nil, ErrNotRead
	}
	return w.VMs(), nil
}

// Find returns the VM with that name.
func (w *Writer) Find(name string) (VMState, bool) {
	for _, state := range w.VMs() {
		if state.VM.Name == name {
			return state, true
		}
	}
	return VMState{}, false
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

// fleet returns the VMs of all members.
func (w *Writer) fleet() []fleet.VM {
	vms := make([]fleet.VM, 0, len(w.members))
	for _, e := range w.members {
		vms = append(vms, e.VM)
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
func (w *Writer) set(e *member, phase Phase, err error) {
	e.Made = e.Made || phase == PhaseMade
	if e.Phase != phase {
		e.Phase, e.Since = phase, w.scaler.config.Clock.Now()
	}
	e.Err = err
	w.tell()
	w.config.Changed()
}

// lock locks the fleet for this process.
func (w *Writer) lock(ctx context.Context) error {
	if w.unlock != nil {
		return nil
	}
	unlock, err := w.scaler.config.Store.Lock(ctx)
	w.unlock = unlock
	return err
}

// release releases the fleet's lock if nothing is being applied.
func (w *Writer) release() error {
	w.mu.Lock()
	applying := w.applying
	w.mu.Unlock()
	if applying > 0 || w.unlock == nil {
		return nil
	}
	unlock := w.unlock
	w.unlock = nil
	return unlock()
}

// step begins what can be done now, and returns when to try again.
func (w *Writer) step(ctx context.Context) (again time.Duration, err error) {
	if w.config.Paused() {
		return soon, nil
	}
	for range attemptsPerStep {
		m, err := w.next(ctx)
		if err != nil || m == nil {
			return w.due(), err
		}
		if err := w.lock(ctx); err != nil {
			return 0, err
		}
		err = w.make(ctx, m)
		var excluded *excludedError
		switch {
		case errors.As(err, &excluded), errors.Is(err, ErrFleetChanged):
			log.FromContext(ctx).V(1).Info("decided on the change anew", "reason", err.Error())
		case err != nil:
			w.putOff(m, err)
			return soon, err
		}
	}
	return soon, nil
}

// attemptsPerStep limits how often a change is reduced, or made again, in one step.
const attemptsPerStep = 8

// make begins a change and continues it in the background.
func (w *Writer) make(ctx context.Context, m *move) error {
	b, err := w.scaler.begin(ctx, m.change, func(plans []ShardPlan) (string, error) { return w.judge(ctx, m, plans) })
	if err != nil {
		return err
	}
	var shards []fleet.Shard
	for i := range b.plans {
		shards = append(shards, b.plans[i].Shard)
	}
	w.scaler.running.begin(shards)
	w.begun(m, b)
	w.group.Go(func() {
		_, err := w.scaler.finish(ctx, b, func(result Result) { w.ended(ctx, m, b.id, result) })
		if err != nil {
			log.FromContext(ctx).Error(err, "a change did not end well", logkey.Change, b.id)
		}
		w.scaler.running.forget(b.id)
		w.mu.Lock()
		w.applying--
		w.mu.Unlock()
		w.nudge()
	})
	return nil
}

// due returns the time until the next postponed attempt.
func (w *Writer) due() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.scaler.config.Clock.Now()
	var again time.Duration
	sooner := func(at time.Time) {
		if left := at.Sub(now); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	if w.awaiting {
		sooner(now.Add(soon))
	}
	if len(w.outside) > 0 {
		sooner(w.outsideSince.Add(soon))
	}
	for d := range maps.Values(w.backoff) {
		sooner(d.until)
	}
	for e := range maps.Values(w.members) {
		sooner(e.retry.until)
	}
	return again
}

// Busy reports whether a change is being applied.
func (w *Writer) Busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.applying > 0
}
