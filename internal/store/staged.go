package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/numaform/numaform/generator"
)

// stagedFile is the name, in PrivateDir, of the file that holds a write as a whole
// before it begins. It appears at once and goes when the write is done.
const stagedFile = "next.json"

// step is the change of one file; nil stands for no file.
type step struct {
	Path   string `json:"path"`
	Before []byte `json:"before"`
	After  []byte `json:"after"`
	// Mode is that of a file in a git working copy that is not an ordinary one.
	Mode string `json:"mode,omitempty"`
}

// The modes of steps.
const (
	modeExecutable = "executable"
	modeLink       = "link"
)

// staged is a write that was decided and is not done.
type staged struct {
	Steps []step `json:"steps"`
	// From and Commit are, in a git working copy, the commits that the steps lead
	// from and to.
	From   string `json:"from,omitempty"`
	Commit string `json:"commit,omitempty"`
}

// steps returns what turns the files of a directory into those that are wanted.
// Modules come first, so that no node file calls one that is not there, and
// deletions last.
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

// present returns the content of a file that exists, which may be empty.
func present(content []byte) []byte { return append([]byte{}, content...) }

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func (s staged) empty() bool { return len(s.Steps) == 0 && s.Commit == "" }

func (d *Directory) stagedPath() string { return filepath.Join(d.private, stagedFile) }

// stage writes the steps down before any of them is done.
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

// staged returns a write that was cut off, or an empty one.
func (d *Directory) staged() (next staged, err error) {
	content, err := os.ReadFile(d.stagedPath())
	if errors.Is(err, fs.ErrNotExist) {
		return staged{}, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &next)
	}
	for _, s := range next.Steps {
		if err == nil && !filepath.IsLocal(filepath.FromSlash(s.Path)) {
			err = fmt.Errorf("%q lies outside of the fleet", s.Path)
		}
	}
	if err != nil {
		return staged{}, fmt.Errorf("reading %s, which holds a write that was cut off: %w: remove it to keep the files as they are", d.stagedPath(), err)
	}
	return next, nil
}

// resume finishes a write that was cut off.
func (d *Directory) resume() error {
	next, err := d.staged()
	if err != nil {
		return err
	}
	return d.finish(next)
}

// overlay does the steps to files that were read.
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

// undisturbed makes sure that nobody else changed a file since its step was
// staged.
func (d *Directory) undisturbed(s step, current []byte) error {
	if same(current, s.Before) || same(current, s.After) {
		return nil
	}
	return fmt.Errorf("fleet file %s was changed after a write of it was cut off: remove %s to keep the files as they are, "+
		"or restore this one from version control", s.Path, d.stagedPath())
}

// finish does the steps that are not done yet, and forgets them.
func (d *Directory) finish(next staged) error {
	if err := d.doAll(next); err != nil || next.empty() {
		return err
	}
	return d.clear()
}

func (d *Directory) doAll(next staged) error {
	for _, s := range next.Steps {
		if err := d.do(s); err != nil {
			return fmt.Errorf("writing fleet file %s: %w", s.Path, err)
		}
	}
	return nil
}

// clear forgets the write that is done.
func (d *Directory) clear() error {
	if err := d.interrupted(stagedFile); err != nil {
		return err
	}
	if err := os.Remove(d.stagedPath()); err != nil {
		return d.failed("writing", err)
	}
	return nil
}

func (d *Directory) do(s step) error {
	current, err := d.current(s.Path)
	if err != nil {
		return err
	}
	if err := d.undisturbed(s, current); err != nil {
		return err
	}
	switch {
	case same(current, s.After) && s.Mode == "":
		return nil
	case s.After == nil:
		return d.remove(s.Path)
	}
	return d.put(s)
}

func (d *Directory) target(name string) string {
	return filepath.Join(d.path, filepath.FromSlash(name))
}

// put writes one file atomically.
func (d *Directory) put(s step) error {
	if err := d.interrupted(s.Path); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(d.target(s.Path)), 0o755); err != nil {
		return err
	}
	switch s.Mode {
	case modeLink:
		return renameio.Symlink(string(s.After), d.target(s.Path))
	case modeExecutable:
		return renameio.WriteFile(d.target(s.Path), s.After, 0o755)
	}
	return renameio.WriteFile(d.target(s.Path), s.After, 0o644)
}

func (d *Directory) remove(name string) error {
	if err := d.interrupted(name); err != nil {
		return err
	}
	err := os.Remove(d.target(name))
	if err == nil && d.tree {
		d.prune(name)
	}
	return err
}

func (d *Directory) interrupted(name string) error {
	if d.interrupt == nil {
		return nil
	}
	return d.interrupt(name)
}
