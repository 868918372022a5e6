package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
)

func newHistory(process Process) *cobra.Command {
	var config, output string
	var cluster operator.Kubeconfig
	var since time.Duration
	command := &cobra.Command{
		Use:   "history [NODE|CHANGE]",
		Short: "Show what changed, why, by which plan, and who approved it",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("history: unexpected argument %q: run numaform history [NODE|CHANGE]", args[1])
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if since < 0 {
				return usageError{fmt.Errorf("--since %s: must not be negative: set it to an age such as 24h, or to 0 for all changes", since)}
			}
			config, err := loadConfig(process, config)
			if err != nil {
				return err
			}
			opened, err := config.OpenStore(process.Environ, cluster)
			if err != nil {
				return err
			}
			entries, err := readHistory(command.Context(), process, opened, since)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				entries = about(entries, args[0])
				if len(entries) == 0 {
					return fmt.Errorf("the history contains no node or change %q: to list all changes, run numaform history", args[0])
				}
			}

			unverified := 0
			for i := range entries {
				if e := &entries[i]; !e.Verified || e.Unreadable != "" || e.Outcome != nil && !e.OutcomeVerified {
					unverified++
				}
			}
			if unverified > 0 {
				fmt.Fprintf(process.Stderr, "numaform: unverified changes: %d: their records do not match the key in %s, "+
					"so numaform does not rely on them\n", unverified, opened.KeyPlace())
			}
			if output != "text" {
				return printData(process, output, append([]audit.Entry{}, entries...)) // an empty list, not null
			}
			w := newPrinter(process)
			w.history(entries, len(args) > 0)
			if len(args) > 0 {
				if err := w.approvals(config, entries); err != nil {
					return err
				}
			}
			return w.err
		},
	}
	flags := command.Flags()
	registerConfig(flags, &config)
	registerKubeconfig(flags, &cluster, "kubeconfig of the cluster, if the fleet is stored in its ConfigMaps")
	registerOutput(flags, &output)
	flags.DurationVar(&since, "since", 0, "show only changes of this period, such as 24h; 0 means all")
	command.AddCommand(newHistoryParts(process)...)
	return command
}

// readHistory returns the changes of the given period, or all changes if it is 0. If the
// remote of a fleet in git is unreachable, it returns the changes in the local clone.
func readHistory(ctx context.Context, process Process, opened *store.Sealed, since time.Duration) ([]audit.Entry, error) {
	var from time.Time
	if since > 0 {
		from = time.Now().Add(-since)
	}
	entries, err := opened.History(ctx, from)
	if err != nil {
		known, cloneErr := opened.Known(ctx, from)
		if cloneErr != nil || len(known) == 0 {
			return nil, err
		}
		fmt.Fprintf(process.Stderr, "numaform: showing the history of the local clone, which may be outdated: %v\n", err)
		entries = known
	}
	return slices.DeleteFunc(entries, func(e audit.Entry) bool { return e.Change.Time.Before(from) }), nil
}

// history prints a line for each change, or all details of each.
func (w *printer) history(entries []audit.Entry, details bool) {
	switch {
	case len(entries) == 0:
		w.printf("No changes are recorded.\n")
	case details:
		for i := range entries {
			w.entry(&entries[i])
		}
	default:
		w.table(func(table io.Writer) {
			fmt.Fprintln(table, "CHANGE\tKIND\tVERDICT\tRESULT\tBY\tWHY")
			for i := range entries {
				change := &entries[i].Change
				decision := guard.Allow // the strictest decision for any host
				for _, host := range change.Hosts {
					decision = min(decision, host.Verdict.Decision)
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", change.ID, change.Kind, decision, resultOf(&entries[i]), by(change), change.Why)
			}
		})
	}
}

// about returns the changes that name a node, or the one change with that ID.
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

// resultOf describes how a change ended, according to its records.
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

// by names the user who ran a change and the users who approved it.
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

// approvals verifies the signatures of the changes again, and prints the results.
func (w *printer) approvals(config *operator.Config, entries []audit.Entry) error {
	policy, unreadable := config.Signatures()
	shown, invalid := false, 0
	for i := range entries {
		change := &entries[i].Change
		for _, approval := range change.Approvals() {
			for j, err := range approval.Check(&policy, config.ClusterID, change.Time) {
				if !shown {
					w.heading("Signatures")
				}
				shown = true
				result := "valid"
				if err != nil {
					invalid++
					result = "INVALID: " + err.Error()
				}
				signature := &approval.Signatures[j]
				w.printf("  %s: %s with key %s: %s\n", change.ID, signature.Signer, signature.Key, result)
			}
		}
	}
	if invalid > 0 {
		return errors.Join(fmt.Errorf("signatures of approvals that are invalid with the current configuration: %d", invalid), unreadable)
	}
	return nil
}

// entry prints all details of a change.
func (w *printer) entry(entry *audit.Entry) {
	change := &entry.Change
	w.heading(change.ID + ": " + string(change.Kind))
	w.printf("  why      %s\n  when     %s\n  by       %s, numaform %s\n  result   %s\n",
		change.Why, change.Time.Format(time.RFC3339), by(change), change.Version, resultOf(entry))
	if entry.Unreadable != "" {
		w.printf("  problem  %s\n", entry.Unreadable)
	}
	for _, approval := range change.Approvals() {
		w.printf("  approval %s, digest %s\n", approval.By, approval.Digest)
		if approval.BreakGlass != "" {
			w.printf("           BREAK-GLASS: %s\n", approval.BreakGlass)
		}
	}
	if change.Undoes != "" {
		w.printf("  undoes   %s\n", change.Undoes)
	}
	if entry.Commit != "" {
		w.printf("  commit   %s\n", entry.Commit)
	}
	for _, group := range []struct {
		lead string
		vms  []fleet.VM
	}{
		{lead: "added", vms: change.Added},
		{lead: "removed", vms: change.Removed},
		{lead: "woken", vms: change.Woken},
		{lead: "VMID changed", vms: change.Renumbered},
	} {
		for i := range group.vms {
			vm := &group.vms[i]
			line := fmt.Sprintf("  %-8s %s on %s", group.lead, vm.Name, vm.Host)
			if group.lead == "added" && vm.Reason != "" { // the reason for the placement
				line += ": " + vm.Reason
			}
			w.printf("%s\n", line)
		}
	}
	for _, host := range change.Hosts {
		wake := ""
		if len(host.Wake) > 0 {
			wake = fmt.Sprintf(", wake %d", len(host.Wake))
		}
		hashes := ""
		if host.PlanDigest != "" {
			hashes = "    plan digest  " + host.PlanDigest + "\n"
		}
		if host.PlanSHA256 != "" {
			hashes += "    saved plan   SHA-256 " + host.PlanSHA256 + "\n"
		}
		w.printf("  %s: create %d, delete %d, import %d, update %d%s\n%s    %s\n", host.Host,
			len(host.Create), len(host.Delete), len(host.Import), len(host.Update), wake, hashes,
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
