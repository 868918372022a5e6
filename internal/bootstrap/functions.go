package bootstrap

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"go.yaml.in/yaml/v3"
)

// Functions returns the functions that templates can call in addition to Go's built-in ones.
// As in sprig, the text is the last argument, so that functions work in pipelines.
func Functions() template.FuncMap {
	functions := template.FuncMap{
		"add":                 func(numbers ...any) (int, error) { return summed(1, numbers) },
		"atoi":                atoi,
		"b64dec":              decodeBase64,
		"bootstrapKubeconfig": bootstrapKubeconfig,
		"cidrhost":            cidrHost,
		"cidrslaac":           cidrSLAAC,
		"getValue":            getValue,
		"hasTag":              hasTag,
		"kubeletFlags":        kubeletFlags,
		"networkConfig":       networkConfig,
		"networkConfigV1":     networkConfigV1,
		"pairs":               pairsOf,
		"regexFindString":     regexFindString,
		"split":               func(separator, text string) []string { return strings.Split(text, separator) },
		"sub":                 func(numbers ...any) (int, error) { return summed(-1, numbers) },
		"toJson":              func(value any) (string, error) { return toJSON(value, "") },
		"toPrettyJson":        func(value any) (string, error) { return toJSON(value, "  ") },
		"toPrettyYaml":        func(value any) (string, error) { return toYAML(value, prettyIndent) },
		"toYaml":              func(value any) (string, error) { return toYAML(value, plainIndent) },
		"toYamlPretty":        func(value any) (string, error) { return toYAML(value, plainIndent) },
	}
	// Add only sprig functions whose results depend only on their arguments. They do not
	// use the environment, the clock, the network or random numbers.
	sprigFunctions := sprig.TxtFuncMap()
	for _, name := range []string{
		"b64enc", "coalesce", "contains", "default", "dict", "empty", "get", "hasKey", "hasPrefix", "hasSuffix",
		"indent", "join", "list", "lower", "nindent", "quote", "regexFind", "regexReplaceAll", "replace", "sha256sum",
		"ternary", "trim", "trimPrefix", "trimSuffix", "upper",
	} {
		functions[name] = sprigFunctions[name]
	}
	return functions
}

// decodeBase64 returns an error for invalid base64. Sprig's version returns the text of the
// error as the result.
func decodeBase64(text string) (string, error) {
	decoded, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", errors.New("invalid base64")
	}
	return string(decoded), nil
}

// atoi returns an error for an invalid integer. Sprig's version returns 0.
func atoi(text string) (int, error) {
	number, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, errors.New("invalid integer")
	}
	return number, nil
}

// summed returns the first number plus sign times the sum of the rest. Its result has the
// type that cidrhost requires.
func summed(sign int, numbers []any) (int, error) {
	sum := 0
	for i, number := range numbers {
		value := reflect.ValueOf(number)
		if !value.IsValid() || !value.CanInt() {
			return 0, errors.New("requires integers: convert strings with atoi")
		}
		if i == 0 {
			sum = int(value.Int())
			continue
		}
		sum += sign * int(value.Int())
	}
	return sum, nil
}

// getValue returns the value of a key in a list such as "ds=nocloud;i=1234", or "" if the key
// is missing.
func getValue(pairs, key string) string {
	for pair := range strings.SplitSeq(pairs, ";") {
		if name, value, ok := strings.Cut(strings.TrimSpace(pair), "="); ok && name == key {
			return value
		}
	}
	return ""
}

// hasTag reports whether a list contains a tag.
func hasTag(tags any, tag string) (bool, error) {
	switch list := tags.(type) {
	case []string:
		return slices.Contains(list, tag), nil
	case []any:
		return slices.Contains(list, any(tag)), nil
	}
	return false, errors.New("requires a list of tags as the first argument")
}

// pairsOf joins a map in the form of kubelet's flags. With the separator "=", it returns
// "cpu=1,memory=2Gi".
func pairsOf(separator string, values map[string]any) string {
	var list []string
	for _, key := range sortedKeys(values) {
		list = append(list, fmt.Sprintf("%s%s%v", key, separator, values[key]))
	}
	return strings.Join(list, ",")
}

// regexFindString returns a group of the first match, or "" without a match. Group 0 is the
// whole match.
func regexFindString(pattern, text string, group int) (string, error) {
	groups, err := newWork().find(pattern, text)
	return nth(groups, group), err
}

// nth returns a group of a match, or "" if the group does not exist.
func nth(groups []string, n int) string {
	if n < 0 || n >= len(groups) {
		return ""
	}
	return groups[n]
}

// toJSON returns a value as JSON that has the same meaning in YAML, unlike sprig's version.
func toJSON(value any, indent string) (string, error) {
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return "", errors.New("value cannot be encoded as JSON")
	}
	var text strings.Builder
	for _, r := range strings.TrimSuffix(encoded.String(), "\n") {
		// JSON allows unescaped characters that YAML forbids or treats as line breaks.
		if r >= 0x7f && r <= 0x9f || strings.ContainsRune("\u2028\u2029\ufeff\ufffe\uffff", r) {
			fmt.Fprintf(&text, `\u%04x`, r)
			continue
		}
		text.WriteRune(r)
	}
	return text.String(), nil
}

// The indentation of toYaml and toPrettyYaml.
const (
	plainIndent  = 2
	prettyIndent = 4
)

// toYAML returns a value as YAML without a final line break, for use with nindent.
func toYAML(value any, indent int) (string, error) {
	text, err := toJSON(value, "")
	if err != nil {
		return "", errors.New("value cannot be encoded as YAML")
	}
	var plain any
	if err := yaml.Unmarshal([]byte(text), &plain); err != nil {
		return "", errors.New("value cannot be encoded as YAML")
	}
	if plain, err = quoteIndented(plain); err != nil {
		return "", err
	}
	var buffer bytes.Buffer
	encoder := yaml.NewEncoder(&buffer)
	encoder.SetIndent(indent)
	if err := encoder.Encode(plain); err != nil {
		return "", errors.New("value cannot be encoded as YAML")
	}
	return strings.TrimSuffix(buffer.String(), "\n"), nil
}

// quoteIndented quotes multi-line strings that begin with white space, and returns an error
// for multi-line keys. The library encodes such strings as blocks that parsers reject or
// misread, and always encodes such keys incorrectly.
func quoteIndented(value any) (any, error) {
	var err error
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if strings.Contains(key, "\n") {
				return nil, fmt.Errorf("value cannot be encoded as YAML: the key %q has several lines", key)
			}
			if value[key], err = quoteIndented(inner); err != nil {
				return nil, err
			}
		}
	case []any:
		for i, inner := range value {
			if value[i], err = quoteIndented(inner); err != nil {
				return nil, err
			}
		}
	case string:
		if strings.Contains(value, "\n") && strings.TrimLeft(value, " \t\r\n") != value {
			return &yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: value}, nil
		}
	}
	return value, nil
}
