package scaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

// ErrFleetChanged is returned by Apply if the files have changed since the change was
// proposed.
var ErrFleetChanged = errors.New("the fleet's files changed since this was planned: plan again")

// DeniedError reports that the guard refused a host's plan.
type DeniedError struct {
	Shard   fleet.Shard
	Verdict guard.Verdict
}

func (e *DeniedError) Error() string { return fmt.Sprintf("shard %s: %s", e.Shard, e.Verdict) }

// Result is how the apply on one host ended.
type Result struct {
	Shard    fleet.Shard
	Created  []guard.Target
	Imported []guard.Target
	Deleted  []guard.Target
	Updated  []guard.Target
	// Outside are the writes to Proxmox that no plan contains.
	Outside  []string
	Duration time.Duration
	Err      error
}

// String returns the result in one line.
func (r Result) String() string {
	if r.Err != nil {
		return fmt.Sprintf("%s: failed after %s: %v", r.Shard, r.Duration.Round(time.Millisecond), r.Err)
	}
	text := fmt.Sprintf("%s: %d created, %d imported, %d deleted", r.Shard, len(r.Created), len(r.Imported), len(r.Deleted))
	if len(r.Updated) > 0 {
		text += fmt.Sprintf(", %d changed in place", len(r.Updated))
	}
	return text + " in " + r.Duration.Round(time.Millisecond).String()
}

// Approve evaluates the plans of a change; an error stops all of them. It returns who
// approved what the guard does not allow by itself, if anyone did.
type Approve func([]ShardPlan) (approver string, err error)

// Apply plans every touched host, calls approve, makes the change the desired state and
// records it, and applies exactly the plans that approve received, with several hosts
// concurrently. A host that cannot be planned or applied does not stop the others, unless
// approve does; the error joins all failures, and the next run checks those hosts again.
// If the store only proposes changes, Apply ends with a store.ProposedError.
func (s *Scaler) Apply(ctx context.Context, change *Change, approve Approve) (results []Result, err error) {
	unlock, err := s.config.Store.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	results, err = s.apply(ctx, change, approve)
	if err == nil {
		err = s.finishRemovals(ctx, change, approve)
	}
	if lost := contended(results); len(lost) > 0 {
		err = errors.Join(err, s.yield(context.WithoutCancel(ctx), change.Snapshot, lost))
	}
	return results, err
}

// apply is Apply with the fleet's lock held by the caller.
func (s *Scaler) apply(ctx context.Context, change *Change, approve Approve) (results []Result, err error) {
	begun, err := s.begin(ctx, change, approve)
	if err != nil {
		return nil, err
	}
	return s.finish(ctx, begun, func(Result) {})
}

// begun is a change that has become the desired state, with the plans to apply.
type begun struct {
	change  *Change
	plans   []ShardPlan
	started time.Time
	// id is the ID of the change's record, or empty if there was nothing to record.
	id string
}

// begin plans a change, calls approve, and makes the change the desired state.
func (s *Scaler) begin(ctx context.Context, change *Change, approve Approve) (b *begun, err error) {
	b = &begun{change: change, started: s.config.Clock.Now()}
	// Store.Begin refuses changed files. Equal files are not sufficient: VMIDs may have been
	// assigned and released meanwhile.
	newest, err := s.config.Store.History(ctx, b.started)
	if err != nil {
		return nil, err
	}
	if lastOf(newest) != change.from.last {
		return nil, ErrFleetChanged
	}
	how := planning{}
	if how.at, err = s.keptPlaces(); err != nil {
		return nil, err
	}
	if change.Empty() && !change.lean {
		// The request is empty, so there is time to check everything.
		how.more = change.After.Hosts
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(b.plans))
			b = nil
		}
	}()
	if b.plans, err = s.plan(ctx, change, how); err != nil {
		return b, err
	}
	approver, err := approve(b.plans)
	if err != nil {
		return b, errors.Join(err, s.note(ctx, change, b.plans))
	}
	if !change.writes(b.plans) {
		return b, nil
	}
	record := s.record(change, b.plans, approver)
	err = s.config.Store.Begin(ctx, change.from.revision, withModules(change), record)
	if errors.Is(err, store.ErrMoved) {
		err = fmt.Errorf("%w: %w", ErrFleetChanged, err)
	}
	b.id = record.ID
	return b, err
}

// finish applies a begun change, calls ended for each host, and records the outcome.
func (s *Scaler) finish(ctx context.Context, b *begun, ended func(Result)) (results []Result, err error) {
	defer func() { err = errors.Join(err, closeAll(b.plans)) }()
	results = s.applyAll(ctx, b.change, b.plans, ended)
	if b.id == "" {
		return results, failed(results)
	}
	// Record what was done even if the caller has given up meanwhile.
	outcome := s.outcome(b.id, b.started, results)
	return results, errors.Join(failed(results), s.config.Store.End(context.WithoutCancel(ctx), outcome))
}

