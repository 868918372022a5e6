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

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/generator"
)

// stagedFile is the file in Directory.private that contains a complete write before its
// first step. It is created atomically, and removed after the last step.
const stagedFile = "next.json"

// maxStaged limits the size of the file with a write, and so the cost of reading it.
const maxStaged = 4 * maxBytes

// step is the change of one file; nil means no file.
type step struct {
	Path   string `json:"path"`
	Before []byte `json:"before"`
	After  []byte `json:"after"`
}

// staged is a write that has been decided but not completed.
type staged struct {
	Steps []step `json:"steps"`
}

// steps returns the steps that change the existing files of a directory to the desired ones.
// Modules are first, so that no node file calls a missing module, and deletions are last.
func steps(have, desired generator.Files) []step {
	var modules, rest []step
	for _, name := range slices.Sorted(maps.Keys(desired)) {
		s := step{Path: name, After: nonNil(desired[name])}
		if before, exists := have[name]; exists {
			s.Before = nonNil(before)
			if name == ".gitignore" {
				s.After = generator.MergeIgnore(s.Before, s.After)
			}
		}
		switch {
		case same(s.Before, s.After):
		case IsModule(name):
			modules = append(modules, s)
		default:
			rest = append(rest, s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, keep := desired[name]; !keep && !IsModule(name) && generator.Owns(name, have[name]) {
			rest = append(rest, step{Path: name, Before: nonNil(have[name])})
		}
	}
	return append(modules, rest...)
}

// nonNil returns a non-nil copy of the content, because nil means no file.
func nonNil(content []byte) []byte { return append([]byte{}, content...) }

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// check returns an error if another program changed the step's file since the write was
// staged.
func (s *step) check(current []byte) error {
	if same(current, s.Before) || same(current, s.After) {
		return nil
	}
	return fmt.Errorf("fleet file %s was changed after an interrupted write", s.Path)
}

// applyTo applies the steps to files that were read.
func (s *staged) applyTo(files generator.Files) error {
	for _, step := range s.Steps {
		var current []byte
		if content, exists := files[step.Path]; exists {
			current = nonNil(content)
		}
		if err := step.check(current); err != nil {
			return err
		}
		files[step.Path] = step.After
		if step.After == nil {
			delete(files, step.Path)
		}
	}
	return nil
}

func (d *Directory) stagedPath() string { return filepath.Join(d.private, stagedFile) }

// staged returns an interrupted write, or an empty one. It accepts only steps that change
// files of a fleet.
func (d *Directory) staged() (next staged, err error) {
	content, err := readRegular(d.stagedPath(), maxStaged)
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
		role := roleOf(s.Path, false)
		if err == nil && role != roleFile && role != roleRecord {
			err = fmt.Errorf("%s is not a file of a fleet", printable(s.Path))
		}
		if problem := seen.count(s.Path, role, int64(len(s.After))); err == nil && problem != "" {
			err = fmt.Errorf("%s %s", printable(s.Path), problem)
		}
	}
	if err != nil {
		return staged{}, fmt.Errorf("reading %s, which contains an interrupted write: %w: remove %[1]s to keep the current files", d.stagedPath(), err)
	}
	return next, nil
}

// readRegular reads a regular file of at most limit bytes.
func readRegular(name string, limit int64) (content []byte, err error) {
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
		err = errors.New("it is not a regular file")
	case info.Size() > limit:
		err = fmt.Errorf("it has %d bytes, more than the limit of %d", info.Size(), limit)
	default:
		read := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
		_, err = read.ReadFrom(io.LimitReader(file, limit))
		content = read.Bytes()
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

// finish executes the remaining steps and removes the staged write.
func (d *Directory) finish(next staged) error {
	if len(next.Steps) == 0 {
		return nil
	}
	if err := d.execute(next.Steps...); err != nil {
		return err
	}
	if err := d.interrupt.before(stagedFile); err != nil {
		return err
	}
	if err := os.Remove(d.stagedPath()); err != nil {
		return d.failed("writing", err)
	}
	return nil
}

// execute executes the steps that are not done yet.
func (d *Directory) execute(steps ...step) (err error) {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return d.failed("writing", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, s := range steps {
		current, err := currentContent(root, s.Path)
		if err != nil {
			return d.failed("writing file "+s.Path+" of", err)
		}
		if err := s.check(current); err != nil {
			return d.edited(err)
		}
		if same(current, s.After) {
			continue
		}
		if err := d.interrupt.before(s.Path); err != nil {
			return err
		}
		if s.After == nil {
			err = root.Remove(filepath.FromSlash(s.Path))
		} else {
			err = replace(root, filepath.FromSlash(s.Path), s.After)
		}
		if err != nil {
			return d.failed("writing file "+s.Path+" of", err)
		}
	}
	return nil
}

// edited adds a hint to the error about a file that was edited after an interrupted write.
func (d *Directory) edited(err error) error {
	return fmt.Errorf("%w: remove %s to keep the current files, or restore the fleet file from version control", err, d.stagedPath())
}

// currentContent returns the content of a regular file, or nil if it does not exist. It
// follows no links.
func currentContent(root *os.Root, name string) ([]byte, error) {
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
		case i < len(name) && !info.IsDir():
			return nil, fmt.Errorf("%s is not a directory: move it elsewhere", name[:i])
		case i == len(name) && !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a regular file: move it elsewhere", name)
		}
	}
	content, err := readLimited(root.FS(), name, maxRecord)
	return nonNil(content), err
}

// replace writes one file atomically.
func replace(root *os.Root, name string, content []byte) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	tempName := filepath.Join(filepath.Dir(name), ".numaform-"+strconv.FormatUint(rand.Uint64(), 36)+".tmp") //nolint:gosec // not a secret: O_EXCL refuses an existing file
	file, err := root.OpenFile(tempName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = root.Rename(tempName, name)
	}
	if err != nil {
		err = errors.Join(err, root.Remove(tempName))
	}
	return err
}

// syncPath waits until a file, or the entries of a directory, are on disk.
func syncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
