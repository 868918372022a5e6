package layering_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/layering"
)

// TestRepository checks numaform itself against its table.
func TestRepository(t *testing.T) {
	t.Parallel()
	found, err := layering.Check(os.DirFS("../.."), layering.Module, layering.Table())
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range found {
		t.Error(violation)
	}
}

// TestSimulators checks the simulators against their table.
func TestSimulators(t *testing.T) {
	t.Parallel()
	found, err := layering.Check(os.DirFS("../../"+layering.Simulators), layering.Module+"/"+layering.Simulators, layering.SimulatorTable())
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range found {
		t.Errorf("%s/%s", layering.Simulators, violation)
	}
}

// TestSimulatorsAreApart checks that numaform and its simulators share no code, because tests
// would not detect a wrong assumption about Proxmox in shared code.
func TestSimulatorsAreApart(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	for _, violation := range together(t, root) {
		t.Error(violation)
	}
	for name, foreign := range map[string]string{"go.mod": layering.Module + "/" + layering.Simulators, layering.Simulators + "/go.mod": layering.Module + " "} {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), foreign) {
			t.Errorf("%s names %s", name, foreign)
		}
	}
}

// together returns the imports between numaform and its simulators.
func together(t *testing.T, root fs.FS) []string {
	t.Helper()
	const simulators = layering.Module + "/" + layering.Simulators + "/"
	files, apart := 0, []string{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && strings.HasPrefix(path.Base(name), "."):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go" || strings.Contains(name, "testdata/"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		inside := strings.HasPrefix(name, layering.Simulators+"/")
		if inside {
			files++
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if strings.HasPrefix(imported, layering.Module+"/") && strings.HasPrefix(imported, simulators) != inside {
				apart = append(apart, name+" imports "+imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Errorf("no files in %s", layering.Simulators)
	}
	return apart
}

// TestTogether checks that an import in either direction is found.
func TestTogether(t *testing.T) {
	t.Parallel()
	tree := fstest.MapFS{
		"a/a.go":               &fstest.MapFile{Data: []byte("package a\nimport _ \"" + layering.Module + "/test/sim/pvesim\"\n")},
		"b/b.go":               &fstest.MapFile{Data: []byte("package b\nimport _ \"" + layering.Module + "/a\"\n")},
		"test/sim/c/c_test.go": &fstest.MapFile{Data: []byte("package c\nimport _ \"" + layering.Module + "/topology\"\n")},
		"test/sim/d/d.go":      &fstest.MapFile{Data: []byte("package d\nimport _ \"" + layering.Module + "/test/sim/pvesim\"\n")},
	}
	want := []string{"a/a.go imports " + layering.Module + "/test/sim/pvesim", "test/sim/c/c_test.go imports " + layering.Module + "/topology"}
	if diff := cmp.Diff(want, together(t, tree)); diff != "" {
		t.Errorf("imports (-want +got):\n%s", diff)
	}
}

// TestTable checks the order of the table: floors ascend, rows of one floor are sorted, and
// no package appears twice. It also checks that no package is both pure and for tests.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	previous := layering.Row{Floor: -1}
	for _, row := range layering.Table() {
		if seen[row.Package] {
			t.Errorf("%s is listed twice", row.Package)
		}
		seen[row.Package] = true
		if row.Floor < previous.Floor {
			t.Errorf("%s, floor %d, is listed after %s, floor %d", row.Package, row.Floor, previous.Package, previous.Floor)
		}
		if row.Floor == previous.Floor && strings.Compare(row.Package, previous.Package) <= 0 {
			t.Errorf("%s is listed after %s on the same floor: sort them", row.Package, previous.Package)
		}
		if row.Pure && row.Support {
			t.Errorf("%s is both pure and for tests: choose one", row.Package)
		}
		previous = row
	}
}
