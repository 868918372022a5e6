package pvesim

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// maxCPU is the largest valid ID, so that no range allocates much memory.
const maxCPU = 65535

// CPUSet is a set of IDs of CPUs or NUMA nodes. Its text is in Linux's list format, as in
// "0-3,8".
type CPUSet struct{ ids cpuset.CPUSet }

// CPUs returns the set of these IDs.
func CPUs(ids ...int) CPUSet { return CPUSet{cpuset.New(ids...)} }

// ParseCPUSet parses a list of IDs and ranges in any order, with optional blanks between
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
			return CPUSet{}, fmt.Errorf("cpu list %.64q: %.64q is neither an ID up to %d nor a range", text, part, maxCPU)
		}
		for id := from; id <= to; id++ {
			ids = append(ids, int(id))
		}
	}
	return CPUs(ids...), nil
}

// String returns the sorted list.
func (s CPUSet) String() string { return s.ids.String() }

// List returns the IDs, ascending.
func (s CPUSet) List() []int { return s.ids.List() }

// Size returns the number of IDs.
func (s CPUSet) Size() int { return s.ids.Size() }

// IsEmpty reports whether the set has no IDs.
func (s CPUSet) IsEmpty() bool { return s.ids.IsEmpty() }

// IsZero reports whether the set has no IDs, for omitzero.
func (s CPUSet) IsZero() bool { return s.ids.IsEmpty() }

// Intersection returns the IDs that are in both sets.
func (s CPUSet) Intersection(other CPUSet) CPUSet { return CPUSet{s.ids.Intersection(other.ids)} }

// Union returns the IDs that are in either set.
func (s CPUSet) Union(other CPUSet) CPUSet { return CPUSet{s.ids.Union(other.ids)} }

// MarshalText returns the list.
func (s CPUSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a list.
func (s *CPUSet) UnmarshalText(text []byte) (err error) {
	*s, err = ParseCPUSet(string(text))
	return err
}
