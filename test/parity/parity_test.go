// Package parity_test generates docs/parity.md from its rows in testdata, and checks that
// every row names tests that exist, or what a user does instead.
package parity_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write docs/parity.md")

// notYet are the rows that lack something. Remove a row from this list when it is complete;
// never add one.
func notYet() []string { return nil }

const root = "../.."

// group is a table of the page.
type group struct {
	Title string `json:"title"`
	Rows  []row  `json:"rows"`
}

// row is a capability that another autoscaler has, or a request of a user.
type row struct {
	ID   string `json:"id"`
	What string `json:"what"`
	// How is what numaform does.
	How string `json:"how"`
	// Tests are directory.Name or directory.Name/case.
	Tests []string `json:"tests"`
	// Missing is what numaform does not do yet.
	Missing string `json:"missing"`
	// Instead is what a user does, for a capability that numaform does not copy, for the
	// reason in the ADR, a file. The page does not refer to it: ADRs are for contributors.
	Instead string `json:"instead"`
	ADR     string `json:"adr"`
}

// TestParity checks the rows, and that docs/parity.md was generated from them.
func TestParity(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/rows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var groups []group
	if err := yaml.UnmarshalStrict(text, &groups); err != nil {
		t.Fatal(err)
	}

	d := declarations{t: t, files: map[string]map[string]string{}}
	page := &strings.Builder{}
	page.WriteString(head)
	var missing, ids []string
	for _, g := range groups {
		fmt.Fprintf(page, "\n## %s\n\n| | capability | numaform | tests |\n| --- | --- | --- | --- |\n", g.Title)
		for _, r := range g.Rows {
			ids = append(ids, r.ID)
			if r.Missing != "" {
				missing = append(missing, r.ID)
			}
			switch {
			case r.What == "":
				t.Errorf("row %s: what is empty", r.ID)
			case r.Missing == "" && r.Instead == "" && (len(r.Tests) == 0 || r.How == ""):
				t.Errorf("row %s names no test, or not what numaform does: add both, or instead", r.ID)
			case (r.Instead == "") != (r.ADR == ""):
				t.Errorf("row %s: instead and adr belong together", r.ID)
			}
			var links []string
			for _, test := range r.Tests {
				links = append(links, d.link(r.ID, test))
			}
			fmt.Fprintf(page, "| %s | %s | %s | %s |\n", r.ID, r.What, r.text(t), strings.Join(links, ", "))
		}
	}
	if diff := cmp.Diff(notYet(), missing); diff != "" {
		t.Errorf("rows that lack something (-notYet +testdata/rows.yaml):\n%s", diff)
	}
	if want := wantIDs(); !slices.Equal(ids, want) {
		t.Errorf("rows (-want +got):\n%s", cmp.Diff(want, ids))
	}

	path := filepath.Join(root, "docs", "parity.md")
	if *update {
		if err := os.WriteFile(path, []byte(page.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page.String(), string(written)); diff != "" {
		t.Errorf("docs/parity.md (-want +got): run go test ./test/parity -update\n%s", diff)
	}
}

// wantIDs returns the IDs of all rows: 117 capabilities and 37 requests.
func wantIDs() []string {
	var ids []string
	for i := range 117 {
		ids = append(ids, fmt.Sprint(i+1))
	}
	for i := range 37 {
		ids = append(ids, fmt.Sprint("R", i+1))
	}
	return ids
}

// text returns the cell of a row that describes numaform.
func (r *row) text(t *testing.T) string {
	parts := []string{r.How}
	if r.Missing != "" {
		parts = append(parts, "**not yet:** "+r.Missing)
	}
	if r.Instead != "" {
		if _, err := os.Stat(filepath.Join(root, r.ADR)); err != nil {
			t.Errorf("row %s: %v", r.ID, err)
		}
		parts = append(parts, "**instead:** "+r.Instead)
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "; ")
}

// declarations are the files of the tests in each directory.
type declarations struct {
	t     *testing.T
	files map[string]map[string]string
}

// link returns a link to a test, or reports that it does not exist.
func (d *declarations) link(id, test string) string {
	name, script, _ := strings.Cut(test[strings.LastIndex(test, ".")+1:], "/")
	dir := test[:max(0, strings.LastIndex(test, "."))]
	if d.files[dir] == nil {
		d.files[dir] = declared(d.t, dir)
	}
	file := d.files[dir][name]
	if script != "" && file != "" {
		kind := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(name, "Test"), "s")) // TestScripts runs testdata/script
		if name == "TestMistakes" {
			kind = "mistakes"
		}
		file = filepath.Join("testdata", kind, script+".txtar")
		if _, err := os.Stat(filepath.Join(root, dir, file)); err != nil {
			file = ""
		}
	}
	if file == "" {
		d.t.Errorf("row %s: test %s does not exist", id, test)
	}
	return fmt.Sprintf("[%s](../%s)", filepath.Base(dir)+strings.TrimPrefix(test, dir), filepath.Join(dir, file))
}

// declared returns the files of a directory's tests by their names.
func declared(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				files[f.Name.Name] = filepath.Base(path)
			}
		}
	}
	return files
}

const head = `# Comparison with other node autoscalers

This page lists what other node autoscalers for Proxmox can do, what their users requested, and what numaform does, with the tests that show it.
The others are karpenter-provider-proxmox 0.12, kproximate and KubeNodeSmith; the requests are issues of these and of related projects.
A test generates this page and checks that each of the named tests exists. Rows marked **not yet** lack something.
`
