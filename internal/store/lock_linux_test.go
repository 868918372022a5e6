package store_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/store"
)

// TestUnlockReleasesInherited holds a second descriptor of the lock file, as a child
// process does between fork and exec: unlock must still release the lock.
func TestUnlockReleasesInherited(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := store.NewDirectory(dir).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	inherited := -1
	for _, entry := range descriptors {
		path, err := os.Readlink(filepath.Join("/proc/self/fd", entry.Name()))
		if err != nil || !strings.HasPrefix(path, dir) || filepath.Base(path) != "lock" {
			continue
		}
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		if inherited, err = unix.Dup(fd); err != nil {
			t.Fatal(err)
		}
	}
	if inherited < 0 {
		t.Fatalf("no descriptor of the lock file is open below %s", dir)
	}
	defer unix.Close(inherited) //nolint:errcheck // the test is over

	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if unlock, err = store.NewDirectory(dir).Lock(t.Context()); err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}
