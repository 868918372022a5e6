package guard

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
)

// attributes returns v as an object; it returns an empty one if v is of another type.
func attributes(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// integer returns v as an integer, for every way in which the plan may have been decoded.
func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case float64:
		return int64(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	case json.Number:
		i, err := n.Int64()
		return i, err == nil
	case int64:
		return n, true
	}
	return 0, false
}

// zero reports whether v is null or a zero value. The provider's SDK does not reliably
// distinguish the two, so a plan may change one into the other.
func zero(v any) bool {
	switch t := v.(type) {
	case nil:
		return true
	case bool:
		return !t
	case string:
		return t == ""
	case []any:
		return !slices.ContainsFunc(t, func(e any) bool { return !zero(e) })
	case map[string]any:
		for _, e := range t {
			if !zero(e) {
				return false
			}
		}
		return true
	}
	n, ok := integer(v)
	return ok && n == 0
}

// equal compares two values, treating null and all zero values as equal.
func equal(a, b any) bool {
	if zero(a) && zero(b) {
		return true
	}
	switch a := a.(type) {
	case map[string]any:
		other, ok := b.(map[string]any)
		return ok && len(differing(a, other)) == 0
	case []any:
		other, ok := b.([]any)
		return ok && slices.EqualFunc(a, other, equal)
	}
	return equalScalars(a, b)
}

// equalScalars compares values of which the first is neither a list nor an object.
func equalScalars(a, b any) bool {
	m, aNumber := integer(a)
	n, bNumber := integer(b)
	if aNumber && bNumber {
		return m == n
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return a == b
}

// differing returns the keys whose values differ, sorted.
func differing(a, b map[string]any) []string {
	keys := map[string]bool{}
	for k := range a {
		keys[k] = keys[k] || !equal(a[k], b[k])
	}
	for k := range b {
		keys[k] = keys[k] || !equal(a[k], b[k])
	}
	maps.DeleteFunc(keys, func(_ string, differs bool) bool { return !differs })
	return slices.Sorted(maps.Keys(keys))
}

// changed returns the paths of attributes that a change alters or leaves unknown, sorted.
// For a block that occurs once, the path includes the block's attribute.
func changed(before, after map[string]any, unknown any) []string {
	var paths []string
	open := attributes(unknown)
	for _, name := range differing(before, after) {
		was, is := single(before[name]), single(after[name])
		if was == nil || is == nil {
			paths = append(paths, name)
			continue
		}
		for _, inner := range differing(was, is) {
			paths = append(paths, name+"."+inner)
		}
	}
	for name, v := range open {
		if !zero(v) {
			paths = append(paths, name)
		}
	}
	if unknown != nil && open == nil && !zero(unknown) {
		paths = append(paths, "everything")
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// single returns the only element of a block that occurs once, or nil.
func single(v any) map[string]any {
	if l := list(v); len(l) == 1 {
		return attributes(l[0])
	}
	return nil
}

func topLevel(path string) string {
	name, _, _ := strings.Cut(path, ".")
	return name
}

// sensitive reports whether a value marked as sensitive is not empty. Marks have the
// shape of the value, with true where it is sensitive.
func sensitive(v, marks any) bool {
	if marks == true {
		return !zero(v)
	}
	for name, mark := range attributes(marks) {
		if sensitive(attributes(v)[name], mark) {
			return true
		}
	}
	values := list(v)
	for i, mark := range list(marks) {
		if i < len(values) && sensitive(values[i], mark) {
			return true
		}
	}
	return false
}
