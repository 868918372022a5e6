package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

func newApply(process Process) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "apply",
		Short: "Make the VMs that pending pods need, and finish what was begun",
		RunE: func(command *cobra.Command, _ []string) error {
			return change(command.Context(), process, &o, propose)
		},
	}
	o.registerChange(command)
	o.registerReport(command)
	return command
}

func newRemove(process Process) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "remove NODE…",
		Short: "Take drained nodes out of the fleet and destroy their VMs",
		Args:  arguments(1, anyNumber),
		RunE: func(command *cobra.Command, names []string) error {
			return change(command.Context(), process, &o, removal(names))
		},
	}
	o.registerChange(command)
	o.registerReport(command)
	return command
}

// removal renders the fleet without the named nodes, none of which may still run pods.
func removal(names []string) proposer {
	return func(ctx context.Context, process Process, o *options) (*proposal, error) {
		// Do the checks that need no Proxmox first.
		cluster, err := o.cluster(ctx)
		if err != nil {
			return nil, err
		}
		var mistakes []error
		for _, name := range names {
			mistakes = append(mistakes, cluster.Drained(ctx, name))
		}
		if err := errors.Join(mistakes...); err != nil {
			return nil, err
		}
		s, err := open(ctx, process, o)
		if err != nil {
			return nil, err
		}
		change, err := s.scaler.ProposeRemoval(ctx, s.snapshot, names)
		if err != nil {
			return nil, err
		}
		return &proposal{session: s, change: change}, nil
	}
}

func newUndo(process Process) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "undo [CHANGE]",
		Short: "Revert a change, through the same plan and guard",
		Long: "Revert a change: the VMs that it made are removed, once their Nodes are drained, and VMs like those that it removed are made. " +
			"Without a name it is the last change that made or removed VMs; numaform history shows the names.",
		Args: arguments(0, 1),
		RunE: func(command *cobra.Command, args []string) error {
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			return change(command.Context(), process, &o, reversal(id))
		},
	}
	o.registerChange(command)
	o.registerReport(command)
	return command
}

// reversal renders the reverse of a change, or of the last one.
func reversal(id string) proposer {
	// Chosen once: when the change is decided again, the last change is another one.
	var undone *audit.Change
	return func(ctx context.Context, process Process, o *options) (*proposal, error) {
		s, err := open(ctx, process, o)
		if err != nil {
			return nil, err
		}
		if undone == nil {
			entries, err := s.scaler.History(ctx, time.Time{})
			if err != nil {
				return nil, err
			}
			if undone, err = choice(entries, id); err != nil {
				return nil, err
			}
		}
		taken, err := s.cluster.VMIDs(ctx)
		if err != nil {
			return nil, err
		}
		change, err := s.scaler.ProposeUndo(ctx, s.snapshot, undone, taken)
		if err != nil {
			return nil, err
		}
		return &proposal{session: s, change: change}, nil
	}
}

// choice finds a change by its ID, or the last one that changed VMs. It must be a change
// that this installation recorded, because the content of others is not trustworthy.
func choice(entries []audit.Entry, id string) (*audit.Change, error) {
	for i := len(entries) - 1; i >= 0; i-- {
		change := &entries[i].Change
		switch {
		case change.ID == id && !entries[i].Verified:
			return nil, &scaler.UndoError{ID: id, Problem: "this installation did not record it as it is now, so what it did is not known: " +
				"undo it where it was made, or remove its nodes by name with `numaform remove`"}
		case entries[i].Verified && (change.ID == id || (id == "" && len(change.Added)+len(change.Removed) > 0)):
			return change, nil
		}
	}
	if id == "" {
		return nil, errors.New("undoing the last change: this installation recorded none that made or removed VMs: see numaform history")
	}
	return nil, fmt.Errorf("undoing %q: the history holds no such change: see numaform history", id)
}

// proposer decides on a change.
type proposer func(ctx context.Context, process Process, o *options) (*proposal, error)

// attempts limits how often a change is decided again because the fleet or the hosts
// changed meanwhile.
const attempts = 5

// change decides, plans, asks and applies; it decides again if another writer was faster.
func change(ctx context.Context, process Process, o *options, decide proposer) error {
	if err := o.checkLive(); err != nil {
		return err
	}
	if o.dryRun {
		return dryRun(ctx, process, o, decide)
	}
	if err := finishReviewed(ctx, process, o); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		p, err := decide(ctx, process, o)
		if err != nil {
			return err
		}
		err = p.apply(ctx, process, o)
		if err == nil || attempt == attempts {
			return err
		}
		if again, err := p.retry(ctx, process, o, attempt, err); !again {
			return err
		}
	}
}

// dryRun decides, plans, checks and prints, and changes nothing.
func dryRun(ctx context.Context, process Process, o *options, decide proposer) error {
	p, err := decide(ctx, process, o)
	if err == nil {
		err = p.checkJoins(ctx)
	}
	if err != nil {
		return err
	}
	if p.plans, err = p.session.scaler.Plan(ctx, p.change); err != nil {
		return err
	}
	if err := p.print(process, o); err != nil {
		return err
	}
	fmt.Fprintln(process.Stderr, "Nothing was changed: this was a dry run.")
	return p.failure(false)
}

