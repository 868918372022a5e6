package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/generator"
)

// stagedFile is the file in PrivateDir with the complete write before it begins. It is
// created atomically and removed when the write is complete.
const stagedFile = "next.json"

// step is the change of one file; nil means no file.
type step struct {
	Path   string `json:"path"`
	Before []byte `json:"before"`
	After  []byte `json:"after"`
}

// maxStaged limits the size of the file with a write, and so the cost of reading it.
const maxStaged = 4 * maxBytes

// staged is a write that is decided but not complete.
type staged struct {
	Steps []step `json:"steps"`
}

// steps returns the steps from the existing files of a directory to the desired ones.
// Modules come first, so that no node file calls a missing one, and deletions come last.
func steps(have, want generator.Files) []step {
	var modules, others []step
	for _, name := range slices.Sorted(maps.Keys(want)) {
		before, exists := have[name]
		s := step{Path: name, After: present(want[name])}
		if exists {
			s.Before = present(before)
		}
		if exists && name == ".gitignore" {
			s.After = generator.MergeIgnore(s.Before, s.After)
		}
		switch {
		case same(s.Before, s.After):
		case IsModule(name):
			modules = append(modules, s)
		default:
			others = append(others, s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, wanted := want[name]; !wanted && !IsModule(name) && generator.Owns(name, have[name]) {
			others = append(others, step{Path: name, Before: present(have[name])})
		}
	}
	return append(modules, others...)
}

// present returns the content of an existing file, which may be empty but is not nil.
func present(content []byte) []byte { return append([]byte{}, content...) }

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func (s staged) empty() bool { return len(s.Steps) == 0 }

func (d *Directory) stagedPath() string { return filepath.Join(d.private, stagedFile) }

// stage records the steps before executing any of them.
func (d *Directory) stage(next staged) error {
	if next.empty() {
		return nil
	}
	content, err := json.Marshal(next)
	if err != nil {
		return d.failed("writing", err)
	}
	if err := d.interrupted(stagedFile); err != nil {
		return err
	}
	if err := renameio.WriteFile(d.stagedPath(), content, 0o644); err != nil {
		return d.failed("writing", err)
	}
	return nil
}

// staged returns an interrupted write, or an empty one. It accepts only steps that change
// files of a fleet.
func (d *Directory) staged() (next staged, err error) {
	content, err := readOrdinary(d.stagedPath(), maxStaged)
	if errors.Is(err, fs.ErrNotExist) {
		return staged{}, nil
	}
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&next)
	}
	var seen census
	for _, s := range next.Steps {
		what := roleOf(s.Path, false)
		if err == nil && what != roleFile && what != roleRecord {
			err = fmt.Errorf("%s is no file of a fleet", shown(s.Path))
		}
		if problem := seen.count(s.Path, what, int64(len(s.After))); err == nil && problem != "" {
			err = fmt.Errorf("%s %s", shown(s.Path), problem)
		}
	}
	if err != nil {
		return staged{}, fmt.Errorf("reading %s, which holds a write that was cut off: %w: remove it to keep the files as they are", d.stagedPath(), err)
	}
	return next, nil
}

// readOrdinary reads a regular file of at most limit bytes.
func readOrdinary(name string, limit int64) (content []byte, err error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("it is a symbolic link")
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is no ordinary file")
	case info.Size() > limit:
		err = fmt.Errorf("it has %d bytes, and may have %d", info.Size(), limit)
	default:
		content, err = io.ReadAll(io.LimitReader(file, limit))
	}
	return content, errors.Join(err, file.Close())
}

// resume completes an interrupted write.
func (d *Directory) resume() error {
	next, err := d.staged()
	if err != nil {
		return err
	}
	return d.finish(next)
}

// overlay applies the steps to files that were read.
func (d *Directory) overlay(files generator.Files, next staged) error {
	for _, s := range next.Steps {
		var current []byte
		if content, exists := files[s.Path]; exists {
			current = present(content)
		}
		if err := d.undisturbed(s, current); err != nil {
			return err
		}
		files[s.Path] = s.After
		if s.After == nil {
			delete(files, s.Path)
		}
	}
	return nil
}

// undisturbed returns an error if another program changed a file since its step was
// staged.
func (d *Directory) undisturbed(s step, current []byte) error {
	if same(current, s.Before) || same(current, s.After) {
		return nil
	}
	return fmt.Errorf("fleet file %s was changed after a write of it was cut off: remove %s to keep the files as they are, "+
		"or restore this one from version control", s.Path, d.stagedPath())
}

// finish executes the remaining steps and removes the record of the write.
func (d *Directory) finish(next staged) error {
	if next.empty() {
		return nil
	}
	if err := d.doAll(next); err != nil {
		return err
	}
	return d.clear()
}

func (d *Directory) doAll(next staged) (err error) {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return d.failed("writing", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, s := range next.Steps {
		if err := d.do(root, s); err != nil {
			return fmt.Errorf("writing fleet file %s: %w", s.Path, err)
		}
	}
	return nil
}

// clear removes the record of a complete write.
func (d *Directory) clear() error {
	if err := d.interrupted(stagedFile); err != nil {
		return err
	}
	if err := os.Remove(d.stagedPath()); err != nil {
		return d.failed("writing", err)
	}
	return nil
}

func (d *Directory) do(root *os.Root, s step) error {
	current, err := current(root, s.Path)
	if err != nil {
		return err
	}
	if err := d.undisturbed(s, current); err != nil {
		return err
	}
	switch {
	case same(current, s.After):
		return nil
	case s.After == nil:
		if err := d.interrupted(s.Path); err != nil {
			return err
		}
		return root.Remove(filepath.FromSlash(s.Path))
	}
	return d.put(root, s)
}

// current returns the content of a regular file, or nil. It follows no links.
func current(root *os.Root, name string) ([]byte, error) {
	for i, r := range name + "/" {
		if r != '/' {
			continue
		}
		info, err := root.Lstat(filepath.FromSlash(name[:i]))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil
		case err != nil:
			return nil, err
		case i < len(name) && !info.IsDir(), i == len(name) && !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is no ordinary file or directory: move it elsewhere", name[:i])
		}
	}
	content, err := readLimited(root.FS(), name, maxRecord)
	return present(content), err
}

func (d *Directory) target(name string) string {
	return filepath.Join(d.path, filepath.FromSlash(name))
}

// put writes one file atomically.
func (d *Directory) put(root *os.Root, s step) error {
	if err := d.interrupted(s.Path); err != nil {
		return err
	}
	name := filepath.FromSlash(s.Path)
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	other := filepath.Join(filepath.Dir(name), ".numaform-"+strconv.FormatUint(rand.Uint64(), 36)+".tmp") //nolint:gosec // not a secret: O_EXCL refuses an existing file
	file, err := root.OpenFile(other, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(s.After)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = root.Rename(other, name)
	}
	if err != nil {
		err = errors.Join(err, root.Remove(other))
	}
	return err
}

func (d *Directory) interrupted(name string) error {
	if d.interrupt == nil {
		return nil
	}
	return d.interrupt(name)
}
