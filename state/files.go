package state

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

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
	tree := &workdir.Tree{Root: w.config.Root, Files: maps.Clone(w.config.Files), Dirs: []string{dir}}
	tree.Kept = func(name string) bool { return path.Dir(name) == dir && slices.Contains(own, path.Base(name)) }
	maps.Copy(tree.Files, w.files)
	if w.imports != nil {
		tree.Files[path.Join(dir, generator.ImportFile)] = w.imports
	}
	return tree
}

// makeDir creates the directory, so that it can be locked. It does not change a directory
// that the caller owns.
func (w *Workspace) makeDir() error {
	tree := w.tree()
	if tree == nil {
		return nil
	}
	tree.Files, tree.Kept = nil, func(string) bool { return true }
	_, err := tree.Restore()
	return err
}

// restore moves an unsaved state to Config.Errored. It then makes the directory, and the
// directories of the modules, contain exactly the configured files, in addition to the
// engine's own, and removes the engine's module list if that refers to other directories.
// It does nothing if the caller owns the directory. The caller holds mu and the directory's
// lock.
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
		fmt.Fprintf(w.config.Log, "wrote or removed in %s: %s\n", w.config.Root, strings.Join(restored, ", "))
	}
	if !w.callsRendered() {
		if err := errors.Join(removeFile(w.manifestFile()), removeFile(w.private(stampFile))); err != nil {
			return fmt.Errorf("preparing %s: %w", w.config.Dir, err)
		}
	}
	return nil
}

// callsRendered reports whether the engine's module list, if there is one, refers only to
// directories of the tree, each by its source.
func (w *Workspace) callsRendered() bool {
	listed, err := w.readManifest()
	if err != nil || listed == nil {
		return err == nil
	}
	return !slices.ContainsFunc(listed.Modules, func(call moduleCall) bool {
		root := call.Key == "" && call.Source == "" && call.Dir == "."
		below, err := filepath.Rel(w.config.Root, filepath.Join(w.config.Dir, filepath.FromSlash(call.Dir)))
		rendered := err == nil && call.Dir == path.Clean(call.Source) && w.config.Files[path.Join(filepath.ToSlash(below), "main.tf")] != nil
		return !root && !rendered
	})
}
