package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// MaxCPU is the largest valid CPU or NUMA node ID. Proxmox has no limit, but without one a
// short text could allocate any amount of memory.
const MaxCPU = 65535

// MaxMemoryMiB is the largest valid amount of memory of a machine, a NUMA node or a guest: 256
// TiB, more than any host has. Without a limit, sums of amounts could overflow.
const MaxMemoryMiB = 1 << 28

// CPUSet is a set of CPU or NUMA node IDs. Its text form is the Linux list format, which
// Proxmox uses for affinity: "0-3,8,10-11". The zero value is empty.
type CPUSet struct{ set cpuset.CPUSet }

// CPUs returns the set of the given IDs.
func CPUs(ids ...int) CPUSet { return CPUSet{cpuset.New(ids...)} }

// ParseCPUSet parses the Linux list format. Like Proxmox, it accepts IDs in any order,
// duplicates, surrounding spaces and trailing commas. The empty string is the empty set.
// IDs above MaxCPU are errors.
func ParseCPUSet(text string) (CPUSet, error) { return parseList(text, ",") }

// span is an inclusive range of IDs.
type span struct{ from, to int }

func parseList(text, separator string) (CPUSet, error) {
	spans, err := parseSpans(text, separator)
	if err != nil {
		return CPUSet{}, fmt.Errorf("parsing cpu list %s: %w", quote(text), err)
	}
	return CPUs(expand(merge(spans))...), nil
}

// parseSpans returns the ranges of a list in their original order.
func parseSpans(text, separator string) ([]span, error) {
	text = strings.TrimRight(strings.TrimSpace(text), separator)
	if text == "" {
		return nil, nil
	}
	var spans []span
	for part := range strings.SplitSeq(text, separator) {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err := parseID(first)
		if err != nil {
			return nil, err
		}
		to, err := parseID(last)
		if err != nil {
			return nil, err
		}
		if to < from {
			return nil, fmt.Errorf("range %d-%d is reversed: write %d-%d", from, to, to, from)
		}
		spans = append(spans, span{from, to})
	}
	return spans, nil
}

func parseID(text string) (int, error) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, fmt.Errorf("%s is not a number: use a list such as 0-3,8", quote(text))
	}
	id, err := strconv.Atoi(text)
	if err != nil || id > MaxCPU {
		return 0, fmt.Errorf("%s is too large: must be at most %d", quote(text), MaxCPU)
	}
	return id, nil
}

// merge sorts spans and joins overlapping and adjacent ones, so that the cost of expanding
// them is bounded by the largest ID.
func merge(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var merged []span
	for _, s := range spans {
		if last := len(merged) - 1; last >= 0 && s.from <= merged[last].to+1 {
			merged[last].to = max(merged[last].to, s.to)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

func expand(spans []span) []int {
	var ids []int
	for _, s := range spans {
		for id := s.from; id <= s.to; id++ {
			ids = append(ids, id)
		}
	}
	return ids
}

// quote quotes untrusted text for an error message and shortens it.
func quote(text string) string {
	const most = 64
	if len(text) > most {
		return strconv.QuoteToASCII(text[:most]) + "…"
	}
	return strconv.QuoteToASCII(text)
}

// String returns the set in the Linux list format, sorted.
func (s CPUSet) String() string { return s.set.String() }

// List returns the IDs in ascending order.
func (s CPUSet) List() []int { return s.set.List() }

// Size returns the number of IDs.
func (s CPUSet) Size() int { return s.set.Size() }

// IsEmpty reports whether the set has no IDs.
func (s CPUSet) IsEmpty() bool { return s.set.IsEmpty() }

// IsZero reports whether the set has no IDs. It implements encoding/json's omitzero.
func (s CPUSet) IsZero() bool { return s.set.IsEmpty() }

// Contains reports whether the ID is in the set.
func (s CPUSet) Contains(id int) bool { return s.set.Contains(id) }

// Equal reports whether both sets have the same IDs.
// Unlike cpuset.Equals, it treats a zero set and an emptied one as equal.
func (s CPUSet) Equal(other CPUSet) bool {
	return s.set.Size() == other.set.Size() && s.set.IsSubsetOf(other.set)
}

// IsSubsetOf reports whether every ID of s is in other.
func (s CPUSet) IsSubsetOf(other CPUSet) bool { return s.set.IsSubsetOf(other.set) }

// Union returns the IDs that are in either set.
func (s CPUSet) Union(other CPUSet) CPUSet { return CPUSet{s.set.Union(other.set)} }

// Intersection returns the IDs that are in both sets.
func (s CPUSet) Intersection(other CPUSet) CPUSet { return CPUSet{s.set.Intersection(other.set)} }

// Difference returns the IDs of s that are not in other.
func (s CPUSet) Difference(other CPUSet) CPUSet { return CPUSet{s.set.Difference(other.set)} }

// MarshalText returns the set in the Linux list format.
func (s CPUSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the Linux list format.
func (s *CPUSet) UnmarshalText(text []byte) error {
	parsed, err := ParseCPUSet(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}
