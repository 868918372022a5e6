package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

// errDeclined is returned when a person does not approve a change.
var errDeclined = errors.New("not approved: nothing in Proxmox was changed")

func newApply(process Process) *cobra.Command {
	var o options
	var autoApprove bool
	command := &cobra.Command{
		Use:   "apply",
		Short: "Make the VMs that pending pods need",
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.checkLive(); err != nil {
				return err
			}
			p, err := propose(command.Context(), process, &o)
			if err != nil {
				return err
			}
			return p.apply(command.Context(), process, &o, autoApprove)
		},
	}
	o.register(command)
	command.Flags().BoolVar(&autoApprove, "auto-approve", false, "do not ask; what the guard denies or wants approved is still refused")
	return command
}

func newRemove(process Process) *cobra.Command {
	var o options
	var autoApprove bool
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
			p, err := proposeRemoval(command.Context(), process, &o, names)
			if err != nil {
				return err
			}
			return p.apply(command.Context(), process, &o, autoApprove)
		},
	}
	o.register(command)
	command.Flags().BoolVar(&autoApprove, "auto-approve", false, "do not ask; what the guard denies or wants approved is still refused")
	return command
}

// proposeRemoval renders the fleet without the named nodes, of which none may
// run pods any more.
func proposeRemoval(ctx context.Context, process Process, o *options, names []string) (*proposal, error) {
	if err := o.checkLive(); err != nil {
		return nil, err
	}
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
	change, err := s.scaler.ProposeRemoval(s.snapshot, names)
	if err != nil {
		return nil, err
	}
	return &proposal{session: s, change: change}, nil
}

// apply plans the change, prints it, asks, and applies it.
func (p *proposal) apply(ctx context.Context, process Process, o *options, autoApprove bool) error {
	approve := func(shards []scaler.ShardPlan) error {
		p.shards = shards
		if err := p.print(process, o); err != nil {
			return err
		}
		if err := p.failure(false); err != nil {
			return err
		}
		if !p.changes() {
			return nil
		}
		return confirm(ctx, process, shards, autoApprove)
	}
	results, err := p.session.scaler.Apply(ctx, p.change, approve)
	for _, result := range results {
		fmt.Fprintf(process.Stderr, "%s\n", result)
	}
	return err
}

// confirm asks the person at the terminal, and fails where there is none.
func confirm(ctx context.Context, process Process, shards []scaler.ShardPlan, autoApprove bool) error {
	for i := range shards {
		if shards[i].Verdict.Decision == guard.NeedsApproval {
			autoApprove = false
		}
	}
	if autoApprove {
		return nil
	}
	file, ok := process.Stdin.(interface{ Fd() uintptr })
	if !ok || !isatty.IsTerminal(file.Fd()) {
		return errors.New("this change needs approval and there is no terminal to ask at: " +
			"run it at a terminal, or with --auto-approve if the guard allows it")
	}
	fmt.Fprint(process.Stderr, "Apply exactly this? Only yes is taken for yes: ")
	answer, err := readLine(ctx, process.Stdin)
	if err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if strings.TrimSpace(answer) != "yes" {
		return errDeclined
	}
	return nil
}

// readLine reads a line, or returns when ctx ends: reading cannot be interrupted,
// so it is left behind then, and ends with the process.
func readLine(ctx context.Context, from io.Reader) (string, error) {
	type read struct {
		line string
		err  error
	}
	done := make(chan read, 1)
	go func() {
		line, err := bufio.NewReader(from).ReadString('\n')
		done <- read{line, err}
	}()
	select {
	case r := <-done:
		return r.line, r.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
