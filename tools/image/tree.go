package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// withParents returns files with their parent directories, in order. The directories belong
// to the first layer.
func withParents(files []file) []file {
	known := map[string]bool{".": true}
	for _, f := range files {
		known[f.path] = true
	}
	for _, f := range slices.Clone(files) {
		for dir := path.Dir(f.path); !known[dir]; dir = path.Dir(dir) {
			known[dir] = true
			files = append(files, file{path: dir, mode: fs.ModeDir | 0o755, layer: layerBase})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	return files
}

// writeTree replaces a directory with the files. Owners are recorded only in the layers.
func writeTree(dir string, files []file) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range withParents(slices.Clone(files)) {
		if err := f.writeTo(filepath.Join(dir, filepath.FromSlash(f.path))); err != nil {
			return err
		}
	}
	return nil
}

func (f *file) writeTo(target string) error {
	switch {
	case f.mode.IsDir():
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
	case f.source != "":
		// Link instead of copying 100 MB.
		if err := os.Link(f.source, target); err != nil {
			return fmt.Errorf("linking %s: %w", f.source, err)
		}
	default:
		if err := os.WriteFile(target, f.content, 0o644); err != nil {
			return err
		}
	}
	return os.Chmod(target, f.mode)
}
