package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/workdir"
)

// own are the names in a directory that belong to the engine and to this package.
var own = []string{".terraform", erroredState}

// tree returns the tree that the engine may read, or nil if the caller owns the
// directory.
func (w *Workspace) tree() *workdir.Tree {
	if w.config.Files == nil {
		return nil
	}
	below, _ := filepath.Rel(w.config.Root, w.config.Dir) // New has checked that it is below Root
	dir := filepath.ToSlash(below)
	tree := &workdir.Tree{Root: w.config.Root, Files: w.config.Files, Dirs: []string{dir}}
	tree.Kept = func(name string) bool { return path.Dir(name) == dir && slices.Contains(own, path.Base(name)) }
	if w.imports != nil {
		tree.Files = maps.Clone(w.config.Files)
		tree.Files[path.Join(dir, generator.ImportFile)] = w.imports
	}
	return tree
}

// makeDir creates the directory, so that it can be locked. It leaves a directory that the
// caller owns alone.
func (w *Workspace) makeDir() error {
	tree := w.tree()
	if tree == nil {
		return nil
	}
	tree.Files, tree.Kept = nil, func(string) bool { return true }
	_, err := tree.Restore()
	return err
}

// restore makes the directory, and the directories of the modules, contain exactly the
// configured files. The caller holds mu and the directory's lock.
func (w *Workspace) restore() error {
	tree := w.tree()
	if tree == nil {
		return nil
	}
	if err := w.secure(); err != nil {
		return err
	}
	restored, err := tree.Restore()
	if err != nil {
		return fmt.Errorf("preparing %s: %w", w.config.Dir, err)
	}
	if len(restored) > 0 {
		fmt.Fprintf(w.config.Log, "wrote in %s: %s\n", w.config.Root, strings.Join(restored, ", "))
	}
	if !w.callsRendered() {
		if err := errors.Join(removeFile(w.manifestFile()), removeFile(w.private(stampFile))); err != nil {
			return fmt.Errorf("preparing %s: %w", w.config.Dir, err)
		}
	}
	return nil
}

// callsRendered reports whether the engine's module list refers only to directories of
// the tree, each by its source. Without a list there are no other calls.
func (w *Workspace) callsRendered() bool {
	content, err := os.ReadFile(w.manifestFile())
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	var listed manifest
	if err != nil || json.Unmarshal(content, &listed) != nil {
		return false
	}
	for _, call := range listed.Modules {
		root := call.Key == "" && call.Source == "" && call.Dir == "."
		below, err := filepath.Rel(w.config.Root, filepath.Join(w.config.Dir, filepath.FromSlash(call.Dir)))
		rendered := err == nil && call.Dir == path.Clean(call.Source) && w.config.Files[path.Join(filepath.ToSlash(below), "main.tf")] != nil
		if !root && !rendered {
			return false
		}
	}
	return true
}

// errored returns the path for a state that the backend did not accept.
func (w *Workspace) errored() string {
	if w.config.Errored != "" {
		return w.config.Errored
	}
	return filepath.Join(w.config.Dir, erroredState)
}

// secure moves a state that the engine could not save to its permanent place.
func (w *Workspace) secure() error {
	name := filepath.Join(w.config.Dir, erroredState)
	info, err := os.Lstat(name)
	if w.config.Errored == "" || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("securing %s: it is no ordinary file: remove it", name)
	}
	if err == nil {
		err = w.move(name)
	}
	if err != nil {
		return fmt.Errorf("securing the state %s, which was not saved: %w", name, err)
	}
	return nil
}

// move moves an unsaved state. At any time the state is in at least one of both places.
func (w *Workspace) move(name string) error {
	content, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	kept, err := os.ReadFile(w.config.Errored)
	switch {
	case err == nil && !slices.Equal(kept, content):
		return fmt.Errorf("%s is another one: move one of them elsewhere, and import what it made", w.config.Errored)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	case err != nil:
		if err := os.MkdirAll(filepath.Dir(w.config.Errored), 0o700); err != nil {
			return err
		}
		if err := renameio.WriteFile(w.config.Errored, content, 0o600); err != nil {
			return err
		}
	}
	return os.Remove(name)
}
