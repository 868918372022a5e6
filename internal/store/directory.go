package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/shell"
)

// PrivateDir is the subdirectory of the fleet's directory for data of this machine, which is
// not part of the desired state.
const PrivateDir = ".numaform"

// Directory is a fleet in a directory, on a volume or a local disk.
type Directory struct {
	path string
	// private is the directory of the lock files and of a write in progress.
	private string
	// interrupt is a test hook that ends a write before a file is changed.
	interrupt interrupt
	// reading is a test hook that is called while files are read.
	reading func()
}

var _ Store = (*Directory)(nil)

// NewDirectory returns the fleet in the directory dir, which need not exist.
func NewDirectory(dir string) *Directory {
	return &Directory{path: dir, private: filepath.Join(dir, PrivateDir)}
}

// Path returns the directory's path.
func (d *Directory) Path() string { return d.path }

func (d *Directory) target(name string) string {
	return filepath.Join(d.path, filepath.FromSlash(name))
}

// failed adds the action and, for some causes, a hint to the error.
func (d *Directory) failed(doing string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, fs.ErrPermission):
		hint = ": give the user that runs numaform read and write access to the directory"
	case errors.Is(err, syscall.ENOTDIR):
		hint = ": set fleet.dir in numaform.yaml, or --out, to a directory"
	case errors.Is(err, syscall.ENOSPC):
		hint = ": free disk space, then run the same command again"
	}
	return fmt.Errorf("%s fleet %s: %w%s", doing, d.path, err, hint)
}

// Files returns the fleet's files by slash-separated path relative to the directory,
// with an interrupted write applied; none if there is no fleet. It ignores files of the
// engine, of numaform and of forges. Any other file that is not part of a fleet is a
// RefusedError.
func (d *Directory) Files() (files generator.Files, err error) {
	err = d.shared(func() error {
		have, err := d.scan()
		files = generator.Select(have)
		return err
	})
	return files, err
}

// Read returns the files that Files returns, and their revision.
func (d *Directory) Read(context.Context) (generator.Files, Revision, error) {
	files, err := d.Files()
	if err != nil {
		return nil, "", err
	}
	return files, RevisionOf(files), nil
}

// scan reads all files whose paths may belong to the fleet. generator.Select decides by
// their content.
func (d *Directory) scan() (generator.Files, error) {
	root, err := os.OpenRoot(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return generator.Files{}, nil
	}
	if err != nil {
		return nil, d.failed("reading", err)
	}
	// Read the staged write before the files, so that the result contains all of a write
	// that ends in between.
	next, stagedErr := d.staged()
	if d.reading != nil {
		d.reading()
	}
	files, err := d.readAll(root.FS())
	closeErr := root.Close()
	if refused, is := errors.AsType[*RefusedError](err); is {
		return nil, refused
	}
	if err := errors.Join(err, closeErr); err != nil {
		return nil, d.failed("reading", err)
	}
	if stagedErr != nil {
		return nil, stagedErr
	}
	if err := next.applyTo(files); err != nil {
		return nil, d.edited(err)
	}
	return files, nil
}

