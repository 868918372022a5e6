package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/state/guard"
)

func newHistory(process Process) *cobra.Command {
	var o options
	var since time.Duration
	command := &cobra.Command{
		Use:   "history [NODE|CHANGE]",
		Short: "Show what changed, why, by which plan, and who approved it",
		Args:  arguments(0, 1),
		RunE: func(command *cobra.Command, args []string) error {
			return runHistory(command.Context(), process, &o, args, since)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "numaform.yaml", "configuration file")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster that holds the fleet, if ConfigMaps do")
	flags.StringVar(&o.kubeContext, "context", "", "context of the kubeconfig")
	registerOutput(command, &o.output)
	flags.DurationVar(&since, "since", 0, "only what began in this time, such as 24h; 0 means all")
	return command
}

func runHistory(ctx context.Context, process Process, o *options, args []string, since time.Duration) error {
	if err := o.check(); err != nil {
		return err
	}
	if since < 0 {
		return usageError{fmt.Errorf("--since %s: want how long ago, such as 24h, or 0 for all", since)}
	}
	config, err := loadConfig(process, o.config)
	if err != nil {
		return err
	}
	opened, err := config.OpenStore(process.Environ, operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext})
	if err != nil {
		return err
	}
	var from time.Time
	if since > 0 {
		from = time.Now().Add(-since)
	}
	entries, err := opened.History(ctx, from)
	if err != nil {
		// The remote may be unreachable.
		known, cloneErr := opened.Known(ctx, from)
		if cloneErr != nil || len(known) == 0 {
			return err
		}
		fmt.Fprintf(process.Stderr, "numaform: this is what the clone on this machine knows; others may have changed more since: %v\n", err)
		entries = known
	}
	entries = slices.DeleteFunc(entries, func(e audit.Entry) bool { return e.Change.Time.Before(from) })
	if len(args) > 0 {
		entries = about(entries, args[0])
		if len(entries) == 0 {
			return fmt.Errorf("the history has neither a node nor a change %q: numaform history shows all", args[0])
		}
	}
	unverified := 0
	for i := range entries {
		if e := &entries[i]; !e.Verified || e.Unreadable != "" || e.Outcome != nil && !e.OutcomeVerified {
			unverified++
		}
	}
	if unverified > 0 {
		fmt.Fprintf(process.Stderr, "numaform: %d of these changes are unverified: this installation did not record them as they are now, by the key in %s; "+
			"nothing is decided from them\n", unverified, opened.KeyPlace())
	}

	return printHistory(process, o.output, entries, len(args) > 0)
}

// printHistory prints a line for each change, or everything known about each.
func printHistory(process Process, output string, entries []audit.Entry, whole bool) error {
	if output == "json" {
		return printJSON(process, append([]audit.Entry{}, entries...)) // an empty list, not null
	}
	w := &printer{w: process.Stdout}
	switch {
	case len(entries) == 0:
		w.printf("no change is recorded\n")
	case whole:
		for i := range entries {
			w.entry(&entries[i])
		}
	default:
		w.table(func(table io.Writer) {
			fmt.Fprintln(table, "CHANGE\tKIND\tVERDICT\tRESULT\tBY\tWHY")
			for i := range entries {
				change := &entries[i].Change
				decision := guard.Allow // the strictest of all hosts
				for _, host := range change.Hosts {
					decision = min(decision, host.Verdict.Decision)
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", change.ID, change.Kind, decision, resultOf(&entries[i]), by(change), change.Why)
			}
		})
	}
	return w.err
}

// about returns the changes of a node, or the change with an ID.
func about(entries []audit.Entry, name string) []audit.Entry {
	var found []audit.Entry
	for _, entry := range entries {
		switch {
		case entry.Change.ID == name:
			return []audit.Entry{entry}
		case entry.Change.Names(name):
			found = append(found, entry)
		}
	}
	return found
}

// resultOf returns how a change ended, according to its records.
func resultOf(entry *audit.Entry) string {
	text := "unfinished"
	switch {
	case entry.Unreadable != "":
		text = "unreadable"
	case entry.Outcome != nil:
		failed := 0
		for _, host := range entry.Outcome.Hosts {
			if host.Error != "" {
				failed++
			}
		}
		text = "done in " + entry.Outcome.Duration.Round(100*time.Millisecond).String()
		if failed > 0 {
			text = fmt.Sprintf("failed on %d of %d hosts", failed, len(entry.Outcome.Hosts))
		}
	}
	switch {
	case !entry.Verified:
		return "unverified: " + text
	case entry.Unreadable != "" || entry.Outcome != nil && !entry.OutcomeVerified:
		return "unverified outcome: " + text
	}
	return text
}

// by returns who ran a change, and who approved it if approval was needed.
func by(change *audit.Change) string {
	var approvers []string
	for _, host := range change.Hosts {
		if host.Approver != "" && !slices.Contains(approvers, host.Approver) {
			approvers = append(approvers, host.Approver)
		}
	}
	if len(approvers) == 0 {
		return change.Actor
	}
	return change.Actor + ", approved by " + strings.Join(approvers, ", ")
}

// entry prints everything known about a change.
func (w *printer) entry(entry *audit.Entry) {
	change := &entry.Change
	w.heading(change.ID + ": " + string(change.Kind))
	w.printf("  why      %s\n  when     %s\n  by       %s, numaform %s\n  result   %s\n",
		change.Why, change.Time.Format(time.RFC3339), by(change), change.Version, resultOf(entry))
	if entry.Unreadable != "" {
		w.printf("  problem  %s\n", entry.Unreadable)
	}
	if change.Undoes != "" {
		w.printf("  undoes   %s\n", change.Undoes)
	}
	if entry.Commit != "" {
		w.printf("  commit   %s\n", entry.Commit)
	}
	for _, moved := range []struct {
		lead string
		vms  []fleet.VM
	}{
		{lead: "added", vms: change.Added},
		{lead: "removed", vms: change.Removed},
		{lead: "number taken", vms: change.Renumbered},
	} {
		for i := range moved.vms {
			vm := &moved.vms[i]
			w.printf("  %-8s %s on %s", moved.lead, vm.Name, vm.Host)
			if vm.Reason != "" {
				w.printf(": %s", vm.Reason)
			}
			w.printf("\n")
		}
	}
	for _, host := range change.Hosts {
		w.printf("  %s: create %d, delete %d, import %d, update %d\n    plan %s\n    %s\n", host.Host,
			len(host.Create), len(host.Delete), len(host.Import), len(host.Update), host.PlanSHA256,
			strings.ReplaceAll(host.Verdict.String(), "\n", "\n    "))
		if host.Error != "" {
			w.printf("    not planned: %s\n", host.Error)
		}
	}
	for _, line := range change.Outside {
		w.printf("  outside the plan: %s\n", line)
	}
	if entry.Outcome == nil {
		return
	}
	for _, host := range entry.Outcome.Hosts {
		if host.Error != "" {
			w.printf("  %s failed after %s: %s\n", host.Host, host.Duration.Round(time.Millisecond), host.Error)
		}
	}
}
