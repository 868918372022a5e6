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
	"strings"

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

func (d *Directory) stagedPath() string { return filepath.Join(d.path, PrivateDir, stagedFile) }

// stage writes the steps down before any of them is done.
func (d *Directory) stage(steps []step) error {
	if len(steps) == 0 {
		return nil
	}
	content, err := json.Marshal(steps)
	if err != nil {
		return fmt.Errorf("writing fleet %s: %w", d.path, err)
	}
	if err := d.put(PrivateDir+"/"+stagedFile, content); err != nil {
		return fmt.Errorf("writing fleet %s: %w", d.path, err)
	}
	return nil
}

// staged returns the steps of a write that was cut off, or none.
func (d *Directory) staged() ([]step, error) {
	content, err := os.ReadFile(d.stagedPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var steps []step
	if err == nil {
		err = json.Unmarshal(content, &steps)
	}
	for i := range steps {
		if err == nil && !filepath.IsLocal(filepath.FromSlash(steps[i].Path)) {
			err = fmt.Errorf("%q lies outside of the fleet", steps[i].Path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s, which holds a write that was cut off: %w: remove it to keep the files as they are", d.stagedPath(), err)
	}
	return steps, nil
}

// overlay does the steps to files that were read.
func (d *Directory) overlay(files generator.Files, steps []step) error {
	for _, s := range steps {
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
func (d *Directory) finish(steps []step) error {
	for _, s := range steps {
		if err := d.do(s); err != nil {
			return fmt.Errorf("writing fleet file %s: %w", s.Path, err)
		}
	}
	if len(steps) == 0 {
		return nil
	}
	if err := d.remove(PrivateDir + "/" + stagedFile); err != nil {
		return fmt.Errorf("writing fleet %s: %w", d.path, err)
	}
	return nil
}

func (d *Directory) do(s step) error {
	current, err := os.ReadFile(d.target(s.Path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		current = nil
	case err != nil:
		return err
	default:
		current = present(current)
	}
	if err := d.undisturbed(s, current); err != nil {
		return err
	}
	switch {
	case same(current, s.After):
		return nil
	case s.After == nil:
		return d.remove(s.Path)
	}
	return d.put(s.Path, s.After)
}

func (d *Directory) target(name string) string {
	return filepath.Join(d.path, filepath.FromSlash(name))
}

// put writes one file atomically.
func (d *Directory) put(name string, content []byte) error {
	if err := d.interrupted(name); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(d.target(name)), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(d.target(name), content, 0o644)
}

func (d *Directory) remove(name string) error {
	if err := d.interrupted(name); err != nil {
		return err
	}
	return os.Remove(d.target(name))
}

func (d *Directory) interrupted(name string) error {
	if d.interrupt == nil {
		return nil
	}
	return d.interrupt(strings.TrimPrefix(name, PrivateDir+"/"))
}
