package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// summary prints the facts on which a reviewer decides. It has at most 10 lines in a
// terminal of at least 60 columns.
func (w *printer) summary(rows [][]string) {
	w.printf("\n%s\n", w.Bold("Summary"))
	shown := rows[:0:0]
	label := 0
	for _, row := range rows {
		if row[1] != "" {
			label = max(label, len(row[0]))
		}
	}
	for _, row := range rows {
		if row[1] == "" {
			continue
		}
		// A digest that does not fit is recognizable by its start.
		if space := w.Width - len("    ") - label; w.Wrap && !strings.Contains(row[1], " ") && len(row[1]) > space {
			row = []string{row[0], row[1][:space-1] + "…"}
		}
		shown = append(shown, row)
	}
	w.raw(w.Table(2, shown))
}

// summary returns the rows of a change's summary.
func (r *report) summary(digest string) [][]string {
	hosts := map[topology.HostID]bool{}
	var deleted []string
	creates := false
	for i := range r.Actions {
		a := &r.Actions[i]
		hosts[a.Host] = true
		switch a.Action {
		case actionDestroy:
			deleted = append(deleted, a.Name)
		case actionCreate, actionRecreate:
			creates = true
		}
	}
	change := totals(r.Actions)
	if change == "" {
		change = "update the state or the fleet's files, no VM"
	} else {
		change += " on " + topology.Count(len(hosts), "host")
	}
	decision := ""
	var reasons []string
	for _, strictest := range []guard.Decision{guard.Allow, guard.NeedsApproval, guard.Deny} {
		for i := range r.Hosts {
			if r.Hosts[i].Decision == strictest.String() {
				decision = r.Hosts[i].Decision
			}
		}
	}
	for i := range r.Hosts {
		for _, finding := range r.Hosts[i].Findings {
			if finding.Decision != guard.Allow && !slices.Contains(reasons, finding.Message) {
				reasons = append(reasons, finding.Message)
			}
		}
	}
	return [][]string{
		{"Change", change},
		{"Undoes", r.undoes},
		{"Cost", r.Cost.Short()},
		{"Risk", risk(deleted, creates)},
		{"Guard", verdictWith(decision, len(reasons))},
		{"Digest", digest},
	}
}

// risk describes which VMs lose their data, and what undo does.
func risk(deleted []string, creates bool) string {
	switch {
	case len(deleted) > 0:
		return fmt.Sprintf("deletes the disks of %s; undo creates new VMs, but does not restore the data", topology.Named(deleted))
	case creates:
		return "deletes nothing; undo removes the new VMs"
	}
	return "deletes nothing"
}

// verdictWith returns a decision and the number of its reasons.
func verdictWith(decision string, reasons int) string {
	if reasons == 0 {
		return decision
	}
	return fmt.Sprintf("%s, %s above", decision, topology.Count(reasons, "reason"))
}
