package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// HeldLock is the engine's description of a lock.
type HeldLock struct {
	ID        string
	Operation string
	// Who is the holder, as user@host.
	Who     string
	Created time.Time
}

// maxHeld limits the size of a description.
const maxHeld = 64 << 10

// ParseHeld parses the description of a lock.
func ParseHeld(content []byte) (*HeldLock, error) {
	if len(content) > maxHeld {
		return nil, fmt.Errorf("the description of a lock has %d bytes, more than the limit of %d", len(content), maxHeld)
	}
	held := &HeldLock{}
	if err := json.Unmarshal(content, held); err != nil {
		return nil, fmt.Errorf("reading the description of a lock: %w", err)
	}
	return held, nil
}

// HeldLocally returns the lock of a local state's file, or nil if no process holds it. It
// runs no engine and writes nothing.
func HeldLocally(path string) (*HeldLock, error) {
	file, err := os.Open(filepath.Clean(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no state, no lock
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // nothing was written
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, &lock); err != nil {
		return nil, fmt.Errorf("reading the lock of %s: %w", path, err)
	}
	if lock.Type == unix.F_UNLCK {
		return nil, nil //nolint:nilnil // free
	}
	// The engine writes the description after it acquires the lock.
	content, err := os.ReadFile(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".lock.info"))
	if err == nil {
		if held, err := ParseHeld(content); err == nil {
			return held, nil
		}
	}
	return &HeldLock{Who: fmt.Sprintf("process %d", lock.Pid)}, nil
}
