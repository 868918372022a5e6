package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
)

// TestObjectSizes compares the sizes in headers with git's, for loose objects and in
// packs with both kinds of deltas.
func TestObjectSizes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run(t, dir, "init", "--quiet", "-b", "main")
	random := rand.New(rand.NewPCG(1, 2))
	var lines []string
	for i := range 2000 {
		lines = append(lines, fmt.Sprintf("line %d %x", i, random.Uint64()))
	}
	for i := range 20 {
		lines[random.IntN(len(lines))] = "changed " + strconv.Itoa(i)
		put(t, dir, "a/big.txt", strings.Join(lines, "\n"))
		put(t, dir, "b/small.txt", strings.Join(lines[:20], "\n"))
		put(t, dir, "empty", "")
		run(t, dir, "add", "-A")
		run(t, dir, "commit", "--quiet", "--allow-empty", "-m", "x")
	}
	list := strings.Split(run(t, dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objectsize)"), "\n")
	if len(list) < 80 {
		t.Fatalf("%d objects", len(list))
	}
	for _, repack := range [][]string{
		nil,
		{"-c", "repack.useDeltaBaseOffset=true", "repack", "-adfq"},
		{"-c", "repack.useDeltaBaseOffset=false", "repack", "-adfq", "--depth=100"},
	} {
		if repack != nil {
			run(t, dir, repack...)
		}
		for _, line := range list {
			hash, want, _ := strings.Cut(line, " ")
			if got, err := store.ObjectSize(filepath.Join(dir, ".git"), hash); err != nil || strconv.FormatInt(got, 10) != want {
				t.Errorf("after git %v: object %s: %d, %v, git says %s", repack, hash, got, err, want)
			}
		}
	}
	if _, err := store.ObjectSize(filepath.Join(dir, ".git"), strings.Repeat("ab", 20)); err == nil {
		t.Error("an object that is not there has a size")
	}
}

// TestObjectInAnAlternate checks that an object above the limit is not read from an
// alternate repository, either.
func TestObjectInAnAlternate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run(t, dir, "init", "--quiet", "--bare")
	put(t, dir, "zeros", strings.Repeat("\x00", 20<<20))
	hash := run(t, dir, "hash-object", "-w", "zeros")
	if err := store.ReadObject(dir, hash); err == nil || !strings.Contains(err.Error(), "more than the limit") {
		t.Errorf("got %v", err)
	}
	for _, step := range []error{
		os.Mkdir(filepath.Join(dir, "other"), 0o755),
		os.Rename(filepath.Join(dir, "objects"), filepath.Join(dir, "other", "objects")),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	put(t, dir, "objects/info/alternates", "other/objects\n")
	if err := store.ReadObject(dir, hash); !errors.Is(err, plumbing.ErrObjectNotFound) {
		t.Errorf("got %v", err)
	}
}

// TestObjectWithALargeBase checks that a delta is refused whose base has 100 MiB.
func TestObjectWithALargeBase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run(t, dir, "init", "--quiet", "-b", "main")
	text := strings.Repeat("0123456789abcdef", 100<<16)
	put(t, dir, "x", text)
	run(t, dir, "add", "-A")
	run(t, dir, "commit", "--quiet", "-m", "x")
	put(t, dir, "x", text[:len(text)/2+5])
	run(t, dir, "add", "-A")
	run(t, dir, "commit", "--quiet", "-m", "x")
	run(t, dir, "-c", "core.bigFileThreshold=1g", "repack", "-adfq")
	hash := run(t, dir, "rev-parse", "HEAD:x")
	if _, err := store.ObjectSize(filepath.Join(dir, ".git"), hash); err == nil || !strings.Contains(err.Error(), hash[:12]) {
		t.Errorf("got %v", err)
	}
}

// TestGitWithoutTheProgram restricts PATH to the git programs that a local remote needs,
// so that the library indexes packs. It is not parallel, because it sets PATH.
func TestGitWithoutTheProgram(t *testing.T) {
	remote := bare(t)
	g := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote})
	begin(t, g, desired(), changed(0))
	end(t, g, changed(0))
	programs := t.TempDir()
	for _, name := range []string{"git-upload-pack", "git-receive-pack"} {
		if err := os.Symlink("/usr/bin/git", filepath.Join(programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", programs)
	other := openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote})
	wantFiles(t, other, desired())
	begin(t, other, render(nil), changed(1))
	wantFiles(t, openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote}), render(nil))
	wantHistory(t, other, time.Time{}, closed(changed(0)), open(changed(1)))
}

// TestGitHistoryOfPacks adds, edits and removes records at random, and requires the same history of
// loose objects, whose trees are decoded, and of packs, whose trees are compared as bytes.
func TestGitHistoryOfPacks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run(t, dir, "init", "--quiet", "-b", "main")
	random := rand.New(rand.NewPCG(5, 6))
	var names []string
	for i := range 80 {
		name := fmt.Sprintf("history/2026/%02d/2026%02d01T%06dZ-%d.json", 10+i/40, 10+i/40, 1000*i, i)
		switch kind := random.IntN(10); {
		case kind == 0: // before others
			name = fmt.Sprintf("history/2026/%02d/2026%02d01T%06dZ-%d.json", 10+i/40, 10+i/40, random.IntN(1000*i+1), i)
		case kind == 1 && len(names) > 0: // again
			name = names[random.IntN(len(names))]
		case kind == 2 && len(names) > 0:
			name = ""
			run(t, dir, "rm", "--quiet", "--ignore-unmatch", names[random.IntN(len(names))])
		}
		if name != "" {
			names = append(names, name)
			put(t, dir, name, strconv.Itoa(i))
		}
		run(t, dir, "add", "-A")
		run(t, dir, "-c", "gc.auto=0", "commit", "--quiet", "--allow-empty", "-m", "x")
	}
	packed := filepath.Join(t.TempDir(), "packed.git")
	run(t, dir, "clone", "--quiet", "--bare", ".", packed)
	run(t, packed, "repack", "-adfq")
	var histories [2][]audit.Entry
	for i, path := range []string{filepath.Join(dir, ".git"), packed} {
		var err error
		if histories[i], err = openGit(t, store.GitConfig{Clone: t.TempDir(), Dir: path}).History(t.Context(), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(histories[0], histories[1]); diff != "" || len(histories[0]) < 60 {
		t.Errorf("%d changes (-loose +packed):\n%s", len(histories[0]), diff)
	}
}
