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
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/shell"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// newChanges returns the commands that change the fleet: apply, remove and undo.
func newChanges(process Process) []*cobra.Command {
	commands := []*cobra.Command{
		{
			Use:   "apply",
			Short: "Create the VMs that pending pods need, and finish changes in progress",
		},
		{
			Use:   "remove NODE…",
			Short: "Remove drained nodes from the fleet and destroy their VMs",
			Args:  arguments(1, anyNumber),
		},
		{
			Use:   "undo [CHANGE]",
			Short: "Revert a change, with the same plan and guard",
			Long: "Revert a change: remove the VMs that it created, once their Nodes are drained, and create VMs like those that it removed. " +
				"Without an argument, revert the last change that created or removed VMs, or finish it if it is an interrupted undo; " +
				"numaform history lists the changes.",
			Args: arguments(0, 1),
		},
	}
	deciders := []func(args []string) decider{
		func([]string) decider { return propose },
		removal,
		reversal,
	}
	for i, command := range commands {
		var o options
		o.registerChange(command.Flags())
		o.registerReport(command.Flags())
		command.RunE = func(command *cobra.Command, args []string) error {
			p, err := change(command.Context(), process, &o, deciders[i](args))
			if err != nil || p == nil || o.output != "text" {
				return err
			}
			return p.printNext(process, &o, shell.Line(append([]string{"numaform", command.Name()}, args...)...))
		}
	}
	return commands
}

// decider decides on a change and renders it.
type decider func(ctx context.Context, process Process, o *options) (*proposal, error)

