package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// PrivateDir is the subdirectory of the fleet's directory for data that belongs to this
// machine and not to the desired state.
const PrivateDir = ".numaform"

// Directory is a fleet in a directory, on a volume or a local disk.
type Directory struct {
	path string
	// private is the directory of the lock files and of a write in progress.
	private string
	// interrupt, if a test sets it, ends a write before a file is changed.
	interrupt func(name string) error
	// reading, if a test sets it, is called while files are read.
	reading func()
}

var _ Store = (*Directory)(nil)

// NewDirectory returns the fleet in the directory at path, which need not exist.
func NewDirectory(dir string) *Directory {
	return &Directory{path: dir, private: filepath.Join(dir, PrivateDir)}
}

// Path returns the directory's path.
func (d *Directory) Path() string { return d.path }

// failed returns the error, with a hint for fixing it if one is known.
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

// Files returns the fleet's files by slash-separated path relative to the directory,
// after completing an interrupted write; none if there is no fleet. It leaves out files
// of the engine, of numaform and of forges; any other file that is not part of a fleet is
// a RefusedError.
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

// scan reads all files that may be the fleet's by their paths. Their content decides
// whether they are.
func (d *Directory) scan() (generator.Files, error) {
	root, err := os.OpenRoot(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return generator.Files{}, nil
	}
	if err != nil {
		return nil, d.failed("reading", err)
	}
	// Read the staged write first, so that a write that ends meanwhile is seen
	// completely.
	next, stagedErr := d.staged()
	if d.reading != nil {
		d.reading()
	}
	files, err := d.readAll(root.FS())
	closed := root.Close()
	var refused *RefusedError
	if errors.As(err, &refused) {
		return nil, refused
	}
	if err := errors.Join(err, closed); err != nil {
		return nil, d.failed("reading", err)
	}
	if stagedErr != nil {
		return nil, stagedErr
	}
	return files, d.overlay(files, next)
}

// readAll reads the fleet's files. It refuses all files that are not part of a fleet
// before it reads any.
func (d *Directory) readAll(root fs.FS) (generator.Files, error) {
	var wanted []string
	var seen census
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if name == "." && err == nil {
			return nil
		}
		if leftBehind(name) || beside(name) {
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err != nil {
			return err
		}
		what := roleOf(name, entry.IsDir())
		switch {
		case entry.Type()&fs.ModeSymlink != 0:
			return d.refused(name, "is a symbolic link: a fleet's files are ordinary files", "put the file itself there")
		case !entry.IsDir() && !entry.Type().IsRegular():
			return d.refused(name, "is no ordinary file", d.removal(name))
		case what == roleRefused:
			return d.refused(name, "is no part of a fleet", d.removal(name))
		case what == roleSkipped:
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if problem := seen.count(name, what, info.Size()); problem != "" {
			return d.refused(name, problem, d.removal(name))
		}
		if what == roleFile {
			wanted = append(wanted, name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	files := generator.Files{}
	for _, name := range wanted {
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
		err = fmt.Errorf("%s has more than %d bytes", shown(name), limit)
	}
	return content, errors.Join(err, file.Close())
}

func (d *Directory) refused(name, problem, fix string) error {
	return &RefusedError{Where: d.path, Path: name, Problem: problem, Fix: fix}
}

// removal returns the shell command that moves a file out of the directory.
func (d *Directory) removal(name string) string {
	return "move it out of the fleet's directory, such as with mv " + quoted(d.target(name)) + " ~"
}

// plain matches words that need no quoting in a shell.
var plain = regexp.MustCompile(`^[A-Za-z0-9@%+=:,./_-]+$`)

// quoted returns a word quoted for a shell.
func quoted(word string) string {
	if plain.MatchString(word) {
		return word
	}
	if strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsPrint(r) }) {
		inner := strings.Trim(strconv.QuoteToASCII(word), `"`)
		return "$'" + strings.ReplaceAll(inner, "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Accepts returns an error if the directory contains something other than the same
// cluster's fleet, so that it must not become the directory of files.
func (d *Directory) Accepts(files generator.Files) error {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing fleet into %s: %w", d.path, err)
	}
	cluster := generator.ClusterOf(files)
	_, err = os.Lstat(filepath.Join(d.path, "fleet.json"))
	isFleet := err == nil
	for _, entry := range entries {
		if !isFleet && !strings.HasPrefix(entry.Name(), ".") && !leftBehind(entry.Name()) {
			return fmt.Errorf("writing fleet into %s: it holds %s and no fleet of cluster %q: nothing was written: "+
				"name a directory that is empty or does not exist, or one with this cluster's fleet", d.path, shown(entry.Name()), cluster)
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
	if err := d.refuse(have, files); err != nil {
		return err
	}
	if isFleet && (cluster == "" || generator.ClusterOf(have) != cluster) {
		return fmt.Errorf("writing fleet into %s: it holds fleet.json and no fleet of cluster %q: nothing was written: "+
			"name a directory that is empty or does not exist, or one with this cluster's fleet", d.path, cluster)
	}
	return nil
}

// Write makes the directory contain exactly files, leaving alone what is not the fleet's
// and the modules, which older VMs may still call. It refuses to change a file that
// numaform did not write. The next write completes an interrupted one, and Read returns
// it as completed.
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
		if err := d.absent(recordName(change.ID)); err != nil {
			return nil, err
		}
		return []step{{Path: recordName(change.ID), After: record}}, nil
	})
}

// write writes files, and the steps that more returns for the existing files.
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

// refuse returns an error if writing files would replace files that are not numaform's,
// or if such files would be planned along with them.
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

// inside refuses paths outside of the directory.
func (d *Directory) inside(files generator.Files) error { return inside(d.path, files) }

func inside(where string, files generator.Files) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !fs.ValidPath(name) {
			return fmt.Errorf("writing fleet file %q: it would lie outside %s: nothing was written", name, where)
		}
	}
	return nil
}
