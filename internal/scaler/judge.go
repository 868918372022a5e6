package scaler

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
)

// judge plans a host and runs the guard. A change on a host without unfinished work takes
// the fast path; if the guard does not allow that plan, the whole host is planned.
func (s *Scaler) judge(ctx context.Context, change *Change, plan *ShardPlan, unfinished bool) error {
	s.config.Progress(plan.Shard, "planning")
	w, unfinished, err := s.gather(ctx, change, plan, unfinished)
	if err != nil {
		return err
	}
	if repaired := byAddress(change.Repaired, plan.Shard); len(repaired) > 0 {
		return s.judgeRepair(ctx, plan, w, repaired)
	}
	if !unfinished && (plan.quick(change) || (w.lagging && !plan.dry)) {
		if allowed, err := s.judgeTargets(ctx, plan, w); allowed || err != nil {
			return err
		}
	}
	return s.judgeAll(ctx, plan, w)
}

// gather recovers the working directory and the backend after a crash, and reads the host
// again if more than the change may be necessary.
func (s *Scaler) gather(ctx context.Context, change *Change, plan *ShardPlan, unfinished bool) (*wanted, bool, error) {
	recovery, err := plan.workspace.Recover(ctx)
	if recovery != nil {
		plan.outside = append(plan.outside, recovery.Outside...)
	}
	if err != nil {
		return nil, false, err
	}
	unfinished = unfinished || recovery.Crashed || len(recovery.Lost) > 0
	touching := len(byAddress(change.Removed, plan.Shard))+len(byAddress(change.Updated, plan.Shard)) > 0
	w, err := s.look(ctx, change, plan.Shard, unfinished || touching)
	if err != nil {
		return nil, false, err
	}
	w.interrupted = w.interrupted || recovery.Crashed
	_, err = s.follow(ctx, plan, w)
	return w, unfinished, err
}

// quick reports whether it is enough to plan the change alone.
func (p *ShardPlan) quick(change *Change) bool {
	return p.Touched && !p.dry && len(byAddress(change.Renumbered, p.Shard)) == 0
}

// judgeTargets plans only the VMs of the change, which costs a fraction of a complete
// plan, and reports whether the guard allows it.
func (s *Scaler) judgeTargets(ctx context.Context, plan *ShardPlan, w *wanted) (allowed bool, err error) {
	// After a failed change in place, the state wrongly says that it was done.
	options := state.PlanOptions{Targets: w.targets(), Refresh: w.lagging}
	if plan.Plan, err = s.planWith(ctx, plan.workspace, options); err != nil {
		return false, err
	}
	todo, err := w.next(plan.Plan.JSON)
	if err != nil || !todo.empty() || len(plan.Plan.Lost) > 0 {
		return false, err
	}
	s.askNodes(ctx, w)
	plan.Intent = w.intent(plan.Plan.JSON, nil)
	plan.Intent.Targeted = true
	if err := w.repin(plan); err != nil {
		return false, err
	}
	plan.Verdict = s.check(plan)
	return plan.Verdict.Decision == guard.Allow, nil
}

// judgeAll plans a whole host, and plans again after forgetting stale entries or with
// imports.
func (s *Scaler) judgeAll(ctx context.Context, plan *ShardPlan, w *wanted) error {
	todo, err := s.settle(ctx, plan, w)
	if err != nil {
		return err
	}
	s.askNodes(ctx, w)
	s.doubtNodes(w, plan.TakenOut)
	plan.Intent = w.intent(plan.Plan.JSON, todo.imports)
	plan.Made = w.made(plan.Intent)
	plan.Intent.Update = w.alsoUpdate(plan.Intent.Update, todo.partial)
	if err := w.repin(plan); err != nil {
		return err
	}
	plan.Verdict = s.check(plan)
	return nil
}

// settle plans until files, state and Proxmox are consistent, and returns what the last
// plan imports.
func (s *Scaler) settle(ctx context.Context, plan *ShardPlan, w *wanted) (todo step, err error) {
	if plan.Plan, err = s.planWith(ctx, plan.workspace, plan.options()); err != nil {
		return step{}, err
	}
	todo, err = w.next(plan.Plan.JSON)
	if err == nil && len(todo.forget) > 0 {
		if err := s.forget(ctx, plan, todo.forget); err != nil {
			return step{}, err
		}
		todo, err = w.next(plan.Plan.JSON)
	}
	plan.strays = w.strays(plan.Plan.JSON)
	if err != nil {
		return step{}, err
	}
	options := plan.options()
	if recovered := slices.Concat(todo.imports, todo.partial); len(recovered) > 0 {
		s.config.Progress(plan.Shard, fmt.Sprintf("recovering %d VMs that exist and are not wholly in the state", len(recovered)))
		options.Imports = importsOf(recovered)
	}
	again := len(options.Imports) > 0
	if plan.TakenOut = w.takenOut(plan.Plan.JSON); len(plan.TakenOut) > 0 {
		followed, err := s.follow(ctx, plan, w)
		if err != nil {
			return step{}, err
		}
		again = again || followed
	}
	if again {
		plan.Plan, err = s.planWith(ctx, plan.workspace, options)
	}
	return todo, err
}

// askNodes finds out why VMs to be deleted must stay for now.
func (s *Scaler) askNodes(ctx context.Context, w *wanted) {
	w.blocked = map[string]string{}
	for address, vm := range w.removed {
		if s.config.Drained == nil {
			w.blocked[address] = "nothing is known of the cluster's Nodes"
			continue
		}
		if err := s.config.Drained(ctx, vm.Name); err != nil {
			w.blocked[address] = err.Error()
		}
	}
}

// doubtNodes keeps VMs whose only reason for removal is a deleted file, if it is unknown
// whether their Nodes are drained.
func (s *Scaler) doubtNodes(w *wanted, takenOut []fleet.VM) {
	for i := range takenOut {
		if address := generator.Address(&takenOut[i]); s.config.Blind != "" && w.blocked[address] == "" {
			w.blocked[address] = s.config.Blind
		}
	}
}

// forget removes stale entries from the state and plans again: desired VMs that exist are
// then imported, and missing ones are created.
func (s *Scaler) forget(ctx context.Context, plan *ShardPlan, stale []string) (err error) {
	copied := s.config.Backend.Type == "local" && s.config.Backend.Config["path"] == ""
	if plan.dry && !copied {
		return &StaleStateError{Addresses: stale}
	}
	taken := "taking out of the state what is not there: " + strings.Join(stale, ", ")
	s.config.Progress(plan.Shard, taken)
	plan.outside = append(plan.outside, taken)
	if err := plan.workspace.Forget(ctx, stale...); err != nil {
		return err
	}
	plan.Plan, err = s.planWith(ctx, plan.workspace, plan.options())
	return err
}

// options returns the options for planning a whole host. A dry run takes no lock: it
// changes nothing, and the lock would block a concurrent apply.
func (p *ShardPlan) options() state.PlanOptions { return state.PlanOptions{Unlocked: p.dry} }

func (s *Scaler) planWith(ctx context.Context, workspace *state.Workspace, options state.PlanOptions) (*state.Plan, error) {
	if err := workspace.Init(ctx); err != nil {
		return nil, err
	}
	return workspace.Plan(ctx, options)
}

// check runs the guard.
func (s *Scaler) check(plan *ShardPlan) guard.Verdict {
	started := s.config.Clock.Now()
	defer func() { s.config.Observe.GuardDone(s.config.Clock.Since(started)) }()
	plan.Intent.VMIDs = s.region(plan.Shard.Region).VMIDs
	return guard.Check(plan.Plan.JSON, plan.Intent, s.config.Rules)
}
