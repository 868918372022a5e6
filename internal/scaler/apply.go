package scaler

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

// ErrFleetChanged is returned by Apply if the files are not those that the change
// was made from.
var ErrFleetChanged = errors.New("the fleet's files changed since this was planned: plan again")

// DeniedError says that the guard refused the plan of a shard.
type DeniedError struct {
	Shard   fleet.Shard
	Verdict guard.Verdict
}

func (e *DeniedError) Error() string { return fmt.Sprintf("shard %s: %s", e.Shard, e.Verdict) }

// Result is how the apply of one shard ended.
type Result struct {
	Shard    fleet.Shard
	Created  []guard.Target
	Imported []guard.Target
	Deleted  []guard.Target
	Duration time.Duration
	Err      error
}

// String returns the result in one line.
func (r Result) String() string {
	if r.Err != nil {
		return fmt.Sprintf("%s: failed after %s: %v", r.Shard, r.Duration.Round(time.Millisecond), r.Err)
	}
	return fmt.Sprintf("%s: %d created, %d imported, %d deleted in %s", r.Shard,
		len(r.Created), len(r.Imported), len(r.Deleted), r.Duration.Round(time.Millisecond))
}

// Apply plans every touched shard, asks approve, writes the fleet's files and
// applies exactly the plans that approve saw, hosts side by side. A shard that
// cannot be planned or applied does not stop the others, unless approve does; all
// failures are in the error, and the next run looks at those shards again.
func (s *Scaler) Apply(ctx context.Context, change *Change, approve func([]ShardPlan) error) (results []Result, err error) {
	unlock, err := s.config.Store.Lock()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	files, err := s.config.Store.Read()
	if err != nil {
		return nil, err
	}
	if !sameFiles(files, change.BeforeFiles) {
		return nil, ErrFleetChanged
	}
	work := filepath.Join(s.config.Store.Path(), store.PrivateDir, "work")
	how := planning{work: work}
	if change.Empty() {
		// Nothing is asked for, so there is time to look at everything.
		how.more = change.After.Hosts
	}
	plans, err := s.plan(ctx, change, how)
	defer func() { err = errors.Join(err, closeAll(plans)) }()
	if err != nil {
		return nil, err
	}
	if err := approve(plans); err != nil {
		return nil, err
	}
	if err := s.commit(change, plans); err != nil {
		return nil, err
	}
	results = s.applyAll(ctx, change, plans)
	for _, result := range results {
		if result.Err != nil {
			err = errors.Join(err, fmt.Errorf("applying %s: %w", result.Shard, result.Err))
		}
	}
	return results, err
}

// commit makes the change what is wanted: first the journal, so that a crash
// leaves a trace, then the files.
func (s *Scaler) commit(change *Change, plans []ShardPlan) error {
	for i := range plans {
		if failed := plans[i].Touched && plans[i].Err != nil; !failed && !plans[i].Changes() {
			continue
		}
		var removed []fleet.VM
		for _, vm := range change.Removed {
			if vm.Host == plans[i].Shard {
				removed = append(removed, vm)
			}
		}
		if err := s.journal().begin(plans[i].Shard, removed); err != nil {
			return err
		}
	}
	return s.config.Store.Write(withModules(change))
}

// withModules adds the modules that older VMs call to the files after a change.
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

func (s *Scaler) applyAll(ctx context.Context, change *Change, plans []ShardPlan) []Result {
	results := make([]Result, len(plans))
	var group errgroup.Group
	group.SetLimit(maxParallelShards)
	for i := range plans {
		group.Go(func() error {
			results[i] = s.applyShard(ctx, change, &plans[i])
			return nil
		})
	}
	_ = group.Wait() // the results have what went wrong
	return results
}

func (s *Scaler) applyShard(ctx context.Context, change *Change, plan *ShardPlan) Result {
	started := s.config.Clock.Now()
	result := Result{Shard: plan.Shard, Created: plan.Intent.Create, Imported: plan.Intent.Import, Deleted: plan.Intent.Delete}
	switch {
	case plan.Err != nil:
		result.Err = plan.Err
	case plan.Changes():
		result.Err = s.applyPlan(ctx, change, plan)
	}
	if result.Err == nil {
		result.Err = s.journal().end(plan.Shard)
	}
	result.Duration = s.config.Clock.Since(started)
	return result
}

// applyPlan reads the host again and applies the saved plan if nothing speaks
// against it.
func (s *Scaler) applyPlan(ctx context.Context, change *Change, plan *ShardPlan) error {
	if plan.Verdict.Decision == guard.Deny {
		return &DeniedError{Shard: plan.Shard, Verdict: plan.Verdict}
	}
	w, err := s.look(ctx, change, plan.Shard, true)
	if err != nil {
		return err
	}
	if err := w.stillFree(plan.Intent); err != nil {
		return err
	}
	s.config.Progress(plan.Shard, fmt.Sprintf("applying: %d to create, %d to import, %d to delete",
		len(plan.Intent.Create), len(plan.Intent.Import), len(plan.Intent.Delete)))
	_, err = plan.workspace.Apply(ctx, plan.Plan)
	return err
}
