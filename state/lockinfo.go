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

// LockInfo is the engine's description of a lock.
type LockInfo struct {
	// ID is the argument of Unlock. It is empty if the lock belongs to a connection: such
	// a lock ends with its holder's connection, and cannot be broken.
	ID        string
	Operation string
	// Who is the holder, as user@host.
	Who     string
	Created time.Time
}

// maxLockInfo is the maximum size of a lock's description, in bytes.
const maxLockInfo = 64 << 10

const (
	// LeasePrefix is the start of the name of the Lease that locks a state in Kubernetes.
	// The rest of the name is the backend's secret_suffix.
	LeasePrefix = "lock-tfstate-default-"
	// LeaseInfo is the annotation of such a Lease with its LockInfo.
	LeaseInfo = "app.terraform.io/lock-info"
)

// ParseLockInfo parses the description of a lock.
func ParseLockInfo(content []byte) (*LockInfo, error) {
	if len(content) > maxLockInfo {
		return nil, fmt.Errorf("the description of a lock has %d bytes, more than the limit of %d", len(content), maxLockInfo)
	}
	info := &LockInfo{}
	if err := json.Unmarshal(content, info); err != nil {
		return nil, fmt.Errorf("reading the description of a lock: %w", err)
	}
	return info, nil
}

// HeldLocally returns the lock of a local state's file, or nil if no process holds it. It
// runs no engine and writes nothing.
func HeldLocally(path string) (*LockInfo, error) {
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
		if held, err := ParseLockInfo(content); err == nil {
			return held, nil
		}
	}
	return &LockInfo{Who: fmt.Sprintf("process %d", lock.Pid)}, nil
}
