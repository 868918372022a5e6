package state_test

import (
	"fmt"
	"testing"

	"github.com/numaform/numaform/state"
)

// TestMoved tells files that ask for another provider than the locked one.
func TestMoved(t *testing.T) {
	t.Parallel()
	lock := func(version string) string {
		return fmt.Sprintf("provider \"example.com/a/b\" {\n  version = %q\n  constraints = %q\n  hashes = [\"h1:x\"]\n}\n", version, version)
	}
	asks := func(source, version string) string {
		return fmt.Sprintf("terraform {\n  required_providers {\n    b = {\n      source = %q\n      version = %q\n    }\n  }\n}\n", source, version)
	}
	tests := map[string]struct {
		main, lock string
		want       bool
	}{
		"the same":            {asks("example.com/a/b", "1.2.3"), lock("1.2.3"), false},
		"newer":               {asks("example.com/a/b", "1.2.4"), lock("1.2.3"), true},
		"older":               {asks("example.com/a/b", "= 1.2.2"), lock("1.2.3"), true},
		"a candidate":         {asks("example.com/a/b", "1.2.3-rc1"), lock("1.2.3"), true},
		"a range":             {asks("example.com/a/b", ">= 1.2.4"), lock("1.2.3"), false},
		"another provider":    {asks("example.com/a/c", "1.2.4"), lock("1.2.3"), false},
		"no lock":             {asks("example.com/a/b", "1.2.4"), "", false},
		"no terraform block":  {"module \"a\" {\n}\n", lock("1.2.3"), false},
		"no version":          {"terraform {\n  required_providers {\n    b = { source = \"example.com/a/b\" }\n  }\n}\n", lock("1.2.3"), false},
		"only a version":      {"terraform {\n  required_providers {\n    b = \"1.2.4\"\n  }\n}\n", lock("1.2.3"), false},
		"not constant":        {"terraform {\n  required_providers {\n    b = local.b\n  }\n}\n", lock("1.2.3"), false},
		"null":                {"terraform {\n  required_providers {\n    b = null\n  }\n}\n", lock("1.2.3"), false},
		"a file that is none": {"terraform {", lock("1.2.3"), false},
		"a lock that is none": {asks("example.com/a/b", "1.2.4"), "provider {", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string][]byte{"main.tf": []byte(tt.main), ".terraform.lock.hcl": []byte(tt.lock), "x.tf.json": []byte("{}")}
			if got := state.Moved(files); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}
