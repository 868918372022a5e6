package bootstrap

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"text/template"
)

// maxGrown is how large what a function is about to make may be by an estimate that is
// never too low, and at times too high.
const maxGrown = 16 * maxDocument

// maxWidth is what a verb of printf writes besides its argument, at most.
const maxWidth = 999

// wideVerb matches a verb of printf with a width or a precision of more than three
// digits, or with one that an argument gives.
var wideVerb = regexp.MustCompile(`%[^a-zA-Z%]*(\*|[0-9]{4})`)

// boundGrowing bounds the functions that make of two texts one that is as large as
// their sizes multiplied: it must not be made before it is refused.
func boundGrowing(functions template.FuncMap) {
	functions["printf"] = func(format string, args ...any) (string, error) {
		size := 0
		for _, arg := range args {
			left := maxGrown
			weigh(arg, &left)
			size += maxGrown - left
		}
		return grown(len(format)+strings.Count(format, "%")*(size+maxWidth), wideVerb.MatchString(format), func() string { return fmt.Sprintf(format, args...) })
	}
	if theirs, ok := functions["replace"].(func(string, string, string) string); ok {
		functions["replace"] = func(old, with, text string) (string, error) {
			return grown(strings.Count(text, old)*len(with), false, func() string { return theirs(old, with, text) })
		}
	}
	if theirs, ok := functions["join"].(func(string, any) string); ok {
		functions["join"] = func(separator string, list any) (string, error) {
			parts := 1
			if value := reflect.ValueOf(list); value.Kind() == reflect.Slice || value.Kind() == reflect.Array {
				parts = value.Len()
			}
			return grown(parts*len(separator), false, func() string { return theirs(separator, list) })
		}
	}
	functions["pairs"] = func(separator string, values map[string]any) (string, error) {
		return grown(len(values)*len(separator), false, func() string { return pairsOf(separator, values) })
	}
}

// grown writes a text, unless it is too large.
func grown(size int, tooWide bool, write func() string) (string, error) {
	if size > maxGrown || tooWide {
		return "", errTooLarge
	}
	return write(), nil
}
