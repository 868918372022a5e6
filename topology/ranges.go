package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// mostNamed is the maximum number of names and ranges in a list.
const mostNamed = 8

// Named lists names in a sentence, such as the names of hosts. It sorts them, removes
// duplicates, and shortens consecutive ones: "lab/pve01…pve40, lab/pve42". Names are
// consecutive if they differ only in their last number. A range contains at least three names.
// A longer list ends with the number of the other names, such as " and 12 more".
func Named(names []string) string {
	sorted := make([]numbered, len(names))
	for i, name := range names {
		sorted[i] = split(name)
	}
	slices.SortFunc(sorted, numbered.compare)
	sorted = slices.Compact(sorted)

	var parts []string
	start := 0
	for start < len(sorted) && len(parts) < mostNamed {
		end := start + 1
		for end < len(sorted) && sorted[end].follows(&sorted[end-1]) {
			end++
		}
		if end-start < 3 {
			end = start + 1
			parts = append(parts, sorted[start].name)
		} else {
			last := &sorted[end-1]
			shared := strings.LastIndexAny(last.prefix, "/ ") + 1
			parts = append(parts, sorted[start].name+"…"+last.name[shared:])
		}
		start = end
	}
	list := strings.Join(parts, ", ")
	if more := len(sorted) - start; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// numbered is a name and its last number.
type numbered struct {
	name, prefix, suffix string
	// number is the last number in the name, or -1 if there is none; digits is the number of
	// its digits.
	number, digits int
}

func split(name string) numbered {
	const all = "0123456789"
	end := strings.LastIndexAny(name, all) + 1
	start := len(strings.TrimRight(name[:end], all))
	number, err := strconv.Atoi(name[start:end])
	if err != nil {
		return numbered{name: name, prefix: name, number: -1}
	}
	return numbered{name: name, prefix: name[:start], suffix: name[end:], number: number, digits: end - start}
}

func (n numbered) compare(other numbered) int {
	return cmp.Or(cmp.Compare(n.prefix, other.prefix), cmp.Compare(n.suffix, other.suffix),
		cmp.Compare(n.number, other.number), cmp.Compare(n.name, other.name))
}

// follows reports whether n is the name directly after other: pve-10 follows pve-9, and
// pve10 follows pve09, but pve010 does not.
func (n *numbered) follows(other *numbered) bool {
	return n.number >= 0 && n.prefix == other.prefix && n.suffix == other.suffix && n.number == other.number+1 &&
		n.name == fmt.Sprintf("%s%0*d%s", n.prefix, other.digits, n.number, n.suffix)
}

// Count returns a number with its noun: "1 VM", "2 VMs".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
