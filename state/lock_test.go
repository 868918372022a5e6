package state_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
)

// TestBreakingALockFails checks that no operation runs under a dead engine's lock that the
// backend does not release.
func TestBreakingALockFails(t *testing.T) {
	t.Parallel()
	if engine(t).Name() == "terraform" {
		return // it does not pass on the holder from the http backend, so no lock is broken
	}
	b := newBackend(t)
	w := open(t, root(t, httpBackend(b)), nil)
	plan := mustPlan(t, w, state.PlanOptions{})
	saving, release := b.hold()
	defer release()
	done := make(chan error, 1)
	go func() {
		_, err := w.Apply(t.Context(), plan)
		done <- err
	}()
	<-saving
	for _, pid := range engines(t, w) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	if err := <-done; err == nil {
		t.Fatal("the apply ended well")
	}
	release()

	b.keep(true)
	recovery, err := w.Recover(t.Context())
	var failed *state.CommandError
	if !errors.As(err, &failed) || failed.Operation != "unlocking" || !recovery.Crashed || len(recovery.Outside) > 0 || !b.locked() {
		t.Errorf("got %+v, %v, want the release of the lock to fail", recovery, err)
	}
	b.keep(false)
	recovery, err = w.Recover(t.Context())
	if err != nil || !recovery.Crashed || len(recovery.Outside) != 1 || !strings.HasPrefix(recovery.Outside[0], "broke lock ") || b.locked() {
		t.Errorf("got %+v, %v, want the lock broken", recovery, err)
	}
}

// TestLockDescriptions checks how engines' descriptions of a lock are completed, and the
// messages about them.
func TestLockDescriptions(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name, backend, operation string
		created                  time.Time
		want                     state.LockedError
		text                     string
	}{
		{
			name: "older than the attempt", backend: "http", operation: "apply", created: began.Add(-time.Second),
			want: state.LockedError{LockInfo: state.LockInfo{ID: "1", Who: "ann@laptop", Operation: "apply", Created: began.Add(-time.Second)}},
			text: "locked by ann@laptop since 2026-01-01T11:59:59Z for apply (lock 1,",
		},
		{
			name: "of the attempt", backend: "http", operation: "apply", created: began,
			want: state.LockedError{LockInfo: state.LockInfo{ID: "1", Who: "someone", Operation: "an operation"}},
			text: "locked by someone since an unknown time for an operation (lock 1,",
		},
		{
			name: "without a time", backend: "http", operation: "apply",
			want: state.LockedError{LockInfo: state.LockInfo{ID: "1", Who: "someone", Operation: "an operation"}},
			text: "(lock 1,",
		},
		{
			name: "of a connection", backend: "pg", operation: "apply", created: began,
			want: state.LockedError{LockInfo: state.LockInfo{Who: "someone", Operation: "an operation"}},
			text: "the lock ends with its holder's connection",
		},
		{
			name: "of an init", backend: "kubernetes", operation: "init", created: began.Add(-time.Second),
			want: state.LockedError{LockInfo: state.LockInfo{ID: "1", Who: "ann@laptop", Operation: "init", Created: began.Add(-time.Second)}, Lease: "lock-tfstate-default-prod-pve1"},
			text: "for init (lock 1, holder )",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			lock := &state.LockedError{LockInfo: state.LockInfo{ID: "1", Who: "ann@laptop", Operation: tt.operation, Created: tt.created}}
			files := map[string][]byte{"main.tf": []byte("terraform {\n  backend \"" + tt.backend + "\" {\n    secret_suffix = \"prod-pve1\"\n  }\n}\n")}
			state.Complete(lock, "/r/h", files, began)
			tt.want.Dir = "/r/h"
			if diff := cmp.Diff(tt.want, *lock); diff != "" {
				t.Errorf("lock (-want +got):\n%s", diff)
			}
			if text := lock.Error(); !strings.HasPrefix(text, "state of /r/h: ") || !strings.Contains(text, tt.text) {
				t.Errorf("message is %q, want %q", text, tt.text)
			}
		})
	}
}

