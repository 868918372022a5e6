// Package prtext writes the text of a pull request for a ScalePlan. Names of pods and reasons
// come from users of the cluster, so they are quoted: they cannot forge a line, end a block,
// mention a person or run a command of a forge. Nothing reads the text again. Start at Of.
package prtext

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/numaform/numaform/api/v1alpha1"
)

// Max is the maximum size of a text in bytes: GitHub accepts 65,536 characters.
const Max = 64 << 10

const (
	// maxTitle is far below the limits of the forges, 255 characters.
	maxTitle = 200
	// maxQuoted is the longest quoted text, in characters.
	maxQuoted = 300
	// maxReasons, maxPods and maxPools are how many are listed.
	maxReasons = 10
	maxPods    = 8
	maxPools   = 20
	// ofVMs is the part of a text for the list of VMs; the plans get the rest.
	ofVMs = 28 << 10
)

// Of returns the title and the text of a plan's pull request. file is the path of the whole
// plan on the branch; note is a sentence for the reviewers, or empty.
func Of(plan *v1alpha1.ScalePlan, file, note string) (title, body string) {
	spec := &plan.Spec
	var head, end strings.Builder
	if note != "" {
		fmt.Fprintf(&head, "> %s\n\n", code(note))
	}
	fmt.Fprintf(&head, "**digest:** %s\n\n", code(spec.PlanHash))
	fmt.Fprintf(&head, "**total:** %s\n\n", totals(spec))
	fmt.Fprintf(&head, "- Change: %s\n", code(spec.Summary))
	item(&head, "Why", spec.Why)
	item(&head, "Cost", spec.Cost)
	fmt.Fprintf(&head, "- %s: %s\n", plural(len(spec.NodePools), "NodePool"), list(spec.NodePools, maxPools))
	fmt.Fprintf(&head, "- Verdict of the guard: %s\n", code(string(spec.Verdict.Decision)))
	fmt.Fprintf(&head, "- ScalePlan: %s, requested by %s\n", code(plan.Name), code(spec.RequestedBy))
	if len(spec.Reasons) > 0 {
		head.WriteString("\nIt requires approval, because:\n\n")
		for _, reason := range spec.Reasons[:min(len(spec.Reasons), maxReasons)] {
			fmt.Fprintf(&head, "- %s\n", code(reason))
		}
		more(&head, len(spec.Reasons)-maxReasons, "reason")
	}

	fmt.Fprintf(&end, "\nThe whole plan is in the file %s. Its diff has the SHA-256 %s.\n\n"+
		"To approve, submit a review of this commit. An approval covers exactly this commit, and comments approve nothing.\n", code(file), code(spec.DiffSHA256))

	text := head.String() + vms(spec, ofVMs)
	return titleOf(spec.Summary), text + plans(spec, Max-len(text)-end.Len()) + end.String()
}

// titleOf returns a title with letters, digits and some punctuation only: forges also resolve
// mentions and references in titles.
func titleOf(summary string) string {
	plain := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" .,:;()/+-_%=→", r) {
			return r
		}
		return '-'
	}, line(summary, maxTitle-len("numaform: ")))
	return "numaform: " + plain
}

func item(b *strings.Builder, name, value string) {
	if strings.TrimSpace(value) != "" {
		fmt.Fprintf(b, "- %s: %s\n", name, code(value))
	}
}

// totals returns the number of VMs, hosts and pods of a change.
func totals(spec *v1alpha1.ScalePlanSpec) string {
	counts := map[v1alpha1.ScalePlanAction]int{}
	hosts, pods := map[string]bool{}, map[string]bool{}
	for i := range spec.VMs {
		vm := &spec.VMs[i]
		counts[vm.Action]++
		hosts[vm.Host] = true
		for _, pod := range vm.Pods {
			pods[pod] = true
		}
	}
	var parts []string
	for _, one := range []struct {
		action v1alpha1.ScalePlanAction
		done   string
	}{
		{v1alpha1.ScalePlanCreate, "created"},
		{v1alpha1.ScalePlanWake, "woken"},
		{v1alpha1.ScalePlanUpdate, "changed"},
		{v1alpha1.ScalePlanReplace, "replaced"},
		{v1alpha1.ScalePlanDelete, "removed"},
	} {
		if n := counts[one.action]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, one.done))
		}
	}
	text := fmt.Sprintf("%d %s on %d %s", len(spec.VMs), plural(len(spec.VMs), "VM"), len(hosts), plural(len(hosts), "host"))
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if len(pods) > 0 {
		text += fmt.Sprintf("; for %d %s", len(pods), plural(len(pods), "pod"))
	}
	return text
}

