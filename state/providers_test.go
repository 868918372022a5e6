package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numaform/numaform/state"
)

// TestRequired reads which provider files ask for; every other is refused.
func TestRequired(t *testing.T) {
	t.Parallel()
	const ours = "registry.opentofu.org/bpg/proxmox"
	asks := func(source, version string) string {
		return fmt.Sprintf("terraform {\n  required_providers {\n    b = {\n      source = %q\n      version = %q\n    }\n  }\n}\n", source, version)
	}
	tests := map[string]struct{ main, want, refused string }{
		"exact":               {asks(ours, "1.2.3"), "1.2.3", ""},
		"exact, with a sign":  {asks(ours, "= 1.2.2"), "1.2.2", ""},
		"a candidate":         {asks(ours, "1.2.3-rc1"), "1.2.3-rc1", ""},
		"built in":            {asks("terraform.io/builtin/terraform", ""), "", ""},
		"no terraform block":  {"module \"a\" {\n}\n", "", ""},
		"a file that is none": {"terraform {", "", ""},
		"a range":             {asks(ours, ">= 1.2.4"), "", "an exact version"},
		"a path for version":  {asks(ours, "1.2.3/../x"), "", "an exact version"},
		"another provider":    {asks("registry.opentofu.org/hashicorp/http", "1.2.4"), "", "hashicorp/http: numaform runs"},
		"another registry":    {asks("example.com/bpg/proxmox", "1.2.4"), "", "example.com/bpg/proxmox: numaform runs"},
		"only a version":      {"terraform {\n  required_providers {\n    http = \"1.2.4\"\n  }\n}\n", "", "provider http: numaform runs"},
		"not constant":        {"terraform {\n  required_providers {\n    b = local.b\n  }\n}\n", "", "provider b: numaform runs"},
		"null":                {"terraform {\n  required_providers {\n    b = null\n  }\n}\n", "", "provider b: numaform runs"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string][]byte{"main.tf": []byte(tt.main), "x.tf.json": []byte("{}")}
			got, err := state.Required(files)
			if got != tt.want || (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("got %q, %v, want %q, %q", got, err, tt.want, tt.refused)
			}
		})
	}
}
