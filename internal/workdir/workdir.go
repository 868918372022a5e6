// Package workdir keeps a directory as this process rendered it: what differs, and what
// is there besides, is replaced before a program reads it. It knows nothing of what the
// files mean, and syncs nothing to disk, as a directory that is lost is made again.
// Start at Tree.Restore; Private checks a directory that may hold such trees.
package workdir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Tree is what a directory must hold.
type Tree struct {
	// Root is the directory. It exists.
	Root string
	// Files are by their slash-separated paths below Root. A directory that holds one of
	// them holds nothing else, and no directory on the way to one is a link.
	Files map[string][]byte
	// Dirs are directories that hold nothing but Files, though they may have none.
	Dirs []string
	// Kept reports whether an entry of such a directory, by its path below Root, belongs
	// to another program. A link never does.
	Kept func(name string) bool
}

// Restore makes the directory hold the tree, and returns the paths of what was not as it
// must be, sorted. What is of another kind than it must be, such as a link in the place
// of a file, is removed and never followed.
func (t *Tree) Restore() (restored []string, err error) {
	dirs := t.dirs()
	for _, dir := range dirs {
		changed, err := t.restoreDir(dir)
		if err != nil {
			return restored, fmt.Errorf("restoring directory %s: %w", t.path(dir), err)
		}
		restored = append(restored, changed...)
	}
	for name, content := range t.Files {
		changed, err := t.restoreFile(name, content)
		if err != nil {
			return restored, fmt.Errorf("restoring %s: %w", t.path(name), err)
		}
		if changed {
			restored = append(restored, name)
		}
	}
	slices.Sort(restored)
	return slices.Compact(restored), nil
}

func (t *Tree) path(name string) string { return filepath.Join(t.Root, filepath.FromSlash(name)) }

// dirs returns all directories of the tree, each behind the one that it is in.
func (t *Tree) dirs() []string {
	found := map[string]bool{}
	add := func(dir string) {
		for ; dir != "." && !found[dir]; dir = path.Dir(dir) {
			found[dir] = true
		}
	}
	for name := range t.Files {
		add(path.Dir(name))
	}
	for _, dir := range t.Dirs {
		add(dir)
	}
	dirs := make([]string, 0, len(found))
	for dir := range found {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	return dirs
}

// exact reports whether a directory holds nothing but the tree's.
func (t *Tree) exact(dir string) bool {
	if slices.Contains(t.Dirs, dir) {
		return true
	}
	for name := range t.Files {
		if path.Dir(name) == dir {
			return true
		}
	}
	return false
}

// restoreDir makes a directory one of ours alone, and removes what must not be in it.
func (t *Tree) restoreDir(dir string) (removed []string, err error) {
	name := t.path(dir)
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		return nil, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		removed = append(removed, dir)
		if err := os.Remove(name); err != nil {
			return nil, err
		}
		return removed, os.Mkdir(name, 0o700)
	case info.Mode().Perm() != 0o700:
		if err := os.Chmod(name, 0o700); err != nil { //nolint:gosec // a directory needs its x bit
			return nil, err
		}
	}
	if !t.exact(dir) {
		return nil, nil
	}
	return t.clear(dir)
}

// clear removes from a directory what must not be in it.
func (t *Tree) clear(dir string) (removed []string, err error) {
	entries, err := os.ReadDir(t.path(dir))
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		below := path.Join(dir, entry.Name())
		if t.holds(below, entry) {
			continue
		}
		removed = append(removed, below)
		if err := os.RemoveAll(t.path(below)); err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// holds reports whether an entry may stay. Whether a file is as it must be, restoreFile
// looks.
func (t *Tree) holds(name string, entry fs.DirEntry) bool {
	if _, ours := t.Files[name]; ours {
		return true
	}
	if entry.IsDir() && slices.Contains(t.dirs(), name) {
		return true
	}
	return entry.Type()&fs.ModeSymlink == 0 && t.Kept != nil && t.Kept(name)
}

// restoreFile writes a file unless it is there as it must be.
func (t *Tree) restoreFile(name string, content []byte) (written bool, err error) {
	target := t.path(name)
	info, err := os.Lstat(target)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil && info.Mode().IsRegular() && info.Size() == int64(len(content)) {
		have, err := os.ReadFile(target)
		if err != nil {
			return false, err
		}
		if bytes.Equal(have, content) {
			return false, nil
		}
	}
	if err == nil && !info.Mode().IsRegular() {
		if err := os.RemoveAll(target); err != nil {
			return false, err
		}
	}
	return true, t.write(target, content)
}

// temporary begins the names of files that are being written. They lie in Root, as in
// the directory itself another process would take them for a stranger's.
const temporary = ".new-"

// abandoned is how old the file of a write is that was cut off.
const abandoned = time.Hour

func (t *Tree) write(target string, content []byte) (err error) {
	t.sweep()
	file, err := os.CreateTemp(t.Root, temporary)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if _, err := file.Write(content); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), target)
}

// sweep removes what writes left that were cut off.
func (t *Tree) sweep() {
	entries, err := os.ReadDir(t.Root)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), temporary) {
			continue
		}
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > abandoned {
			_ = os.Remove(filepath.Join(t.Root, entry.Name())) // it is in nobody's way
		}
	}
}
