package modules_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/modules"
)

// TestModuleTests checks that all of each module's own tests run and pass with the real
// provider.
func TestModuleTests(t *testing.T) {
	t.Parallel()
	engine := enginetest.New(t)
	for _, module := range all(t) {
		t.Run(module, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(module)); err != nil {
				t.Fatal(err)
			}
			engine.Run(t, dir, "init", "-no-color", "-input=false")
			out := engine.Run(t, dir, "test", "-no-color")
			passed := regexp.MustCompile(`(\d+) passed, 0 failed`).FindStringSubmatch(out)
			written := 0
			for _, file := range testFiles(t, module) {
				written += strings.Count("\n"+file, "\nrun \"")
			}
			if len(passed) != 2 || passed[1] != strconv.Itoa(written) {
				t.Errorf("want %d runs passed and 0 failed, got:\n%s", written, out)
			}
		})
	}
}

// TestModulesAreFormatted checks that the modules copied to fleets and roots are
// formatted.
func TestModulesAreFormatted(t *testing.T) {
	t.Parallel()
	engine := enginetest.New(t)
	dir := t.TempDir()
	for _, module := range append(all(t), filepath.Join("..", "examples", "templates")) {
		if err := os.CopyFS(filepath.Join(dir, filepath.Base(module)), os.DirFS(module)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := engine.Try(t, dir, "fmt", "-no-color", "-check", "-recursive"); err != nil {
		t.Errorf("not formatted: run %s fmt -recursive in modules:\n%s", engine, out)
	}
}

func TestFilesAreWhatTheEngineReads(t *testing.T) {
	t.Parallel()
	want := []string{
		"proxmox-node/main.tf", "proxmox-node/outputs.tf", "proxmox-node/variables.tf", "proxmox-node/versions.tf",
		"proxmox-security-groups/main.tf", "proxmox-security-groups/variables.tf", "proxmox-security-groups/versions.tf",
	}
	files := modules.Files()
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for name, content := range files {
		onDisk, err := os.ReadFile(filepath.FromSlash(name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(onDisk), string(content)); diff != "" {
			t.Errorf("%s (-disk +embedded):\n%s", name, diff)
		}
	}
}

func TestHashNamesContent(t *testing.T) {
	t.Parallel()
	base := map[string][]byte{"a.tf": []byte("one"), "b.tf": []byte("two")}
	hash := modules.HashOf(base)
	if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(hash) || hash != modules.HashOf(maps.Clone(base)) {
		t.Errorf("hash %q: want 16 hex digits, the same each time", hash)
	}
	changed := map[string]map[string][]byte{
		"a content":   {"a.tf": []byte("ONE"), "b.tf": []byte("two")},
		"a name":      {"c.tf": []byte("one"), "b.tf": []byte("two")},
		"one less":    {"a.tf": []byte("one")},
		"moved bytes": {"a.tf": []byte("onet"), "b.tf": []byte("wo")},
		"moved name":  {"a.tfo": []byte("ne"), "b.tf": []byte("two")},
	}
	for name, files := range changed {
		if modules.HashOf(files) == hash {
			t.Errorf("%s does not change the hash", name)
		}
	}
	if modules.Hash() != modules.HashOf(modules.Files()) {
		t.Error("Hash is not the hash of Files")
	}
}

// all lists the modules: the ones for node files, and proxmox-template for users' roots.
func all(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("*", "main.tf"))
	if err != nil || len(files) <= len(modules.Names()) {
		t.Fatalf("modules %v: %v", files, err)
	}
	for i, file := range files {
		files[i] = filepath.Dir(file)
	}
	return files
}

func testFiles(t *testing.T, module string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(module, "tests", "*.tftest.hcl"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no module tests found: %v", err)
	}
	var contents []string
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, string(content))
	}
	return contents
}