// vms returns the VMs by host, at most most bytes. VMs that do not fit are counted.
func vms(spec *v1alpha1.ScalePlanSpec, most int) string {
	if len(spec.VMs) == 0 {
		return ""
	}
	byHost := map[string][]*v1alpha1.ScalePlanVM{}
	for i := range spec.VMs {
		vm := &spec.VMs[i]
		byHost[vm.Host] = append(byHost[vm.Host], vm)
	}
	hosts := make([]string, 0, len(byHost))
	for host := range byHost {
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)

	var b strings.Builder
	b.WriteString("\n### Pods, VMs and hosts\n")
	shown := 0
	for _, host := range hosts {
		heading := fmt.Sprintf("\nOn %s, %d %s:\n\n", code(host), len(byHost[host]), plural(len(byHost[host]), "VM"))
		for i, vm := range byHost[host] {
			entry := entryOf(vm)
			if i == 0 {
				entry = heading + entry
			}
			if b.Len()+len(entry) > most {
				more(&b, len(spec.VMs)-shown, "VM")
				return b.String()
			}
			b.WriteString(entry)
			shown++
		}
	}
	return b.String()
}

func entryOf(vm *v1alpha1.ScalePlanVM) string {
	var b strings.Builder
	fmt.Fprintf(&b, "- %s %s", strings.ToLower(line(string(vm.Action), 20)), code(cmp.Or(vm.InstanceType, "a VM")))
	if vm.Name != "" {
		fmt.Fprintf(&b, " %s", code(vm.Name))
	}
	fmt.Fprintf(&b, " of %s", code(vm.NodePool))
	if len(vm.Pods) > 0 {
		fmt.Fprintf(&b, " for %s", list(vm.Pods, maxPods))
	}
	if vm.Reason != "" {
		fmt.Fprintf(&b, ": %s", code(vm.Reason))
	}
	b.WriteString("\n")
	return b.String()
}

// plans returns the plans of the hosts, folded, at most most bytes. Plans that do not fit are
// named.
func plans(spec *v1alpha1.ScalePlanSpec, most int) string {
	const room = 200 // for the line about plans that do not fit
	var b strings.Builder
	parts := byHost(spec.Diff)
	for i, part := range parts {
		name := "of all hosts"
		if part.host != "" {
			name = "of " + escape(part.host)
		}
		fence := fenceOf(part.text)
		opening := fmt.Sprintf("\n<details><summary>Plan %s</summary>\n\n%stext\n", name, fence)
		closing := fmt.Sprintf("%s\n\n</details>\n", fence)
		if b.Len()+len(opening)+len(part.text)+len(closing) > most-room {
			fmt.Fprintf(&b, "\n%d of %d plans are only in the file, because they are too long for this text.\n", len(parts)-i, len(parts))
			break
		}
		b.WriteString(opening + part.text + closing)
	}
	return b.String()
}

type part struct{ host, text string }

// byHost splits a diff into the plans of hosts, whose lines are indented and printable.
func byHost(diff string) []part {
	var parts []part
	var b strings.Builder
	end := func() {
		if len(parts) > 0 {
			parts[len(parts)-1].text = b.String()
		}
		b.Reset()
	}
	for raw := range strings.Lines(diff) {
		text := strings.TrimRight(printable(strings.TrimRight(raw, "\n")), " ")
		if host, found := strings.CutPrefix(text, "# Host "); found {
			end()
			parts = append(parts, part{host: line(host, 130)})
			continue
		}
		if len(parts) == 0 {
			if text == "" {
				continue
			}
			parts = append(parts, part{})
		}
		if text != "" {
			text = "  " + text
		}
		b.WriteString(text + "\n")
	}
	end()
	return parts
}

// fenceOf returns a fence that is longer than each run of backquotes in a text.
func fenceOf(text string) string {
	longest, run := 2, 0
	for _, r := range text {
		run++
		if r != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	return strings.Repeat("`", longest+1)
}

// code quotes a text as code in one line. In code, forges resolve no mention, reference, link
// or markup, and a line that does not begin with it is no command.
func code(text string) string {
	text = strings.ReplaceAll(line(text, maxQuoted), "`", "'")
	if text == "" {
		return "(none)"
	}
	return "`" + text + "`"
}

// escape returns a text for HTML outside code, with letters, digits and the punctuation of
// names only.
func escape(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("./-_", r) {
			return r
		}
		return '-'
	}, text)
}

// line returns a text as one printable line with at most most characters.
func line(text string, most int) string {
	runes := []rune(strings.Join(strings.Fields(printable(text)), " "))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// printable replaces control, format and invalid characters, which could hide or reorder
// text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == unicode.ReplacementChar || !unicode.IsPrint(r) || unicode.IsMark(r):
			return '?'
		}
		return r
	}, text)
}

// list quotes the first texts of a list, and counts the others.
func list(texts []string, most int) string {
	var quoted []string
	for _, text := range texts[:min(len(texts), most)] {
		quoted = append(quoted, code(text))
	}
	joined := strings.Join(quoted, ", ")
	if n := len(texts) - most; n > 0 {
		joined += fmt.Sprintf(" and %d more", n)
	}
	return joined
}

func more(b *strings.Builder, n int, what string) {
	if n > 0 {
		fmt.Fprintf(b, "- … and %d more %s, listed in the file\n", n, plural(n, what))
	}
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
