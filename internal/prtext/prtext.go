// Package prtext writes the text of a pull request for a ScalePlan. Names of pods and reasons
// come from users of the cluster, so they are quoted: they cannot forge a line, end a block,
// mention a person or run a command of a forge. Nothing reads the text again. Start at Of.
package prtext

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/numaform/numaform/api/v1alpha1"
)

// Room is how much smaller a text without a file is, so that the caller can add to it.
const Room = 12 << 10

// Max is the maximum size of a text in bytes: GitHub accepts 65,536 characters.
const Max = 64 << 10

const (
	// maxTitle is far below the limits of the forges, 255 characters.
	maxTitle = 200
	// maxQuoted is the longest quoted text, in characters.
	maxQuoted = 300
	// maxReasons, maxPods, maxPools and maxHosts are how many are listed.
	maxReasons = 10
	maxPods    = 8
	maxPools   = 20
	maxHosts   = 40
	// maxOpen is the number of hosts whose pictures, and of VMs, are not folded.
	maxOpen = 4
	// ofVMs is the part of a text for the list of VMs; the plans get the rest.
	ofVMs = 28 << 10
)

// Picture is the image of a host before and after the change.
type Picture struct {
	Host string
	// Content is the address of the image, and Page that of the page to which it links, for
	// forges and readers that do not show it.
	Content, Page string
}

// Of returns the title and the text of a plan's pull request. file is the path of the whole
// plan on the branch; it is empty if the branch has the fleet after the change instead, and a
// person applies the change after the merge. note is a sentence for the reviewers, or empty.
func Of(plan *v1alpha1.ScalePlan, file, note string, pictures []Picture) (title, body string) {
	spec := &plan.Spec
	var head, end strings.Builder
	if note != "" {
		fmt.Fprintf(&head, "> %s\n\n", prose(note))
	}
	fmt.Fprintf(&head, "**total:** %s\n\n", totals(spec))
	item(&head, "Why", prose(spec.Why))
	item(&head, "Cost", prose(spec.Cost))
	item(&head, plural(len(spec.NodePools), "NodePool"), list(spec.NodePools, maxPools))
	item(&head, "Verdict of the guard", verdict(spec.Verdict.Decision))
	if len(spec.Reasons) > 0 {
		head.WriteString("- Requires approval because:\n")
		for _, reason := range spec.Reasons[:min(len(spec.Reasons), maxReasons)] {
			fmt.Fprintf(&head, "  - %s\n", prose(reason))
		}
		if n := len(spec.Reasons) - maxReasons; n > 0 {
			fmt.Fprintf(&head, "  - … and %d more %s, listed in the file\n", n, plural(n, "reason"))
		}
	}
	if plan.Name != "" {
		item(&head, "ScalePlan", code(plan.Name)+", requested by "+code(spec.RequestedBy))
	}
	fmt.Fprintf(&head, "\n**digest:** %s\n", code(spec.PlanHash))
	head.WriteString(cpuMaps(spec, pictures))

	most := Max
	if file == "" {
		most -= Room
		end.WriteString("\nThe files of this pull request are the fleet after the change. After the merge, `numaform apply` plans the change again, and applies it after a confirmation.\n")
	} else {
		fmt.Fprintf(&end, "\nThe whole plan is in the file %s. Its diff has the SHA-256 %s.\n\n"+
			"To approve, submit a review of this commit. An approval covers exactly this commit, and comments approve nothing.\n", code(file), code(spec.DiffSHA256))
	}

	text := head.String() + vms(spec, ofVMs)
	return titleOf(spec.Summary), text + plans(spec, most-len(text)-end.Len()) + end.String()
}

// verdict describes a decision of the guard.
func verdict(decision v1alpha1.VerdictDecision) string {
	switch decision {
	case v1alpha1.VerdictAllow:
		return "allowed"
	case v1alpha1.VerdictNeedsApproval:
		return "needs approval"
	case v1alpha1.VerdictDeny:
		return "denied: approval cannot override this"
	}
	return code(string(decision))
}

// address matches an address that can be part of Markdown and of a link.
var address = regexp.MustCompile(`^https?://[A-Za-z0-9._~:/?=%+@-]+$`)

