package workdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// PrivateError says why a directory is unsuitable for files that only this program may
// write.
type PrivateError struct {
	Dir, Problem, Hint string
}

// Error says what is wrong and how to fix it.
func (e *PrivateError) Error() string {
	return fmt.Sprintf("state directory %s %s: %s", e.Dir, e.Problem, e.Hint)
}

// Private creates a directory that only this user can write, if it does not exist. It
// refuses an unsafe one: a link, a directory in a git checkout or below one of outside,
// and a directory that belongs to another user or grants others rights.
func Private(dir string, outside ...string) error {
	refuse := func(problem, hint string) error {
		return &PrivateError{Dir: dir, Problem: problem, Hint: hint}
	}
	if !filepath.IsAbs(dir) {
		return refuse("is no absolute path", "set state_dir in numaform.yaml to one")
	}
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("looking at state directory %s: %w", dir, err)
	case info.Mode()&fs.ModeSymlink != 0:
		return refuse("is a link", "set state_dir in numaform.yaml to the directory that it leads to")
	case !info.IsDir():
		return refuse("is no directory", "set state_dir in numaform.yaml to one, or remove the file")
	}
	// Nobody else may write to the directory's place.
	real, err := resolve(dir)
	if err != nil {
		return fmt.Errorf("looking at state directory %s: %w", dir, err)
	}
	for _, name := range outside {
		other, err := resolve(name)
		if err != nil {
			return fmt.Errorf("looking at directory %s: %w", name, err)
		}
		if real == other || strings.HasPrefix(real, other+string(filepath.Separator)) {
			return refuse("lies in the fleet's directory "+other,
				"set state_dir in numaform.yaml to a directory outside of it, because everyone who may change the fleet could write there")
		}
	}
	for parent := real; ; parent = filepath.Dir(parent) {
		if _, err := os.Lstat(filepath.Join(parent, ".git")); err == nil {
			return refuse("lies in the git checkout "+parent,
				"set state_dir in numaform.yaml to a directory outside of it, because everyone who may push could write there")
		}
		if parent == filepath.Dir(parent) {
			break
		}
	}

	// No other user may write to the directory itself.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making state directory %s: %w: set state_dir in numaform.yaml to a directory that numaform may write", dir, err)
	}
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return fmt.Errorf("looking at state directory %s: %w", dir, err)
	}
	if uid := os.Geteuid(); stat.Uid != uint32(uid) { //nolint:gosec // a user ID
		return refuse(fmt.Sprintf("belongs to user %d, and numaform runs as %d", stat.Uid, uid),
			"run numaform as that user, or set state_dir in numaform.yaml to a directory of its own")
	}
	if mode := stat.Mode & 0o777; mode&0o022 != 0 {
		return refuse(fmt.Sprintf("can be written by others (mode %04o)", mode),
			"chmod 700 it, or set state_dir in numaform.yaml to a directory below it")
	}
	return nil
}

// resolve returns the path of a directory without links. It leaves the part that does not
// exist unchanged.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	missing := ""
	for {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(real, missing), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return "", err
		}
		dir, missing = filepath.Dir(dir), filepath.Join(filepath.Base(dir), missing)
	}
}