// readAll reads the fleet's files. Before it reads any, it refuses files that are not part
// of a fleet.
func (d *Directory) readAll(root fs.FS) (generator.Files, error) {
	var names []string
	var seen census
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if name == "." && err == nil {
			return nil
		}
		if isIgnored(name) || isForgeFile(name) {
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err != nil {
			return err
		}

		problem := ""
		fix := "move it out of the fleet's directory, for example with mv " + shell.Quote(d.target(name)) + " ~"
		role := roleOf(name, entry.IsDir())
		switch {
		case entry.Type()&fs.ModeSymlink != 0:
			problem = "is a symbolic link: a fleet must contain regular files only"
			fix = "replace it with the file itself"
		case !entry.IsDir() && !entry.Type().IsRegular():
			problem = "is not a regular file"
		case role == roleRefused:
			problem = "is not part of a fleet"
		case role == roleSkipped:
			return nil
		default:
			info, err := entry.Info()
			if err != nil {
				return err
			}
			problem = seen.count(name, role, info.Size())
		}
		if problem != "" {
			return &RefusedError{Where: d.path, Path: name, Problem: problem, Fix: fix}
		}
		if role == roleFile {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	files := generator.Files{}
	for _, name := range names {
		if files[name], err = readLimited(root, name, maxFile); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// readLimited reads a file of at most limit bytes, even if the file grows.
func readLimited(root fs.FS, name string, limit int64) (content []byte, err error) {
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	content, err = io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", printable(name), limit)
	}
	return content, errors.Join(err, file.Close())
}

// Accepts returns an error if files must not be written to the directory, because it
// contains another cluster's fleet or, without a fleet, other files.
func (d *Directory) Accepts(files generator.Files) error {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing fleet into %s: %w", d.path, err)
	}
	cluster := generator.ClusterOf(files)
	refuse := func(name string) error {
		return fmt.Errorf("writing fleet into %s: it contains %s and no fleet of cluster %q: nothing was written: "+
			"use a directory that is empty, does not exist, or contains the fleet of this cluster", d.path, printable(name), cluster)
	}
	_, err = os.Lstat(d.target("fleet.json"))
	isFleet := err == nil
	for _, entry := range entries {
		if !isFleet && !strings.HasPrefix(entry.Name(), ".") && !isIgnored(entry.Name()) {
			return refuse(entry.Name())
		}
	}

	var have generator.Files
	err = d.shared(func() (err error) {
		have, err = d.scan()
		return err
	})
	if err != nil {
		return err
	}
	if err := checkOwner(d.path, have, files); err != nil {
		return err
	}
	if isFleet && (cluster == "" || generator.ClusterOf(have) != cluster) {
		return refuse("fleet.json")
	}
	return nil
}

// Write makes files the files of the fleet. It keeps unmanaged files, and modules that
// older VMs may still call, and refuses to change a file that numaform did not write. If a
// write is interrupted once it is staged, Read returns its result, and the next write
// completes it.
func (d *Directory) Write(files generator.Files) error {
	return d.write(files, func(generator.Files) ([]step, error) { return nil, nil })
}

// Begin makes files the desired state, together with the change's record.
func (d *Directory) Begin(_ context.Context, base Revision, files generator.Files, change audit.Change) error {
	record, err := encodeChange(change)
	if err != nil {
		return err
	}
	return d.write(files, func(have generator.Files) ([]step, error) {
		if RevisionOf(generator.Select(have)) != base {
			return nil, fmt.Errorf("writing fleet into %s: %w", d.path, ErrMoved)
		}
		if err := d.checkAbsent(recordName(change.ID)); err != nil {
			return nil, err
		}
		return []step{{Path: recordName(change.ID), After: record}}, nil
	})
}

// write makes files the files of the fleet. Before that, it executes the steps that first
// returns for the existing files. Once all steps are staged, they are executed: now or by
// the next write.
func (d *Directory) write(files generator.Files, first func(have generator.Files) ([]step, error)) error {
	if err := checkPaths(d.path, files); err != nil {
		return err
	}
	return d.exclusive(func() error {
		if err := d.resume(); err != nil {
			return err
		}
		have, err := d.scan()
		if err != nil {
			return err
		}
		list, err := first(have)
		if err != nil {
			return err
		}
		if err := checkOwner(d.path, have, files); err != nil {
			return err
		}
		next := staged{Steps: append(list, steps(have, files)...)}
		if len(next.Steps) == 0 {
			return nil
		}

		content, err := json.Marshal(next)
		if err == nil {
			err = d.interrupt.before(stagedFile)
		}
		if err == nil {
			err = renameio.WriteFile(d.stagedPath(), content, 0o644)
		}
		if err != nil {
			return d.failed("writing", err)
		}
		return d.finish(next)
	})
}

// checkOwner returns an error if the location contains another cluster's fleet, if writing
// files would replace unmanaged files, or if the engine would read unmanaged files with
// them.
func checkOwner(where string, have, files generator.Files) error {
	old := generator.ClusterOf(generator.Select(have))
	cluster := generator.ClusterOf(files)
	if old != "" && cluster != "" && old != cluster {
		return fmt.Errorf("writing fleet into %s: it contains the fleet of cluster %q, not of %q: nothing was written: "+
			"use another location for the fleet", where, old, cluster)
	}
	if unmanaged := generator.Unmanaged(have, files); len(unmanaged) > 0 {
		return fmt.Errorf("writing fleet into %s: %s was not written by numaform and conflicts with the fleet: nothing was written: "+
			"move the file elsewhere, or use another location for the fleet", where, unmanaged[0])
	}
	return nil
}

// checkPaths refuses paths outside the fleet.
func checkPaths(where string, files generator.Files) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !fs.ValidPath(name) {
			return fmt.Errorf("writing fleet file %q: the path is outside %s: nothing was written", name, where)
		}
	}
	return nil
}
