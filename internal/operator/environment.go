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

	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/forge"
)

const (
	// environmentPrefix is the prefix of the environment variable of every key.
	environmentPrefix = "NUMAFORM_"
	// runMark is the variable that numaform sets for the engines that it starts.
	runMark = environmentPrefix + "RUN"
	// fileSuffix is the suffix of the variables of keys that name a file with another key's
	// value.
	fileSuffix = "_FILE"
)

// variableOf returns the environment variable of a key: its path in upper case, joined by _,
// with list positions from 0, such as NUMAFORM_CLUSTERS_0_TOKEN_SECRET.
func variableOf(path string) string {
	return environmentPrefix + strings.ToUpper(strings.NewReplacer("[", "_", "].", "_", ".", "_").Replace(path))
}

// serviceVariable matches the variables that Kubernetes sets for Services whose name
// begins with numaform.
var serviceVariable = regexp.MustCompile(`^NUMAFORM_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// applyEnvironment sets each key from its environment variable. A variable that begins with
// NUMAFORM_ and corresponds to no key is an error, unless it is in others, is
// NUMAFORM_GIT_TOKEN, NUMAFORM_CHECKPOINT_TOKEN, NUMAFORM_FORGE_TOKEN or NUMAFORM_RUN, or is set
// by Kubernetes.
func applyEnvironment(config *Config, environ, others []string) error {
	values := map[string]string{}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, environmentPrefix) {
			values[name] = value
		}
	}

	var mistakes []error
	known := slices.Clone(others)
	walkKeys(reflect.ValueOf(config).Elem(), "", func(path string, key reflect.Value) {
		name := variableOf(path)
		known = append(known, name)
		if text, ok := values[name]; ok {
			if err := setKey(key, text); err != nil {
				mistakes = append(mistakes, fmt.Errorf("environment variable %s: %w", name, err))
			}
			return
		}
		// A value in the environment replaces a file in numaform.yaml, and a file in the
		// environment replaces a value.
		other, isFile := strings.CutSuffix(name, fileSuffix)
		if !isFile {
			other = name + fileSuffix
		}
		if _, replaced := values[other]; replaced {
			key.SetZero()
		}
	})

	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name == gitToken || name == checkpointToken || name == forge.TokenVariable || name == runMark || slices.Contains(known, name) || serviceVariable.MatchString(name) {
			continue
		}
		mistakes = append(mistakes, fmt.Errorf("environment variable %s: matches no key of numaform.yaml and no flag: %s", name, meantVariable(name, known, len(config.Clusters))))
	}
	return errors.Join(mistakes...)
}

// setKey sets a key from text. A list may be comma-separated values or YAML. All other
// types except strings are parsed as YAML.
func setKey(key reflect.Value, text string) error {
	if key.Kind() == reflect.String {
		key.SetString(text)
		return nil
	}

	key.SetZero()
	text = strings.TrimSpace(text)
	if key.Kind() == reflect.Slice && !strings.HasPrefix(text, "[") {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				key.Set(reflect.Append(key, reflect.ValueOf(part).Convert(key.Type().Elem())))
			}
		}
		return nil
	}
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(text), &node); err == nil && (len(node.Content) == 0 || node.Content[0].ShortTag() == "!!null") {
		return fmt.Errorf("is empty: must be %s", valuesOf(key.Type()))
	}
	if err := decode([]byte(text), key.Addr().Interface()); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "line 1: "))
	}
	return nil
}

// clustersIn returns the number of clusters that variables configure, numbered from 0.
func clustersIn(environ []string) int {
	numbers := map[string]bool{}
	for _, entry := range environ {
		if found := clusterVariable.FindStringSubmatch(entry); found != nil {
			numbers[found[1]] = true
		}
	}
	count := 0
	for numbers[strconv.Itoa(count)] {
		count++
	}
	return count
}

var clusterVariable = regexp.MustCompile(`^NUMAFORM_CLUSTERS_(\d+)_`)

// meantVariable returns a hint about an unknown variable.
func meantVariable(name string, known []string, clusters int) string {
	if found := clusterVariable.FindStringSubmatch(name); found != nil {
		if n, err := strconv.Atoi(found[1]); err == nil && n >= clusters {
			return fmt.Sprintf("clusters has no entry %d (the first is 0): correct the number, or add the cluster to numaform.yaml", n)
		}
	}
	// Compare the names without their common prefix.
	words := make([]string, len(known))
	for i, word := range known {
		words[i] = strings.TrimPrefix(word, environmentPrefix)
	}
	if word := Nearest(strings.TrimPrefix(name, environmentPrefix), words); word != "" {
		return "did you mean " + environmentPrefix + word + "? Otherwise, unset it"
	}
	return "unset it, or see docs/configuration.md for the names"
}
