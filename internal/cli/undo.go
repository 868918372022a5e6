package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
)

func newUndo(process Process) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "undo [CHANGE]",
		Short: "Take a change back: the reverse of it, through the same plan and guard",
		Long: "Take a change back: the VMs that it made are removed, once their Nodes are drained, and such as it removed are made anew. " +
			"Without a name it is the last change that made or removed VMs; numaform history shows the names.",
		Args: arguments(0, 1),
		RunE: func(command *cobra.Command, args []string) error {
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			// Choose once: when the change is decided again, the last change is another
			// one.
			var undone *audit.Change
			return change(command.Context(), process, &o, func(ctx context.Context, process Process, o *options) (*proposal, error) {
				return proposeUndo(ctx, process, o, id, &undone)
			})
		},
	}
	o.registerChange(command)
	o.registerReport(command)
	return command
}

// proposeUndo renders the reverse of a change, or of the last one, unless it was chosen
// already.
func proposeUndo(ctx context.Context, process Process, o *options, id string, undone **audit.Change) (*proposal, error) {
	s, err := open(ctx, process, o)
	if err != nil {
		return nil, err
	}
	if *undone == nil {
		entries, err := s.scaler.History(ctx, time.Time{})
		if err != nil {
			return nil, err
		}
		if *undone, err = choice(entries, id); err != nil {
			return nil, err
		}
	}
	taken, err := s.cluster.VMIDs(ctx)
	if err != nil {
		return nil, err
	}
	change, err := s.scaler.ProposeUndo(ctx, s.snapshot, *undone, taken)
	if err != nil {
		return nil, err
	}
	return &proposal{session: s, change: change}, nil
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
