package state_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/state"
)

// TestHeldLocally checks the lock of a local state: without a file, free with the
// description of a dead engine, and held with and without a description.
func TestHeldLocally(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "terraform.tfstate")
	want := func(want *state.LockInfo) {
		t.Helper()
		got, err := state.HeldLocally(path)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("(-want +got), %v:\n%s", err, diff)
		}
	}
	want(nil)
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	info := filepath.Join(filepath.Dir(path), ".terraform.tfstate.lock.info")
	content := `{"ID":"7b0c","Operation":"OperationTypeApply","Info":"","Who":"ann@laptop","Version":"1.10.5","Created":"2026-11-21T13:45:01.5Z","Path":"x"}`
	if err := os.WriteFile(info, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	want(nil)

	// A lock of an open file description conflicts with this process's other locks, too.
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	want(&state.LockInfo{ID: "7b0c", Operation: "OperationTypeApply", Who: "ann@laptop", Created: time.Date(2026, 11, 21, 13, 45, 1, 500_000_000, time.UTC)})
	if err := os.Remove(info); err != nil {
		t.Fatal(err)
	}
	want(&state.LockInfo{Who: "process -1"})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	want(nil)
}
