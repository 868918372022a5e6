package placement

import (
	"fmt"
	"strings"
)

// String returns the name of the column, as printed.
func (c Column) String() string {
	return [columns]string{
		"prefix/OPT", "fill", "churn NUMA", "churn L3", "churn core", "churn refused",
		"calmer churn NUMA", "calmer churn L3", "calmer churn core", "calmer churn refused",
	}[c]
}

// section is a range of columns of one printed table. The table of the first section also
// contains the faults.
type section struct{ from, to Column }

var sections = [...]section{{Prefix, CalmNUMA}, {CalmNUMA, columns}}

func (s section) columns() []Column {
	var all []Column
	for c := s.from; c < s.to; c++ {
		all = append(all, c)
	}
	return all
}

func (s section) hasFaults() bool { return s.from == Prefix }

// headline returns the header of a table whose first column has that name.
func (s section) headline(first string) string {
	head, rule := "| "+first+" |", "|---|"
	for _, c := range s.columns() {
		head += " " + c.String() + " |"
		rule += "---|"
	}
	if s.hasFaults() {
		head += " CPUs given twice | cannot start | rules broken |"
		rule += "---|---|---|"
	}
	return head + "\n" + rule + "\n"
}

// Markdown returns the table, section by section: a line for each placer, numaform last,
// followed by the columns in which other placers are ahead.
func (t *Table) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Mix %s, %d runs. The optimum is proved in %d of them", t.Mix, len(t.Runs[0]), t.Proved)
	if t.Proved < len(t.Runs[0]) {
		fmt.Fprintf(&b, "; for the others its bound counts, and the mean gap of all is %.4f", t.Gap/float64(len(t.Runs[0])))
	}
	b.WriteString(".")
	if len(t.Left) > 0 {
		fmt.Fprintf(&b, " No VM of the mix is small enough for %s.", strings.Join(t.Left, ", "))
	}
	b.WriteString("\n\n" + t.print(sections[0]))
	fmt.Fprintf(&b, "\nMix %s, the calmer churn:\n\n%s", t.Mix, t.print(sections[1]))
	return b.String()
}

// print prints one section.
func (t *Table) print(s section) string {
	text := s.headline("placer")
	ours := t.Runs[len(t.Runs)-1]
	for i, name := range t.Placers {
		text += s.line(name, t.Runs[i], ours)
	}
	if notes := t.ahead(s); notes != "" {
		text += "\n* ahead of numaform:\n\n" + notes
	}
	return text
}

// line returns a table row with the means of runs. A star marks values that are ahead of
// numaform's.
func (s section) line(name string, runs, ours []Run) string {
	mean, faults := Mean(runs)
	text := "| " + name + " |"
	for _, c := range s.columns() {
		star := ""
		if lead, _ := Lead(runs, ours, c); isAhead(lead) {
			star = " *"
		}
		text += fmt.Sprintf(" %.4f%s |", mean[c], star)
	}
	if s.hasFaults() {
		text += fmt.Sprintf(" %d | %d | %d |", faults[FaultTwice], faults[FaultCannotStart], faults[FaultRule])
	}
	return text + "\n"
}

// isAhead reports whether a lead is more than a rounding error.
func isAhead(lead float64) bool { return lead >= 0.00005 }

// ahead explains each star: the size of the lead, the machine that contributes most to it,
// and the columns in which the placer is behind.
func (t *Table) ahead(s section) string {
	var b strings.Builder
	last := len(t.Runs) - 1
	for _, c := range s.columns() {
		for i, name := range t.Placers[:last] {
			lead, deviation := Lead(t.Runs[i], t.Runs[last], c)
			if !isAhead(lead) {
				continue
			}
			fmt.Fprintf(&b, "- %s, %s: by %.4f ± %.4f (standard error)", name, c, lead, deviation)
			if all := float64(len(t.Machines())); all > 1 {
				machine, most := t.mostAhead(t.Runs[i], t.Runs[last], c)
				fmt.Fprintf(&b, ", most on %s (by %.4f there, %+.4f on the others)", machine, most, (lead*all-most)/(all-1))
			}
			fmt.Fprintf(&b, ". Behind in %s.\n", t.behind(i, s))
		}
	}
	return b.String()
}

// mostAhead returns the machine on which a's lead over b is largest.
func (t *Table) mostAhead(a, b []Run, c Column) (machine string, most float64) {
	for _, name := range t.Machines() {
		if lead, _ := Lead(OnMachine(a, name), OnMachine(b, name), c); machine == "" || lead > most {
			machine, most = name, lead
		}
	}
	return machine, most
}

// behind lists the columns of a section in which a placer is behind numaform, and its
// faults.
func (t *Table) behind(placer int, s section) string {
	last := len(t.Runs) - 1
	var found []string
	for _, c := range s.columns() {
		if lead, _ := Lead(t.Runs[placer], t.Runs[last], c); isAhead(-lead) {
			found = append(found, fmt.Sprintf("%s (by %.4f)", c, -lead))
		}
	}
	_, theirs := Mean(t.Runs[placer])
	_, ours := Mean(t.Runs[last])
	for kind, text := range [faultKinds]string{"CPUs given twice", "cannot start", "rules broken"} {
		if theirs[kind] > ours[kind] {
			found = append(found, fmt.Sprintf("%s (%d times)", text, theirs[kind]))
		}
	}
	if len(found) == 0 {
		return "nothing"
	}
	return strings.Join(found, ", ")
}

// ByMachine returns a table of the last placer's means on each machine.
func (t *Table) ByMachine() string {
	last := len(t.Runs) - 1
	text := fmt.Sprintf("Mix %s, %s by machine:\n", t.Mix, t.Placers[last])
	for _, s := range sections {
		text += "\n" + s.headline("machine")
		for _, name := range t.Machines() {
			runs := OnMachine(t.Runs[last], name)
			text += s.line(name, runs, runs)
		}
	}
	return text
}
