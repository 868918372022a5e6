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

// PrivateError reports a directory that is unsuitable for files that only this program may
// write.
type PrivateError struct {
	Dir, Problem, Hint string
}

// Error names the directory, the problem and the fix.
func (e *PrivateError) Error() string {
	return fmt.Sprintf("state directory %s %s: %s", e.Dir, e.Problem, e.Hint)
}

// Private creates a directory with mode 0700 if it does not exist. It returns an error if
// the path is relative, is a link or is not a directory, if it is inside a git checkout or
// inside one of the directories in outside, or if another user owns the directory or can
// write to it.
func Private(dir string, outside ...string) error {
	refuse := func(problem, hint string) error {
		return &PrivateError{Dir: dir, Problem: problem, Hint: hint}
	}
	if !filepath.IsAbs(dir) {
		return refuse("is not an absolute path", "set state_dir in numaform.yaml to an absolute path")
	}
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("inspecting state directory %s: %w", dir, err)
	case info.Mode()&fs.ModeSymlink != 0:
		return refuse("is a symbolic link", "set state_dir in numaform.yaml to the target of the link")
	case !info.IsDir():
		return refuse("is not a directory", "remove the file, or set state_dir in numaform.yaml to a directory")
	}
	// The directory must be outside the fleet and outside git checkouts: users who can change
	// the fleet, or push to the repository, could write there.
	real, err := resolve(dir)
	if err != nil {
		return fmt.Errorf("inspecting state directory %s: %w", dir, err)
	}
	for _, name := range outside {
		other, err := resolve(name)
		if err != nil {
			return fmt.Errorf("inspecting directory %s: %w", name, err)
		}
		if real == other || strings.HasPrefix(real, other+string(filepath.Separator)) {
			return refuse("is inside the fleet's directory "+other,
				"set state_dir in numaform.yaml to a directory outside it, because anyone who can change the fleet could write there")
		}
	}
	for parent := real; ; parent = filepath.Dir(parent) {
		if _, err := os.Lstat(filepath.Join(parent, ".git")); err == nil {
			return refuse("is inside the git checkout "+parent,
				"set state_dir in numaform.yaml to a directory outside it, because anyone who can push could write there")
		}
		if parent == filepath.Dir(parent) {
			break
		}
	}

	// No other user may write to the directory itself.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating state directory %s: %w: set state_dir in numaform.yaml to a directory that numaform can write", dir, err)
	}
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return fmt.Errorf("inspecting state directory %s: %w", dir, err)
	}
	if uid := os.Geteuid(); stat.Uid != uint32(uid) { //nolint:gosec // a user ID
		return refuse(fmt.Sprintf("is owned by user %d, but numaform runs as user %d", stat.Uid, uid),
			fmt.Sprintf("run numaform as user %d, or set state_dir in numaform.yaml to a directory that user %d owns", stat.Uid, uid))
	}
	if mode := stat.Mode & 0o777; mode&0o022 != 0 {
		return refuse(fmt.Sprintf("is writable by other users (mode %04o)", mode),
			"run chmod 700 "+dir+", or set state_dir in numaform.yaml to a directory below it")
	}
	return nil
}

// resolve returns the absolute path of a directory, with links resolved. It leaves the
// part that does not exist unchanged.
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
