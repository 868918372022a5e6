package store_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/store"
)

// TestGitLossOfPower makes commits of a clone empty, as a loss of power can: they are fetched
// again.
func TestGitLossOfPower(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string][]string{
		"the commit":        {"branch"},
		"the notes":         {"notes"},
		"both":              {"branch", "notes"},
		"an earlier commit": {"branch^"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, clone, _ := working(t)
			for n := range 3 {
				begin(t, g, desired(), changed(n))
				end(t, g, changed(n))
			}
			for _, reference := range lost {
				lose(t, clone, reference)
			}
			wantFiles(t, g, desired())
			wantHistory(t, g, time.Time{}, closed(changed(0)), closed(changed(1)), closed(changed(2)))
			begin(t, g, desired(), changed(3))
			end(t, g, changed(3))
			wantSound(t, clone)
		})
	}
}

// TestGitLossOfUnpushedNotes makes the commit of an outcome empty that was not pushed: only this
// outcome is lost.
func TestGitLossOfUnpushedNotes(t *testing.T) {
	t.Parallel()
	g, clone, remote := working(t)
	begin(t, g, desired(), changed(0))
	end(t, g, changed(0))
	begin(t, g, desired(), changed(1))
	g.Interrupt(func(name string) error {
		if name == "push" {
			return errors.New("offline")
		}
		return nil
	})
	if err := g.End(t.Context(), ended(changed(1))); err == nil {
		t.Fatal("the outcome was pushed")
	}
	lose(t, clone, "notes")
	again := openGit(t, store.GitConfig{Clone: clone, Remote: remote})
	wantHistory(t, again, time.Time{}, closed(changed(0)), open(changed(1)))
	end(t, again, changed(1))
	wantHistory(t, again, time.Time{}, closed(changed(0)), closed(changed(1)))
}

// TestGitKeepsReferences checks that a read writes no reference that is already right.
func TestGitKeepsReferences(t *testing.T) {
	t.Parallel()
	g, clone, _ := working(t)
	begin(t, g, desired(), changed(0))
	end(t, g, changed(0))
	wantFiles(t, g, desired())
	past := time.Unix(1767225600, 0)
	times := func() map[string]time.Time {
		found := map[string]time.Time{}
		err := filepath.WalkDir(filepath.Join(clone, "refs"), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			info, err := entry.Info()
			found[path] = info.ModTime()
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	for path := range times() {
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
	}
	before := times()
	wantFiles(t, g, desired())
	if diff := cmp.Diff(before, times()); diff != "" || len(before) < 4 {
		t.Errorf("%d references, written again (-before +after):\n%s", len(before), diff)
	}
}

// lose makes the commit of a reference of numaform in a clone empty.
func lose(t *testing.T, clone, reference string) {
	t.Helper()
	prefix, err := filepath.Glob(filepath.Join(clone, "refs/numaform/*"))
	if err != nil || len(prefix) != 1 {
		t.Fatalf("numaform's references are in %q, %v", prefix, err)
	}
	hash := run(t, clone, "rev-parse", "refs/numaform/"+filepath.Base(prefix[0])+"/"+reference)
	object := filepath.Join(clone, "objects", hash[:2], hash[2:])
	if err := errors.Join(os.Chmod(object, 0o600), os.Truncate(object, 0)); err != nil {
		t.Fatal(err)
	}
}

// TestGitReplacesDamagedObjects empties the objects of former node files: a change that needs
// their content again stores it again.
func TestGitReplacesDamagedObjects(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fleet")
	g := openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: dir})
	begin(t, g, desired(), changed(0))
	begin(t, g, render(nil), changed(1))
	damaged := 0
	for line := range strings.Lines(run(t, dir, "ls-tree", "-r", "--format=%(objectname) %(path)", "main~1")) {
		hash, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.Contains(path, "/node-") {
			continue
		}
		damaged++
		object := filepath.Join(dir, "objects", hash[:2], hash[2:])
		if err := errors.Join(os.Chmod(object, 0o600), os.Truncate(object, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if damaged == 0 {
		t.Fatal("no object is damaged")
	}
	begin(t, g, desired(), changed(2))
	wantFiles(t, g, desired())
	wantSound(t, dir)
}

// TestGitOneWriter begins changes on the same revision of a repository without a remote, with
// several state directories at once: one of them begins.
func TestGitOneWriter(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fleet")
	var stores []*store.Git
	for range 4 {
		stores = append(stores, openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: dir}))
	}
	begin(t, stores[0], desired(), changed(0))
	for round := range 5 {
		_, base := readFrom(t, stores[0])
		results := make([]error, len(stores))
		var group, ready sync.WaitGroup
		ready.Add(len(stores))
		for i, g := range stores {
			g.Interrupt(func(name string) error {
				if name == "branch" {
					ready.Done()
					ready.Wait()
				}
				return nil
			})
			id := 2000 + 10*round + i
			group.Go(func() {
				results[i] = g.Begin(t.Context(), base, render(map[fleet.VMID]string{fleet.VMID(id): "pve-1"}), changed(1+10*round+i, id))
			})
		}
		group.Wait()
		begun := 0
		for _, err := range results {
			switch {
			case err == nil:
				begun++
			case !errors.Is(err, store.ErrMoved):
				t.Error(err)
			}
		}
		if begun != 1 {
			t.Errorf("round %d: %d changes began on the same revision", round, begun)
		}
	}
}
