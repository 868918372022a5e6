package operator_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/operator"
)

// FuzzConfig checks that, for any text as numaform.yaml, either the error contains no names
// of Go types, or the configuration is the same after it is printed and read again.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{
		minimal, minimal + "fleat: {}\n", "clusterID: [prod]\n", "a: &a {<<: *a}\n", "---\n---\n", "clusterID: !!binary aGk=\n",
		"clusters:\n- timeouts: {clone: 1h30m}\n  vmid_range: {lower: 0x100, upper: 1_000}\n  machines: {a: b}\n  insecure: true\n",
		"policy: {limits: {window: 1h, per_host: {creates: 0}, max_updates: -1}}\n", "fleet: ~\nengine:\n", "\xff", "clusters: [{}, &c {region: a}, *c]\n",
		"fleet: {backend: {config: {? [a] : b}}}\n", "clusterID: \"a\\0b\"\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first, err := operator.Decode([]byte(text))
		if err != nil {
			if message := err.Error(); strings.Contains(message, "operator.") || strings.Contains(message, "into ") {
				t.Fatalf("%q contains internal terms", message)
			}
			return
		}
		printed, err := yaml.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		second, err := operator.Decode(printed)
		if err != nil {
			t.Fatalf("printed, it is refused: %v\n%s", err, printed)
		}
		if diff := cmp.Diff(first, second, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("printed and read again (-first +second):\n%s", diff)
		}
	})
}
