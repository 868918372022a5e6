package pvesim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// parsePropertyString parses "value,key=value,…" by the schemas of its keys, as
// PVE::JSONSchema does: with a default key, aliases, and booleans as 1 and 0.
func parsePropertyString(keys map[string]*schema, text string) (map[string]string, error) {
	result := map[string]string{}
	usedDefault := false
	for part := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		key, val, keyed := strings.Cut(part, "=")
		var err error
		switch {
		case keyed && key != "" && val != "":
			err = setProperty(keys, result, key, val)
		case keyed:
			err = errors.New("missing key in comma-separated list property")
		default:
			err = setDefaultProperty(keys, result, part, usedDefault)
			usedDefault = true
		}
		if err != nil {
			return nil, err
		}
	}
	return result, checkProperties(keys, result)
}

func setProperty(keys map[string]*schema, result map[string]string, key, val string) error {
	if _, twice := result[key]; twice {
		return fmt.Errorf("duplicate key in comma-separated list property: %s", key)
	}
	s := keys[key]
	if s != nil && s.Alias != "" {
		if s.KeyAlias != "" {
			if _, twice := result[s.KeyAlias]; twice {
				return fmt.Errorf("key alias '%s' is already defined", s.KeyAlias)
			}
			result[s.KeyAlias] = key
		}
		key = s.Alias
		s = keys[key]
	}
	if s == nil {
		return fmt.Errorf("invalid key in comma-separated list property: %s", key)
	}
	if s.Type == "boolean" {
		val = perlBoolean(val)
	}
	result[key] = val
	return nil
}

func setDefaultProperty(keys map[string]*schema, result map[string]string, val string, again bool) error {
	name := defaultKey(keys)
	if name == "" {
		return errors.New("value without key, but schema does not define a default key")
	}
	if _, taken := result[name]; taken || again {
		return fmt.Errorf("duplicate key in comma-separated list property: %s", name)
	}
	result[name] = val
	return nil
}

func defaultKey(keys map[string]*schema) string {
	for name, s := range keys {
		if s.DefaultKey {
			return name
		}
	}
	return ""
}

// perlBoolean converts on, yes and true to 1 and their opposites to 0.
func perlBoolean(val string) string {
	switch strings.ToLower(val) {
	case "1", "on", "yes", "true":
		return "1"
	case "0", "off", "no", "false":
		return "0"
	}
	return val
}

// checkProperties checks each value, and that no key is missing.
func checkProperties(keys map[string]*schema, result map[string]string) error {
	found := problems{}
	for name, s := range keys {
		val, ok := result[name]
		switch {
		case ok:
			s.check(name, val, found)
		case !s.Optional && s.Alias == "":
			found.add(name, textMissing)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return &formatError{found: found}
}

// formatError is an error about the values of a property string.
type formatError struct {
	found problems
	// path is the prefix of the keys.
	path string
}

// Error returns the text of PVE::JSONSchema's exception, with one line per key.
func (e *formatError) Error() string {
	lines := []string{"format error"}
	for _, name := range sortedKeys(e.found) {
		lines = append(lines, e.path+name+": "+strings.TrimSuffix(e.found[name], "\n"))
	}
	return strings.Join(lines, "\n")
}

// printPropertyString prints the value of first without its key, then the others
// in the order of their keys.
func printPropertyString(props map[string]string, first string) string {
	var parts []string
	if v, ok := props[first]; ok {
		parts = append(parts, v)
	}
	for _, key := range sortedKeys(props) {
		if key != first {
			parts = append(parts, key+"="+props[key])
		}
	}
	return strings.Join(parts, ",")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
