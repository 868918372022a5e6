package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
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
		Args: func(_ *cobra.Command, names []string) error {
			if len(names) == 0 {
				return errors.New("remove: no node is named: want numaform remove NODE…")
			}
			return nil
		},
		RunE: func(command *cobra.Command, names []string) error {
			return change(command.Context(), process, &o, func(ctx context.Context, process Process, o *options) (*proposal, error) {
				return proposeRemoval(ctx, process, o, names)
			})
		},
	}
	o.registerChange(command)
	o.registerReport(command)
	return command
}

// proposeRemoval renders the fleet without the named nodes, none of which may still run
// pods.
func proposeRemoval(ctx context.Context, process Process, o *options, names []string) (*proposal, error) {
	// Do the checks that need no Proxmox first.
	cluster, err := o.cluster(ctx)
	if err != nil {
		return nil, err
	}
	var mistakes []error
	for _, name := range names {
		if err := cluster.Drained(ctx, name); err != nil {
			mistakes = append(mistakes, err)
		}
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
	if p.shards, err = p.session.scaler.Plan(ctx, p.change); err != nil {
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
		fmt.Fprintf(process.Stderr, "numaform: %s: taking it in first\n", outside)
		err = p.takeIn(ctx, process, o)
	case errors.As(err, &contended), errors.Is(err, scaler.ErrFleetChanged):
		fmt.Fprintf(process.Stderr, "numaform: %v\nDeciding anew.\n", err)
		err = wait(ctx, attempt)
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

// wait waits for a random time, so that conflicting processes retry at different times.
func wait(ctx context.Context, attempt int) error {
	timer := time.NewTimer(rand.N(time.Duration(attempt) * 2 * time.Second)) //nolint:gosec // not security-relevant
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// takeIn applies a change without requests, which imports existing VMs into the state.
func (p *proposal) takeIn(ctx context.Context, process Process, o *options) error {
	change, err := p.session.scaler.Propose(ctx, p.session.snapshot, nil, nil)
	if err != nil {
		return err
	}
	return (&proposal{session: p.session, change: change}).apply(ctx, process, o)
}

// apply plans the change, prints it, asks, and applies it.
func (p *proposal) apply(ctx context.Context, process Process, o *options) error {
	if err := p.checkJoins(ctx); err != nil {
		return err
	}
	approve := func(shards []scaler.ShardPlan) (string, error) {
		p.shards = shards
		if err := p.print(process, o); err != nil {
			return "", err
		}
		if err := p.failure(false); err != nil {
			return "", err
		}
		if !p.changes() {
			return "", nil
		}
		return o.confirm(ctx, process, shards)
	}
	results, err := p.session.scaler.Apply(ctx, p.change, approve)
	for _, result := range results {
		fmt.Fprintf(process.Stderr, "%s\n", result)
	}
	return err
}
