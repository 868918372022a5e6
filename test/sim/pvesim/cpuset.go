package pvesim

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// maxCPU is the largest valid id, so that no range allocates much memory.
const maxCPU = 65535

// CPUSet is a set of ids of CPUs or NUMA nodes. Its text is in Linux' list format, as in
// "0-3,8".
type CPUSet struct{ ids cpuset.CPUSet }

// CPUs returns the set of these ids.
func CPUs(ids ...int) CPUSet { return CPUSet{cpuset.New(ids...)} }

// ParseCPUSet parses a list of ids and ranges in any order, with optional blanks between
// them.
func ParseCPUSet(text string) (CPUSet, error) {
	var ids []int
	for part := range strings.SplitSeq(strings.TrimRight(strings.TrimSpace(text), ","), ",") {
		if part == "" && strings.Trim(text, ", ") == "" {
			break
		}
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || to < from {
			return CPUSet{}, fmt.Errorf("cpu list %.64q: %.64q is no id up to %d and no range", text, part, maxCPU)
		}
		for id := from; id <= to; id++ {
			ids = append(ids, int(id))
		}
	}
	return CPUs(ids...), nil
}

// String returns the sorted list.
func (s CPUSet) String() string { return s.ids.String() }

// List returns the ids, ascending.
func (s CPUSet) List() []int { return s.ids.List() }

// Size returns the number of ids.
func (s CPUSet) Size() int { return s.ids.Size() }

// IsEmpty reports whether the set has no ids.
func (s CPUSet) IsEmpty() bool { return s.ids.IsEmpty() }

// IsZero reports whether the set has no ids, for omitzero.
func (s CPUSet) IsZero() bool { return s.ids.IsEmpty() }

// Intersection returns the ids that are in both sets.
func (s CPUSet) Intersection(other CPUSet) CPUSet { return CPUSet{s.ids.Intersection(other.ids)} }

// Union returns the ids that are in either set.
func (s CPUSet) Union(other CPUSet) CPUSet { return CPUSet{s.ids.Union(other.ids)} }

// MarshalText returns the list.
func (s CPUSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a list.
func (s *CPUSet) UnmarshalText(text []byte) (err error) {
	*s, err = ParseCPUSet(string(text))
	return err
}
