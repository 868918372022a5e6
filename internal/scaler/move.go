package scaler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// move is a change that a writer makes, and whose VMs it is about.
type move struct {
	change *Change
	// coming and leaving are the keys of the VMs that the change asks for.
	coming, leaving []fleet.Key
}

// next reads the fleet, takes over what others did to it, and returns what can be
// begun now, or nil.
func (w *Writer) next(ctx context.Context) (*move, error) {
	// A shard that ends while Proxmox is read may have VMs that were not seen yet.
	changing, _ := w.scaler.running.now()
	snapshot, err := w.config.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	from, err := w.scaler.stand(ctx)
	if err != nil {
		return nil, err
	}
	maps.Copy(from.busy, changing)
	making, snapshot, err := w.scaler.lookAtClones(ctx, cloning(from, snapshot), snapshot)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.merge(from, snapshot)
	w.holdBack(from, making)
	change := w.scaler.changeFrom(from, snapshot)
	change.lean = true
	m := &move{change: change}
	w.loseNumbers(m)
	w.loseVanished(m)
	w.ask(ctx, m)
	w.scaler.config.Observe.Queued(w.queued())
	if err := w.scaler.render(change); err != nil {
		return nil, err
	}
	// A fleet without files gets them with its first VM.
	asWanted := len(change.BeforeFiles) == 0 || sameFiles(change.BeforeFiles, withModules(change))
	if asWanted && change.Empty() && !change.Unfinished() && len(w.outside) == 0 {
		return nil, nil
	}
	change.outside = slices.Clone(w.outside)
	change.rotations = maps.Clone(w.rotations)
	return m, nil
}

// holdBack keeps the writer off shards that wait: those where an earlier run's clone
// goes on, and those that failed a moment ago. Where files and Proxmox differ and a
// plan found nothing to do a moment ago, only what is asked for is looked at.
func (w *Writer) holdBack(from *standing, making []fleet.Shard) {
	w.awaiting = len(making) > 0
	for _, shard := range making {
		from.busy[shard] = true
	}
	now := w.scaler.config.Clock.Now()
	for shard, d := range w.backoff {
		if d.until.After(now) {
			from.busy[shard] = true
		}
	}
	from.quiet = map[fleet.Shard]bool{}
	for shard, d := range w.quiet {
		from.quiet[shard] = d.until.After(now)
	}
}

