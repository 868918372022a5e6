package state_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/state"
)

// TestModuleCallsWithoutInit checks that, after calls of a module that calls another are
// added and removed, the engine's list and plan are the same as in an initialized
// directory.
func TestModuleCallsWithoutInit(t *testing.T) {
	t.Parallel()
	said := &log{}
	dir, fresh := root(t, localBackend), root(t, localBackend)
	put := func(name, content string) {
		write(t, dir, name, content)
		write(t, fresh, name, content)
	}
	put("../m/main.tf", "module \"inner\" {\n  source = \"./inner\"\n}\n"+`resource "terraform_data" "x" {}`)
	put("../m/inner/main.tf", `resource "terraform_data" "y" {}`)
	call := func(name string) string { return fmt.Sprintf("module %q {\n  source = \"../m\"\n}\n", name) }
	write(t, dir, "calls.tf", call("a")+call("gone"))
	w := open(t, dir, func(c *state.Config) { c.Log = said })
	mustPlan(t, w, state.PlanOptions{})
	put("calls.tf", call("a")+call("b")+call("c"))
	got := mustPlan(t, w, state.PlanOptions{})
	if inits := said.count("Initializing the backend"); inits != 1 {
		t.Errorf("%d inits, want 1", inits)
	}
	want := mustPlan(t, open(t, fresh, nil), state.PlanOptions{})
	if diff := cmp.Diff(planned(want), planned(got)); diff != "" {
		t.Errorf("plan (-with init +without):\n%s", diff)
	}
	if len(planned(got)) != 8 {
		t.Errorf("plan has %v, want two resources and two of each call", planned(got))
	}
	list := filepath.Join(".terraform", "modules", "modules.json")
	if diff := cmp.Diff(entries(t, filepath.Join(fresh, list)), entries(t, filepath.Join(dir, list))); diff != "" {
		t.Errorf("the engine's list (-with init +without):\n%s", diff)
	}
}

// planned returns the addresses of a plan's resources.
func planned(plan *state.Plan) []string {
	var addresses []string
	for _, change := range plan.JSON.ResourceChanges {
		addresses = append(addresses, change.Address)
	}
	slices.Sort(addresses)
	return addresses
}

// entries returns the entries of a list of modules, sorted.
func entries(t *testing.T, name string) []string {
	t.Helper()
	found := strings.Split(string(mustRead(t, name)), "},{")
	for i := range found {
		found[i] = strings.Trim(found[i], "{}[]\n")
		found[i] = strings.TrimPrefix(found[i], `"Modules":[{`)
	}
	slices.Sort(found)
	return found
}

// TestModuleCallsThatNeedInit checks that calls that numaform cannot add to the engine's
// list, such as calls of modules without an entry, leave the list unchanged, so that init
// must run.
func TestModuleCallsThatNeedInit(t *testing.T) {
	t.Parallel()
	const known = `{"Modules":[{"Key":"","Source":"","Dir":"."},{"Key":"a","Source":"../m","Dir":"../m"}]}`
	for name, test := range map[string]struct{ list, calls string }{
		"another directory":  {known, "module \"b\" {\n  source = \"../n\"\n}\n"},
		"from a registry":    {known, "module \"b\" {\n  source = \"a/b/c\"\n  version = \"1.0.0\"\n}\n"},
		"an unclear source":  {known, "module \"b\" {\n  source = var.x\n}\n"},
		"no list":            {"", "module \"b\" {\n  source = \"../m\"\n}\n"},
		"a list that is bad": {"{", "module \"b\" {\n  source = \"../m\"\n}\n"},
		"a call twice":       {known, strings.Repeat("module \"b\" {\n  source = \"../m\"\n}\n", 2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if test.list != "" {
				write(t, dir, ".terraform/modules/modules.json", test.list)
			}
			if state.AddCalls(dir, map[string][]byte{"calls.tf": []byte(test.calls)}) {
				t.Error("it did without init")
			}
			if test.list != "" && string(mustRead(t, filepath.Join(dir, ".terraform/modules/modules.json"))) != test.list {
				t.Error("the list was changed")
			}
		})
	}
}
