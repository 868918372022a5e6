package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/store"
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
	flags.StringVarP(&o.output, "output", "o", "text", "text or json")
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
	kept, err := config.OpenStore(process.Environ, operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext})
	if err != nil {
		return err
	}
	var from time.Time
	if since > 0 {
		from = time.Now().Add(-since)
	}
	entries, err := kept.History(ctx, from)
	if err != nil {
		entries, err = known(ctx, process, kept, from, err)
	}
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e audit.Entry) bool { return e.Change.Time.Before(from) })
	if len(args) > 0 {
		entries = about(entries, args[0])
		if len(entries) == 0 {
			return fmt.Errorf("the history holds neither a node nor a change %q: numaform history shows all", args[0])
		}
	}
	if n := unverified(entries); n > 0 {
		fmt.Fprintf(process.Stderr, "numaform: %d of these changes are unverified: this installation did not record them as they are now, by the key in %s; "+
			"nothing is decided from them\n", n, kept.KeyPlace())
	}
	return printHistory(process, o.output, entries, len(args) > 0)
}

// unverified counts the changes with a record that is not this installation's.
func unverified(entries []audit.Entry) int {
	n := 0
	for i := range entries {
		if e := &entries[i]; !e.Verified || e.Unreadable != "" || e.Outcome != nil && !e.OutcomeVerified {
			n++
		}
	}
	return n
}

// known returns the history in the clone if the remote is unreachable, and prints a
// warning.
func known(ctx context.Context, process Process, kept *store.Sealed, from time.Time, failed error) ([]audit.Entry, error) {
	entries, err := kept.Known(ctx, from)
	if err != nil || len(entries) == 0 {
		return nil, failed
	}
	fmt.Fprintf(process.Stderr, "numaform: this is what the clone on this machine knows; others may have changed more since: %v\n", failed)
	return entries, nil
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

func printHistory(process Process, output string, entries []audit.Entry, whole bool) error {
	if output == "json" {
		encoder := json.NewEncoder(process.Stdout)
		encoder.SetIndent("", "  ")
		if entries == nil {
			entries = []audit.Entry{}
		}
		return encoder.Encode(entries)
	}
	if len(entries) == 0 {
		fmt.Fprintln(process.Stdout, "no change is recorded")
		return nil
	}
	if whole {
		w := &printer{w: process.Stdout}
		for i := range entries {
			w.entry(&entries[i])
		}
		return w.err
	}
	table := tabwriter.NewWriter(process.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "CHANGE\tKIND\tVERDICT\tRESULT\tBY\tWHY")
	for i := range entries {
		change := &entries[i].Change
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", change.ID, change.Kind, verdictOf(change), resultOf(&entries[i]), by(change), change.Why)
	}
	return table.Flush()
}

// verdictOf returns the strictest verdict of a change.
func verdictOf(change *audit.Change) guard.Decision {
	decision := guard.Allow
	for _, shard := range change.Shards {
		decision = min(decision, shard.Verdict.Decision)
	}
	return decision
}

func resultOf(entry *audit.Entry) string {
	switch text := saidOf(entry); {
	case !entry.Verified:
		return "unverified: " + text
	case entry.Unreadable != "" || entry.Outcome != nil && !entry.OutcomeVerified:
		return "unverified outcome: " + text
	default:
		return text
	}
}

// saidOf returns how a change ended, according to its records.
func saidOf(entry *audit.Entry) string {
	switch {
	case entry.Unreadable != "":
		return "unreadable"
	case entry.Outcome == nil:
		return "unfinished"
	}
	failed := 0
	for _, shard := range entry.Outcome.Shards {
		if shard.Error != "" {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Sprintf("failed on %d of %d hosts", failed, len(entry.Outcome.Shards))
	}
	return "done in " + entry.Outcome.Duration.Round(100*time.Millisecond).String()
}

// by returns who ran a change, and who approved it if approval was needed.
func by(change *audit.Change) string {
	var approvers []string
	for _, shard := range change.Shards {
		if shard.Approver != "" && !slices.Contains(approvers, shard.Approver) {
			approvers = append(approvers, shard.Approver)
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
	w.moved("added", change.Added)
	w.moved("removed", change.Removed)
	w.moved("number taken", change.Renumbered)
	for _, shard := range change.Shards {
		w.printf("  %s: create %d, delete %d, import %d, update %d\n    plan %s\n    %s\n", shard.Host,
			len(shard.Create), len(shard.Delete), len(shard.Import), len(shard.Update), shard.PlanSHA256,
			strings.ReplaceAll(shard.Verdict.String(), "\n", "\n    "))
		if shard.Error != "" {
			w.printf("    not planned: %s\n", shard.Error)
		}
	}
	for _, line := range change.Outside {
		w.printf("  outside the plan: %s\n", line)
	}
	if entry.Outcome == nil {
		return
	}
	for _, shard := range entry.Outcome.Shards {
		if shard.Error != "" {
			w.printf("  %s failed after %s: %s\n", shard.Host, shard.Duration.Round(time.Millisecond), shard.Error)
		}
	}
}

func (w *printer) moved(lead string, vms []fleet.VM) {
	for i := range vms {
		w.printf("  %-8s %s on %s", lead, vms[i].Name, vms[i].Host)
		if vms[i].Reason != "" {
			w.printf(": %s", vms[i].Reason)
		}
		w.printf("\n")
	}
}
