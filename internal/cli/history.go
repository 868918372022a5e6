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
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/store"
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
			checked, err := checkEntries(config, entries)
			if output != "text" {
				return printData(process, output, checked)
			}
			w := newPrinter(process)
			w.history(entries, len(args) > 0)
			if len(args) == 0 {
				return w.err
			}
			w.signatures(checked)
			return errors.Join(w.err, err)
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
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", change.ID, change.Kind, status.Decision(change), status.Result(&entries[i]), status.By(change), change.Why)
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

// historyEntry is a change as numaform history prints it.
type historyEntry struct {
	audit.Entry
	// Signatures are the signatures of the change's approvals, checked with the list of allowed
	// signers of this configuration, as of the time of the change.
	Signatures []signatureCheck `json:"signatures,omitempty"`
}

// signatureCheck is the result of checking a signature of an approval again.
type signatureCheck struct {
	// Signer is the name of the key's owner, and Key the key's fingerprint, according to the
	// record.
	Signer string `json:"signer"`
	Key    string `json:"key"`
	Valid  bool   `json:"valid"`
	// Problem is why the signature is not valid.
	Problem string `json:"problem,omitempty"`
}

// checkEntries verifies the signatures of the changes again. It returns the results, and an
// error if a signature is invalid.
func checkEntries(config *operator.Config, entries []audit.Entry) ([]historyEntry, error) {
	policy, unreadable := config.Signatures()
	checked := make([]historyEntry, len(entries)) // an empty list, not null
	invalid := 0
	for i := range entries {
		change := &entries[i].Change
		checked[i].Entry = entries[i]
		for _, approval := range change.Approvals() {
			for j, err := range approval.Check(&policy, config.ClusterID, change.Time) {
				check := signatureCheck{Signer: approval.Signatures[j].Signer, Key: approval.Signatures[j].Key, Valid: err == nil}
				if err != nil {
					invalid++
					check.Problem = err.Error()
				}
				checked[i].Signatures = append(checked[i].Signatures, check)
			}
		}
	}
	if invalid > 0 {
		return checked, errors.Join(fmt.Errorf("signatures of approvals that are invalid with the current configuration: %d", invalid), unreadable)
	}
	return checked, nil
}

// signatures prints the results of checking signatures.
func (w *printer) signatures(entries []historyEntry) {
	shown := false
	for i := range entries {
		for _, check := range entries[i].Signatures {
			if !shown {
				w.heading("Signatures")
			}
			shown = true
			result := "valid"
			if !check.Valid {
				result = "INVALID: " + check.Problem
			}
			w.printf("  %s: %s with key %s: %s\n", entries[i].Change.ID, check.Signer, check.Key, result)
		}
	}
}

// entry prints all details of a change.
func (w *printer) entry(entry *audit.Entry) { //nolint:gocyclo // a line for each fact that a record may have
	change := &entry.Change
	w.heading(change.ID + ": " + string(change.Kind))
	w.printf("  why      %s\n  when     %s\n  by       %s, numaform %s\n  result   %s\n",
		change.Why, change.Time.Format(time.RFC3339), status.By(change), change.Version, status.Result(entry))
	if entry.Unreadable != "" {
		w.printf("  problem  %s\n", entry.Unreadable)
	}
	if entry.Doubt != "" {
		w.printf("  problem  the record of the change is %s\n", entry.Doubt)
	}
	if entry.OutcomeDoubt != "" {
		w.printf("  problem  the record of the outcome is %s\n", entry.OutcomeDoubt)
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
		{lead: "standby again", vms: change.Rested},
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
	for _, host := range change.Templates {
		w.printf("  templates of %s: create %s, delete %s\n    plan digest  %s\n    saved plan   SHA-256 %s\n    %s\n", host.Host,
			templateNames(host.Create), templateNames(host.Delete), host.PlanDigest, host.PlanSHA256,
			strings.ReplaceAll(host.Verdict.String(), "\n", "\n    "))
	}
	for _, line := range change.Outside {
		w.printf("  outside the plan: %s\n", line)
	}
	if entry.Outcome == nil {
		return
	}
	for _, host := range slices.Concat(entry.Outcome.Hosts, entry.Outcome.Templates) {
		if host.Error != "" {
			w.printf("  %s failed after %s: %s\n", host.Host, host.Duration.Round(time.Millisecond), host.Error)
		}
	}
}

// templateNames lists templates with their VMIDs.
func templateNames(list []audit.TemplateRef) string {
	var names []string
	for _, ref := range list {
		names = append(names, fmt.Sprintf("%s (%d)", ref.Name, ref.VMID))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
