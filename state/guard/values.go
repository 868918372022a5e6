package guard

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// values are the attributes of a resource or of one block, as in a plan; blocks is a list
// of blocks.
type (
	values = map[string]any
	blocks = []any
)

// attributes returns v as an object, or nil if v is of another type.
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

// integer returns v as an integer, for each type to which JSON numbers may have been
// decoded.
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
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	m, aNumber := integer(a)
	n, bNumber := integer(b)
	if aNumber && bNumber {
		return m == n
	}
	return a == b
}

// differing returns the keys whose values differ.
func differing(a, b map[string]any) []string {
	var keys []string
	for k := range a {
		if !equal(a[k], b[k]) {
			keys = append(keys, k)
		}
	}
	for k := range b {
		if _, known := a[k]; !known && !zero(b[k]) {
			keys = append(keys, k)
		}
	}
	return keys
}

// changed returns the paths of attributes that a change alters or leaves unknown.
// For a block that occurs once, the path includes the block's attribute.
func changed(change *tfjson.Change) []string {
	before, after := attributes(change.Before), attributes(change.After)
	var paths []string
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
	unknown, isObject := change.AfterUnknown.(values)
	for name, v := range unknown {
		if !zero(v) {
			paths = append(paths, name)
		}
	}
	if !isObject && !zero(change.AfterUnknown) {
		paths = append(paths, "everything")
	}
	return paths
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
	elements := list(v)
	for i, mark := range list(marks) {
		if i < len(elements) && sensitive(elements[i], mark) {
			return true
		}
	}
	return false
}
