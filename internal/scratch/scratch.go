// Package scratch makes directories for temporary files that do not pile up: what a
// process left that was killed goes when another makes one. Start at New.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	prefix = "numaform-"
	// holdFile marks a directory as ours, and is locked while its process lives.
	holdFile = ".held"
)

// Dir is a directory for temporary files.
type Dir struct {
	path string
	hold *os.File
}

// New makes a directory, with a purpose in its name, below that for temporary files.
// Before, it removes those of processes that are gone.
func New(purpose string) (*Dir, error) { return in(os.TempDir(), purpose) }

// NewShort makes such a directory for sockets, whose paths are limited: below the
// directory for temporary files if its path has at most longest bytes, or else where
// the system keeps such files.
func NewShort(purpose string, longest int) (*Dir, error) {
	for _, parent := range []string{os.TempDir(), os.Getenv("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp", "/dev/shm"} {
		if parent == "" || len(parent) > longest {
			continue
		}
		if dir, err := in(parent, purpose); err == nil {
			return dir, nil
		}
	}
	return nil, fmt.Errorf("making a directory for sockets: none of TMPDIR (%s), XDG_RUNTIME_DIR, /tmp, /var/tmp and /dev/shm has at most %d bytes and can be written: "+
		"set TMPDIR to such a directory", os.TempDir(), longest)
}

func in(parent, purpose string) (*Dir, error) {
	sweep(parent)
	if purpose != "" {
		purpose += "-"
	}
	path, err := os.MkdirTemp(parent, prefix+purpose)
	if err != nil {
		return nil, fmt.Errorf("making a directory for temporary files: %w: set TMPDIR to a directory that can be written", err)
	}
	hold, err := take(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making a directory for temporary files: %w", err), os.RemoveAll(path))
	}
	return &Dir{path: path, hold: hold}, nil
}

// take makes the mark of a directory. Who looks for such sees it locked from the first.
func take(path string) (*os.File, error) {
	hold, err := os.OpenFile(filepath.Join(path, "new"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(hold.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Rename(hold.Name(), filepath.Join(path, holdFile))
	}
	if err != nil {
		return nil, errors.Join(err, hold.Close())
	}
	return hold, nil
}

// Path returns the directory's path.
func (d *Dir) Path() string { return d.path }

// Remove removes the directory and all in it.
func (d *Dir) Remove() error {
	return errors.Join(os.RemoveAll(d.path), d.hold.Close())
}

// sweep removes the directories of processes that are gone. What cannot be removed
// stops nobody.
func sweep(dir string) {
	marks, err := filepath.Glob(filepath.Join(dir, prefix+"*", holdFile))
	if err != nil {
		return
	}
	for _, mark := range marks {
		if ours(filepath.Dir(mark)) {
			_ = discard(mark)
		}
	}
}

// ours reports whether nobody else can have made a directory, or put anything into it:
// that for temporary files is everybody's.
func ours(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return false
	}
	var stat unix.Stat_t
	return unix.Lstat(dir, &stat) == nil && stat.Uid == uint32(os.Getuid()) //nolint:gosec // a user's number
}

// discard removes the directory of a mark that nobody holds.
func discard(mark string) error {
	hold, err := os.OpenFile(mark, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.Flock(int(hold.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(err, hold.Close())
	}
	return errors.Join(os.RemoveAll(filepath.Dir(mark)), hold.Close())
}
