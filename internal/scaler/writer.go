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

// Gate is asked about plans that the guard does not allow alone.
type Gate interface {
	// Approver returns who lets the plan of a shard pass, or "" if it has to wait.
	Approver(ctx context.Context, plan *ShardPlan) (approver string, err error)
	// Asks reports whether a plan that changes VMs in place, and that the guard allows,
	// waits for a person all the same.
	Asks(ctx context.Context, plan *ShardPlan) (bool, error)
}

// WriterConfig is what a Writer needs besides its scaler.
type WriterConfig struct {
	// Snapshot returns Proxmox as it was a moment ago.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Taken returns the VMIDs that Nodes and NodeClaims still name; nil means none.
	Taken func(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error)
	// Joined reports whether a VM had become a Node: then it is not made anew if it
	// vanished while nobody looked. nil makes all VMs anew.
	Joined func(ctx context.Context, vm fleet.VM) (bool, error)
	// Gate may be nil: then nothing passes that the guard does not allow alone.
	Gate Gate
	// Paused is asked before anything is begun; nil means never.
	Paused func() bool
	// Changed is called when the phase of a VM changed; nil drops it.
	Changed func()
	// Poll is how often the fleet is read for what others did to it; 0 means a minute.
	Poll time.Duration
}

// Writer takes requests for VMs to come and go at any time, and has them made in the
// background: all that is asked for shards that are free goes into one change, and a
// shard that is being applied takes what came meanwhile when it is free again. There
// is one Writer for a fleet: start it with Run, on the leader only.
type Writer struct {
	scaler *Scaler
	config WriterConfig

	wake   chan struct{}
	loaded chan struct{}
	group  sync.WaitGroup

	// mu guards what follows.
	mu        sync.Mutex
	members   map[fleet.Key]*member
	rotations rotations
	backoff   map[fleet.Shard]delay
	// quiet are shards that look unfinished, and where a plan found nothing to do.
	quiet    map[fleet.Shard]delay
	applying int
	// told is closed when the phase of a VM changes, and made anew.
	told chan struct{}
	// awaiting is set while clones of an earlier run go on.
	awaiting bool
	// outside are writes to Proxmox that no change has recorded yet.
	outside []string
	// outsideSince is when the first of them was written.
	outsideSince time.Time
	// unlock gives the store's lock back; it is held while anything is applied.
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

// soon is when the writer looks again after something stopped it.
const soon = 2 * time.Second

// Run makes and removes VMs until ctx ends; what is being applied then is canceled
// and awaited.
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

// Ensure reserves a name, a VMID and a key for each request, and returns the VMs in
// the order of the requests; they are made afterwards. A request with the key of a VM
// that is wanted returns that VM.
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

// reserve names the requests; all of them or none.
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

// Remove asks that VMs go. Keys that are not known are ignored; a VM that stands in
// no file yet is dropped at once.
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

// Record keeps lines about writes to Proxmox that no plan holds: they stand in the
// record of the next change.
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
// enough: who dies forgets them.
func (w *Writer) notes() bool {
	return len(w.outside) > 0 && w.scaler.config.Clock.Since(w.outsideSince) >= soon
}

// VMs returns all VMs that are wanted, or that are still being removed, sorted by
// region and VMID.
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

// States returns what VMs does, and ErrNotRead as long as no VM is known.
func (w *Writer) States(context.Context) ([]VMState, error) {
	if !w.Synced() {
		return nil, ErrNotRead
	}
	return w.VMs(), nil
}

// Find returns the VM of a name.
func (w *Writer) Find(name string) (VMState, bool) {
	for _, state := range w.VMs() {
		if state.VM.Name == name {
			return state, true
		}
	}
	return VMState{}, false
}

// Synced reports whether the fleet has been read: before that, VMs knows of none.
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

// nudge lets Run look at what is to be done.
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

// lock takes the fleet for this process.
func (w *Writer) lock(ctx context.Context) error {
	if w.unlock != nil {
		return nil
	}
	unlock, err := w.scaler.config.Store.Lock(ctx)
	w.unlock = unlock
	return err
}

// release gives the fleet's lock back if nothing is being applied.
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

// step does what can be begun now, and says when there may be more.
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

// attemptsPerStep bounds how often a change is made smaller, or anew, at once.
const attemptsPerStep = 8

// make begins a change, and leaves it to the background.
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

// due returns how long until something that was put off is to be tried again.
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
