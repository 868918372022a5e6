package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numaform/numaform/topology"
)

// Grouped returns the findings to print. It merges findings that differ only in their place
// and in values into the first of them, with the list of places and the ranges of amounts.
func (r Report) Grouped() Report {
	type key struct {
		check    string
		status   Status
		sentence string
		values   int
		fix      string
	}
	groups := map[key][]Finding{}
	keyOf := func(f *Finding) key {
		sentence, values := split(f.What)
		return key{check: f.Check, status: f.Status, sentence: sentence, values: len(values), fix: f.Fix}
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
		finding.What = merged(group)
		grouped = append(grouped, finding)
	}
	return grouped
}

// listed lists places as topology.Named does, with the number of places after a range:
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

// value is a part of a sentence in which merged findings may differ.
type value struct {
	start, end int
	// size orders amounts, times and durations. A VMID has none.
	size float64
	vmid bool
}

// values matches the values of sentences. All other numbers, such as versions, ports, lists
// of CPUs and statuses, identify something, and the numbers of a fraction belong together: a
// range of them would be false.
var values = regexp.MustCompile(`(?:^|[\s(])(?:(\d+ of \d+)|(VMID \d+)|` +
	`(\d+(?:\.\d+)?) (?:[KMGT]iB|v?CPUs?|NUMA nodes?|VMs?|guests?)\b|` +
	`(\d{4}-\d\d-\d\dT[\d:]+Z)|((?:\d+(?:\.\d+)?(?:ms|[smhd]))+)(?:[\s,;:)]|$))`)

// The capture groups of the expression values.
const (
	fraction = iota + 1
	vmid
	amount
	moment
	duration
)

// split returns the values of a sentence, and the sentence without them. Two VMIDs in a
// sentence belong together and are not values.
func split(sentence string) (form string, found []value) {
	vmids := 0
	for _, at := range values.FindAllStringSubmatchIndex(sentence, -1) {
		group := fraction
		for at[2*group] < 0 {
			group++
		}
		v := value{start: at[2*group], end: at[2*group+1], vmid: group == vmid}
		text := sentence[v.start:v.end]
		var err error
		switch group {
		case fraction:
			continue
		case vmid:
			vmids++
		case amount:
			v.size, err = strconv.ParseFloat(text, 64)
		case moment:
			var t time.Time
			t, err = time.Parse(time.RFC3339, text)
			v.size = float64(t.Unix())
		case duration:
			v.size, err = seconds(text)
		}
		if err == nil {
			found = append(found, v)
		}
	}
	if vmids > 1 {
		found = slices.DeleteFunc(found, func(v value) bool { return v.vmid })
	}
	end := 0
	for _, v := range found {
		form += sentence[end:v.start] + "\x00"
		end = v.end
	}
	return form + sentence[end:], found
}

// seconds parses a duration, such as 1m30s, or an age in days.
func seconds(text string) (float64, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		return n * 24 * 3600, err
	}
	parsed, err := time.ParseDuration(text)
	return parsed.Seconds(), err
}

// merged returns the sentence of findings that differ only in values: with a range in place
// of each value that differs, and the list of VMIDs: "has 4…6 MiB free", "VMIDs 9001, 9004".
func merged(group []Finding) string {
	first := group[0].What
	_, found := split(first)
	var out strings.Builder
	end := 0
	for i, v := range found {
		out.WriteString(first[end:v.start])
		end = v.end
		least := first[v.start:v.end]
		most, leastSize, mostSize := least, v.size, v.size
		ids := map[string]bool{}
		for _, f := range group {
			_, others := split(f.What)
			text, size := f.What[others[i].start:others[i].end], others[i].size
			if size < leastSize {
				least, leastSize = text, size
			}
			if size > mostSize {
				most, mostSize = text, size
			}
			ids[strings.TrimPrefix(text, "VMID ")] = true
		}
		switch {
		case v.vmid && len(ids) > 1:
			out.WriteString("VMIDs " + topology.Named(slices.Collect(maps.Keys(ids))))
		case mostSize > leastSize:
			out.WriteString(least + "…" + most)
		default:
			out.WriteString(least)
		}
	}
	return out.String() + first[end:]
}
