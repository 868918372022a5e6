package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numaform/numaform/topology"
)

// Grouped returns the findings to print. It merges findings that differ only in their place
// and in numbers into the first of them, with the list of places and the ranges of numbers.
func (r Report) Grouped() Report {
	type key struct {
		check    string
		status   Status
		sentence string
		fix      string
	}
	groups := map[key][]Finding{}
	keyOf := func(f *Finding) key {
		return key{check: f.Check, status: f.Status, sentence: values.ReplaceAllString(f.What, "${1}0"), fix: f.Fix}
	}
	for i := range r {
		k := keyOf(&r[i])
		groups[k] = append(groups[k], r[i])
	}

	var grouped Report
	for i := range r {
		group := groups[keyOf(&r[i])]
		if group == nil {
			continue // it was merged into an earlier finding
		}
		delete(groups, keyOf(&r[i]))
		finding, places := group[0], []string{}
		for _, f := range group {
			places = append(places, f.Where)
		}
		finding.Where = listed(places)
		finding.What = mergeValues(group)
		grouped = append(grouped, finding)
	}
	return grouped
}

// listed lists places as topology.Named, with the number of places after a range:
// "lab/pve01…pve40 (40)", "class a on lab/pve1, lab/pve2; class b on lab/pve1".
func listed(places []string) string {
	places = slices.Compact(slices.Sorted(slices.Values(places)))
	var leads []string // such as "class workers on "
	on := map[string][]string{}
	for _, place := range places {
		at := 0
		if i := strings.LastIndex(place, " on "); i >= 0 {
			at = i + len(" on ")
		}
		lead := place[:at]
		if on[lead] == nil {
			leads = append(leads, lead)
		}
		on[lead] = append(on[lead], place[at:])
	}
	var parts []string
	for _, lead := range leads {
		parts = append(parts, lead+topology.Named(on[lead]))
	}
	text := strings.Join(parts, "; ")
	if strings.Contains(text, "…") {
		text += fmt.Sprintf(" (%d)", len(places))
	}
	return text
}

// values matches the words of a sentence that start with a digit: counts, sizes, ages and
// times.
var values = regexp.MustCompile(`(^|[\s(])\d(?:[\w.:+-]*\w)?`)

// mergeValues returns the sentence of findings that differ only in values, with a range in
// place of each value that differs: "has 4…6 MiB free".
func mergeValues(group []Finding) string {
	first := values.FindAllStringIndex(group[0].What, -1)
	if len(group) == 1 || len(first) == 0 {
		return group[0].What
	}
	var out strings.Builder
	end := 0
	for i, at := range first {
		out.WriteString(group[0].What[end:at[0]])
		end = at[1]
		least := group[0].What[at[0]:at[1]]
		most := least
		for _, f := range group[1:] {
			value := values.FindAllString(f.What, -1)[i]
			if compareValues(value, least) < 0 {
				least = value
			}
			if compareValues(value, most) > 0 {
				most = value
			}
		}
		out.WriteString(least)
		if most != least {
			out.WriteString("…" + strings.TrimLeft(most, " \t\n("))
		}
	}
	out.WriteString(group[0].What[end:])
	return out.String()
}

// compareValues compares numbers and durations by size, and everything else as text.
func compareValues(a, b string) int {
	a, b = strings.TrimLeft(a, " \t\n("), strings.TrimLeft(b, " \t\n(")
	if x, err := strconv.ParseFloat(a, 64); err == nil {
		if y, err := strconv.ParseFloat(b, 64); err == nil {
			return cmp.Compare(x, y)
		}
	}
	if x, err := time.ParseDuration(a); err == nil {
		if y, err := time.ParseDuration(b); err == nil {
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(a, b)
}
