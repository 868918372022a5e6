package operator

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
)

// Key is a key of numaform.yaml that has a value and no keys below it.
type Key struct {
	// Path is the key's path, such as clusters[].token_secret.
	Path string
	// Twin is the environment variable that overrides it, with N for a position.
	Twin string
	// Want describes the valid values.
	Want string
}

// Keys returns every key of numaform.yaml, in the order of the configuration.
func Keys() []Key {
	return keysOf(reflect.TypeFor[Config](), "", strings.TrimSuffix(environmentPrefix, "_"))
}

func keysOf(from reflect.Type, path, twin string) []Key {
	switch {
	case isSections(from):
		return keysOf(from.Elem(), path+"[]", twin+"_N")
	case from.Kind() != reflect.Struct:
		return []Key{{Path: path, Twin: twin, Want: wanted(from)}}
	}
	var keys []Key
	for i := range from.NumField() {
		name := keyOf(from.Field(i))
		keys = append(keys, keysOf(from.Field(i).Type, strings.TrimPrefix(path+"."+name, "."), twin+"_"+strings.ToUpper(name))...)
	}
	return keys
}

// keyOf returns the key of a field.
func keyOf(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
	return name
}

// keysBelow returns the keys directly below a section.
func keysBelow(section reflect.Type) []string {
	keys := make([]string, section.NumField())
	for i := range keys {
		keys[i] = keyOf(section.Field(i))
	}
	return keys
}

// isSections reports whether a key contains a list of sections.
func isSections(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct
}

// wanted describes the values that a key accepts.
func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration above 0 such as 90s or 10m"
	case t == reflect.TypeFor[fleet.VMID]():
		return fmt.Sprintf("a number from %d to %d", fleet.MinVMID, fleet.MaxVMID)
	case isSections(t):
		return "a list, each entry of which begins with -"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Struct:
		return "the keys " + strings.Join(keysBelow(t), ", ") + " below it"
	case reflect.Slice:
		return "a list of texts such as [a, b]"
	case reflect.Map:
		return "pairs such as {name: text}"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	}
	return "a text"
}

// nearest returns the word that name was most likely meant to be, or "".
func nearest(name string, words []string) string {
	best, least := "", 1+max(1, len(name)/3)
	for _, word := range words {
		if d := distance(strings.ToLower(name), strings.ToLower(word)); d < least {
			best, least = word, d
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with a neighbor.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(change, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// elsewhere returns the paths of other keys with that name.
func elsewhere(name string) []string {
	var paths []string
	for _, key := range Keys() {
		parts := strings.Split(key.Path, ".")
		for i, part := range parts {
			if strings.TrimSuffix(part, "[]") == name {
				paths = append(paths, strings.TrimSuffix(strings.Join(parts[:i+1], "."), "[]"))
			}
		}
	}
	slices.SortFunc(paths, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "."), strings.Count(b, ".")), cmp.Compare(a, b))
	})
	return slices.Compact(paths)
}

// didYouMean returns a hint with the most likely word, or with all possible ones.
func didYouMean(name string, words []string) string {
	if word := nearest(name, words); word != "" {
		return "did you mean " + word + "?"
	}
	return "want one of " + strings.Join(words, ", ")
}
