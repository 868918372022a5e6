package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/store"
)

var errCrash = errors.New("crash")

// crashAfter writes files and stops after the given number of steps. It returns the next
// file, or "" if the write was complete.
func crashAfter(d *store.Directory, files generator.Files, steps int) (string, error) {
	next := ""
	d.Interrupt(func(name string) error {
		if steps == 0 {
			next = name
			return errCrash
		}
		steps--
		return nil
	})
	defer d.Interrupt(nil)
	err := d.Write(files)
	if errors.Is(err, errCrash) {
		err = nil
	}
	return next, err
}

// TestCrashes ends a write at each of its steps. The fleet is then entirely the old or
// entirely the new one, and the next write succeeds.
func TestCrashes(t *testing.T) {
	t.Parallel()
	moved := render(map[fleet.VMID]string{2000: "pve-1", 2002: "pve-2"}, func(f *fleet.Fleet) {
		f.Backend = fleet.Backend{Type: "kubernetes", Config: map[string]string{"namespace": "numaform"}}
		f.Regions[0].Endpoint = "https://pve-9.example:8006/"
		f.Regions = append(f.Regions, fleet.Region{Name: "s", Endpoint: "https://pve-s.example:8006/"})
	})
	for name, tt := range map[string]struct {
		old, next, after generator.Files
	}{
		"first apply":         {generator.Files{}, desired(), moved},
		"backend and more":    {desired(), moved, moved},
		"and back":            {moved, desired(), moved},
		"taken back after it": {desired(), moved, desired()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var order []string
			for steps := 0; ; steps++ {
				d := store.NewDirectory(filepath.Join(t.TempDir(), "fleet"))
				write(t, d, tt.old)
				next, err := crashAfter(d, tt.next, steps)
				if err != nil {
					t.Fatalf("after %d steps: %v", steps, err)
				}
				checkWhole(t, d, tt.old, tt.next, next)
				write(t, store.NewDirectory(d.Path()), tt.after)
				if diff := cmp.Diff(tt.after, read(t, d)); diff != "" {
					t.Fatalf("after %d steps and another write (-want +got):\n%s", steps, diff)
				}
				wantNoStage(t, d)
				if next == "" {
					break
				}
				order = append(order, next)
			}
			if len(order) < 5 || order[0] != "next.json" || order[len(order)-1] != "next.json" {
				t.Errorf("steps: %v", order)
			}
		})
	}
}

// checkWhole expects the old fleet until the write is staged, and the new one from then
// on.
func checkWhole(t *testing.T, d *store.Directory, old, next generator.Files, stopped string) {
	t.Helper()
	want := next
	if _, err := os.Stat(filepath.Join(d.Path(), store.PrivateDir, "next.json")); stopped != "" && errors.Is(err, os.ErrNotExist) {
		want = old
	}
	files := read(t, d)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Fatalf("stopped before %q (-want +got):\n%s", stopped, diff)
	}
	if _, err := generator.Parse(files); err != nil {
		t.Fatalf("stopped before %q: %v", stopped, err)
	}
}

func wantNoStage(t *testing.T, d *store.Directory) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(d.Path(), store.PrivateDir, "next.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the staged write is still there: %v", err)
	}
}

// TestCrashTwice interrupts a write, and then the writes that complete it: the new fleet is
// read after each of them.
func TestCrashTwice(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	for steps := range 6 {
		if _, err := crashAfter(d, desired(), 1+steps); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(desired(), read(t, d)); diff != "" {
			t.Fatalf("after crash %d (-want +got):\n%s", steps, diff)
		}
	}
}

// TestCrashAndEdit changes a file by hand after an interrupted write: reads and writes fail
// and name the file and the fix.
func TestCrashAndEdit(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(t.TempDir())
	write(t, d, render(nil))
	if _, err := crashAfter(d, desired(), 3); err != nil {
		t.Fatal(err)
	}
	put(t, d.Path(), "r/pve-1/node-a-2001.tf", "# mine\n")
	_, err := d.Files()
	for _, err := range []error{err, d.Write(desired())} {
		if err == nil || !strings.Contains(err.Error(), "r/pve-1/node-a-2001.tf was changed") || !strings.Contains(err.Error(), "remove "+d.Path()) {
			t.Errorf("got %v", err)
		}
	}
}

func TestStagedByAnotherProgram(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"cut off": `{"steps":[{"path":`, "outside": `{"steps":[{"path":"../x","after":"eA=="}]}`, "empty": "",
		"a hook":    `{"steps":[{"path":".git/hooks/post-commit","after":"eA==","mode":"executable"}]}`,
		"git's":     `{"steps":[{"path":".git/config","after":"eA=="}]}`,
		"engine's":  `{"steps":[{"path":"r/pve-1/zz.tf","after":"eA=="}]}`,
		"a mode":    `{"steps":[{"path":"fleet.json","after":"eA==","mode":"link"}]}`,
		"a commit":  `{"steps":[],"commit":"x"}`,
		"too large": `{"steps":[{"path":"fleet.json","after":"` + strings.Repeat("AAAA", 400_000) + `"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := store.NewDirectory(filepath.Join(t.TempDir(), "fleet"))
			put(t, d.Path(), store.PrivateDir+"/next.json", content)
			_, err := d.Files()
			for _, err := range []error{err, d.Write(desired())} {
				if err == nil || !strings.Contains(err.Error(), "next.json") || !strings.Contains(err.Error(), "remove "+d.Path()) {
					t.Errorf("got %v", err)
				}
			}
			if entries, err := filepath.Glob(filepath.Join(d.Path(), "*")); err != nil || slices.ContainsFunc(entries, isFile) {
				t.Errorf("it wrote %v (%v)", entries, err)
			}
		})
	}
}

// TestStagedThroughALink puts links in the path of an interrupted write: reads and writes
// fail, and nothing is written through a link.
func TestStagedThroughALink(t *testing.T) {
	t.Parallel()
	elsewhere := t.TempDir()
	for name, links := range map[string]map[string]string{
		"directory":       {"r": elsewhere},
		"inside":          {"r": ".git", ".git/pve-1/x": ""},
		"file":            {"r/pve-1/main.tf": filepath.Join(elsewhere, "main.tf")},
		"the write":       {".numaform/next.json": filepath.Join(elsewhere, "next.json")},
		"dangling":        {"r/pve-1": filepath.Join(elsewhere, "absent")},
		"out of the tree": {"r/pve-1": "../../../../.."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := store.NewDirectory(filepath.Join(t.TempDir(), "fleet"))
			put(t, d.Path(), store.PrivateDir+"/next.json", `{"steps":[{"path":"r/pve-1/main.tf","after":"eA=="}]}`)
			for name, target := range links {
				if target == "" {
					put(t, d.Path(), name, "")
					continue
				}
				if err := os.RemoveAll(filepath.Join(d.Path(), name)); err != nil {
					t.Fatal(err)
				}
				link(t, d.Path(), name, target)
			}
			if name == "the write" {
				put(t, elsewhere, "next.json", `{"steps":[]}`)
			}
			_, err := d.Files()
			for _, err := range []error{err, d.Write(desired())} {
				if err == nil {
					t.Error("it was written")
				}
			}
			if found, err := filepath.Glob(filepath.Join(elsewhere, "*", "*")); err != nil || len(found) > 0 {
				t.Errorf("it wrote %v (%v)", found, err)
			}
			if _, err := os.Lstat(filepath.Join(d.Path(), ".git", "pve-1", "main.tf")); err == nil {
				t.Error("it wrote into .git")
			}
		})
	}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
