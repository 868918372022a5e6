package store_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// interruptible is a store whose writes a test can interrupt.
type interruptible interface {
	store.Store
	Interrupt(f func(name string) error)
}

// place is a kind of store with its location.
type place struct {
	// open returns a new store of the place, as another process would open it.
	open func(t *testing.T) interruptible
	// elsewhere returns a store on another machine; nil if the place is on one machine.
	elsewhere func(t *testing.T) interruptible
}

// places returns one empty place of each kind.
func places() map[string]func(t *testing.T) place {
	return map[string]func(t *testing.T) place{
		"directory": func(t *testing.T) place {
			dir := filepath.Join(t.TempDir(), "fleet")
			return place{open: func(*testing.T) interruptible { return store.NewDirectory(dir) }}
		},
		"git": func(t *testing.T) place {
			dir := filepath.Join(t.TempDir(), "fleet")
			clone := filepath.Join(t.TempDir(), "git")
			return place{open: func(t *testing.T) interruptible { return openGit(t, store.GitConfig{Clone: clone, Dir: dir}) }}
		},
		"git with remote": func(t *testing.T) place {
			dir, remote := t.TempDir(), bare(t)
			at := func(clone string) func(t *testing.T) interruptible {
				return func(t *testing.T) interruptible { return openGit(t, store.GitConfig{Clone: clone, Remote: remote}) }
			}
			return place{open: at(dir), elsewhere: func(t *testing.T) interruptible { return at(t.TempDir())(t) }}
		},
		"configmap": configMapPlace,
		"git below a directory": func(t *testing.T) place {
			dir, remote := t.TempDir(), bare(t)
			at := func(clone string) func(t *testing.T) interruptible {
				return func(t *testing.T) interruptible {
					return openGit(t, store.GitConfig{Clone: clone, Remote: remote, Subdir: "clusters/prod"})
				}
			}
			return place{open: at(dir), elsewhere: func(t *testing.T) interruptible { return at(t.TempDir())(t) }}
		},
	}
}

// everywhere runs a test for each kind of place.
func everywhere(t *testing.T, test func(t *testing.T, p place)) {
	t.Helper()
	for name, at := range places() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, at(t))
		})
	}
}

func openGit(t *testing.T, config store.GitConfig) *store.Git {
	t.Helper()
	g, err := store.NewGit(config)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// bare creates an empty bare repository and returns its path.
func bare(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "remote.git")
	run(t, "", "init", "--quiet", "--bare", "--initial-branch=main", dir)
	return dir
}

// run runs git as a user does, and returns its output.
func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", args...)
	command.Dir = dir
	command.Env = []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C",
		"GIT_AUTHOR_NAME=Ann", "GIT_AUTHOR_EMAIL=ann@example.org", "GIT_COMMITTER_NAME=Ann", "GIT_COMMITTER_EMAIL=ann@example.org",
	}
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// began is the time of a test's first change.
var began = time.Date(2026, 11, 21, 13, 45, 1, 0, time.UTC)

// changed returns the record of a test's nth change.
func changed(n int, vms ...int) audit.Change {
	at := began.Add(time.Duration(n) * time.Minute)
	host := topology.HostID{Region: "r", Host: "pve-1"}
	change := audit.Change{
		Format: audit.FormatVersion, ID: at.Format("20060102T150405Z") + fmt.Sprintf("-%08x", n), Time: at,
		ClusterID: "prod", Kind: audit.KindScaleUp, Actor: "ann@laptop", Why: "2 pods are pending",
		Hosts: []audit.HostPlan{{Host: host, PlanSHA256: strings.Repeat("ab", 32), Verdict: guard.Verdict{Decision: guard.Allow}}},
		Open:  []audit.Open{{Host: host}},
	}
	for _, id := range vms {
		vm := fleet.VM{VMID: fleet.VMID(id), Name: fmt.Sprintf("a-%d", id)}
		vm.Host, vm.Reason, vm.CPUs = host, "the only host with free cores", topology.CPUs(0, 1)
		change.Added = append(change.Added, vm)
	}
	return change
}

// ended returns the outcome of a successful change.
func ended(change audit.Change) audit.Outcome {
	return audit.Outcome{
		Format: audit.FormatVersion, ID: change.ID, Time: change.Time.Add(time.Minute), Duration: time.Minute,
		Hosts: []audit.Ended{{Host: change.Open[0].Host, Duration: time.Second}},
	}
}

func readFrom(t *testing.T, s store.Store) (generator.Files, store.Revision) {
	t.Helper()
	files, revision, err := s.Read(t.Context())
	if err != nil {
		t.Fatalf("reading: %v", err)
	}
	return files, revision
}

