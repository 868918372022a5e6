// Package workdir restores a directory to the content that this process rendered: it
// replaces entries that differ and removes extra ones before a program reads the directory.
// It does not interpret the files, and does not sync them to disk, because a lost directory
// is rendered again. Start at Tree.Restore; Private checks a directory that may contain
// such trees.
package workdir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Tree is the required content of a directory.
type Tree struct {
	// Root is the directory. It must exist.
	Root string
	// Files are the files by slash-separated path relative to Root. A directory below Root
	// that contains one of them contains only entries of the tree, and no directory in
	// their paths is a link.
	Files map[string][]byte
	// Dirs are further directories that contain only entries of the tree. They can be
	// empty.
	Dirs []string
	// Kept reports whether an extra entry of one of these directories, by the entry's path
	// relative to Root, belongs to another program and must remain. Extra links never remain.
	// If Kept is nil, no extra entry remains.
	Kept func(name string) bool
}

// Restore makes the directory match the tree, and returns the sorted paths of the files
// that it wrote and the entries that it removed. An entry of the wrong kind, such as a link
// in place of a file, is removed and never followed.
func (t *Tree) Restore() (restored []string, err error) {
	// The directories of the tree, and whether each may contain only the tree's entries.
	exact := map[string]bool{}
	for name := range t.Files {
		exact[path.Dir(name)] = true
	}
	for _, dir := range t.Dirs {
		exact[dir] = true
	}
	delete(exact, ".")
	for _, dir := range slices.Collect(maps.Keys(exact)) {
		for ; dir != "."; dir = path.Dir(dir) {
			if !exact[dir] {
				exact[dir] = false // a parent
			}
		}
	}

	for _, dir := range slices.Sorted(maps.Keys(exact)) { // parents first
		changed, err := t.restoreDir(dir, exact)
		restored = append(restored, changed...)
		if err != nil {
			return restored, fmt.Errorf("restoring directory %s: %w", t.path(dir), err)
		}
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

// restoreDir creates a directory or corrects its type and mode, and removes entries that
// must not be in it. dirs maps each of the tree's directories to whether it may contain
// only the tree's entries.
func (t *Tree) restoreDir(dir string, dirs map[string]bool) (removed []string, err error) {
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
		if err := os.Remove(name); err != nil {
			return nil, err
		}
		return []string{dir}, os.Mkdir(name, 0o700)
	case info.Mode().Perm() != 0o700:
		if err := os.Chmod(name, 0o700); err != nil { //nolint:gosec // a directory needs its x bit
			return nil, err
		}
	}
	if !dirs[dir] {
		return nil, nil
	}

	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		below := path.Join(dir, entry.Name())
		_, isFile := t.Files[below] // restoreFile checks its content
		_, isDir := dirs[below]
		kept := entry.Type()&fs.ModeSymlink == 0 && t.Kept != nil && t.Kept(below)
		if isFile || isDir && entry.IsDir() || kept {
			continue
		}
		if err := os.RemoveAll(t.path(below)); err != nil {
			return removed, err
		}
		removed = append(removed, below)
	}
	return removed, nil
}

// restoreFile writes a file unless it is already a regular file with the required content.
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

	t.sweep()
	file, err := os.CreateTemp(t.Root, temporary)
	if err != nil {
		return false, err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), target)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return err == nil, err
}

// temporary is the prefix of files being written. They are created in Root, because in
// the file's own directory another process would treat them as extra.
const temporary = ".new-"

// abandoned is the age at which a temporary file is considered left by an interrupted
// write.
const abandoned = time.Hour

// sweep removes files of interrupted writes that are older than abandoned.
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
			_ = os.Remove(filepath.Join(t.Root, entry.Name())) // a remaining file is harmless
		}
	}
}
