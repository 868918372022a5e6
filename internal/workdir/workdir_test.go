package workdir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/workdir"
)

// sample returns a tree with the files of a root and a module. Restore keeps the engine's own
// files in it.
func sample(root string) *workdir.Tree {
	return &workdir.Tree{
		Root: root,
		Files: map[string][]byte{
			"r/pve-1/main.tf": []byte("main"), "r/pve-1/node-a.tf": []byte("node"),
			"modules/m/1/main.tf": []byte("module"), "modules/m/1/empty.tf": {},
		},
		Kept: func(name string) bool { return name == "r/pve-1/.terraform" || name == "r/pve-1/.terraform.lock.hcl" },
	}
}

// contents returns the mode of each entry below a directory, followed by the content of a
// regular file.
func contents(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		path := filepath.ToSlash(strings.TrimPrefix(name, root+"/"))
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			found[path] = info.Mode().String()
			return nil
		}
		content, err := os.ReadFile(name)
		found[path] = info.Mode().String() + " " + string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// must fails the test on an error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	write := func(name, content string) func(t *testing.T, root string) {
		return func(t *testing.T, root string) {
			t.Helper()
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755), os.WriteFile(filepath.Join(root, name), []byte(content), 0o644))
		}
	}
	remove := func(name string) func(t *testing.T, root string) {
		return func(t *testing.T, root string) { t.Helper(); must(t, os.RemoveAll(filepath.Join(root, name))) }
	}
	// link replaces an entry with a link to a copy of it.
	link := func(name string) func(t *testing.T, root string) {
		return func(t *testing.T, root string) {
			t.Helper()
			evil := filepath.Join(filepath.Dir(root), "evil")
			must(t, os.RemoveAll(evil))
			if info, err := os.Stat(filepath.Join(root, name)); err == nil && info.IsDir() {
				must(t, os.CopyFS(evil, os.DirFS(filepath.Join(root, name))))
			} else {
				must(t, os.WriteFile(evil, []byte("main"), 0o600))
			}
			must(t, os.RemoveAll(filepath.Join(root, name)), os.Symlink(evil, filepath.Join(root, name)))
		}
	}
	cases := map[string]struct {
		tamper func(t *testing.T, root string)
		want   []string
	}{
		"nothing":                {func(*testing.T, string) {}, nil},
		"a file of the engine's": {write("r/pve-1/.terraform.lock.hcl", "x"), nil},
		"another host's":         {write("r/pve-2/zz.tf", "x"), nil},
		"other modules":          {write("modules/m/2/main.tf", "x"), nil},
		"an extra file":          {write("r/pve-1/zz.tf", "x"), []string{"r/pve-1/zz.tf"}},
		"an override":            {write("r/pve-1/main_override.tf", "x"), []string{"r/pve-1/main_override.tf"}},
		"variables":              {write("r/pve-1/x.auto.tfvars", "x"), []string{"r/pve-1/x.auto.tfvars"}},
		"a hidden file":          {write("r/pve-1/.terraformrc", "x"), []string{"r/pve-1/.terraformrc"}},
		"OpenTofu's":             {write("r/pve-1/main.tofu", "x"), []string{"r/pve-1/main.tofu"}},
		"an extra directory":     {write("r/pve-1/sub/x.tf", "x"), []string{"r/pve-1/sub"}},
		"a file in a module":     {write("modules/m/1/zz.tf", "x"), []string{"modules/m/1/zz.tf"}},
		"below a module":         {write("modules/m/1/.terraform/x", "x"), []string{"modules/m/1/.terraform"}},
		"a changed file":         {write("r/pve-1/main.tf", "mean"), []string{"r/pve-1/main.tf"}},
		"a longer file":          {write("r/pve-1/main.tf", "main and more"), []string{"r/pve-1/main.tf"}},
		"a changed module":       {write("modules/m/1/empty.tf", "x"), []string{"modules/m/1/empty.tf"}},
		"a missing file":         {remove("r/pve-1/node-a.tf"), []string{"r/pve-1/node-a.tf"}},
		"a missing empty file":   {remove("modules/m/1/empty.tf"), []string{"modules/m/1/empty.tf"}},
		"missing modules":        {remove("modules"), []string{"modules/m/1/empty.tf", "modules/m/1/main.tf"}},
		"a linked file":          {link("r/pve-1/main.tf"), []string{"r/pve-1/main.tf"}},
		"a linked root":          {link("r/pve-1"), []string{"r/pve-1", "r/pve-1/main.tf", "r/pve-1/node-a.tf"}},
		"a linked region":        {link("r"), []string{"r", "r/pve-1/main.tf", "r/pve-1/node-a.tf"}},
		"a linked module":        {link("modules/m/1"), []string{"modules/m/1", "modules/m/1/empty.tf", "modules/m/1/main.tf"}},
		"linked modules":         {link("modules"), []string{"modules", "modules/m/1/empty.tf", "modules/m/1/main.tf"}},
		"the engine's, linked":   {link("r/pve-1/.terraform"), []string{"r/pve-1/.terraform"}},
		"a directory for a file": {
			func(t *testing.T, root string) {
				t.Helper()
				remove("r/pve-1/main.tf")(t, root)
				write("r/pve-1/main.tf/x.tf", "x")(t, root)
			},
			[]string{"r/pve-1/main.tf"},
		},
		"a file for a directory": {
			func(t *testing.T, root string) {
				t.Helper()
				remove("modules/m")(t, root)
				write("modules/m", "x")(t, root)
			},
			[]string{"modules/m", "modules/m/1/empty.tf", "modules/m/1/main.tf"},
		},
		"permissions for others": {
			func(t *testing.T, root string) { t.Helper(); must(t, os.Chmod(filepath.Join(root, "r/pve-1"), 0o777)) },
			nil,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := filepath.Join(t.TempDir(), "work")
			must(t, os.Mkdir(root, 0o700))
			tree := sample(root)
			_, err := tree.Restore()
			must(t, err)
			before := contents(t, root)
			c.tamper(t, root)
			got, err := tree.Restore()
			must(t, err)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("restored (-want +got):\n%s", diff)
			}
			after := contents(t, root)
			for name, content := range before {
				if after[name] != content {
					t.Errorf("%s: %q, before %q", name, after[name], content)
				}
			}
			if again, err := tree.Restore(); len(again) != 0 || err != nil {
				t.Errorf("restored again: %v, %v", again, err)
			}
		})
	}
}