// begin makes files the desired state of a store, with the record of a change.
func begin(t *testing.T, s store.Store, files generator.Files, change audit.Change) {
	t.Helper()
	_, base := readFrom(t, s)
	if err := s.Begin(t.Context(), base, files, change); err != nil {
		t.Fatalf("beginning %s: %v", change.ID, err)
	}
}

func end(t *testing.T, s store.Store, change audit.Change) {
	t.Helper()
	if err := s.End(t.Context(), ended(change)); err != nil {
		t.Fatalf("ending %s: %v", change.ID, err)
	}
}

func historyOf(t *testing.T, s store.Store, since time.Time) []audit.Entry {
	t.Helper()
	list, err := s.History(t.Context(), since)
	if err != nil {
		t.Fatalf("reading the history: %v", err)
	}
	return list
}

// wantFiles compares the files in a store with the expected ones.
func wantFiles(t *testing.T, s store.Store, want generator.Files) {
	t.Helper()
	files, revision := readFrom(t, s)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Fatalf("files (-want +got):\n%s", diff)
	}
	if revision != store.RevisionOf(want) {
		t.Fatalf("revision %s, want that of the files", revision)
	}
}

// wantHistory compares the history of a store, except for commits and digests.
func wantHistory(t *testing.T, s store.Store, since time.Time, want ...audit.Entry) {
	t.Helper()
	got := historyOf(t, s, since)
	for i := range got {
		got[i].Commit = ""
	}
	digests := cmp.FilterPath(func(p cmp.Path) bool { return strings.HasSuffix(p.Last().String(), "Digest") }, cmp.Ignore())
	if diff := cmp.Diff(want, got, digests); diff != "" {
		t.Fatalf("history (-want +got):\n%s", diff)
	}
}

func open(change audit.Change) audit.Entry { return audit.Entry{Change: change} }

func closed(change audit.Change) audit.Entry {
	outcome := ended(change)
	return audit.Entry{Change: change, Outcome: &outcome}
}

func TestReadYourWrites(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		s := p.open(t)
		wantFiles(t, s, generator.Files{})
		wantHistory(t, s, time.Time{})
		wantHistory(t, s, began)
		first := changed(0, 2000, 2001)
		begin(t, s, desired(), first)
		wantFiles(t, s, desired())
		wantFiles(t, p.open(t), desired())
		wantHistory(t, p.open(t), time.Time{}, open(first))
		end(t, s, first)
		wantHistory(t, p.open(t), time.Time{}, closed(first))
		if p.elsewhere != nil {
			wantFiles(t, p.elsewhere(t), desired())
			wantHistory(t, p.elsewhere(t), time.Time{}, closed(first))
		}
	})
}

func TestMoved(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		s, other := p.open(t), p.open(t)
		if p.elsewhere != nil {
			other = p.elsewhere(t)
		}
		_, base := readFrom(t, s)
		theirs := changed(0, 2000)
		begin(t, other, render(map[fleet.VMID]string{2000: "pve-1"}), theirs)
		if err := s.Begin(t.Context(), base, desired(), changed(1, 2001)); !errors.Is(err, store.ErrMoved) {
			t.Fatalf("on an old base: %v, want ErrMoved", err)
		}
		wantFiles(t, s, render(map[fleet.VMID]string{2000: "pve-1"}))
		wantHistory(t, s, time.Time{}, open(theirs))
		begin(t, s, desired(), changed(2, 2001))
		wantFiles(t, other, desired())
	})
}

func TestHistory(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		s := p.open(t)
		changes := []audit.Change{changed(0, 2000), changed(1, 2001), changed(5)}
		begin(t, s, render(map[fleet.VMID]string{2000: "pve-1"}), changes[0])
		end(t, s, changes[0])
		begin(t, s, desired(), changes[1])
		begin(t, s, desired(), changes[2])
		end(t, s, changes[2])
		all := []audit.Entry{closed(changes[0]), open(changes[1]), closed(changes[2])}
		wantHistory(t, s, time.Time{}, all...)
		wantHistory(t, s, began, all...)
		wantHistory(t, s, began.Add(500*time.Millisecond), all[1:]...)
		wantHistory(t, s, changes[1].Time, all[1:]...)
		wantHistory(t, s, began.Add(2*time.Minute), all[2:]...)
		wantHistory(t, s, began.Add(1000*time.Hour), all[2:]...)
	})
}

