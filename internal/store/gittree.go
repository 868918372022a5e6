package store

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/numaform/numaform/generator"
)

// blob is a file in a tree; the zero value stands for none.
type blob struct {
	mode filemode.FileMode
	hash plumbing.Hash
}

// put stores an object and returns its hash.
func (w *worktree) put(kind plumbing.ObjectType, encode func(plumbing.EncodedObject) error) (plumbing.Hash, error) {
	stored := w.repo.Storer.NewEncodedObject()
	stored.SetType(kind)
	if err := encode(stored); err != nil {
		return plumbing.ZeroHash, err
	}
	return w.repo.Storer.SetEncodedObject(stored)
}

func (w *worktree) putBlob(content []byte) (blob, error) {
	hash, err := w.put(plumbing.BlobObject, func(o plumbing.EncodedObject) error {
		writer, err := o.Writer()
		if err != nil {
			return err
		}
		_, err = writer.Write(content)
		return errors.Join(err, writer.Close())
	})
	return blob{mode: filemode.Regular, hash: hash}, err
}

func (w *worktree) content(hash plumbing.Hash) (content []byte, err error) {
	stored, err := w.repo.BlobObject(hash)
	if err != nil {
		return nil, err
	}
	reader, err := stored.Reader()
	if err != nil {
		return nil, err
	}
	content, err = io.ReadAll(reader)
	return present(content), errors.Join(err, reader.Close())
}

// tree returns the tree of a commit; an empty one of none.
func (w *worktree) tree(commit plumbing.Hash) (*object.Tree, error) {
	if commit.IsZero() {
		return &object.Tree{}, nil
	}
	found, err := w.repo.CommitObject(commit)
	if err != nil {
		return nil, fmt.Errorf("reading commit %s: %w", commit, err)
	}
	return w.repo.TreeObject(found.TreeHash)
}

// edit returns the hash of tree with files put or taken away.
func (w *worktree) edit(tree *object.Tree, files map[string]blob) (plumbing.Hash, error) {
	below := map[string]map[string]blob{}
	entries := map[string]object.TreeEntry{}
	for _, entry := range tree.Entries {
		entries[entry.Name] = entry
	}
	for name, file := range files {
		first, rest, nested := strings.Cut(name, "/")
		switch {
		case nested && below[first] == nil:
			below[first] = map[string]blob{rest: file}
		case nested:
			below[first][rest] = file
		case file == blob{}:
			delete(entries, first)
		default:
			entries[first] = object.TreeEntry{Name: first, Mode: file.mode, Hash: file.hash}
		}
	}
	for name, files := range below {
		hash, err := w.editBelow(entries[name], files)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		entries[name] = object.TreeEntry{Name: name, Mode: filemode.Dir, Hash: hash}
		if hash == emptyTree {
			delete(entries, name)
		}
	}
	edited := object.Tree{}
	for _, entry := range entries {
		edited.Entries = append(edited.Entries, entry)
	}
	sort.Sort(object.TreeEntrySorter(edited.Entries))
	return w.put(plumbing.TreeObject, edited.Encode)
}

// emptyTree is the hash that git gives a tree without entries.
var emptyTree = plumbing.ComputeHash(plumbing.TreeObject, nil)

func (w *worktree) editBelow(entry object.TreeEntry, files map[string]blob) (plumbing.Hash, error) {
	tree := &object.Tree{}
	if entry.Mode == filemode.Dir {
		var err error
		if tree, err = w.repo.TreeObject(entry.Hash); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	return w.edit(tree, files)
}

// subtree returns the tree at a path; an empty one if there is none.
func (w *worktree) subtree(tree *object.Tree, name string) (*object.Tree, error) {
	if name == "" || name == "." {
		return tree, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		i := slices.IndexFunc(tree.Entries, func(e object.TreeEntry) bool { return e.Name == part && e.Mode == filemode.Dir })
		if i < 0 {
			return &object.Tree{}, nil
		}
		var err error
		if tree, err = w.repo.TreeObject(tree.Entries[i].Hash); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// walk calls f for the files of a tree whose directories enter lets it into.
func (w *worktree) walk(tree *object.Tree, prefix string, enter func(dir string) bool, f func(name string, entry object.TreeEntry) error) error {
	for _, entry := range tree.Entries {
		name := path.Join(prefix, entry.Name)
		if entry.Mode != filemode.Dir {
			if err := f(name, entry); err != nil {
				return err
			}
			continue
		}
		if !enter(name) {
			continue
		}
		below, err := w.repo.TreeObject(entry.Hash)
		if err != nil {
			return err
		}
		if err := w.walk(below, name, enter, f); err != nil {
			return err
		}
	}
	return nil
}

// committed returns the files of the fleet in a commit's tree.
func (w *worktree) committed(tree *object.Tree) (generator.Files, error) {
	fleet, err := w.subtree(tree, w.config.Subdir)
	if err != nil {
		return nil, err
	}
	files := generator.Files{}
	err = w.walk(fleet, "", func(dir string) bool { return !passedOver(dir) }, func(name string, entry object.TreeEntry) error {
		if !generator.Candidate(name) || !entry.Mode.IsFile() {
			return nil
		}
		content, err := w.content(entry.Hash)
		files[name] = content
		return err
	})
	return generator.Select(files), err
}

// difference is a file that differs between two trees.
type difference struct {
	path          string
	before, after blob
}

// differences returns the files that differ between two commits, without modules of
// other repositories; those that go come first, so that they are out of the way.
func (w *worktree) differences(from, to plumbing.Hash) ([]difference, error) {
	before, err := w.tree(from)
	if err != nil {
		return nil, err
	}
	after, err := w.tree(to)
	if err != nil {
		return nil, err
	}
	changes, err := object.DiffTree(before, after)
	if err != nil {
		return nil, fmt.Errorf("comparing commits %s and %s: %w", from, to, err)
	}
	var gone, others []difference
	for _, change := range changes {
		if change.From.TreeEntry.Mode == filemode.Submodule || change.To.TreeEntry.Mode == filemode.Submodule {
			continue
		}
		if change.From.Name != "" {
			d := difference{path: change.From.Name, before: blob{change.From.TreeEntry.Mode, change.From.TreeEntry.Hash}}
			if change.To.Name == "" {
				gone = append(gone, d)
				continue
			}
			d.after = blob{change.To.TreeEntry.Mode, change.To.TreeEntry.Hash}
			others = append(others, d)
			continue
		}
		others = append(others, difference{path: change.To.Name, after: blob{change.To.TreeEntry.Mode, change.To.TreeEntry.Hash}})
	}
	byPath := func(a, b difference) int { return strings.Compare(a.path, b.path) }
	slices.SortFunc(gone, byPath)
	slices.SortFunc(others, byPath)
	return append(gone, others...), nil
}
