package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// Grouped returns the findings to print. It merges findings that differ only in their place
// and in values into the first of them, with the list of places and the ranges of amounts.
func (r Report) Grouped() Report {
	type key struct {
		check  string
		status Status
		form   string
		fix    string
	}
	groups := map[key][]Finding{}
	keyOf := func(f *Finding) key {
		return key{check: f.Check, status: f.Status, form: f.form(), fix: f.Fix}
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
		finding.What, finding.Values = merged(group), nil
		grouped = append(grouped, finding)
	}
	return grouped
}

// Lines returns each sentence once, with its places.
func (r Report) Lines() []string {
	var lines []string
	for _, finding := range r.Grouped() {
		lines = append(lines, finding.Line())
	}
	return lines
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

// form returns the sentence of a finding without its values, but with their units.
func (f *Finding) form() string {
	var form strings.Builder
	end := 0
	for _, value := range f.Values {
		form.WriteString(f.What[end:value.At] + "\x00" + strings.TrimSuffix(value.Unit, "s"))
		end = value.At + len(value.Text)
	}
	form.WriteString(f.What[end:])
	return form.String()
}

// merged returns the sentence of findings that differ only in values: with a range in place
// of each value that differs, and the list of VMIDs: "has 4…6 MiB free", "VMIDs 9001, 9004".
func merged(group []Finding) string {
	first := &group[0]
	var out strings.Builder
	end := 0
	for i, value := range first.Values {
		out.WriteString(first.What[end:value.At])
		end = value.At + len(value.Text)
		least, most := value, value
		vmids := map[string]bool{}
		for _, f := range group {
			other := f.Values[i]
			if other.Size < least.Size {
				least = other
			}
			if other.Size > most.Size {
				most = other
			}
			vmids[strconv.Itoa(other.VMID)] = true
		}
		switch {
		case len(vmids) > 1:
			out.WriteString("VMIDs " + topology.Named(slices.Collect(maps.Keys(vmids))))
		case least.Text != most.Text:
			out.WriteString(strings.TrimSuffix(least.Text, least.Unit) + "…" + most.Text)
		default:
			out.WriteString(value.Text)
		}
	}
	return out.String() + first.What[end:]
}
