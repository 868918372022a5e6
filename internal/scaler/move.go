package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// move is a change that a writer makes, and whose VMs it is about.
type move struct {
	change *Change
	// coming, leaving and changing are the keys of the VMs that the change asks for.
	coming, leaving, changing []fleet.Key
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
	leaving, unseen := w.takeOver(from, snapshot, making)
	known, err := w.askCluster(ctx, leaving, unseen)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	change := w.scaler.changeFrom(from, snapshot)
	change.lean = true
	m := &move{change: change}
	w.loseNumbers(m)
	w.loseVanished(m, known)
	w.ask(m, known)
	w.askInPlace(m)
	w.scaler.config.Observe.Queued(w.queued())
	if err := w.render(m); err != nil {
		return nil, err
	}
	// A fleet without files gets them with its first VM.
	asWanted := len(change.BeforeFiles) == 0 || sameFiles(change.BeforeFiles, withModules(change))
	if asWanted && change.Empty() && !change.Unfinished() && !w.notes() {
		return nil, nil
	}
	change.outside = slices.Clone(w.outside)
	change.rotations = maps.Clone(w.rotations)
	return m, nil
}

// takeOver takes over what others did to the fleet, and returns of which VMs the
// cluster is to be asked: those that may go, and those that nobody has seen yet.
func (w *Writer) takeOver(from *standing, snapshot *topology.Snapshot, making []fleet.Shard) (leaving, unseen []fleet.VM) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.merge(from, snapshot)
	w.holdBack(from, making)
	now := w.scaler.config.Clock.Now()
	for _, state := range w.sorted() {
		if e := w.members[state.VM.Key]; e.leaving && e.Filed && e.free(from, now) {
			leaving = append(leaving, e.VM)
		}
	}
	for _, e := range w.absent(from, snapshot) {
		if w.unseen(e) {
			unseen = append(unseen, e.VM)
		}
	}
	return leaving, unseen
}

// nodes is what the cluster said of VMs' Nodes.
type nodes struct {
	// undrained says why a VM that is to go must stay, or nil.
	undrained map[fleet.Key]error
	// joined tells whether a VM had become a Node.
	joined map[fleet.Key]bool
}

// askCluster asks the cluster, which may take long: nobody else waits for that.
func (w *Writer) askCluster(ctx context.Context, leaving, unseen []fleet.VM) (*nodes, error) {
	known := &nodes{undrained: map[fleet.Key]error{}, joined: map[fleet.Key]bool{}}
	for i := range leaving {
		known.undrained[leaving[i].Key] = w.drained(ctx, leaving[i])
	}
	for i := range unseen {
		made, err := w.config.Joined(ctx, unseen[i])
		if err != nil {
			return nil, fmt.Errorf("asking whether %s, which is not in Proxmox, had joined: %w", unseen[i].Name, err)
		}
		known.joined[unseen[i].Key] = made
	}
	return known, nil
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

// ask puts what was asked for on free shards into the change.
func (w *Writer) ask(m *move, known *nodes) {
	now := w.scaler.config.Clock.Now()
	m.change.leaving = map[fleet.Key]bool{}
	for _, state := range w.sorted() {
		e := w.members[state.VM.Key]
		m.change.leaving[state.VM.Key] = e.leaving
		if !e.free(m.change.from, now) {
			continue
		}
		switch {
		case e.leaving && e.Filed:
			w.askToGo(m, e, known)
		case e.Phase == PhaseReserved && !e.leaving:
			w.askToCome(m, e)
		}
	}
	m.change.Kind = audit.KindScaleUp
	if len(m.change.Added) == 0 {
		m.change.Kind = audit.KindScaleDown
	}
}

// free reports whether something may be done about a VM now.
func (e *member) free(from *standing, now time.Time) bool {
	return !e.moving && !e.retry.until.After(now) && !from.busy[e.VM.Host]
}

// askToGo asks for a VM to go whose Node is drained. One that was given back while the
// cluster was asked is asked about next time, which is at once.
func (w *Writer) askToGo(m *move, e *member, known *nodes) {
	undrained, asked := known.undrained[e.VM.Key]
	switch {
	case asked && undrained == nil:
		m.remove(e.VM.Key)
	case asked:
		e.Err, e.retry = undrained, delay{until: w.scaler.config.Clock.Now().Add(shortestDelay)}
	}
}

func (w *Writer) askToCome(m *move, e *member) {
	if err := w.scaler.mayMake(&e.VM); err != nil {
		w.set(e, PhaseFailed, err)
		return
	}
	m.add(e.VM)
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
		logInPlace(ctx, m, excluded)
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
		return w.allowInPlace(ctx, plan)
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
	for _, key := range slices.Concat(m.coming, m.leaving, m.changing) {
		e := w.members[key]
		if e == nil || shards[e.VM.Host] == nil {
			continue
		}
		err := shards[e.VM.Host]
		var held *HeldError
		switch {
		case slices.Contains(m.changing, key):
			e.ChangeErr, e.retry = err, e.retry.grown(now)
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
	for _, key := range m.changing {
		if e := w.members[key]; e != nil {
			e.ChangeErr, e.retry = err, e.retry.grown(now)
		}
	}
}