func TestRecordsAreOnlyAdded(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		s := p.open(t)
		first := changed(0, 2000)
		if err := s.End(t.Context(), ended(first)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("ending what never began: %v", err)
		}
		begin(t, s, desired(), first)
		end(t, s, first)
		_, base := readFrom(t, s)
		again := first
		again.Why = "something else"
		if err := s.Begin(t.Context(), base, render(nil), again); !errors.Is(err, fs.ErrExist) {
			t.Errorf("beginning it again: %v", err)
		}
		outcome := ended(first)
		outcome.Duration = 0
		if err := s.End(t.Context(), outcome); !errors.Is(err, fs.ErrExist) {
			t.Errorf("ending it again: %v", err)
		}
		again.ID = "../x"
		if err := s.Begin(t.Context(), base, render(nil), again); err == nil || !strings.Contains(err.Error(), `"../x"`) {
			t.Errorf("an ID that is none: %v", err)
		}
		outside := generator.Files{"../x": nil}
		if err := s.Begin(t.Context(), base, outside, changed(9)); err == nil || !strings.Contains(err.Error(), "outside") {
			t.Errorf("a file elsewhere: %v", err)
		}
		wantFiles(t, s, desired())
		wantHistory(t, s, time.Time{}, closed(first))
	})
}

// TestCrashedBegin ends a Begin at each of its steps. The next process finds the old
// fleet, or the new one with its record, and can continue.
func TestCrashedBegin(t *testing.T) {
	t.Parallel()
	for name, at := range places() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := map[bool]bool{}
			for steps := 0; crashedBegin(t, at(t), steps, seen); steps++ {
			}
			if !seen[true] || !seen[false] {
				t.Errorf("new fleets seen: %v, want some and some old ones", seen)
			}
		})
	}
}

// crashedBegin interrupts a Begin after the given number of steps, and reports whether
// Begin had not finished by then. It records in seen whether the fleet was the new one
// afterwards.
func crashedBegin(t *testing.T, p place, steps int, seen map[bool]bool) bool {
	t.Helper()
	first, second, third := changed(0, 2000), changed(1, 2001), changed(2)
	old := render(map[fleet.VMID]string{2000: "pve-1", 2003: "pve-2"})
	s := p.open(t)
	begin(t, s, old, first)
	_, base := readFrom(t, s)
	at := ""
	left := steps
	s.Interrupt(func(name string) error {
		if left == 0 {
			at = name
			return errCrash
		}
		left--
		return nil
	})
	err := s.Begin(t.Context(), base, desired(), second)
	if (err == nil) != (at == "") {
		t.Fatalf("stopped at %q after %d steps: %v", at, steps, err)
	}
	views := []store.Store{p.open(t)}
	if p.elsewhere != nil {
		views = append(views, p.elsewhere(t))
	}
	for _, view := range views {
		files, _ := readFrom(t, view)
		history := []audit.Entry{open(first)}
		want, isNew := old, cmp.Equal(files, desired())
		if isNew {
			want, history = desired(), append(history, open(second))
		}
		seen[isNew] = true
		if diff := cmp.Diff(want, files); diff != "" {
			t.Fatalf("stopped at %q (-want +got):\n%s", at, diff)
		}
		wantHistory(t, view, time.Time{}, history...)
		if err == nil && !isNew {
			t.Fatal("it ended well, and the fleet is the old one")
		}
	}
	begin(t, views[0], render(nil), third)
	wantFiles(t, p.open(t), render(nil))
	return at != ""
}

// holderOf returns the process that holds the fleet's lock.
func holderOf(t *testing.T, s store.Store) string {
	t.Helper()
	if sealed, ok := s.(*store.Sealed); ok {
		s = sealed.Unwrap()
	}
	holder, err := s.(interface {
		Holder(ctx context.Context) (string, error)
	}).Holder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return holder
}

func TestLockExcludes(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		unlock, err := p.open(t).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.open(t).Lock(t.Context())
		if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), "held by") {
			t.Errorf("a second lock: %v, want ErrLocked with its holder", err)
		}
		if holder := holderOf(t, p.open(t)); !strings.HasPrefix(holder, "process ") {
			t.Errorf("the holder is %q", holder)
		}
		begin(t, p.open(t), desired(), changed(0)) // readers and the holder continue
		if err := unlock(); err != nil {
			t.Fatal(err)
		}
		if holder := holderOf(t, p.open(t)); holder != "" {
			t.Errorf("after unlock, the holder is %q", holder)
		}
		unlock, err = p.open(t).Lock(t.Context())
		if err != nil {
			t.Fatalf("after unlock: %v", err)
		}
		if err := unlock(); err != nil {
			t.Fatal(err)
		}
	})
}