// removal returns a decider that removes the named nodes, which must be drained.
func removal(names []string) decider {
	return func(ctx context.Context, process Process, o *options) (*proposal, error) {
		// First do the checks that do not need Proxmox.
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

// reversal returns a decider that reverts the change with the ID in args or, without an ID,
// the last change that created or removed VMs. Only a change that this installation
// recorded can be reverted: other records are not trusted.
func reversal(args []string) decider {
	target := undoTarget{}
	if len(args) > 0 {
		target.id = args[0]
	}
	return func(ctx context.Context, process Process, o *options) (*proposal, error) {
		s, err := open(ctx, process, o)
		if err != nil {
			return nil, err
		}
		entries, err := s.scaler.History(ctx, time.Time{})
		if err != nil {
			return nil, err
		}
		if err := target.choose(entries); err != nil {
			return nil, err
		}
		if id := target.finishing; id != "" {
			change, err := s.scaler.Propose(ctx, s.snapshot, nil, nil)
			if err != nil {
				return nil, err
			}
			if change.Unfinished() {
				fmt.Fprintf(process.Stderr, "numaform: finishing the interrupted undo %s; to revert it, run numaform undo %s%s\n", id, id, o.source())
			} else {
				fmt.Fprintf(process.Stderr, "numaform: the interrupted undo %s is already finished; to revert it, run numaform undo %s%s\n", id, id, o.source())
			}
			return &proposal{session: s, change: change}, nil
		}

		taken, err := s.cluster.VMIDs(ctx)
		if err != nil {
			return nil, err
		}
		change, err := s.scaler.ProposeUndo(ctx, s.snapshot, target.undone, taken)
		if err != nil {
			return nil, err
		}
		return &proposal{session: s, change: change}, nil
	}
}

// undoTarget is the change that undo reverts or finishes.
type undoTarget struct {
	// id is the change that the user named, if any.
	id string
	// undone is the change to revert. Otherwise, finishing is the ID of the interrupted undo
	// to finish.
	undone    *audit.Change
	finishing string
}

// choose selects the target only once: a retry must not revert what the first attempt, or
// another process in the meantime, recorded.
func (t *undoTarget) choose(entries []audit.Entry) error {
	if t.undone != nil || t.finishing != "" {
		return nil
	}
	interrupted := true // neither this entry nor a later one is finished
	for i := len(entries) - 1; i >= 0; i-- {
		recorded := &entries[i].Change
		if !entries[i].Verified {
			if t.id != "" && recorded.ID == t.id {
				return &scaler.UndoError{ID: t.id, Problem: "its record does not match this installation's key, so its content is not trusted: " +
					"undo it where it was recorded, or remove its nodes with `numaform remove`"}
			}
			continue
		}
		interrupted = interrupted && slices.ContainsFunc(entries[i].Unfinished(), func(open audit.Open) bool { return !open.OnlyUpdates() })
		switch {
		case t.id == "" && interrupted && recorded.Kind == audit.KindUndo:
			t.finishing = recorded.ID
			return nil
		case recorded.ID == t.id, t.id == "" && len(recorded.Added)+len(recorded.Removed) > 0:
			t.undone = recorded
			return nil
		}
	}
	if t.id == "" {
		return errors.New("undoing the last change: this installation recorded no change that created or removed VMs: to list all changes, run numaform history")
	}
	return fmt.Errorf("undoing %q: the history contains no such change: to list all changes, run numaform history", t.id)
}

// attempts is the maximum number of attempts at a change. An attempt fails if the fleet or
// a host changes in the meantime.
const attempts = 5

// change decides on a change, plans it, asks for confirmation and applies it. With
// --dry-run, it only plans and prints the change. It starts over, up to the maximum number
// of attempts, if another writer changed the fleet or a host first, and after importing VMs
// that are missing from the state. It returns nil if the change waits for a review.
func change(ctx context.Context, process Process, o *options, decide decider) (*proposal, error) {
	if err := o.checkLive(); err != nil {
		return nil, err
	}
	if o.dryRun {
		return dryRun(ctx, process, o, decide)
	}
	if o.signing.out != "" {
		return nil, usageError{errors.New("--statement works only with --dry-run: add it, have the text signed, then run the command with --signature")}
	}
	o.applies = true
	if err := finishReviewed(ctx, process, o); err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		p, err := decide(ctx, process, o)
		if err != nil {
			return nil, err
		}
		err = p.apply(ctx, process, o)
		if err == nil || attempt == attempts {
			return p, err
		}

		var conflict *scaler.ConflictError
		var outside *scaler.OutsideStateError
		var proposed *store.ProposedError
		switch {
		case errors.As(err, &conflict) && errors.As(err, &proposed):
			return nil, err // the revert waits for a review
		case errors.As(err, &proposed):
			talk := o.talk(process)
			fmt.Fprintf(talk.Stdout, "\n%s\n", proposed)
			return nil, p.openPullRequest(ctx, talk, proposed)
		case errors.As(err, new(*openError)):
			fmt.Fprintf(o.talk(process).Stdout, "\n%v\n", err)
			return nil, nil
		case errors.As(err, &outside):
			fmt.Fprintf(process.Stderr, "numaform: importing %s into the state before the removal\n", strings.Join(outside.Names, ", "))
			// A change without requests imports existing VMs into the state.
			imports, err := p.session.scaler.Propose(ctx, p.session.snapshot, nil, nil)
			if err != nil {
				return nil, err
			}
			if err := (&proposal{session: p.session, change: imports}).apply(ctx, process, o); err != nil {
				return nil, err
			}
		case errors.As(err, &conflict), errors.Is(err, scaler.ErrFleetChanged):
			fmt.Fprintf(process.Stderr, "numaform: %v\nTrying again.\n", err)
			// Wait for a random time, so that conflicting processes retry at different times.
			select {
			case <-time.After(rand.N(time.Duration(attempt) * 2 * time.Second)): //nolint:gosec // not security-relevant
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		default:
			return nil, err
		}
	}
}

// dryRun plans, checks and prints a change without applying it.
func dryRun(ctx context.Context, process Process, o *options, decide decider) (*proposal, error) {
	p, err := decide(ctx, process, o)
	if err == nil {
		err = p.checkJoins(ctx)
	}
	if err != nil {
		return nil, err
	}
	plans, err := p.session.scaler.Plan(ctx, p.change)
	if err != nil {
		return nil, err
	}
	if err := p.setPlans(ctx, plans); err != nil {
		return nil, err
	}
	failure := p.failure(false)
	if err := p.print(process, o, failure == nil && needsApproval(p.plans)); err != nil {
		return nil, err
	}
	fmt.Fprintln(process.Stderr, "Dry run: nothing was changed.")
	if failure != nil {
		return p, failure
	}
	return p, p.writeStatement(ctx, process, o)
}

// printNext prints the command that follows a change or, after a dry run, the command that
// applies it. command is the command line of this change, without the flags of o.
func (p *proposal) printNext(process Process, o *options, command string) error {
	w := &printer{Terminal: process.terminal(process.Stderr), w: process.Stderr}
	changes := p.changes()
	if !changes && !o.dryRun {
		w.printf("Nothing to do.\n")
	}
	if !changes || o.dryRun {
		r := p.report()
		w.next(&r, changes, o, command)
		return w.err
	}
	w.nextCommand("numaform status" + o.fleetSource())
	if p.change.Kind != audit.KindUndo && len(p.change.Added) > 0 {
		w.suggest("To revert it", "numaform undo"+o.source())
	}
	return w.err
}

// finishReviewed applies merged changes in review mode. Otherwise they would wait for the
// next proposal.
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

// apply plans and prints a change, asks for confirmation, and applies the change.
func (p *proposal) apply(ctx context.Context, process Process, o *options) error {
	if err := p.checkJoins(ctx); err != nil {
		return err
	}
	return applied(ctx, process, p.session.scaler, p.change, func(plans []scaler.RootPlan) (string, error) {
		if err := p.setPlans(ctx, plans); err != nil {
			return "", err
		}
		failure := p.failure(false)
		if err := p.print(process, o, failure == nil && p.changes() && p.asks(process, o)); err != nil {
			return "", err
		}
		if failure != nil {
			return "", p.unapplied(failure)
		}
		if !p.changes() {
			return "", p.closeUnneeded(ctx, o.talk(process))
		}
		if err := p.alreadyOpen(ctx, process); err != nil {
			return "", err
		}
		return p.confirm(ctx, process, o)
	})
}

// unapplied adds to a failure that nothing was changed, and the names of the hosts with
// changes that the guard does not deny.
func (p *proposal) unapplied(failure error) error {
	var allowed []string
	for i := range p.plans {
		plan := &p.plans[i]
		if plan.Err == nil && plan.Verdict.Decision != guard.Deny && plan.Changes() {
			allowed = append(allowed, plan.Host.String())
		}
	}
	if len(allowed) == 0 {
		return fmt.Errorf("%w\nnothing was changed", failure)
	}
	return fmt.Errorf("%w\nnothing was changed on any host, including %s whose plans the guard does not deny (%s), because a change is applied as a whole: "+
		"fix the problems above, then run the command again", failure, topology.Count(len(allowed), "host"), topology.Named(allowed))
}

// applied applies a change and prints the result of each host that it changes.
func applied(ctx context.Context, process Process, s *scaler.Scaler, change *scaler.Change, approve func([]scaler.RootPlan) (string, error)) error {
	results, err := s.Apply(ctx, change, approve)
	for _, result := range results {
		if result.PlanSHA256 != "" || result.Err != nil {
			fmt.Fprintf(process.Stderr, "%s\n", result)
		}
	}
	return err
}

// digest identifies the effect of plans: planning again from the same fleet and hosts gives
// the same digest. It ignores plans without changes.
func digest(plans []scaler.RootPlan) string {
	sum := sha256.New()
	for i := range plans {
		plan := &plans[i]
		if plan.Plan == nil || !plan.Changes() {
			continue
		}
		fmt.Fprintf(sum, "%s %s\n", plan.Host, plan.Plan.Digest)
		for _, requested := range []struct {
			action  string
			targets []guard.Target
		}{
			{action: "create", targets: plan.Intent.Create},
			{action: "delete", targets: plan.Intent.Delete},
			{action: "import", targets: plan.Intent.Import},
			{action: "update", targets: plan.Intent.Update},
		} {
			for _, t := range slices.SortedFunc(slices.Values(requested.targets), func(a, b guard.Target) int { return cmp.Compare(a.Address, b.Address) }) {
				fmt.Fprintf(sum, "%s %s %d %s %s %s %v\n", requested.action, t.Address, t.VMID, t.Key, t.Host, t.Module, t.Incomplete)
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

// asks reports whether confirm asks the user.
func (p *proposal) asks(process Process, o *options) bool {
	return o.approve == "" && (!o.autoApprove || needsApproval(p.plans)) && atTerminal(process)
}

// confirm returns the approver, or "" if --auto-approve is enough. Unless --approve or
// --auto-approve is enough, it prints a summary and asks the user, and fails without a
// terminal. It fails in a freeze window, and without signatures that the approval needs.
func (p *proposal) confirm(ctx context.Context, process Process, o *options) (string, error) {
	plans := p.plans
	needed := needsApproval(plans)
	shown := digest(plans)
	if err := p.frozen(o); err != nil {
		return "", err
	}
	approved := func(how string) (string, error) {
		approval, err := p.signed(ctx, process, o, shown)
		if err != nil {
			return "", err
		}
		// A freeze window may have begun while the user was asked or signed.
		if err := p.frozen(o); err != nil {
			return "", err
		}
		p.change.Approval = approval
		return approver(how, approval), nil
	}
	if o.approve != "" {
		if shown != o.approve {
			return "", fmt.Errorf("--approve %s: the change now has the digest %s; nothing was changed: review the new change, then approve its digest", o.approve, shown)
		}
		return approved(" by digest")
	}
	if o.autoApprove && !needed {
		if o.signing.signs() || o.signing.breakGlass != "" {
			return approved("")
		}
		return "", nil
	}
	if !atTerminal(process) && needed {
		return "", fmt.Errorf("the change requires approval, but stdin is not a terminal; nothing was changed: "+
			"run the command in a terminal, or add --approve %s", shown)
	}
	if !atTerminal(process) {
		return "", errors.New("the change requires confirmation, but stdin is not a terminal; nothing was changed: " +
			"run the command in a terminal, or add --auto-approve")
	}
	r := p.report()
	w := &printer{Terminal: process.terminal(process.Stderr), w: process.Stderr}
	if w.summary(r.summary(shown)); w.err != nil {
		return "", w.err
	}
	yes, err := confirmed(ctx, process, "Apply this change?")
	if err != nil {
		return "", fmt.Errorf("%w: the change was not approved; Proxmox was not changed", err)
	}
	if !yes {
		return "", errors.New("the change was not approved; Proxmox was not changed")
	}
	return approved("")
}
