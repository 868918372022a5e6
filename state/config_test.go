package state_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/state"
)

// TestRequired checks that files may require only built-in providers and, in an exact
// version, numaform's.
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

// TestSumOfChangedFiles checks that a provider that is replaced with one of the same size
// and modification time has a new hash, in the process that hashed the first one and in
// another process.
func TestSumOfChangedFiles(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "sum")
	name := filepath.Join(dir, "terraform-provider-proxmox")
	now := time.Now()
	sum := func(engine *state.Engine) string {
		t.Helper()
		sum, err := engine.Sum(dir, file, now)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	write(t, dir, "terraform-provider-proxmox", "one")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	var engine state.Engine
	first := sum(&engine)
	if again := sum(&engine); again != first {
		t.Errorf("the same files have hashes %s and %s", first, again)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the hash of a file that was just written is kept: it may change within the same tick of the clock")
	}

	now = now.Add(3 * time.Second)
	if later := sum(new(state.Engine)); later != first {
		t.Errorf("the same files have hashes %s and %s", first, later)
	}
	kept, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(kept), first) {
		t.Fatalf("the hash that is kept between processes: %s, %v; want %s", kept, err, first)
	}
	write(t, filepath.Dir(file), filepath.Base(file), strings.ReplaceAll(string(kept), first, "h1:kept"))
	if again := sum(new(state.Engine)); again != "h1:kept" {
		t.Errorf("the next process computes the hash again: %s", again)
	}

	write(t, dir, "terraform-provider-proxmox", "two")
	if err := os.Chtimes(name, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	for process, engine := range map[string]*state.Engine{"the same": &engine, "another": new(state.Engine)} {
		if changed := sum(engine); changed == first || changed == "h1:kept" {
			t.Errorf("%s process gives a provider that was replaced the hash %s of the first", process, changed)
		}
	}
}

// TestGuarded checks that a file counts as guarded only if no other user can replace it.
func TestGuarded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		mode fs.FileMode
		want bool
	}{
		"own": {0o755, true}, "of a group": {0o775, false}, "of everyone": {0o777, false}, "of everyone, and sticky": {0o777 | fs.ModeSticky, true},
	} {
		dir := filepath.Join(t.TempDir(), "providers")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, tt.mode)); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "provider", "")
		link := filepath.Join(dir, "link")
		if err := os.Symlink(filepath.Join(dir, "provider"), link); err != nil {
			t.Fatal(err)
		}
		if got := state.Guarded(filepath.Join(dir, "provider")); got != tt.want {
			t.Errorf("a directory %s: %t, want %t", name, got, tt.want)
		}
		if state.Guarded(link) || state.Guarded(filepath.Join(dir, "none")) {
			t.Errorf("a directory %s: a link, or a file that is not there, is guarded", name)
		}
	}
}

func TestDiedOf(t *testing.T) {
	t.Parallel()
	for want, texts := range map[string][]string{
		": panic: boom":          {"starting\n", "pan", "ic: boom\n\ngoroutine 1 [running]:\n"},
		": fatal error: no room": {strings.Repeat("x", 70<<10) + "\n", "fatal error: no room\n"},
		"":                       {"no panic\n"},
	} {
		if got := state.Died(texts...); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestNeedsProvider(t *testing.T) {
	t.Parallel()
	const text = "Error: Failed to query available provider packages"
	for _, tt := range []struct {
		dir, text, want string
		needed          bool
	}{
		{"", text, "set engine.plugin_dir in numaform.yaml to a directory that `tofu providers mirror DIR` filled", true},
		{"/mirror", text, "engine.plugin_dir /mirror does not contain the provider", true},
		{"", "Error: no such host", "", false},
	} {
		fix, needed := state.NeedsProvider(tt.dir, tt.text)
		if needed != tt.needed || !strings.Contains(fix, tt.want) || !needed && fix != "" {
			t.Errorf("%q in %q: %t, %q", tt.text, tt.dir, needed, fix)
		}
	}
}
