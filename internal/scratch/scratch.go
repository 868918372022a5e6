// Package scratch creates directories for temporary files that do not pile up: the
// directory of a killed process is removed when another process creates one. Start at
// New.
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

// New creates a directory, with a purpose in its name, below the directory for temporary
// files. It first removes the directories of dead processes.
func New(purpose string) (*Dir, error) { return in(os.TempDir(), purpose) }

// NewShort creates such a directory for sockets, whose paths are limited: below the
// directory for temporary files if its path has at most longest bytes, or else in the
// system's default place for them.
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

// take creates the mark of a directory. Other processes see it locked from the start.
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

// Remove removes the directory and its content.
func (d *Dir) Remove() error {
	return errors.Join(os.RemoveAll(d.path), d.hold.Close())
}

// sweep removes the directories of dead processes. It ignores errors.
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

// ours reports whether no other user can have created a directory or put anything into
// it, because the directory for temporary files is shared.
func ours(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return false
	}
	var stat unix.Stat_t
	return unix.Lstat(dir, &stat) == nil && stat.Uid == uint32(os.Getuid()) //nolint:gosec // a user ID
}

// discard removes the directory of a mark that no process has locked.
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