// cpuMaps shows the pictures of the hosts, the first ones open.
func cpuMaps(spec *v1alpha1.ScalePlanSpec, pictures []Picture) string {
	pictures = slices.DeleteFunc(slices.Clone(pictures), func(p Picture) bool {
		return !address.MatchString(p.Content) || !address.MatchString(p.Page)
	})
	if len(pictures) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n### CPUs before and after\n")
	for i, picture := range pictures {
		if i == maxOpen {
			n := len(pictures) - i
			fmt.Fprintf(&b, "\n<details><summary>%d more %s</summary>\n", n, plural(n, "host"))
		}
		fmt.Fprintf(&b, "\n[![%s before and after](%s)](%s)\n", escape(picture.Host), picture.Content, picture.Page)
	}
	if len(pictures) > maxOpen {
		b.WriteString("\n</details>\n")
	}
	if n := len(spec.Hosts) - len(pictures); n > 0 {
		fmt.Fprintf(&b, "\nWithout a picture: %d more %s.\n", n, plural(n, "host"))
	}
	return b.String()
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

// item adds an item of a list, unless its value is empty.
func item(b *strings.Builder, name, value string) {
	if value != "" {
		fmt.Fprintf(b, "- %s: %s\n", name, value)
	}
}

// totals returns the number of VMs, hosts and pods of a change.
func totals(spec *v1alpha1.ScalePlanSpec) string {
	hosts := map[string]bool{}
	var need, move []v1alpha1.ScalePlanVM
	for _, vm := range spec.VMs {
		if vm.Host != "" {
			hosts[vm.Host] = true
		}
		if leaves(&vm) {
			move = append(move, vm)
		} else {
			need = append(need, vm)
		}
	}
	text := fmt.Sprintf("%d %s on %d %s: %s", len(spec.VMs), plural(len(spec.VMs), "VM"), len(hosts), plural(len(hosts), "host"), actions(spec.VMs))
	if n := countPods(need); n > 0 {
		text += fmt.Sprintf("; for %d %s", n, plural(n, "pod"))
	}
	if n := countPods(move); n > 0 {
		text += fmt.Sprintf("; pods that must move: %d", n)
	}
	return text
}

// leaves reports whether the pods of a VM are those that must move, not those that need it.
func leaves(vm *v1alpha1.ScalePlanVM) bool {
	return vm.Action == v1alpha1.ScalePlanDelete || vm.Action == v1alpha1.ScalePlanReplace
}

// countPods counts the pods of VMs. Similar VMs share one list, whose last entry can count
// the pods that it omits.
func countPods(vms []v1alpha1.ScalePlanVM) int {
	lists, pods := map[string]bool{}, map[string]bool{}
	unlisted := 0
	for i := range vms {
		listed, more := splitPods(vms[i].Pods)
		for _, pod := range listed {
			pods[pod] = true
		}
		if key := strings.Join(vms[i].Pods, "\x00"); !lists[key] {
			lists[key] = true
			unlisted += more
		}
	}
	return len(pods) + unlisted
}

// omitted matches the last entry of a list of pods that omits some.
var omitted = regexp.MustCompile(`^and ([0-9]{1,6}) more$`)

// splitPods returns the pods of a list, and how many it omits.
func splitPods(list []string) (pods []string, unlisted int) {
	if n := len(list); n > 0 {
		if more := omitted.FindStringSubmatch(list[n-1]); more != nil {
			unlisted, _ = strconv.Atoi(more[1]) // few digits
			return list[:n-1], unlisted
		}
	}
	return list, 0
}

// actions counts VMs by what happens to them, such as "3 created, 1 removed".
func actions(vms []v1alpha1.ScalePlanVM) string {
	counts := map[v1alpha1.ScalePlanAction]int{}
	for i := range vms {
		counts[vms[i].Action]++
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
	return cmp.Or(strings.Join(parts, ", "), "no VM changes")
}

// vms returns the VMs of each host: their numbers, and each with its pods and the reason for
// its placement, at most most bytes. A long list is folded, and VMs that do not fit are
// counted.
func vms(spec *v1alpha1.ScalePlanSpec, most int) string {
	if len(spec.VMs) == 0 {
		return ""
	}
	byHost := map[string][]v1alpha1.ScalePlanVM{}
	for _, vm := range spec.VMs {
		byHost[vm.Host] = append(byHost[vm.Host], vm)
	}
	hosts := make([]string, 0, len(byHost))
	for host := range byHost {
		hosts = append(hosts, host)
	}
	slices.SortFunc(hosts, func(a, b string) int { // VMs without a host yet come last
		return cmp.Or(cmp.Compare(min(len(b), 1), min(len(a), 1)), cmp.Compare(a, b))
	})

	var b strings.Builder
	b.WriteString("\n### Pods, VMs and hosts\n\n")
	folded := len(spec.VMs) > maxOpen
	closing := ""
	if folded {
		for _, host := range hosts[:min(len(hosts), maxHosts)] {
			fmt.Fprintf(&b, "- %s: %s; %s\n", place(host), actions(byHost[host]), sizes(byHost[host]))
		}
		more(&b, len(hosts)-maxHosts, "host")
		fmt.Fprintf(&b, "\n<details><summary>Each of the %d VMs: its pods, its host, and why</summary>\n\n", len(spec.VMs))
		closing = "\n</details>\n"
	}
	shown := 0
	for _, host := range hosts {
		for i := range byHost[host] {
			entry := entryOf(&byHost[host][i])
			if b.Len()+len(entry)+len(closing) > most {
				more(&b, len(spec.VMs)-shown, "VM")
				return b.String() + closing
			}
			b.WriteString(entry)
			shown++
		}
	}
	return b.String() + closing
}

// place quotes a host, or says that there is none yet.
func place(host string) string {
	if host == "" {
		return "a host that is selected after the approval"
	}
	return code(host)
}

// sizes counts VMs by their instance types.
func sizes(vms []v1alpha1.ScalePlanVM) string {
	counts := map[string]int{}
	var names []string
	for i := range vms {
		name := vms[i].InstanceType
		if counts[name]++; counts[name] == 1 {
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) })
	var parts []string
	for _, name := range names[:min(len(names), 4)] {
		parts = append(parts, fmt.Sprintf("%d of %s", counts[name], code(cmp.Or(name, "unknown type"))))
	}
	if n := len(names) - 4; n > 0 {
		parts = append(parts, fmt.Sprintf("%d more %s", n, plural(n, "type")))
	}
	return strings.Join(parts, ", ")
}

// podsOf quotes the pods of a VM, and counts those that are not listed.
func podsOf(vm *v1alpha1.ScalePlanVM) string {
	pods, unlisted := splitPods(vm.Pods)
	if unlisted += max(len(pods)-maxPods, 0); unlisted == 0 {
		return list(pods, maxPods)
	}
	return list(pods[:min(len(pods), maxPods)], maxPods) + fmt.Sprintf(" and %d more", unlisted)
}

// entryOf describes a VM: pods, VM, host, and the reason. Pods of a VM to be removed move.
func entryOf(vm *v1alpha1.ScalePlanVM) string {
	var b strings.Builder
	b.WriteString("- ")
	pods := podsOf(vm)
	if pods != "" && !leaves(vm) {
		fmt.Fprintf(&b, "for %s: ", pods)
	}
	fmt.Fprintf(&b, "**%s** ", strings.ToLower(escape(line(string(vm.Action), 20))))
	if vm.Name != "" {
		fmt.Fprintf(&b, "%s, ", code(vm.Name))
	}
	fmt.Fprintf(&b, "%s of NodePool %s on %s", code(cmp.Or(vm.InstanceType, "a VM")), code(vm.NodePool), place(vm.Host))
	if pods != "" && leaves(vm) {
		fmt.Fprintf(&b, "; its pods move: %s", pods)
	}
	if vm.Reason != "" {
		fmt.Fprintf(&b, "<br>%s", prose(vm.Reason))
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

// plain matches a text without anything that a forge resolves or renders: no mention,
// reference, markup, HTML or address.
var (
	plain   = regexp.MustCompile(`^[+-]?[A-Za-z0-9][A-Za-z0-9 .,:;()+=/-]*$`)
	resolve = regexp.MustCompile(`(?i://|www\.|\bgh-)|[A-Z]-[0-9]`)
)

// prose returns a sentence as it is if it is harmless, and as code otherwise.
func prose(text string) string {
	if text = line(text, maxQuoted); plain.MatchString(text) && !resolve.MatchString(text) || text == "" {
		return text
	}
	return code(text)
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
