package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// PrivateDir holds, below the fleet's directory, what is this machine's alone and
// no part of the desired state.
const PrivateDir = ".numaform"

// Directory is a fleet in a directory: a volume or a laptop's disk.
type Directory struct {
	path string
	// private is where the directory's own files are: those of its locks, and a
	// write that is under way.
	private string
	// tree tells the whole of a git working copy: links are content, and a directory
	// goes with its last file.
	tree bool
	// interrupt lets a test end a write before it touches a file; nil does not.
	interrupt func(name string) error
}

var _ Store = (*Directory)(nil)

// NewDirectory returns the fleet in the directory at path, which need not exist.
func NewDirectory(dir string) *Directory {
	return &Directory{path: dir, private: filepath.Join(dir, PrivateDir)}
}

// Path returns the directory's path.
func (d *Directory) Path() string { return d.path }

// failed says what failed, and how to mend it where that is known.
func (d *Directory) failed(doing string, err error) error {
	mend := ""
	switch {
	case errors.Is(err, fs.ErrPermission):
		mend = ": let the user that runs numaform read and write the fleet's directory"
	case errors.Is(err, syscall.ENOTDIR):
		mend = ": name a directory, with fleet.dir in numaform.yaml or --out"
	case errors.Is(err, syscall.ENOSPC):
		mend = ": make room, then run the same command again"
	}
	return fmt.Errorf("%s fleet %s: %w%s", doing, d.path, err, mend)
}

// Files returns the fleet's files by their slash-separated path below the
// directory, as they are once a write that was cut off is finished; there are none
// if there is no fleet. Files beside them that are not the fleet's are left out,
// unless an engine would read them along with it: generator.Parse refuses those.
// A link that leads out of the directory is an error.
func (d *Directory) Files() (files generator.Files, err error) {
	err = d.shared(func() error {
		have, err := d.scan()
		files = generator.Select(have)
		return err
	})
	return files, err
}

// Read returns Files and their revision.
func (d *Directory) Read(context.Context) (generator.Files, Revision, error) {
	files, err := d.Files()
	if err != nil {
		return nil, "", err
	}
	return files, RevisionOf(files), nil
}

// scan reads all files that may be the fleet's by their paths. Whose they are,
// their content tells.
func (d *Directory) scan() (generator.Files, error) {
	root, err := os.OpenRoot(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return generator.Files{}, nil
	}
	if err != nil {
		return nil, d.failed("reading", err)
	}
	// First, so that a write that ends meanwhile is seen whole.
	next, stagedErr := d.staged()
	files, err := readAll(root.FS())
	if err := errors.Join(err, root.Close()); err != nil {
		return nil, d.failed("reading", err)
	}
	if stagedErr != nil {
		return nil, stagedErr
	}
	return files, d.overlay(files, next)
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
		if err != nil && entry.Type()&fs.ModeSymlink != 0 {
			err = fmt.Errorf("%w: it is a link that leads to no file of the fleet's directory: put the file itself there", err)
		}
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
	var have generator.Files
	err = d.shared(func() (err error) {
		have, err = d.scan()
		return err
	})
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
	return d.write(files, func(generator.Files) ([]step, error) { return nil, nil })
}

// Begin makes files what is wanted, together with the change's record.
func (d *Directory) Begin(_ context.Context, base Revision, files generator.Files, change audit.Change) error {
	record, err := encodeChange(change)
	if err != nil {
		return err
	}
	return d.write(files, func(have generator.Files) ([]step, error) {
		if RevisionOf(generator.Select(have)) != base {
			return nil, fmt.Errorf("writing fleet into %s: %w", d.path, ErrMoved)
		}
		if err := d.absent(recordName(change.ID)); err != nil {
			return nil, err
		}
		return []step{{Path: recordName(change.ID), After: record}}, nil
	})
}

// write writes files, and what more asks for when it sees those that exist.
func (d *Directory) write(files generator.Files, more func(have generator.Files) ([]step, error)) error {
	if err := d.inside(files); err != nil {
		return err
	}
	return d.alone(func() error {
		if err := d.resume(); err != nil {
			return err
		}
		have, err := d.scan()
		if err != nil {
			return err
		}
		first, err := more(have)
		if err != nil {
			return err
		}
		if err := d.refuse(have, files); err != nil {
			return err
		}
		next := staged{Steps: append(first, steps(have, files)...)}
		if err := d.stage(next); err != nil {
			return err
		}
		return d.finish(next)
	})
}

// refuse keeps a fleet from replacing, or being planned along with, what is not
// its own.
func (d *Directory) refuse(have, files generator.Files) error { return refuse(d.path, have, files) }

func refuse(where string, have, files generator.Files) error {
	old, cluster := generator.ClusterOf(generator.Select(have)), generator.ClusterOf(files)
	if old != "" && cluster != "" && old != cluster {
		return fmt.Errorf("writing fleet into %s: it holds the fleet of cluster %q, not of %q: nothing was written: "+
			"name another one", where, old, cluster)
	}
	if foreign := generator.Foreign(have, files); len(foreign) > 0 {
		return fmt.Errorf("writing fleet into %s: %s is not numaform's and in its way: nothing was written: "+
			"move the file elsewhere, or name another directory", where, foreign[0])
	}
	return nil
}

// inside refuses files that would lie elsewhere.
func (d *Directory) inside(files generator.Files) error { return inside(d.path, files) }

func inside(where string, files generator.Files) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !fs.ValidPath(name) {
			return fmt.Errorf("writing fleet file %q: it would lie outside %s: nothing was written", name, where)
		}
	}
	return nil
}