// merge takes over what others did to the fleet's files.
func (w *Writer) merge(from *standing, snapshot *topology.Snapshot) {
	alive := aliveIn(snapshot, w.scaler.config.ClusterID)
	open := from.open()
	filed := w.takeFiled(from, alive, open)
	for _, shard := range open {
		w.takeLeaving(shard, filed, alive)
	}
	for key, e := range w.members {
		if e.filed && !e.moving && !filed[key] {
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

// takeFiled knows the VMs of the fleet's files, and returns their keys.
func (w *Writer) takeFiled(from *standing, alive map[fleet.Key]bool, open map[fleet.Shard]audit.Open) map[fleet.Key]bool {
	filed := map[fleet.Key]bool{}
	for _, vm := range from.fleet.VMs {
		filed[vm.Key] = true
		if e := w.members[vm.Key]; e != nil {
			if e.filed = true; e.Phase == PhaseReserved {
				// Its change was written, and the answer to that was lost.
				w.set(e, PhaseMaking, nil)
			}
			continue
		}
		e := &member{VMState: VMState{VM: vm, Since: w.scaler.config.Clock.Now()}, filed: true}
		w.members[vm.Key] = e
		if _, underWay := open[vm.Host]; alive[vm.Key] && !underWay {
			w.set(e, PhaseMade, nil)
			continue
		}
		w.set(e, PhaseMaking, nil)
	}
	return filed
}

// takeLeaving knows the VMs whose removal an earlier run began.
func (w *Writer) takeLeaving(open audit.Open, filed, alive map[fleet.Key]bool) {
	for _, vm := range open.Removed {
		if w.members[vm.Key] == nil && !filed[vm.Key] && alive[vm.Key] {
			w.members[vm.Key] = &member{VMState: VMState{VM: vm, Phase: PhaseRemoving, Since: w.scaler.config.Clock.Now()}, leaving: true, filed: true}
		}
	}
}

// unfile takes over that a VM's file is gone.
func (w *Writer) unfile(e *member, alive bool) {
	if !alive {
		delete(w.members, e.VM.Key)
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

// loseNumbers gives up VMs that were never made and whose number is somebody else's
// now: a NodeClaim cannot change the VM that it stands for.
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
		if e.filed {
			m.remove(vm.Key)
		}
	}
}

// ask puts what was asked for on free shards into the change.
func (w *Writer) ask(ctx context.Context, m *move) {
	now := w.scaler.config.Clock.Now()
	m.change.leaving = map[fleet.Key]bool{}
	for _, state := range w.sorted() {
		e := w.members[state.VM.Key]
		m.change.leaving[state.VM.Key] = e.leaving
		if e.moving || e.retry.until.After(now) || m.change.from.busy[e.VM.Host] {
			continue
		}
		switch {
		case e.leaving && e.filed:
			if err := w.drained(ctx, e.VM); err != nil {
				e.Err, e.retry = err, delay{until: now.Add(shortestDelay)}
				continue
			}
			m.remove(e.VM.Key)
		case e.Phase == PhaseReserved && !e.leaving:
			m.add(e.VM)
		}
	}
	m.change.Kind = audit.KindScaleUp
	if len(m.change.Added) == 0 {
		m.change.Kind = audit.KindScaleDown
	}
}

func (w *Writer) drained(ctx context.Context, vm fleet.VM) error {
	if w.scaler.config.Drained == nil {
		return nil // the guard says so, with all that it knows
	}
	return w.scaler.config.Drained(ctx, vm.Name)
}

func (w *Writer) sorted() []VMState {
	states := make([]VMState, 0, len(w.members))
	for _, e := range w.members {
		states = append(states, e.VMState)
	}
	slices.SortFunc(states, compareStates)
	return states
}

// queued counts the VMs that wait.
func (w *Writer) queued() int {
	n := 0
	for _, e := range w.members {
		if !e.moving && (e.Phase == PhaseReserved || e.leaving) {
			n++
		}
	}
	return n
}

func (m *move) add(vm fleet.VM) {
	m.coming = append(m.coming, vm.Key)
	m.change.Added = append(m.change.Added, vm)
	m.change.After.VMs = append(m.change.After.VMs, vm)
}

func (m *move) remove(key fleet.Key) {
	if slices.Contains(m.leaving, key) {
		return
	}
	m.leaving = append(m.leaving, key)
	m.change.remove(func(vm fleet.VM) bool { return vm.Key == key })
}

// judge decides, shard by shard, whether the plans may be applied. What a shard that
// may not be applied was asked for is taken out of the change.
func (w *Writer) judge(ctx context.Context, m *move, plans []ShardPlan) (approver string, err error) {
	excluded := map[fleet.Shard]error{}
	var approvers []string
	for i := range plans {
		plan := &plans[i]
		by, err := w.allow(ctx, plan)
		switch {
		case err == nil && by != "" && !slices.Contains(approvers, by):
			approvers = append(approvers, by)
		case err != nil && plan.Touched:
			excluded[plan.Shard] = err
		case err != nil:
			plan.Err = err // nothing is asked for there now
		}
	}
	if len(excluded) == 0 {
		excluded = w.stuck(ctx, m, plans)
	}
	if len(excluded) > 0 {
		w.exclude(m, excluded)
		return "", &excludedError{excluded}
	}
	if w.givenUp(m) {
		return "", &excludedError{}
	}
	slices.Sort(approvers)
	return strings.Join(approvers, ", "), nil
}

// givenUp reports whether a VM was given back while its change was planned.
func (w *Writer) givenUp(m *move) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(m.coming, func(key fleet.Key) bool { return w.members[key] == nil })
}

// stuck puts shards off where something is unfinished and nothing can be done, if the
// change is about nothing else: else each try would stand in the history.
func (w *Writer) stuck(ctx context.Context, m *move, plans []ShardPlan) map[fleet.Shard]error {
	if c := m.change; !c.Empty() || len(c.outside) > 0 || !sameFiles(c.BeforeFiles, withModules(c)) {
		return nil
	}
	found := map[fleet.Shard]error{}
	for i := range plans {
		_, underWay := m.change.open[plans[i].Shard]
		switch {
		case plans[i].Err != nil:
			found[plans[i].Shard] = plans[i].Err
		case plans[i].Changes() || underWay || len(plans[i].outside) > 0:
			return nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for shard, err := range found {
		w.backoff[shard] = w.backoff[shard].grown(w.scaler.config.Clock.Now())
		log.FromContext(ctx).Info("put off what is unfinished on a host", logkey.Host, shard.String(), logkey.Reason, err.Error())
	}
	return found
}

// allow returns why a plan may not be applied, or who allowed it if the guard alone
// does not.
func (w *Writer) allow(ctx context.Context, plan *ShardPlan) (approver string, err error) {
	switch {
	case plan.Err != nil:
		return "", &PlanError{Shard: plan.Shard, Err: plan.Err}
	case plan.Verdict.Decision == guard.Allow:
		return "", nil
	case plan.Verdict.Decision == guard.NeedsApproval && w.config.Gate != nil:
		approver, err = w.config.Gate.Approver(ctx, plan)
		if err != nil || approver != "" {
			return approver, err
		}
		return "", &HeldError{Shard: plan.Shard, Verdict: plan.Verdict}
	case plan.Verdict.Decision == guard.NeedsApproval:
		return "", &HeldError{Shard: plan.Shard, Verdict: plan.Verdict}
	}
	return "", &DeniedError{Shard: plan.Shard, Verdict: plan.Verdict}
}

// exclude takes back what was asked for on shards that cannot take part: VMs to come
// fail or wait for a person, those to go are tried again later.
func (w *Writer) exclude(m *move, shards map[fleet.Shard]error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.scaler.config.Clock.Now()
	for _, key := range slices.Concat(m.coming, m.leaving) {
		e := w.members[key]
		if e == nil || shards[e.VM.Host] == nil {
			continue
		}
		err := shards[e.VM.Host]
		var held *HeldError
		switch {
		case e.leaving:
			e.Err, e.retry = err, e.retry.grown(now)
		case errors.As(err, &held):
			w.set(e, PhaseHeld, err)
		default:
			w.set(e, PhaseFailed, err)
		}
	}
}

// putOff tries a change that could not begin again later.
func (w *Writer) putOff(m *move, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.scaler.config.Clock.Now()
	for _, key := range slices.Concat(m.coming, m.leaving) {
		if e := w.members[key]; e != nil {
			e.Err, e.retry = err, e.retry.grown(now)
		}
	}
}

// begun takes over that a change is what is wanted.
func (w *Writer) begun(m *move, b *begun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applying++
	if b.id != "" {
		w.outside = w.outside[len(b.change.outside):]
	}
	for _, key := range m.coming {
		if e := w.members[key]; e != nil {
			w.scaler.config.Observe.QueueDone(e.VM.Host, b.started.Sub(e.Since))
			e.filed, e.moving = true, true
			if !e.leaving {
				w.set(e, PhaseMaking, nil)
			}
		}
	}
	for _, key := range m.leaving {
		if e := w.members[key]; e != nil {
			e.moving = true
		}
	}
	for _, vm := range b.change.TakenIn {
		underWay := b.change.open[vm.Host].Removed
		leaving := slices.ContainsFunc(underWay, func(r fleet.VM) bool { return r.Key == vm.Key })
		w.members[vm.Key] = &member{VMState: VMState{VM: vm, Phase: PhaseMaking, Since: b.started}, filed: true, leaving: leaving}
	}
}

// ended takes over how a shard ended.
func (w *Writer) ended(ctx context.Context, m *move, id string, result Result) {
	standing := map[fleet.Key]bool{}
	if result.Err != nil {
		standing = w.look(ctx, m.change.Snapshot, result.Shard)
		log.FromContext(ctx).Info("applied a shard not wholly", logkey.Host, result.Shard.String(), logkey.Reason, result.Err.Error())
	}
	w.scaler.running.end(id, result.Shard, result.Err == nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remember(&result)
	var lost *ContendedError
	contended := errors.As(result.Err, &lost)
	for key, e := range w.members {
		if e.VM.Host != result.Shard {
			continue
		}
		taken := contended && slices.ContainsFunc(lost.VMs, func(vm fleet.VM) bool { return vm.Key == key })
		w.settle(e, m, result.Err, standing[key] && !taken)
	}
	w.nudge()
}

// remember puts off what failed, and what needed nothing: it may look the same again.
func (w *Writer) remember(result *Result) {
	now, shard := w.scaler.config.Clock.Now(), result.Shard
	if result.Err != nil {
		w.backoff[shard] = w.backoff[shard].grown(now)
		return
	}
	delete(w.backoff, shard)
	if len(result.Created)+len(result.Imported)+len(result.Deleted)+len(result.Updated) > 0 {
		delete(w.quiet, shard)
		return
	}
	w.quiet[shard] = w.quiet[shard].grown(now)
}

// settle gives a VM of a shard that has ended its phase.
func (w *Writer) settle(e *member, m *move, err error, stands bool) {
	leaving := slices.Contains(m.leaving, e.VM.Key)
	unfinished := e.Phase == PhaseMaking || (e.Phase == PhaseFailed && e.filed)
	if part := leaving || slices.Contains(m.coming, e.VM.Key); !part && (err != nil || !unfinished) {
		return // an earlier change's, and as it was
	}
	e.moving = false
	switch {
	case leaving:
		w.settleLeaving(e, err)
	case e.leaving:
	case err == nil || stands:
		w.set(e, PhaseMade, nil)
	default:
		w.set(e, PhaseFailed, err)
	}
}

// settleLeaving forgets a VM that is gone, or tries again later.
func (w *Writer) settleLeaving(e *member, err error) {
	if err == nil {
		delete(w.members, e.VM.Key)
		w.config.Changed()
		return
	}
	e.filed = true // or so it seems: what is left is under way until a change ends well
	e.Err, e.retry = err, e.retry.grown(w.scaler.config.Clock.Now())
}

// look returns the keys of the cluster's guests that run on a host.
func (w *Writer) look(ctx context.Context, snapshot *topology.Snapshot, shard fleet.Shard) map[fleet.Key]bool {
	running := map[fleet.Key]bool{}
	live := w.scaler.region(shard.Region).Live
	if live == nil {
		return running
	}
	now, err := live.Refresh(context.WithoutCancel(ctx), snapshot, []topology.HostName{shard.Host})
	if err != nil {
		return running
	}
	for _, guest := range locate(now) {
		if guest.host == shard && guest.Running && guest.ClusterID == w.scaler.config.ClusterID {
			running[fleet.Key(guest.Key)] = true
		}
	}
	return running
}
