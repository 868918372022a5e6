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
// values already set. Except for duplicate keys, the error contains all mistakes, each with
// its line.
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
		return fmt.Errorf("line %d: a second document begins: numaform.yaml is one document: remove the line ---", document.Line)
	case !errors.Is(err, io.EOF):
		return explain(err)
	}
	if err := yaml.Unmarshal(text, &document); err != nil {
		return explain(err)
	}
	return errors.Join(emptyEntries(&document)...)
}

// emptyEntries returns an error for each list entry without a value. The decoder skips them,
// and a list that is empty then may allow more, such as the hosts of a cluster.
func emptyEntries(node *yaml.Node) []error {
	var mistakes []error
	for _, child := range node.Content {
		value := child
		if child.Kind == yaml.AliasNode {
			value = child.Alias
		}
		if node.Kind == yaml.SequenceNode && value.ShortTag() == "!!null" {
			mistakes = append(mistakes, fmt.Errorf("line %d: an entry of the list is empty: write its value, or remove it", child.Line))
		}
		mistakes = append(mistakes, emptyEntries(child)...)
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
		return fmt.Errorf("%s: this is not YAML: indent by spaces alike, and quote a value that begins with one of > @ ` %% * & ! { [ or contains \": \"",
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
			message = fmt.Sprintf("%sduplicate key %s: remove one of them", found[1], found[2])
		} else if found := wrongType.FindStringSubmatch(message); found != nil {
			value := fmt.Sprintf("%q", found[3])
			switch found[2] {
			case "!!seq":
				value = "a list"
			case "!!map":
				value = "a section with keys below it"
			}
			message = fmt.Sprintf("%s%s: want %s", found[1], value, valuesOf(types[found[4]]))
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
