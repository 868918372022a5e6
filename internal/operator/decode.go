package operator

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/plainyaml"
)

// decode decodes numaform.yaml into config, over the values already set. The error
// contains all mistakes, each with its line and key.
func decode(text []byte, config *Config) error {
	// The decoder reports duplicate keys together with all other mistakes.
	if err := plainyaml.Check(text); err != nil && !errors.As(err, new(*plainyaml.DuplicateKeyError)) {
		return err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return notYAML(err)
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		if err != nil {
			return notYAML(err)
		}
		return fmt.Errorf("line %d: a second document begins: numaform.yaml is one: take the line --- out", second.Line)
	}
	r := &reader{}
	r.value(document.Content[0], reflect.TypeFor[Config](), "")
	if len(r.mistakes) > 0 {
		return errors.Join(r.mistakes...)
	}
	if err := document.Decode(config); err != nil {
		return notYAML(err)
	}
	return nil
}

var yamlPrefix = regexp.MustCompile(`^yaml: (unmarshal errors:\s*)?`)

// notYAML returns what may be wrong with a text that is not valid YAML.
func notYAML(err error) error {
	return fmt.Errorf("%s: this is no YAML: indent by spaces alike, and quote a value that begins with one of > @ ` %% * & ! { [ or holds \": \"",
		yamlPrefix.ReplaceAllString(err.Error(), ""))
}

// reader compares a YAML text with the configuration's keys and types, for the
// decoder knows neither which keys there are nor says in words what it wants.
type reader struct {
	mistakes []error
	// depth is how many merges (<<) deep the reader is: they may name themselves.
	depth int
}

const mostMerges = 10

func (r *reader) wrong(node *yaml.Node, path, format string, args ...any) {
	if path != "" {
		path += ": "
	}
	r.mistakes = append(r.mistakes, fmt.Errorf("line %d: %s%s", node.Line, path, fmt.Sprintf(format, args...)))
}

// value compares what stands at a path with the type it must have.
func (r *reader) value(node *yaml.Node, want reflect.Type, path string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if want.Kind() == reflect.Pointer {
		want = want.Elem()
	}
	if isNull(node) {
		return // a key without a value is one that is not set
	}
	if isScalar(want) && node.Kind == yaml.ScalarNode {
		if problem := scalarProblem(node, want); problem != "" {
			r.wrong(node, path, "%s", problem)
		}
		return
	}
	r.collection(node, want, path)
}

// collection compares a section, pairs or a list.
func (r *reader) collection(node *yaml.Node, want reflect.Type, path string) {
	switch {
	case want.Kind() == reflect.Struct && node.Kind == yaml.MappingNode:
		r.section(node, want, path)
	case want.Kind() == reflect.Map && node.Kind == yaml.MappingNode:
		r.pairs(node, want, path)
	case want.Kind() == reflect.Slice && node.Kind == yaml.SequenceNode:
		for i, entry := range node.Content {
			r.entry(entry, want.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
	default:
		r.wrong(node, "", "%s is %s: want %s", cmp.Or(path, "all"), kindOf(node), wanted(want))
	}
}

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" }

// entry is a value of a list or of pairs, which must not be missing.
func (r *reader) entry(node *yaml.Node, want reflect.Type, path string) {
	if isNull(node) {
		r.wrong(node, "", "%s is empty: want %s", cmp.Or(path, "all"), wanted(want))
		return
	}
	r.value(node, want, path)
}

// section compares the keys of a section with those that there are.
func (r *reader) section(node *yaml.Node, want reflect.Type, path string) {
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.ShortTag() == "!!merge" {
			r.merge(value, want, path)
			continue
		}
		if line, ok := seen[key.Value]; ok {
			r.wrong(key, "", "key %s stands in line %d already: keep one of them", join(path, key.Value), line)
			continue
		}
		seen[key.Value] = key.Line
		field, ok := fieldOf(want, key.Value)
		if !ok {
			r.unknown(key, want, path)
			continue
		}
		r.value(value, field.Type, join(path, key.Value))
	}
}

// merge compares what is merged into a section (<<).
func (r *reader) merge(node *yaml.Node, want reflect.Type, path string) {
	if r.depth >= mostMerges {
		r.wrong(node, path, "<< is nested too deep: write the keys out")
		return
	}
	r.depth++
	defer func() { r.depth-- }()
	if node.Kind == yaml.SequenceNode {
		for _, one := range node.Content {
			r.value(one, want, path)
		}
		return
	}
	r.value(node, want, path)
}

func (r *reader) pairs(node *yaml.Node, want reflect.Type, path string) {
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if line, ok := seen[key.Value]; ok {
			r.wrong(key, "", "key %s stands in line %d already: keep one of them", join(path, key.Value), line)
			continue
		}
		seen[key.Value] = key.Line
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			r.wrong(key, path, "want %s", wanted(want))
			continue
		}
		r.entry(value, want.Elem(), join(path, key.Value))
	}
}

func (r *reader) unknown(key *yaml.Node, section reflect.Type, path string) {
	at := ""
	if path != "" {
		at = " in " + path
	}
	mend := didYouMean(key.Value, keysBelow(section))
	if found := elsewhere(key.Value); len(found) > 0 {
		mend = "it belongs at " + strings.Join(found, " or ")
	}
	r.wrong(key, "", "unknown key %s%s: %s", key.Value, at, mend)
}

func join(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

func fieldOf(section reflect.Type, key string) (reflect.StructField, bool) {
	for i := range section.NumField() {
		if keyOf(section.Field(i)) == key {
			return section.Field(i), true
		}
	}
	return reflect.StructField{}, false
}

func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		return true
	}
	return false
}

// kindOf says what a value is.
func kindOf(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a section with keys below it"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// scalarProblem says what is wrong with a value, or "".
func scalarProblem(node *yaml.Node, want reflect.Type) string {
	if want.Kind() == reflect.String {
		if node.ShortTag() == "!!binary" {
			return "binary: want " + wanted(want)
		}
		return ""
	}
	if !fits(node, want) {
		return fmt.Sprintf("%q: want %s", node.Value, wanted(want))
	}
	return ""
}

// fits reports whether a value can be what is wanted.
func fits(node *yaml.Node, want reflect.Type) bool {
	if want == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(node.Value)
		return err == nil && d > 0
	}
	if want.Kind() == reflect.Bool {
		return node.ShortTag() == "!!bool" && node.Decode(new(bool)) == nil
	}
	var number int
	if node.ShortTag() != "!!int" || node.Decode(&number) != nil {
		return false
	}
	return want != reflect.TypeFor[fleet.VMID]() || (fleet.VMID(number) >= fleet.MinVMID && fleet.VMID(number) <= fleet.MaxVMID)
}
