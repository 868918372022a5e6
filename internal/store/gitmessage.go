package store

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/topology"
)

// The maximum widths in a commit message.
const (
	subjectWidth = 72
	bodyWidth    = 72
)

// message returns a change's commit message: a summary in the subject, the reasons in the
// body, and machine-readable data in the trailers.
func message(change *audit.Change) string {
	var b strings.Builder
	b.WriteString(subject(change) + "\n\n")
	if why := line(change.Why); why != "" {
		b.WriteString(wrap(why, "") + "\n")
	}
	for _, part := range parts(change) {
		for i := range part.vms {
			vm := &part.vms[i]
			text := fmt.Sprintf("%s %s on %s", part.sign, vm.Name, vm.Host.Host)
			if vm.Reason != "" {
				text += ": " + vm.Reason
			}
			b.WriteString(wrap(line(text), "  ") + "\n")
		}
	}
	b.WriteString("\n")

	trailer := func(key, value string) {
		fmt.Fprintf(&b, "Numaform-%s: %s\n", key, line(value))
	}
	trailer("Change", change.ID)
	trailer("Kind", string(change.Kind))
	trailer("Why", change.Why)
	if change.Undoes != "" {
		trailer("Undoes", change.Undoes)
	}
	if change.Actor != "" {
		trailer("Actor", change.Actor)
	}
	var approvers []string
	for i := range change.Hosts {
		host := &change.Hosts[i]
		if host.PlanSHA256 != "" {
			trailer("Plan", fmt.Sprintf("%s sha256:%s", host.Host, host.PlanSHA256))
		}
		trailer("Verdict", fmt.Sprintf("%s %s", host.Host, host.Verdict.Decision))
		if host.Approver != "" && !slices.Contains(approvers, host.Approver) {
			approvers = append(approvers, host.Approver)
		}
	}
	if approval := change.Approval; approval != nil {
		if !slices.Contains(approvers, approval.By) {
			approvers = append(approvers, approval.By)
		}
		trailer("Approved-Digest", approval.Digest)
	}
	for _, approval := range change.Approvals() {
		for _, signature := range approval.Signatures {
			trailer("Signed-By", signature.Signer+" "+signature.Key)
		}
		if approval.BreakGlass != "" {
			trailer("Break-Glass", approval.BreakGlass)
		}
	}
	for _, approver := range approvers {
		trailer("Approver", approver)
	}
	return b.String()
}

// part contains the VMs that a change adds, removes, renumbers or wakes, or whose wake was
// given up.
type part struct {
	sign, verb string
	vms        []fleet.VM
}

func parts(change *audit.Change) []part {
	list := []part{
		{"+", "add", change.Added},
		{"-", "remove", change.Removed},
		{"~", "renumber", change.Renumbered},
		{"*", "wake", change.Woken},
		{"=", "return to standby", change.Rested},
	}
	return slices.DeleteFunc(list, func(p part) bool { return len(p.vms) == 0 })
}

// subject summarizes a change in at most subjectWidth characters: with names if they fit,
// otherwise with counts.
func subject(change *audit.Change) string {
	var withNames, withHosts, withCounts []string
	for _, p := range parts(change) {
		var names, hosts []string
		for i := range p.vms {
			names = append(names, p.vms[i].Name)
			hosts = append(hosts, string(p.vms[i].Host.Host))
		}
		slices.Sort(hosts)
		hosts = slices.Compact(hosts)

		on := " on " + strings.Join(hosts, ", ")
		withNames = append(withNames, p.verb+" "+strings.Join(names, ", ")+on)
		withHosts = append(withHosts, p.verb+" "+topology.Count(len(names), "node")+on)
		withCounts = append(withCounts, p.verb+" "+topology.Count(len(names), "node")+" on "+topology.Count(len(hosts), "host"))
	}
	for _, list := range [][]string{withNames, withHosts, withCounts} {
		text := strings.Join(list, "; ")
		if text == "" {
			text = withoutVMs(change)
		}
		if change.Kind == audit.KindUndo {
			text = "undo: " + text
		}
		if text = line("numaform: " + text); len(text) <= subjectWidth {
			return text
		}
	}
	return "numaform: change the fleet"
}

// withoutVMs summarizes a change without parts.
func withoutVMs(change *audit.Change) string {
	switch change.Kind {
	case audit.KindByHand:
		return "adopt edits made by hand"
	case audit.KindRecovery:
		if len(change.Hosts) == 0 && len(change.Outside) > 0 {
			return "record writes outside a plan"
		}
		return "finish an earlier change"
	case audit.KindUpdate:
		return "change tags, pool, groups or emulator of VMs in place"
	case audit.KindRepair:
		return "revert drift"
	case audit.KindTemplates:
		return "change templates"
	}
	return "write the fleet's files"
}

// line converts a text to one line, so that git cannot parse part of it as a trailer.
func line(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// wrap breaks a line at bodyWidth and indents continuation lines.
func wrap(text, indent string) string {
	var lines []string
	current := ""
	for _, word := range strings.Fields(text) {
		switch {
		case current == "":
			current = word
		case len(current)+1+len(word) > bodyWidth:
			lines = append(lines, current)
			current = indent + word
		default:
			current += " " + word
		}
	}
	return strings.Join(append(lines, current), "\n")
}
