package topology

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// maxFaults limits how many faults of one file are reported at once.
const maxFaults = 20

// joinFaults joins faults, and says how many more there are beyond the limit.
func joinFaults(faults []error) error {
	if more := len(faults) - maxFaults; more > 0 {
		faults = append(faults[:maxFaults:maxFaults], fmt.Errorf("and %d more", more))
	}
	return errors.Join(faults...)
}

// strictJSON reads JSON into target and refuses what encoding/json accepts: unknown keys,
// duplicate keys, keys that differ in case, and null. Each fault has a line and a path.
// It returns the tree, so that later checks can report lines.
func strictJSON(data []byte, target any) (*jsonNode, error) {
	tree, err := parseTree(data)
	if err != nil {
		return nil, err
	}
	checker := &jsonChecker{}
	checker.check(tree, reflect.TypeOf(target).Elem(), "")
	if len(checker.faults) > 0 {
		return nil, errors.Join(checker.faults...)
	}
	if err := json.Unmarshal(data, target); err != nil {
		return nil, err
	}
	return tree, nil
}

// jsonChecker compares a JSON tree with the Go type that it decodes into.
type jsonChecker struct{ faults []error }

func (c *jsonChecker) fault(node *jsonNode, path, format string, args ...any) {
	if len(c.faults) >= maxFaults {
		return
	}
	if path == "" {
		path = "the file"
	}
	c.faults = append(c.faults, fmt.Errorf("line %d: %s: %s", node.line, path, fmt.Sprintf(format, args...)))
}

func (c *jsonChecker) check(node *jsonNode, typ reflect.Type, path string) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch want := jsonKindOf(typ); {
	case node.kind != want:
		c.fault(node, path, "want %s, got %s", want, node.kind)
	case isText(typ):
		if err := unmarshalText(typ, node.text); err != nil {
			c.fault(node, path, "%s", err)
		}
	case want == jsonArray:
		for i, item := range node.items {
			c.check(item, typ.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
	case want == jsonObject:
		c.checkObject(node, typ, path)
	case want == jsonNumber:
		c.checkNumber(node, typ, path)
	}
}

func (c *jsonChecker) checkObject(node *jsonNode, typ reflect.Type, path string) {
	fields := jsonFields(typ)
	seen := map[string]bool{}
	for i, key := range node.keys {
		item, inner := node.items[i], key
		if path != "" {
			inner = path + "." + key
		}
		if seen[key] {
			c.fault(item, inner, "stands twice: remove one")
			continue
		}
		seen[key] = true
		if typ.Kind() == reflect.Map {
			c.checkKey(item, typ.Key(), key, inner)
			c.check(item, typ.Elem(), inner)
			continue
		}
		field, ok := fields[key]
		if !ok {
			c.fault(item, inner, "key is unknown: want one of %s", strings.Join(sortedKeys(fields), ", "))
			continue
		}
		c.check(item, field, inner)
	}
}

func (c *jsonChecker) checkKey(node *jsonNode, typ reflect.Type, key, path string) {
	if typ.Kind() != reflect.Int {
		return
	}
	if number, err := strconv.Atoi(key); err != nil || strconv.Itoa(number) != key {
		c.fault(node, path, "key %s is not a number", quote(key))
	}
}

func (c *jsonChecker) checkNumber(node *jsonNode, typ reflect.Type, path string) {
	if typ.Kind() == reflect.Float64 {
		return
	}
	if _, err := strconv.ParseInt(node.text, 10, typ.Bits()); err != nil {
		c.fault(node, path, "%s: want a whole number", quote(node.text))
	}
}

// jsonKindOf returns the JSON kind of a Go type.
func jsonKindOf(typ reflect.Type) jsonKind {
	if isText(typ) {
		return jsonString
	}
	switch typ.Kind() {
	case reflect.Struct, reflect.Map:
		return jsonObject
	case reflect.Slice:
		return jsonArray
	case reflect.String:
		return jsonString
	case reflect.Bool:
		return jsonBool
	default:
		return jsonNumber
	}
}

func isText(typ reflect.Type) bool {
	return reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func unmarshalText(typ reflect.Type, text string) error {
	target, ok := reflect.New(typ).Interface().(encoding.TextUnmarshaler)
	if !ok {
		return nil
	}
	return target.UnmarshalText([]byte(text))
}

// jsonFields returns the keys of a struct, including embedded structs' keys.
func jsonFields(typ reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	if typ.Kind() != reflect.Struct {
		return fields
	}
	for _, field := range reflect.VisibleFields(typ) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			fields[name] = field.Type
		}
	}
	return fields
}

func sortedKeys(fields map[string]reflect.Type) []string {
	keys := make([]string, 0, len(fields))
	for key := range fields {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