// note records writes to a backend during planning for a change that is not made.
func (s *Scaler) note(ctx context.Context, change *Change, plans []ShardPlan) error {
	asIs := &Change{Kind: audit.KindRecovery, Why: "before a change that was not made", from: change.from, open: change.open, rotations: change.rotations}
	record := s.record(asIs, nil, "")
	for i := range plans {
		record.Outside = append(record.Outside, plans[i].outside...)
	}
	if len(record.Outside) == 0 {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	if err := s.config.Store.Begin(ctx, change.from.revision, change.BeforeFiles, record); err != nil {
		return err
	}
	return s.config.Store.End(ctx, s.outcome(record.ID, record.Time, nil))
}

// failed joins the errors of the results.
func failed(results []Result) error {
	var errs []error
	for _, result := range results {
		if result.Err != nil {
			errs = append(errs, fmt.Errorf("applying %s: %w", result.Shard, result.Err))
		}
	}
	return errors.Join(errs...)
}

// withModules adds the modules that older VMs call, from the fleet's files, to the files
// after a change. These copies are for people: the engine gets the modules from Release.
func withModules(change *Change) generator.Files {
	files := generator.Files{}
	for name, content := range change.BeforeFiles {
		if store.IsModule(name) {
			files[name] = content
		}
	}
	for name, content := range change.AfterFiles {
		files[name] = content
	}
	return files
}

func (s *Scaler) applyAll(ctx context.Context, change *Change, plans []ShardPlan, ended func(Result)) []Result {
	results := make([]Result, len(plans))
	var group errgroup.Group
	group.SetLimit(maxParallelShards)
	for i := range plans {
		group.Go(func() error {
			results[i] = s.applyShard(ctx, change, &plans[i])
			if plans[i].workspace != nil {
				// Other hosts of the change may take long, and the next change may need
				// this workspace.
				results[i].Err = errors.Join(results[i].Err, plans[i].workspace.Close())
			}
			ended(results[i])
			return nil
		})
	}
	_ = group.Wait() // the results contain the errors
	return results
}

func (s *Scaler) applyShard(ctx context.Context, change *Change, plan *ShardPlan) Result {
	started := s.config.Clock.Now()
	result := Result{Shard: plan.Shard, Created: plan.Intent.Create, Imported: plan.Intent.Import, Deleted: plan.Intent.Delete, Updated: plan.Intent.Update}
	switch {
	case plan.Err != nil:
		result.Err = plan.Err
	case plan.Changes():
		result.Outside, result.Err = s.applyPlan(ctx, change, plan)
		s.config.Observe.ApplyDone(plan.Shard, s.config.Clock.Since(started), result.Err)
	case len(change.open[plan.Shard].Made) > 0:
		result.Err = s.uncontended(ctx, change, plan)
	}
	result.Duration = s.config.Clock.Since(started)
	return result
}

// applyPlan reads the host again and applies the saved plan if it is still valid. It
// returns additional writes to Proxmox.
func (s *Scaler) applyPlan(ctx context.Context, change *Change, plan *ShardPlan) (outside []string, err error) {
	if plan.Verdict.Decision == guard.Deny {
		return nil, &DeniedError{Shard: plan.Shard, Verdict: plan.Verdict}
	}
	w, err := s.look(ctx, change, plan.Shard, true)
	if err != nil {
		return nil, err
	}
	for _, vm := range plan.TakenOut {
		w.removed[generator.Address(&vm)] = vm
	}
	if err := w.stillFree(plan.Intent); err != nil {
		return nil, err
	}
	if err := w.stillUpdatable(plan.Intent.Update); err != nil {
		return nil, err
	}
	if err := w.agree(plan.Plan.JSON, plan.Intent); err != nil {
		return nil, err
	}
	if lost, _ := w.contested(plan.Intent.Create); len(lost.VMs) > 0 {
		return nil, lost
	}
	if err := s.stillDrained(ctx, w, plan.Intent); err != nil {
		return nil, err
	}
	if outside, err = s.prepareGuests(ctx, w, plan.Intent, change.leaving); err != nil {
		return outside, err
	}
	s.config.Progress(plan.Shard, fmt.Sprintf("applying: %d to create, %d to import, %d to delete",
		len(plan.Intent.Create), len(plan.Intent.Import), len(plan.Intent.Delete)))
	if err := s.applyWatched(ctx, plan); err != nil {
		return outside, err
	}
	return outside, s.uncontended(ctx, change, plan)
}

// prepareGuests uploads the seeds of new VMs, and shuts down the VMs to be destroyed. A
// half-created VM to be removed is recovered only to be destroyed next, so it gets no
// seed.
func (s *Scaler) prepareGuests(ctx context.Context, w *wanted, intent guard.Intent, doomed map[fleet.Key]bool) (written []string, err error) {
	if s.config.Guests == nil {
		return nil, nil
	}
	unstarted := slices.DeleteFunc(slices.Clone(intent.Import), func(t guard.Target) bool {
		return !t.Incomplete || doomed[w.vms[t.Address].Key]
	})
	coming, leaving := vmsAt(w.vms, slices.Concat(intent.Create, unstarted)), vmsAt(w.removed, intent.Delete)
	if len(coming) > 0 {
		if written, err = s.config.Guests.Seed(ctx, coming); err != nil {
			return written, fmt.Errorf("seeding %s: %w", names(coming), err)
		}
	}
	if len(leaving) == 0 {
		return written, nil
	}
	more, err := s.config.Guests.ShutDown(ctx, leaving)
	if err != nil {
		err = fmt.Errorf("shutting down %s: %w", names(leaving), err)
	}
	return append(written, more...), err
}

// vmsAt returns the VMs at the targets' addresses.
func vmsAt(vms map[string]fleet.VM, targets []guard.Target) []fleet.VM {
	var found []fleet.VM
	for _, target := range targets {
		if vm, ok := vms[target.Address]; ok {
			found = append(found, vm)
		}
	}
	return found
}

// stillDrained refuses to delete a VM whose Node has received pods since the plan was
// made.
func (s *Scaler) stillDrained(ctx context.Context, w *wanted, intent guard.Intent) error {
	if len(intent.Delete) == 0 {
		return nil
	}
	s.askNodes(ctx, w)
	for _, target := range intent.Delete {
		if reason := w.blocked[target.Address]; reason != "" {
			return &NotDrainedError{VM: w.removed[target.Address].Name, Reason: reason}
		}
	}
	return nil
}
