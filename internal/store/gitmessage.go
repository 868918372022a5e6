package store

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
)

// The maximum widths in a commit message.
const (
	subjectWidth = 72
	bodyWidth    = 72
)

// message returns a change's commit message: what in the subject, why in the body, and
// machine-readable data in the trailers.
func message(change *audit.Change) string {
	var b strings.Builder
	b.WriteString(subject(change) + "\n\n")
	if why := line(change.Why); why != "" {
		b.WriteString(wrap(why, "") + "\n")
	}
	for _, list := range []struct {
		verb string
		vms  []fleet.VM
	}{{"+", change.Added}, {"-", change.Removed}, {"~", change.Renumbered}} {
		for i := range list.vms {
			vm := &list.vms[i]
			text := fmt.Sprintf("%s %s on %s", list.verb, vm.Name, vm.Host.Host)
			if vm.Reason != "" {
				text += ": " + vm.Reason
			}
			b.WriteString(wrap(line(text), "  ") + "\n")
		}
	}
	b.WriteString("\n")
	for _, trailer := range trailers(change) {
		fmt.Fprintf(&b, "Numaform-%s: %s\n", trailer[0], line(trailer[1]))
	}
	return b.String()
}

func trailers(change *audit.Change) [][2]string {
	list := [][2]string{{"Change", change.ID}, {"Kind", string(change.Kind)}, {"Why", change.Why}}
	if change.Undoes != "" {
		list = append(list, [2]string{"Undoes", change.Undoes})
	}
	if change.Actor != "" {
		list = append(list, [2]string{"Actor", change.Actor})
	}
	var approvers []string
	for i := range change.Shards {
		shard := &change.Shards[i]
		if shard.PlanSHA256 != "" {
			list = append(list, [2]string{"Plan", fmt.Sprintf("%s sha256:%s", shard.Host, shard.PlanSHA256)})
		}
		list = append(list, [2]string{"Verdict", fmt.Sprintf("%s %s", shard.Host, shard.Verdict.Decision)})
		if shard.Approver != "" && !slices.Contains(approvers, shard.Approver) {
			approvers = append(approvers, shard.Approver)
		}
	}
	for _, approver := range approvers {
		list = append(list, [2]string{"Approver", approver})
	}
	return list
}

// subject says what a change does in at most subjectWidth characters: with names if they
// fit, or else with counts.
func subject(change *audit.Change) string {
	for _, short := range []func([]fleet.VM) string{namesOf, countsOf, plainOf} {
		var parts []string
		for _, list := range []struct {
			verb string
			vms  []fleet.VM
		}{{"add ", change.Added}, {"remove ", change.Removed}, {"renumber ", change.Renumbered}} {
			if len(list.vms) > 0 {
				parts = append(parts, list.verb+short(list.vms))
			}
		}
		text := strings.Join(parts, "; ")
		if text == "" {
			text = withoutVMs(change.Kind)
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

func withoutVMs(kind audit.Kind) string {
	switch kind {
	case audit.KindByHand:
		return "take over what was edited by hand"
	case audit.KindRecovery:
		return "finish what was left undone"
	case audit.KindUpdate:
		return "change tags, pool, groups or emulator of VMs in place"
	case audit.KindRepair:
		return "take back drift"
	}
	return "write the fleet's files"
}

func namesOf(vms []fleet.VM) string {
	names := make([]string, len(vms))
	for i := range vms {
		names[i] = vms[i].Name
	}
	return strings.Join(names, ", ") + " on " + strings.Join(hostsOf(vms), ", ")
}

func countsOf(vms []fleet.VM) string {
	return count(len(vms), "node") + " on " + strings.Join(hostsOf(vms), ", ")
}

func plainOf(vms []fleet.VM) string {
	return count(len(vms), "node") + " on " + count(len(hostsOf(vms)), "host")
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func hostsOf(vms []fleet.VM) []string {
	var hosts []string
	for i := range vms {
		hosts = append(hosts, string(vms[i].Host.Host))
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// line turns a text into one line, so that no part of it can be parsed as a trailer.
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
