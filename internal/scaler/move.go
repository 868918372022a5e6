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

// move is a change by a writer, with the affected VMs.
type move struct {
	change *Change
	// coming, leaving and changing are the keys of the VMs that the change creates,
	// removes and updates.
	coming, leaving, changing []fleet.Key
}

// next reads the fleet, merges others' changes, and returns the next change to begin, or
// nil.
func (w *Writer) next(ctx context.Context) (*move, error) {
	// An apply that ends while Proxmox is read may have VMs that are not in the snapshot.
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

// takeOver merges others' changes of the fleet, and returns the VMs to look up in the
// cluster: VMs that may be removed, and VMs that this writer has not seen yet.
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

// nodes is the cluster's information about VMs' Nodes.
type nodes struct {
	// undrained says why a VM to be removed must stay, or nil if it may be removed.
	undrained map[fleet.Key]error
	// joined reports whether a VM had become a Node.
	joined map[fleet.Key]bool
}

// askCluster reads the cluster. It may take long, so it does not block other callers.
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

// holdBack excludes hosts that must wait: hosts where an earlier run's clone is in
// progress, and hosts that failed recently. On hosts where files and Proxmox differ but a
// recent plan found nothing to do, only requested changes are planned.
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

// ask adds the requests for free hosts to the change.
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

// free reports whether the VM can be part of a change now.
func (e *member) free(from *standing, now time.Time) bool {
	return !e.moving && !e.retry.until.After(now) && !from.busy[e.VM.Host]
}

// askToGo adds the removal of a VM whose Node is drained. If the removal was requested
// while the cluster was being read, the next step handles it at once.
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
		return nil // the guard reports it, with more context
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

// judge decides for each host whether its plan may be applied. It removes the requests
// for the other hosts from the change.
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
			plan.Err = err // nothing is requested there now
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

// givenUp reports whether a VM's removal was requested while its change was planned.
func (w *Writer) givenUp(m *move) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(m.coming, func(key fleet.Key) bool { return w.members[key] == nil })
}

// stuck excludes hosts with unfinished work where nothing can be done, if the change has
// no other content: otherwise each attempt would appear in the history.
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

// allow returns why a plan may not be applied, or who approved it if the guard does not
// allow it by itself.
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

// exclude removes the requests for hosts that cannot take part: VMs to be created fail or
// wait for approval, removals are retried later.
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

// putOff schedules a retry for a change that could not begin.
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
