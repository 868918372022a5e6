// Package store keeps the fleet's files. It reads the files that numaform
// writes, leaves alone those of the engine and of people, and writes exactly the
// difference, each file atomically. What stands in the files is generator's.
// Start at Directory.
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

	"github.com/google/renameio/v2"
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
type Directory struct{ path string }

// NewDirectory returns the fleet in the directory at path, which need not exist.
func NewDirectory(path string) *Directory { return &Directory{path: path} }

// Path returns the directory's path.
func (d *Directory) Path() string { return d.path }

// Read returns the fleet's files by their slash-separated path below the
// directory; there are none if the directory does not exist. A link that leads
// out of the directory is an error.
func (d *Directory) Read() (generator.Files, error) {
	root, err := os.OpenRoot(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return generator.Files{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading fleet %s: %w", d.path, err)
	}
	files, err := read(root.FS())
	if err := errors.Join(err, root.Close()); err != nil {
		return nil, fmt.Errorf("reading fleet %s: %w", d.path, err)
	}
	return files, nil
}

func read(root fs.FS) (generator.Files, error) {
	files := generator.Files{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir() || !ours(name):
			return nil
		}
		files[name], err = fs.ReadFile(root, name)
		return err
	})
	return files, err
}

// ours tells the fleet's files from those that people and engines keep beside
// them. Every configuration of the engine is the fleet's, as it would be planned
// with it: generator says which it does not know.
func ours(name string) bool {
	base := path.Base(name)
	switch {
	case IsModule(name), name == ".gitignore", name == "fleet.json", base == "rotation.json":
		return true
	}
	return (strings.HasSuffix(base, ".tf") || strings.HasSuffix(base, ".tf.json")) &&
		!strings.HasPrefix(base, ".") && base != generator.ImportFile
}

// Write makes the directory hold exactly files, besides what is not the fleet's
// and the modules, which older VMs may still call.
func (d *Directory) Write(files generator.Files) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !fs.ValidPath(name) {
			return fmt.Errorf("writing fleet file %q: it would lie outside %s: nothing was written", name, d.path)
		}
	}
	before, err := d.Read()
	if err != nil {
		return err
	}
	if err := d.writeChanged(before, files); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, wanted := files[name]; wanted || IsModule(name) {
			continue
		}
		if err := os.Remove(filepath.Join(d.path, filepath.FromSlash(name))); err != nil {
			return fmt.Errorf("removing fleet file %s: %w", name, err)
		}
	}
	return nil
}

func (d *Directory) writeChanged(before, files generator.Files) error {
	// Modules come first, so that no node file calls one that is not there.
	names := slices.SortedFunc(maps.Keys(files), func(a, b string) int {
		return strings.Compare(writeOrder(a), writeOrder(b))
	})
	for _, name := range names {
		old, exists := before[name]
		if exists && bytes.Equal(old, files[name]) {
			continue
		}
		if err := d.write(name, files[name]); err != nil {
			return fmt.Errorf("writing fleet file %s: %w", name, err)
		}
	}
	return nil
}

func writeOrder(name string) string {
	if IsModule(name) {
		return "0" + name
	}
	return "1" + name
}

// IsModule reports whether a path below the fleet is a module's.
func IsModule(name string) bool { return strings.HasPrefix(name, "modules/") }

func (d *Directory) write(name string, content []byte) error {
	target := filepath.Join(d.path, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(target, content, 0o644)
}

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
