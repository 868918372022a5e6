package operator

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/plainyaml"
)

// decode decodes the YAML of a configuration, or of one of its keys, into target, over the
// values already set. The error contains the first duplicate key; or all unknown keys and
// values of a wrong type; or all values that the decoder would convert silently. Each fault
// is reported with its line.
func decode(text []byte, target any) error {
	if err := plainyaml.Check(text); err != nil {
		return err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(target); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return explain(err)
	}

	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case err == nil:
		return fmt.Errorf("line %d: a second document begins: numaform.yaml must be a single document: remove the line ---", document.Line)
	case !errors.Is(err, io.EOF):
		return explain(err)
	}
	if err := yaml.Unmarshal(text, &document); err != nil {
		return explain(err)
	}
	return errors.Join(checkValues(&document, reflect.TypeOf(target))...)
}

// checkValues returns an error for each value that the decoder would convert silently: it
// truncates a fraction to an integer, converts yes and on to booleans, and decodes null as
// an empty string, or omits it from a list: without its only element, the allow list of
// hosts would allow all hosts.
func checkValues(node *yaml.Node, t reflect.Type) []error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}

	tag := node.ShortTag()
	switch {
	case node.Kind == yaml.DocumentNode:
		return checkValues(node.Content[0], t)
	case node.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		var mistakes []error
		for _, entry := range node.Content {
			if entry.ShortTag() == "!!null" {
				mistakes = append(mistakes, fmt.Errorf("line %d: a list entry is empty: set its value, or remove it", entry.Line))
			}
			mistakes = append(mistakes, checkValues(entry, t.Elem())...)
		}
		return mistakes
	case node.Kind == yaml.MappingNode:
		return checkPairs(node, t)
	case node.Kind != yaml.ScalarNode || tag == "!!null":
		return nil
	case t.Kind() == reflect.Bool && tag != "!!bool",
		t.Kind() == reflect.Int && tag != "!!int",
		t.Kind() == reflect.String && tag == "!!binary":
		return []error{fmt.Errorf("line %d: %q: must be %s", node.Line, node.Value, valuesOf(t))}
	}
	return nil
}

// checkPairs is checkValues for the keys of a section or of a map.
func checkPairs(node *yaml.Node, t reflect.Type) []error {
	var mistakes []error
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case key.ShortTag() == "!!merge":
			mistakes = append(mistakes, checkValues(value, t)...)
		case t.Kind() == reflect.Map && value.ShortTag() == "!!null":
			mistakes = append(mistakes, fmt.Errorf("line %d: %s is empty: must be %s", key.Line, key.Value, valuesOf(t.Elem())))
		case t.Kind() == reflect.Map:
			mistakes = append(mistakes, checkValues(value, t.Elem())...)
		case t.Kind() == reflect.Struct:
			for n, name := range keysBelow(t) {
				if name == key.Value {
					mistakes = append(mistakes, checkValues(value, t.Field(n).Type)...)
				}
			}
		}
	}
	return mistakes
}

// The messages of the YAML decoder about keys and values.
var (
	unknownField = regexp.MustCompile(`(?s)^(line \d+: )field (.*) not found in type (\S+)$`)
	fieldTwice   = regexp.MustCompile(`(?s)^(line \d+: )field (.*) already set in type (\S+)$`)
	wrongType    = regexp.MustCompile("(?s)^(line \\d+: )cannot unmarshal (\\S+)(?: `(.*)`)? into (\\S+)$")
)

// explain translates an error of the YAML decoder, which names Go types, into the terms of
// numaform.yaml.
func explain(err error) error {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return fmt.Errorf("%s: invalid YAML: indent consistently with spaces, and quote a value that begins with one of > @ ` %% * & ! { [ or contains \": \"",
			strings.TrimPrefix(err.Error(), "yaml: "))
	}

	types := map[string]reflect.Type{}
	typesBelow(reflect.TypeFor[Config](), types)
	types[reflect.TypeFor[clusterKeys]().String()] = reflect.TypeFor[Cluster]()
	mistakes := make([]error, len(wrong.Errors))
	for i, message := range wrong.Errors {
		if found := unknownField.FindStringSubmatch(message); found != nil {
			message = fmt.Sprintf("%sunknown key %s: %s", found[1], found[2], meantKey(found[2], types[found[3]]))
		} else if found := fieldTwice.FindStringSubmatch(message); found != nil {
			message = fmt.Sprintf("%sduplicate key %s: remove one", found[1], found[2])
		} else if found := wrongType.FindStringSubmatch(message); found != nil {
			value := fmt.Sprintf("%q", found[3])
			switch found[2] {
			case "!!seq":
				value = "a list"
			case "!!map":
				value = "a section with keys below it"
			}
			message = fmt.Sprintf("%s%s: must be %s", found[1], value, valuesOf(types[found[4]]))
		}
		mistakes[i] = errors.New(message)
	}
	return errors.Join(mistakes...)
}

// typesBelow collects a type and the types of its parts, by name.
func typesBelow(t reflect.Type, types map[string]reflect.Type) {
	types[t.String()] = t
	switch t.Kind() {
	case reflect.Struct:
		for _, field := range reflect.VisibleFields(t) {
			typesBelow(field.Type, types)
		}
	case reflect.Map, reflect.Slice, reflect.Pointer:
		typesBelow(t.Elem(), types)
	}
}