// TestTakeOver checks when the record of a failed run is copied to another directory, and
// when it is refused or ignored.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	const record = ".terraform/numaform/run.json"
	run := func(dir string) []byte {
		content, err := json.Marshal(map[string]any{"operation": "applying", "host": "h", "pid": 7, "dir": dir})
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	taken := func(t *testing.T, dir string) (former, now string) {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, record))
		if errors.Is(err, os.ErrNotExist) {
			return "", ""
		}
		var r struct{ Former, Dir string }
		if err = errors.Join(err, json.Unmarshal(content, &r)); err != nil {
			t.Fatal(err)
		}
		return r.Former, r.Dir
	}

	t.Run("former directory is gone", func(t *testing.T) {
		t.Parallel()
		former, dir := filepath.Join(t.TempDir(), "gone"), t.TempDir()
		if err := state.TakeOver(run(former), former, dir); err != nil {
			t.Fatal(err)
		}
		if was, is := taken(t, dir); was != former || is != dir {
			t.Errorf("the record says %q and %q, want %q and %q", was, is, former, dir)
		}
		// A second record does not replace it.
		other := filepath.Join(t.TempDir(), "other")
		if err := state.TakeOver(run(other), other, dir); err != nil {
			t.Fatal(err)
		}
		if was, _ := taken(t, dir); was != former {
			t.Errorf("the record is now of %s, want %s", was, former)
		}
	})
	t.Run("former directory is in use", func(t *testing.T) {
		t.Parallel()
		former, dir := t.TempDir(), t.TempDir()
		write(t, former, ".terraform/numaform/lock", "")
		lock, err := os.Open(filepath.Join(former, ".terraform/numaform/lock"))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		if err := state.TakeOver(run(former), former, dir); !errors.Is(err, state.ErrBusy) || !strings.Contains(err.Error(), former) {
			t.Errorf("got %v, want ErrBusy for %s", err, former)
		}
		if was, _ := taken(t, dir); was != "" {
			t.Error("the record of a run in progress was taken over")
		}
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
		if err := state.TakeOver(run(former), former, dir); err != nil {
			t.Fatal(err)
		}
		if was, _ := taken(t, dir); was != former {
			t.Errorf("the record is of %q, want %q", was, former)
		}
	})
	t.Run("lock of the former directory is a link", func(t *testing.T) {
		t.Parallel()
		former, dir := t.TempDir(), t.TempDir()
		write(t, former, "elsewhere", "")
		write(t, former, ".terraform/numaform/x", "")
		if err := os.Symlink(filepath.Join(former, "elsewhere"), filepath.Join(former, ".terraform/numaform/lock")); err != nil {
			t.Fatal(err)
		}
		if err := state.TakeOver(run(former), former, dir); !errors.Is(err, unix.ELOOP) {
			t.Errorf("got %v, want the link refused", err)
		}
	})
	for name, content := range map[string][]byte{"unreadable": []byte("{"), "of another directory": run("/elsewhere")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			former, dir := filepath.Join(t.TempDir(), "gone"), t.TempDir()
			if err := state.TakeOver(content, former, dir); err != nil {
				t.Error(err)
			}
			if was, _ := taken(t, dir); was != "" {
				t.Errorf("took over a record of %s, which proves nothing", was)
			}
		})
	}
}

// TestPostgres checks plans and applies with a state in PostgreSQL, which the engine
// reaches through a fence only while it uses the lock.
func TestPostgres(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	w := open(t, root(t, "terraform {\n  backend \"pg\" {}\n}\n"), func(c *state.Config) {
		c.Env = map[string]string{"PG_CONN_STR": database.URL()}
	})
	mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
	if diff := cmp.Diff(both, addresses(t, w)); diff != "" { // without a fence
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if plan := mustPlan(t, w, state.PlanOptions{}); plan.Changes {
		t.Errorf("the second plan changes something:\n%s", plan.Text)
	}

	if err := database.Stop(); err != nil {
		t.Fatal(err)
	}
	_, err := w.Plan(t.Context(), state.PlanOptions{})
	var failed *state.CommandError
	if !errors.As(err, &failed) || failed.Backend != "pg" || !strings.Contains(failed.Text, "connecting to PostgreSQL: ") ||
		strings.Contains(err.Error(), database.Password()) {
		t.Errorf("got %v, want the reason for which the fence ended connections", err)
	}
	if err := database.Resume(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(both, addresses(t, w)); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}
