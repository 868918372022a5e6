package operator

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/plainyaml"
)

// environmentPrefix begins the environment variable of every key.
const environmentPrefix = "NUMAFORM_"

// environment holds the variables with the prefix, by name without it.
type environment struct {
	values map[string]string
	// twins are the variables that directly correspond to a key of the configuration.
	twins map[string]bool
}

// serviceVariable matches the variables that Kubernetes sets for Services whose name
// begins with numaform.
var serviceVariable = regexp.MustCompile(`^(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// applyEnvironment sets each key from its environment variable: the key's path in upper
// case, joined by _, with list positions from 0, such as
// NUMAFORM_CLUSTERS_0_TOKEN_SECRET. A variable that corresponds to no key is an error,
// unless it is in others or set by Kubernetes.
func applyEnvironment(config *Config, environ, others []string) error {
	e := &environment{values: map[string]string{}, twins: map[string]bool{}}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, environmentPrefix) {
			e.values[strings.TrimPrefix(name, environmentPrefix)] = value
		}
	}
	mistakes := e.section(reflect.ValueOf(config).Elem(), "")
	for _, name := range slices.Sorted(maps.Keys(e.values)) {
		full := environmentPrefix + name
		known := e.twins[name] || full == gitToken || full == runMark || slices.Contains(others, full) || serviceVariable.MatchString(name)
		if !known {
			mistakes = append(mistakes, fmt.Errorf("environment variable %s: names no key of numaform.yaml and no flag: %s", full, e.meant(name, config, others)))
		}
	}
	return errors.Join(mistakes...)
}

// runMark is the variable that numaform sets for the engines that it starts.
const runMark = environmentPrefix + "RUN"

var clusterTwin = regexp.MustCompile(`^CLUSTERS_(\d+)_`)

// meant returns a hint about the variable that was probably meant.
func (e *environment) meant(name string, config *Config, others []string) string {
	if found := clusterTwin.FindStringSubmatch(name); found != nil {
		if n, err := strconv.Atoi(found[1]); err == nil && n >= len(config.Clusters) {
			return fmt.Sprintf("clusters has %d entries, counted from 0: correct the number, or add the cluster to numaform.yaml", len(config.Clusters))
		}
	}
	words := slices.Clone(others)
	for _, twin := range slices.Sorted(maps.Keys(e.twins)) {
		words = append(words, environmentPrefix+twin)
	}
	// The prefix is no indication of what was meant.
	if word := nearest(name, trimmed(words)); word != "" {
		return "did you mean " + environmentPrefix + word + "? Else unset it"
	}
	return "unset it, or see docs/configuration.md for the names"
}

func trimmed(words []string) []string {
	short := make([]string, len(words))
	for i, word := range words {
		short[i] = strings.TrimPrefix(word, environmentPrefix)
	}
	return short
}

// section sets the keys of a section that have environment variables.
func (e *environment) section(target reflect.Value, path string) (mistakes []error) {
	for i := range target.NumField() {
		name := path + strings.ToUpper(keyOf(target.Type().Field(i)))
		mistakes = append(mistakes, e.key(target.Field(i), name)...)
		if e.replaced(name) {
			target.Field(i).SetZero()
		}
	}
	return mistakes
}

// replaced reports whether the environment sets a value that replaces its file, or a file
// that replaces the value.
func (e *environment) replaced(name string) bool {
	other, isFile := strings.CutSuffix(name, fileSuffix)
	if !isFile {
		other = name + fileSuffix
	}
	_, itself := e.values[name]
	_, instead := e.values[other]
	return instead && !itself
}

// fileSuffix ends the keys that name a file with another key's value.
const fileSuffix = "_FILE"

func (e *environment) key(field reflect.Value, name string) (mistakes []error) {
	switch {
	case field.Kind() == reflect.Struct:
		return e.section(field, name+"_")
	case isSections(field.Type()):
		for i := range field.Len() {
			mistakes = append(mistakes, e.section(field.Index(i), name+"_"+strconv.Itoa(i)+"_")...)
		}
		return mistakes
	}
	e.twins[name] = true
	text, ok := e.values[name]
	if !ok {
		return nil
	}
	if err := parseInto(field, text); err != nil {
		return []error{fmt.Errorf("environment variable %s%s: %w", environmentPrefix, name, err)}
	}
	return nil
}

// parseInto sets a key from text: a list from comma-separated values or YAML, a map from
// YAML.
func parseInto(field reflect.Value, text string) error {
	if field.Kind() == reflect.Pointer {
		field.Set(reflect.New(field.Type().Elem()))
		field = field.Elem()
	}
	switch field.Kind() {
	case reflect.String:
		field.SetString(text)
		return nil
	case reflect.Map:
		return parseYAML(field, text)
	case reflect.Slice:
		if strings.HasPrefix(strings.TrimSpace(text), "[") {
			return parseYAML(field, text)
		}
		list := reflect.MakeSlice(field.Type(), 0, 1)
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = reflect.Append(list, reflect.ValueOf(part).Convert(field.Type().Elem()))
			}
		}
		field.Set(list)
		return nil
	}
	node := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if problem := scalarProblem(node, field.Type()); problem != "" {
		return errors.New(problem)
	}
	if field.Type() == reflect.TypeFor[time.Duration]() {
		duration, err := time.ParseDuration(text)
		field.SetInt(int64(duration))
		return err
	}
	return node.Decode(field.Addr().Interface())
}

func parseYAML(field reflect.Value, text string) error {
	if err := plainyaml.Check([]byte(text)); err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return notYAML(err)
	}
	if len(document.Content) == 0 {
		return fmt.Errorf("is empty: want %s", wanted(field.Type()))
	}
	r := &reader{}
	r.entry(document.Content[0], field.Type(), "")
	if len(r.mistakes) > 0 {
		return errors.Join(r.mistakes...)
	}
	field.Set(reflect.Zero(field.Type()))
	return document.Decode(field.Addr().Interface())
}
