package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/store"
)

// infrastructure lists the files of another team's repository.
var infrastructure = []string{
	"network.tf", "aws/prod/main.tf", "aws/prod/node-x.tf", "aws/prod/terraform.tfvars", "aws/fleet.json",
	"mods/vpc/main.tf", "modules/vpc/main.tf", "modules/proxmox-node/main.tf", "a/b/c/d/main.tf", "deep/modules/x/y.tf",
}

func putAll(t *testing.T, dir string, names []string) {
	t.Helper()
	for _, name := range names {
		put(t, dir, name, "# "+name+"\n")
	}
}

// tree returns all files below dir, without PrivateDir.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.Contains(path, store.PrivateDir) {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[filepath.ToSlash(name)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestWriteIntoARepository writes to a directory with unmanaged files: they are refused,
// and nothing is written.
func TestWriteIntoARepository(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	putAll(t, dir, infrastructure)
	want := tree(t, dir)
	d := store.NewDirectory(dir)
	var refused *store.RefusedError
	if _, err := d.Files(); !errors.As(err, &refused) {
		t.Errorf("reading: %v", err)
	}
	if err := d.Write(desired()); !errors.As(err, &refused) {
		t.Errorf("writing: %v", err)
	}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
}

func TestWriteMergesTheIgnoreFile(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	put(t, d.Path(), ".gitignore", "*.swp")
	write(t, d, desired())
	write(t, d, render(map[fleet.VMID]string{2007: "pve-2"}))
	got := tree(t, d.Path())
	if ignore := got[".gitignore"]; !strings.HasPrefix(ignore, "*.swp\n.numaform/\n") || strings.Count(ignore, ".terraform/") != 1 {
		t.Errorf(".gitignore:\n%s", ignore)
	}
	if _, exists := got["r/pve-1/node-a-2000.tf"]; exists {
		t.Error("a VM of the fleet is still there")
	}
	if parsed, err := generator.Parse(read(t, d)); err != nil || len(parsed.VMs) != 1 {
		t.Errorf("fleet %+v, %v", parsed, err)
	}
}

func TestWriteRefusesConflictingFiles(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"fleet.json": `{"vehicles": []}`, "r/pve-1/main.tf": "# mine",
		"r/pve-1/node-a-2000.tf": "# mine",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			put(t, dir, name, content)
			want := tree(t, dir)
			err := store.NewDirectory(dir).Write(desired())
			if err == nil || !strings.Contains(err.Error(), dir+": "+name+" was not written by numaform") || !strings.Contains(err.Error(), "move the file") {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
		})
	}
}

func TestWriteRefusesAnotherClustersFleet(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	write(t, d, render(nil, func(f *fleet.Fleet) { f.ClusterID = "lab" }))
	want := tree(t, d.Path())
	for _, try := range []func(generator.Files) error{d.Write, d.Accepts} {
		if err := try(desired()); err == nil || !strings.Contains(err.Error(), `of cluster "lab", not of "prod"`) {
			t.Errorf("got %v", err)
		}
	}
	if diff := cmp.Diff(want, tree(t, d.Path())); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
}

// TestReadKeepsEdits checks that a file of the fleet that an edit made unreadable is
// reported, not ignored.
func TestReadKeepsEdits(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fleet.json", "r/pve-1/main.tf", "r/pve-1/node-a-2000.tf"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := store.NewDirectory(t.TempDir())
			write(t, d, desired())
			put(t, d.Path(), name, "<<<<<<< HEAD\n")
			if _, err := generator.Parse(read(t, d)); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAccepts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		has  []string
		want string
	}{
		"nothing":        {},
		"git's own":      {has: []string{".git/config", ".gitignore"}},
		"a repository":   {has: infrastructure, want: "it contains a and no fleet of cluster \"prod\": nothing was written: use a directory"},
		"a lonely file":  {has: []string{"notes.txt"}, want: "it contains notes.txt and"},
		"one in its way": {has: []string{"r/pve-1/main.tf"}, want: "it contains r and no fleet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			putAll(t, dir, tt.has)
			err := store.NewDirectory(dir).Accepts(desired())
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	d := store.NewDirectory(filepath.Join(t.TempDir(), "absent"))
	if err := d.Accepts(desired()); err != nil {
		t.Errorf("absent: %v", err)
	}
	write(t, d, desired())
	put(t, d.Path(), "README.md", "mine")
	if err := d.Accepts(render(nil)); err != nil {
		t.Errorf("the cluster's own: %v", err)
	}
}