// TestRestoreAnEmptyDirectory checks that a directory in Dirs without files is emptied
// again.
func TestRestoreAnEmptyDirectory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	tree := workdir.Tree{Root: root, Dirs: []string{"r/pve-1"}}
	for range 2 {
		_, err := tree.Restore()
		must(t, err)
		must(t, os.WriteFile(filepath.Join(root, "r/pve-1/zz.tf"), nil, 0o600))
	}
	got, err := tree.Restore()
	if diff := cmp.Diff([]string{"r/pve-1/zz.tf"}, got); diff != "" || err != nil {
		t.Errorf("restored (-want +got), %v:\n%s", err, diff)
	}
}

func TestPrivate(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		make func(t *testing.T, base string) (dir string)
		want string
	}{
		"one that is missing": {func(_ *testing.T, base string) string { return filepath.Join(base, "a", "b") }, ""},
		"a private one": {
			func(t *testing.T, base string) string {
				t.Helper()
				must(t, os.Mkdir(base+"/a", 0o700))
				return base + "/a"
			}, "",
		},
		"one that others may read": {
			func(t *testing.T, base string) string {
				t.Helper()
				must(t, os.Mkdir(base+"/a", 0o700), os.Chmod(base+"/a", 0o755))
				return base + "/a"
			}, "",
		},
		"a relative one": {func(*testing.T, string) string { return "a" }, "is not an absolute path"},
		"a link": {
			func(t *testing.T, base string) string {
				t.Helper()
				must(t, os.Mkdir(base+"/a", 0o700), os.Symlink(base+"/a", base+"/b"))
				return base + "/b"
			}, "/b is a symbolic link: set state_dir",
		},
		"a dangling link": {
			func(t *testing.T, base string) string {
				t.Helper()
				must(t, os.Symlink(base+"/a", base+"/b"))
				return base + "/b"
			}, "is a symbolic link",
		},
		"a file": {
			func(t *testing.T, base string) string {
				t.Helper()
				must(t, os.WriteFile(base+"/a", nil, 0o600))
				return base + "/a"
			}, "is not a directory",
		},
		"in a checkout": {
			func(t *testing.T, base string) string {
				t.Helper()
				must(t, os.MkdirAll(base+"/repo/.git", 0o700))
				return base + "/repo/a/b/c"
			}, "is inside the git checkout",
		},
		"a checkout": {
			func(t *testing.T, base string) string {
				t.Helper()
				must(t, os.MkdirAll(base+"/a/.git", 0o700))
				return base + "/a"
			}, "is inside the git checkout",
		},
		"in a worktree": {
			func(t *testing.T, base string) string {
				t.Helper()
				must(t, os.Mkdir(base+"/repo", 0o700), os.WriteFile(base+"/repo/.git", []byte("gitdir: x"), 0o600))
				return base + "/repo/a"
			}, "is inside the git checkout",
		},
		"in a checkout through a link": {
			func(t *testing.T, base string) string {
				t.Helper()
				must(t, os.MkdirAll(base+"/repo/.git", 0o700), os.MkdirAll(base+"/repo/sub", 0o700), os.Symlink(base+"/repo/sub", base+"/here"))
				return base + "/here/a"
			}, "is inside the git checkout",
		},
		"the fleet's directory":                   {func(_ *testing.T, base string) string { return base + "/fleet" }, "is inside the fleet's directory"},
		"in the fleet's directory":                {func(_ *testing.T, base string) string { return base + "/fleet/.numaform/state" }, "is inside the fleet's directory"},
		"beside a directory with a common prefix": {func(_ *testing.T, base string) string { return base + "/fleet-state" }, ""},
		"one that a group may write":              {shared(0o770), "is writable by other users (mode 0770): run chmod 700"},
		"one that all may write":                  {shared(0o777), "is writable by other users (mode 0777)"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			dir := c.make(t, base)
			err := workdir.Private(dir, filepath.Join(base, "fleet"))
			if c.want == "" {
				must(t, err)
				if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o022 != 0 {
					t.Errorf("%v, %v", info, err)
				}
				return
			}
			var refused *workdir.PrivateError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) || refused.Hint == "" {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "b")); err == nil {
				t.Error("the directory was created")
			}
		})
	}
}

// shared creates a directory with a mode that gives access to other users.
func shared(mode fs.FileMode) func(t *testing.T, base string) string {
	return func(t *testing.T, base string) string {
		t.Helper()
		must(t, os.Mkdir(base+"/a", 0o700), os.Chmod(base+"/a", mode))
		return base + "/a"
	}
}
