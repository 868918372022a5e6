package operator

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agext/levenshtein"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/freeze"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/notify"
	"github.com/numaform/numaform/internal/signature"
)

// Key is a key of numaform.yaml that has a value and no keys below it.
type Key struct {
	// Path is the key's path, such as clusters[].token_secret.
	Path string
	// Variable is the environment variable that overrides the key, with N for a list
	// position.
	Variable string
	// Values describes the valid values.
	Values string
}

// Keys returns every key of numaform.yaml, in the order of the configuration.
func Keys() []Key {
	var keys []Key
	one := Config{
		Clusters:      []Cluster{{AddressPools: make([]ipam.Config, 1)}},
		Notifications: Notifications{Targets: make([]notify.Target, 1)},
		Approval:      Approval{Require: make([]signature.Requirement, 1), Freeze: make([]freeze.Config, 1)},
	}
	walkKeys(reflect.ValueOf(one), "", func(path string, value reflect.Value) {
		keys = append(keys, Key{
			Path:     strings.ReplaceAll(path, "[0]", "[]"),
			Variable: strings.ReplaceAll(variableOf(path), "_0_", "_N_"),
			Values:   valuesOf(value.Type()),
		})
	})
	return keys
}

// walkKeys visits each key below a path that has a value and no keys below it.
func walkKeys(value reflect.Value, path string, visit func(path string, value reflect.Value)) {
	switch {
	case value.Kind() == reflect.Struct:
		for i, key := range keysBelow(value.Type()) {
			walkKeys(value.Field(i), strings.TrimPrefix(path+"."+key, "."), visit)
		}
	case isSections(value.Type()):
		for i := range value.Len() {
			walkKeys(value.Index(i), fmt.Sprintf("%s[%d]", path, i), visit)
		}
	default:
		visit(path, value)
	}
}

// keysBelow returns the keys directly below a section.
func keysBelow(section reflect.Type) []string {
	keys := make([]string, section.NumField())
	for i := range keys {
		keys[i], _, _ = strings.Cut(section.Field(i).Tag.Get("yaml"), ",")
	}
	return keys
}

// isSections reports whether a key contains a list of sections.
func isSections(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct
}

// valuesOf describes the values that a key accepts.
func valuesOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return positiveDuration
	case t == reflect.TypeFor[fleet.VMID]():
		return fmt.Sprintf("a number from %d to %d", fleet.MinVMID, fleet.MaxVMID)
	case isSections(t):
		return "a list whose entries begin with -"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return valuesOf(t.Elem())
	case reflect.Struct:
		return "a section with the keys " + strings.Join(keysBelow(t), ", ")
	case reflect.Slice:
		return "a list of strings such as [a, b]"
	case reflect.Map:
		return "a map such as {name: value}"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "an integer"
	case reflect.Float64:
		return "a number such as 0.012"
	}
	return "a string"
}

// positiveDuration describes the valid durations.
const positiveDuration = "a positive duration such as 90s or 10m"

// meantKey returns a hint about an unknown key of a section.
func meantKey(name string, section reflect.Type) string {
	var elsewhere []string
	for _, key := range Keys() {
		parts := strings.Split(key.Path, ".")
		for i, part := range parts {
			if strings.TrimSuffix(part, "[]") == name {
				elsewhere = append(elsewhere, strings.TrimSuffix(strings.Join(parts[:i+1], "."), "[]"))
			}
		}
	}
	if len(elsewhere) == 0 {
		return didYouMean(name, keysBelow(section))
	}
	slices.SortFunc(elsewhere, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "."), strings.Count(b, ".")), cmp.Compare(a, b))
	})
	return "move it to " + strings.Join(slices.Compact(elsewhere), " or ")
}

// didYouMean returns a hint with the most likely word, or with all possible ones.
func didYouMean(name string, words []string) string {
	if word := Nearest(name, words); word != "" {
		return "did you mean " + word + "?"
	}
	return "must be one of " + strings.Join(words, ", ")
}

// Nearest returns the word that name was most likely meant to be, or "".
func Nearest(name string, words []string) string {
	best, least := "", 1+max(1, len(name)/3)
	for _, word := range words {
		if d := levenshtein.Distance(strings.ToLower(name), strings.ToLower(word), nil); d < least {
			best, least = word, d
		}
	}
	return best
}
