// Package scratch creates directories for temporary files. So that they do not accumulate,
// the directory of a killed process is removed when another process creates one. Start at
// New.
package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	prefix = "numaform-"
	// lockFile marks a directory as ours, and is locked while its process lives.
	lockFile = ".held"
)

// Dir is a directory for temporary files.
type Dir struct {
	path string
	lock *os.File
}

// New creates a directory, with a purpose in its name, below the directory for temporary
// files. It first removes the directories of the user's dead processes.
func New(purpose string) (*Dir, error) { return in(os.TempDir(), purpose) }

// NewShort creates such a directory for sockets, whose paths are limited. Its parent is the
// first of the directory for temporary files, $XDG_RUNTIME_DIR, /tmp, /var/tmp and /dev/shm
// that is writable and has a path of at most longest bytes.
func NewShort(purpose string, longest int) (*Dir, error) {
	for _, parent := range []string{os.TempDir(), os.Getenv("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp", "/dev/shm"} {
		if parent == "" || len(parent) > longest {
			continue
		}
		if dir, err := in(parent, purpose); err == nil {
			return dir, nil
		}
	}
	return nil, fmt.Errorf("creating a directory for sockets: none of TMPDIR (%s), XDG_RUNTIME_DIR, /tmp, /var/tmp and /dev/shm is writable and has a path of at most %d bytes: "+
		"set TMPDIR to such a directory", os.TempDir(), longest)
}

func in(parent, purpose string) (_ *Dir, err error) {
	sweep(parent)
	if purpose != "" {
		purpose += "-"
	}
	path, err := os.MkdirTemp(parent, prefix+purpose)
	if err != nil {
		return nil, fmt.Errorf("creating a directory for temporary files: %w: set TMPDIR to a writable directory", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("creating a directory for temporary files: %w", err), os.RemoveAll(path))
		}
	}()
	lock, err := os.OpenFile(filepath.Join(path, "new"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	// Lock the file before renaming it, so that other processes never see an unlocked mark.
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Rename(lock.Name(), filepath.Join(path, lockFile))
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Dir{path: path, lock: lock}, nil
}

// Path returns the directory's path.
func (d *Dir) Path() string { return d.path }

// Remove removes the directory and its content.
func (d *Dir) Remove() error {
	return errors.Join(os.RemoveAll(d.path), d.lock.Close())
}

// sweep removes the directories of this user's dead processes. It ignores errors: a
// remaining directory is harmless.
func sweep(parent string) {
	marks, err := filepath.Glob(filepath.Join(parent, prefix+"*", lockFile))
	if err != nil {
		return
	}
	for _, mark := range marks {
		// The directory for temporary files is shared: no other user may have created this
		// one, or put anything into it.
		dir := filepath.Dir(mark)
		var stat unix.Stat_t
		if unix.Lstat(dir, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR || stat.Mode&0o077 != 0 ||
			stat.Uid != uint32(os.Getuid()) { //nolint:gosec // a user ID
			continue
		}
		lock, err := os.OpenFile(mark, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close() // nothing was written
	}
}