// retry reports whether a failed change should be decided again, and makes the necessary
// preparations; otherwise it returns the remaining error.
func (p *proposal) retry(ctx context.Context, process Process, o *options, attempt int, err error) (bool, error) {
	var contended *scaler.ConflictError
	var outside *scaler.OutsideStateError
	var proposed *store.ProposedError
	switch {
	case errors.As(err, &contended) && errors.As(err, &proposed):
		return false, err // the revert waits for a review
	case errors.As(err, &proposed):
		fmt.Fprintf(process.Stdout, "\n%s\n", proposed)
		return false, nil
	case errors.As(err, &outside):
		fmt.Fprintf(process.Stderr, "numaform: %s: importing it first\n", outside)
		// A change without requests imports existing VMs into the state.
		var imports *scaler.Change
		if imports, err = p.session.scaler.Propose(ctx, p.session.snapshot, nil, nil); err == nil {
			err = (&proposal{session: p.session, change: imports}).apply(ctx, process, o)
		}
	case errors.As(err, &contended), errors.Is(err, scaler.ErrFleetChanged):
		fmt.Fprintf(process.Stderr, "numaform: %v\nDeciding again.\n", err)
		// Wait for a random time, so that conflicting processes retry at different times.
		select {
		case <-time.After(rand.N(time.Duration(attempt) * 2 * time.Second)): //nolint:gosec // not security-relevant
			err = nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	default:
		return false, err
	}
	return err == nil, err
}

// finishReviewed applies merged changes in review mode; otherwise they would wait behind
// the next proposal.
func finishReviewed(ctx context.Context, process Process, o *options) error {
	config, err := loadConfig(process, o.config)
	if err != nil || !config.Fleet.Git.Review {
		return err
	}
	s, err := open(ctx, process, o)
	if err != nil {
		return err
	}
	change, err := s.scaler.Propose(ctx, s.snapshot, nil, nil)
	if err != nil || !change.Unfinished() || !change.Empty() {
		return err
	}
	return (&proposal{session: s, change: change}).apply(ctx, process, o)
}

// apply plans the change, prints it, asks, and applies it.
func (p *proposal) apply(ctx context.Context, process Process, o *options) error {
	if err := p.checkJoins(ctx); err != nil {
		return err
	}
	return applied(ctx, process, p.session.scaler, p.change, func(plans []scaler.RootPlan) (string, error) {
		p.plans = plans
		if err := p.print(process, o); err != nil {
			return "", err
		}
		if err := p.failure(false); err != nil {
			return "", err
		}
		if !p.changes() {
			return "", nil
		}
		return o.confirm(ctx, process, plans)
	})
}

// applied applies a change, and prints the result of each host.
func applied(ctx context.Context, process Process, s *scaler.Scaler, change *scaler.Change, approve func([]scaler.RootPlan) (string, error)) error {
	results, err := s.Apply(ctx, change, approve)
	for _, result := range results {
		fmt.Fprintf(process.Stderr, "%s\n", result)
	}
	return err
}

// digest identifies what the plans of a change do: it stays the same if they are made
// again from the same fleet and hosts. Plans without changes do not count.
func digest(plans []scaler.RootPlan) string {
	sum := sha256.New()
	for i := range plans {
		plan := &plans[i]
		if plan.Plan == nil || !plan.Changes() {
			continue
		}
		fmt.Fprintf(sum, "%s %s\n", plan.Host, plan.Plan.Digest)
		for _, asked := range []struct {
			to      string
			targets []guard.Target
		}{
			{"create", plan.Intent.Create}, {"delete", plan.Intent.Delete}, {"import", plan.Intent.Import}, {"update", plan.Intent.Update},
		} {
			for _, t := range slices.SortedFunc(slices.Values(asked.targets), func(a, b guard.Target) int { return cmp.Compare(a.Address, b.Address) }) {
				fmt.Fprintf(sum, "%s %s %d %s %s %s %v\n", asked.to, t.Address, t.VMID, t.Key, t.Host, t.Module, t.Incomplete)
			}
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// needsApproval reports whether the guard requires approval.
func needsApproval(plans []scaler.RootPlan) bool {
	return slices.ContainsFunc(plans, func(plan scaler.RootPlan) bool {
		return plan.Err == nil && plan.Verdict.Decision == guard.NeedsApproval
	})
}

// confirm asks the person at the terminal, and fails without a terminal. It returns who
// approved.
func (o *options) confirm(ctx context.Context, process Process, plans []scaler.RootPlan) (string, error) {
	needed := needsApproval(plans)
	if o.approve != "" {
		if got := digest(plans); got != o.approve {
			return "", fmt.Errorf("--approve %s: the change that would be made has the digest %s: look at it again; nothing was changed", o.approve, got)
		}
		return actor() + " by digest", nil
	}
	if o.autoApprove && !needed {
		return "", nil
	}
	if !atTerminal(process) && needed {
		return "", fmt.Errorf("this change needs approval and there is no terminal to ask at: nothing was changed: "+
			"run it at a terminal, or again with --approve %s", digest(plans))
	}
	if !atTerminal(process) {
		return "", errors.New("this change has to be confirmed and there is no terminal to ask at: nothing was changed: " +
			"run it at a terminal, or with --auto-approve")
	}
	yes, err := confirmed(ctx, process, "Apply exactly this?")
	if err != nil {
		return "", err
	}
	if !yes {
		return "", errors.New("not approved: nothing in Proxmox was changed")
	}
	return actor(), nil
}
