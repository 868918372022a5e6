package operator_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/operator"
)

// TestEveryKeyIsDocumented checks that docs/configuration.md lists exactly the existing
// keys.
func TestEveryKeyIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([A-Z0-9_]+)` \\|").FindAllStringSubmatch(string(text), -1)
	documented := map[string]string{}
	for _, row := range rows {
		documented[row[1]] = row[2]
	}
	for _, key := range operator.Keys() {
		if documented[key.Path] != key.Variable {
			t.Errorf("%s is documented with the variable %q, want %q", key.Path, documented[key.Path], key.Variable)
		}
		delete(documented, key.Path)
	}
	for path := range documented {
		t.Errorf("%s is not a key", path)
	}
}

// TestEveryVariableWorks checks that each key can be set by its environment variable.
func TestEveryVariableWorks(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"true or false": "true", "an integer": "7", "a number such as 0.012": "0.5", "a positive duration such as 90s or 10m": "3m",
		"a list of strings such as [a, b]": "https://a.example:8006,https://b.example:8006", "a map such as {name: value}": "{a: b}",
	}
	for _, key := range operator.Keys() {
		value := "x"
		switch {
		case values[key.Values] != "":
			value = values[key.Values]
		case strings.HasPrefix(key.Values, "a number from"):
			value = "2100"
		}
		name := strings.ReplaceAll(key.Variable, "_N_", "_0_")
		_, _, err := load(t, minimal+"  address_pools: [{name: a, subnet: 10.0.0.0/24}]\n"+
			"notifications: {targets: [{name: a, type: webhook, url: 'http://h'}]}\napproval: {require: [{}], freeze: [{}]}\n", name+"="+value)
		if err != nil && strings.Contains(err.Error(), "environment variable") {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}
