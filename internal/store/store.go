// Package store keeps the fleet's files. It reads the files that numaform
// writes, leaves alone those of the engine and of people, and writes exactly the
// difference, all of it or nothing. What stands in the files, and which are
// numaform's, generator knows. Start at Directory.
package store

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

	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/generator"
)

// ErrLocked is returned by Lock while another process changes the fleet.
var ErrLocked = errors.New("another numaform is changing this fleet: wait for it to end")

// PrivateDir holds, below the fleet's directory, what is this machine's alone and
// no part of the desired state.
const PrivateDir = ".numaform"

// Directory is a fleet in a directory: a volume, a laptop, a git working copy.
type Directory struct {
	path string
	// interrupt lets a test end a write before it touches a file; nil does not.
	interrupt func(name string) error
}

// NewDirectory returns the fleet in the directory at path, which need not exist.
func NewDirectory(path string) *Directory { return &Directory{path: path} }

// Path returns the directory's path.
func (d *Directory) Path() string { return d.path }

// Read returns the fleet's files by their slash-separated path below the
// directory, as they are once a write that was cut off is finished; there are none
// if there is no fleet. Files beside them that are not the fleet's are left out,
// unless an engine would read them along with it: generator.Parse refuses those.
// A link that leads out of the directory is an error.
func (d *Directory) Read() (generator.Files, error) {
	have, err := d.scan()
	return generator.Select(have), err
}

// scan reads all files that may be the fleet's by their paths. Whose they are,
// their content tells.
func (d *Directory) scan() (generator.Files, error) {
	root, err := os.OpenRoot(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return generator.Files{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading fleet %s: %w", d.path, err)
	}
	// First, so that a write that ends meanwhile is seen whole.
	staged, stagedErr := d.staged()
	files, err := readAll(root.FS())
	if err := errors.Join(err, root.Close()); err != nil {
		return nil, fmt.Errorf("reading fleet %s: %w", d.path, err)
	}
	if stagedErr != nil {
		return nil, stagedErr
	}
	return files, d.overlay(files, staged)
}

func readAll(root fs.FS) (generator.Files, error) {
	files, unread := generator.Files{}, map[string]error{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case entry.IsDir() && passedOver(name):
			return fs.SkipDir
		case entry.IsDir() || !generator.Candidate(name):
			return nil
		}
		content, err := fs.ReadFile(root, name)
		if err != nil {
			unread[name] = err
		}
		files[name] = content
		return nil
	})
	if err != nil {
		return nil, err
	}
	return files, unreadable(files, unread)
}

// unreadable returns the first error of a file that matters: what cannot be read
// is nobody's, unless it stands in a place of the fleet.
func unreadable(files generator.Files, unread map[string]error) error {
	selected := generator.Select(files)
	for _, name := range slices.Sorted(maps.Keys(unread)) {
		if _, matters := selected[name]; matters {
			return unread[name]
		}
	}
	return nil
}

// passedOver tells directories that hold nothing of a fleet: hidden ones, and those
// that lie too deep, as people may keep much beside a fleet.
func passedOver(dir string) bool {
	return strings.HasPrefix(path.Base(dir), ".") || strings.Count(dir, "/") >= 2 && !IsModule(dir)
}

// Accepts reports, by an error, that the directory must not take the files as a
// fleet's: it holds something, and not the same cluster's fleet.
func (d *Directory) Accepts(files generator.Files) error {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing fleet into %s: %w", d.path, err)
	}
	have, err := d.scan()
	if err != nil {
		return err
	}
	if err := d.refuse(have, files); err != nil {
		return err
	}
	if cluster := generator.ClusterOf(files); cluster == "" || generator.ClusterOf(have) != cluster {
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), ".") {
				return fmt.Errorf("writing fleet into %s: it holds %s and no fleet of cluster %q: nothing was written: "+
					"name a directory that is empty or does not exist, or one with this cluster's fleet", d.path, entry.Name(), cluster)
			}
		}
	}
	return nil
}

// Write makes the directory hold exactly files, besides what is not the fleet's
// and the modules, which older VMs may still call. It refuses to touch a file that
// numaform did not write. A write that is cut off is finished by the next one, and
// Read sees it finished.
func (d *Directory) Write(files generator.Files) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !fs.ValidPath(name) {
			return fmt.Errorf("writing fleet file %q: it would lie outside %s: nothing was written", name, d.path)
		}
	}
	staged, err := d.staged()
	if err != nil {
		return err
	}
	if err := d.finish(staged); err != nil {
		return err
	}
	have, err := d.scan()
	if err != nil {
		return err
	}
	if err := d.refuse(have, files); err != nil {
		return err
	}
	next := steps(have, files)
	if err := d.stage(next); err != nil {
		return err
	}
	return d.finish(next)
}

// refuse keeps a fleet from replacing, or being planned along with, what is not
// its own.
func (d *Directory) refuse(have, files generator.Files) error {
	old, cluster := generator.ClusterOf(generator.Select(have)), generator.ClusterOf(files)
	if old != "" && cluster != "" && old != cluster {
		return fmt.Errorf("writing fleet into %s: it holds the fleet of cluster %q, not of %q: nothing was written: "+
			"name another directory", d.path, old, cluster)
	}
	if foreign := generator.Foreign(have, files); len(foreign) > 0 {
		return fmt.Errorf("writing fleet into %s: %s is not numaform's and in its way: nothing was written: "+
			"move the file elsewhere, or name another directory", d.path, foreign[0])
	}
	return nil
}

// IsModule reports whether a path below the fleet is a module's.
func IsModule(name string) bool { return strings.HasPrefix(name, "modules/") }

// Lock takes the fleet for one process until unlock is called, or returns
// ErrLocked at once. The system frees it if the process dies.
func (d *Directory) Lock() (unlock func() error, err error) {
	private := filepath.Join(d.path, PrivateDir)
	if err := os.MkdirAll(private, 0o755); err != nil {
		return nil, fmt.Errorf("locking fleet %s: %w", d.path, err)
	}
	file, err := os.OpenFile(filepath.Join(private, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("locking fleet %s: %w", d.path, err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, errors.Join(fmt.Errorf("locking fleet %s: %w", d.path, err), file.Close())
	}
	return file.Close, nil
}

// Difference is how one file differs between two versions of a fleet.
type Difference struct {
	Path string
	// Added and Removed tell a new and a deleted file; neither, a changed one.
	Added, Removed bool
	// Unified is the difference in the unified format.
	Unified []byte
}

// Compare returns the files that differ, sorted by path. Modules are not shown
// line by line: their directory's name is their content's hash.
func Compare(before, after generator.Files) []Difference {
	names := maps.Clone(before)
	maps.Copy(names, after)
	var differences []Difference
	modules := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		old, existed := before[name]
		content, exists := after[name]
		if existed == exists && bytes.Equal(old, content) {
			continue
		}
		if IsModule(name) {
			if root := path.Dir(name); !modules[root] && !existed && strings.Count(root, "/") == 2 {
				modules[root] = true
				differences = append(differences, Difference{Path: root + "/", Added: true})
			}
			continue
		}
		differences = append(differences, Difference{
			Path: name, Added: !existed, Removed: !exists,
			Unified: diff.Diff("a/"+name, old, "b/"+name, content),
		})
	}
	return differences
}
