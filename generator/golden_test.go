package generator_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/modules"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// hashWord replaces the module's hash in golden files, so that a change of the module
// does not affect all of them.
const hashWord = "0123456789abcdef"

// TestGolden checks that each testdata case is rendered as its golden files, and that Parse
// reads the files back as the same fleet.
func TestGolden(t *testing.T) {
	t.Parallel()
	for name, archive := range goldens(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			want := inputOf(t, archive)
			files, err := generator.Render(want)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				writeGolden(t, name, archive, files)
				return
			}
			if diff := cmp.Diff(contents(archive.Files[1:]), contents(visible(files))); diff != "" {
				t.Errorf("files (-golden +rendered), go test ./generator -update rewrites them:\n%s", diff)
			}
			checkParse(t, want, files)
		})
	}
}

// TestGoldensAreValid checks that the real engine and provider accept each golden root, and
// that its files are formatted.
func TestGoldensAreValid(t *testing.T) {
	t.Parallel()
	engine := enginetest.New(t)
	for name, archive := range goldens(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			want := inputOf(t, archive)
			files, err := generator.Render(want)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			enginetest.Write(t, dir, withModules(files, want))
			if out, err := engine.Try(t, dir, "fmt", "-no-color", "-check", "-recursive"); err != nil {
				t.Errorf("not formatted as %s would: %s", engine, out)
			}
			for _, host := range want.AllHosts() {
				root := filepath.Join(dir, filepath.FromSlash(generator.RootDir(host)))
				engine.Run(t, root, "init", "-no-color", "-input=false", "-backend=false")
				engine.Run(t, root, "validate", "-no-color")
			}
		})
	}
}

// withModules adds the modules that VMs call: released ones, or the current modules under
// another hash.
func withModules(files generator.Files, f fleet.Fleet) generator.Files {
	for i := range f.VMs {
		hash := f.VMs[i].Module
		current, ok := modules.Released(hash)
		if !ok {
			current = modules.Files()
		}
		for name, content := range current {
			if hash != "" {
				files[path.Join("modules", path.Dir(name), hash, path.Base(name))] = content
			}
		}
	}
	return files
}

// goldens returns the cases by file path.
func goldens(t *testing.T) map[string]*txtar.Archive {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	cases := map[string]*txtar.Archive{}
	for _, name := range names {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		cases[name] = archive
	}
	return cases
}

// inputOf returns the fleet in a case's first file.
func inputOf(t *testing.T, archive *txtar.Archive) fleet.Fleet {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(archive.Files[0].Data))
	decoder.DisallowUnknownFields()
	var f fleet.Fleet
	if err := decoder.Decode(&f); err != nil {
		t.Fatalf("reading %s: %v", archive.Files[0].Name, err)
	}
	return f
}

// visible returns the files that belong in a golden file, sorted.
func visible(files generator.Files) []txtar.File {
	var list []txtar.File
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(name, "modules/") {
			content := strings.ReplaceAll(string(files[name]), modules.Hash(), hashWord)
			list = append(list, txtar.File{Name: name, Data: []byte(content)})
		}
	}
	return list
}

func contents(files []txtar.File) map[string]string {
	byName := map[string]string{}
	for _, file := range files {
		byName[file.Name] = string(file.Data)
	}
	return byName
}

func writeGolden(t *testing.T, name string, archive *txtar.Archive, files generator.Files) {
	t.Helper()
	archive.Files = append(archive.Files[:1:1], visible(files)...)
	if err := os.WriteFile(name, txtar.Format(archive), 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkParse parses files and compares the result with the rendered fleet.
func checkParse(t testing.TB, want fleet.Fleet, files generator.Files) {
	t.Helper()
	got, err := generator.Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(canonical(want), canonical(got)); diff != "" {
		t.Errorf("fleet read back (-rendered +parsed):\n%s", diff)
	}
}

// canonical returns the fleet as Parse returns it: sorted, with all roots and with the
// module set.
func canonical(f fleet.Fleet) fleet.Fleet {
	f.Regions, f.VMs, f.Hosts = slices.Clone(f.Regions), slices.Clone(f.VMs), f.AllHosts()
	if len(f.Hosts) == 0 {
		f.Hosts = nil
	}
	f.Sort()
	for i := range f.VMs {
		if f.VMs[i].Module == "" {
			f.VMs[i].Module = modules.Hash()
		}
	}
	return f
}
