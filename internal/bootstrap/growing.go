package bootstrap

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"text/template"
)

// maxGrown limits the estimated size of a function's result. The estimate is never too
// low, and sometimes too high.
const maxGrown = 16 * maxDocument

// maxWidth is the maximum output of a printf verb in addition to its argument.
const maxWidth = 999

// wideVerb matches a printf verb with a width or a precision of more than three digits,
// or one taken from an argument.
var wideVerb = regexp.MustCompile(`%[^a-zA-Z%]*(\*|[0-9]{4})`)

// boundGrowing limits the functions whose result can be as large as the product of two
// arguments' sizes: it must be refused before it is built.
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

// grown calls write, unless the result would be too large.
func grown(size int, tooWide bool, write func() string) (string, error) {
	if size > maxGrown || tooWide {
		return "", errTooLarge
	}
	return write(), nil
}
