package store_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
)

// pushAt commits and pushes what a person has staged, also nothing, with a time of the person's
// choice.
func pushAt(t *testing.T, dir, at string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", "commit", "--quiet", "--allow-empty", "-m", "x")
	command.Dir, command.Env = dir, append(os.Environ(), "GIT_COMMITTER_DATE="+at)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run(t, dir, "push", "--quiet")
}

// TestHiddenHistory pushes commits that look older than the window of a read, between the
// installation's changes: they hide none of them.
func TestHiddenHistory(t *testing.T) {
	t.Parallel()
	const early = "1970-01-02T00:00:00Z"
	for name, attack := range map[string]func(t *testing.T, dir string){
		"an old commit": func(t *testing.T, dir string) { pushAt(t, dir, early) },
		"old commits":   func(t *testing.T, dir string) { pushAt(t, dir, early); pushAt(t, dir, early); pushAt(t, dir, early) },
		"a forged change": func(t *testing.T, dir string) {
			name := filepath.Join(dir, "history", "1970", "01", "19700101T000000Z-00000001.json")
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte("{}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			run(t, dir, "add", "-A")
			pushAt(t, dir, early)
		},
		"an own change again": func(t *testing.T, dir string) {
			old := "history/2026/11/" + changed(0).ID + ".json"
			run(t, dir, "rm", "--quiet", old)
			pushAt(t, dir, early)
			run(t, dir, "checkout", "--quiet", "HEAD^", "--", old)
			pushAt(t, dir, early)
		},
		"a merge": func(t *testing.T, dir string) {
			pushAt(t, dir, early)
			run(t, dir, "merge", "--quiet", "--no-ff", "-s", "ours", "--allow-unrelated-histories", "-m", "x", "HEAD~3")
			pushAt(t, dir, early)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, _, remote := working(t)
			s, key := installation(t, g)
			list := []audit.Change{changed(0)}
			for n := range 3 {
				list = append(list, changed(60*24*3+n))
			}
			for _, change := range list {
				begin(t, s, desired(), change)
				end(t, s, change)
			}
			attack(t, person(t, remote))
			list = append(list, changed(60*24*3+10))
			last := list[len(list)-1]
			begin(t, s, desired(), last)
			end(t, s, last)

			var want []verified
			for _, change := range list[1:] {
				want = append(want, verified{change.ID, true, true})
			}
			fresh := store.NewSealed(openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote}), store.FileVault(key), "prod")
			for _, s := range []*store.Sealed{s, fresh, fresh} {
				wantVerified(t, s, last.Time.Add(-24*time.Hour), want...)
			}
		})
	}
}

// TestHiddenConfigMaps adds a record with an old time to the chain of a fleet in ConfigMaps.
func TestHiddenConfigMaps(t *testing.T) {
	t.Parallel()
	c := openConfigMap(t, client(t), fleetName())
	s, key := installation(t, c)
	for n := range 3 {
		begin(t, s, desired(), changed(n))
		end(t, s, changed(n))
	}
	forged := changed(3)
	forged.Time = began.AddDate(-50, 0, 0)
	begin(t, c, desired(), forged)
	begin(t, s, desired(), changed(4))
	end(t, s, changed(4))
	for _, s := range []*store.Sealed{s, store.NewSealed(c, store.FileVault(key), "prod")} {
		wantVerified(t, s, began,
			verified{changed(0).ID, true, true}, verified{changed(1).ID, true, true}, verified{changed(2).ID, true, true}, verified{changed(4).ID, true, true})
	}
}

// reads counts the reads of a store's history.
type reads struct {
	store.Store
	some, all int
}

func (r *reads) History(ctx context.Context, since time.Time) ([]audit.Entry, error) {
	if since.IsZero() {
		r.all++
	} else {
		r.some++
	}
	return r.Store.History(ctx, since)
}

// TestHistoryIsReadInPart checks how often the whole history is read to find that nothing is
// missing in its last day.
func TestHistoryIsReadInPart(t *testing.T) {
	t.Parallel()
	const day = 24 * 60
	dir := filepath.Join(t.TempDir(), "fleet")
	writer, key := installation(t, store.NewDirectory(dir))
	change := func(s *store.Sealed, n int, outcome bool) {
		t.Helper()
		begin(t, s, desired(), changed(n))
		if outcome {
			end(t, s, changed(n))
		}
	}
	open := func() (*store.Sealed, *reads) {
		counted := &reads{Store: store.NewDirectory(dir)}
		return store.NewSealed(counted, store.FileVault(key), "prod"), counted
	}
	want := func(name string, s *store.Sealed, counted *reads, now, some, all int) {
		t.Helper()
		counted.some, counted.all = 0, 0
		historyOf(t, s, changed(now-day).Time)
		if diff := cmp.Diff([]int{some, all}, []int{counted.some, counted.all}); diff != "" {
			t.Errorf("%s: reads of a part and of all (-want +got):\n%s", name, diff)
		}
	}

	change(writer, 0, true)
	s, counted := open()
	want("the log began", s, counted, 5, 1, 0)
	change(writer, 1, false) // ends later than the next one
	for n := 2; n < 10; n++ {
		change(writer, n, true)
	}
	want("a busy hour", s, counted, 20, 1, 0)
	end(t, writer, changed(1))
	want("a late outcome", s, counted, day+5, 1, 0)
	s, counted = open()
	want("the window begins in a busy hour", s, counted, day+5, 1, 0)

	change(writer, 5*day, true)
	want("a day later", s, counted, 5*day+1, 1, 0)
	s, counted = open()
	want("after a quiet day", s, counted, 5*day+1, 2, 0)
	want("again", s, counted, 5*day+2, 1, 0)

	change(writer, 100*day, true)
	s, counted = open()
	want("after quiet months", s, counted, 100*day+1, 2, 1)
	want("again", s, counted, 100*day+2, 1, 0)
	change(writer, 100*day+3, true)
	want("one more change", s, counted, 100*day+4, 1, 0)

	change(writer, 200*day, true)
	want("much later", s, counted, 200*day+1, 1, 0)
	if known := s.KnownChanges(); known != 1 {
		t.Errorf("%d changes are remembered, want the last one", known)
	}
	change(writer, 200*day+3, true)
	want("one more change", s, counted, 200*day+4, 1, 0)

	name := filepath.Join(dir, "history", changed(200*day+3).ID+".json")
	content, err := os.ReadFile(name)
	if err == nil {
		err = os.Remove(name)
	}
	if err != nil {
		t.Fatal(err)
	}
	want("a known change is missing", s, counted, 200*day+5, 2, 1)
	want("it is still missing", s, counted, 200*day+5, 1, 0)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	want("it exists again", s, counted, 200*day+6, 1, 0)
}
