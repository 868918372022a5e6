package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// next creates the commit of a change, and reports whether the change covers more than
// its record. It does not update references.
func (r *repository) next(base Revision, files generator.Files, change *audit.Change, record []byte) (commit plumbing.Hash, changes bool, err error) {
	head, err := r.hash(r.branch)
	if err != nil {
		return commit, false, err
	}
	if err := r.checkout.settled(r, head); err != nil {
		return commit, false, err
	}
	have, err := r.committed(head)
	if err != nil {
		return commit, false, err
	}
	if RevisionOf(generator.Select(have)) != base {
		return commit, false, fmt.Errorf("writing fleet into %s: %w", r.where(), ErrMoved)
	}
	if err := errors.Join(refuse(r.where(), have, files), r.newRecord(change)); err != nil {
		return commit, false, err
	}
	edits := map[string]blob{}
	for _, s := range steps(have, files) {
		edits[r.inRepository(s.Path)] = blob{}
		if s.After == nil {
			continue
		}
		if edits[r.inRepository(s.Path)], err = r.putBlob(s.After); err != nil {
			return commit, false, err
		}
	}
	changes = len(edits) > 0
	if edits[r.inRepository(gitRecordName(change.ID))], err = r.putBlob(record); err != nil {
		return commit, false, err
	}
	tree, err := r.tree(head)
	if err != nil {
		return commit, false, err
	}
	commit, err = r.commit(tree, edits, commitOf{message: message(change), time: change.Time, parents: parents(head)})
	return commit, changes, err
}

// newRecord returns an error if the change's record already exists.
func (r *repository) newRecord(change *audit.Change) error {
	records, err := r.records(change.Time)
	if err != nil {
		return err
	}
	if known, exists := records[change.ID]; exists {
		return fmt.Errorf("adding the record of change %s, which commit %s holds: nothing was written: %w", change.ID, known.commit, fs.ErrExist)
	}
	return nil
}

func parents(head plumbing.Hash) []plumbing.Hash {
	if head.IsZero() {
		return nil
	}
	return []plumbing.Hash{head}
}

// commitOf is the metadata of a commit.
type commitOf struct {
	message string
	time    time.Time
	parents []plumbing.Hash
}

// commit stores a commit of tree with edits and returns its hash.
func (r *repository) commit(tree *object.Tree, edits map[string]blob, of commitOf) (plumbing.Hash, error) {
	edited, err := r.edit(tree, edits)
	if err != nil {
		return edited, fmt.Errorf("writing a commit: %w", err)
	}
	who := object.Signature{Name: r.config.Author.Name, Email: r.config.Author.Email, When: of.time.UTC()}
	commit := object.Commit{Author: who, Committer: who, Message: of.message, TreeHash: edited, ParentHashes: of.parents}
	hash, err := r.put(plumbing.CommitObject, commit.Encode)
	if err != nil {
		return hash, fmt.Errorf("writing a commit: %w", err)
	}
	return hash, nil
}

// blob is a file in a tree; the zero value means no file.
type blob struct {
	mode filemode.FileMode
	hash plumbing.Hash
}

// put stores an object and returns its hash.
func (r *repository) put(kind plumbing.ObjectType, encode func(plumbing.EncodedObject) error) (plumbing.Hash, error) {
	stored := r.repo.Storer.NewEncodedObject()
	stored.SetType(kind)
	if err := encode(stored); err != nil {
		return plumbing.ZeroHash, err
	}
	return r.repo.Storer.SetEncodedObject(stored)
}

func (r *repository) putBlob(content []byte) (blob, error) {
	hash, err := r.put(plumbing.BlobObject, func(o plumbing.EncodedObject) error {
		writer, err := o.Writer()
		if err != nil {
			return err
		}
		_, err = writer.Write(content)
		return errors.Join(err, writer.Close())
	})
	return blob{mode: filemode.Regular, hash: hash}, err
}

func (r *repository) content(hash plumbing.Hash) (content []byte, err error) {
	stored, err := object.GetBlob(r.objects, hash)
	if err != nil {
		return nil, err
	}
	if r.read += stored.Size; r.read > maxBytes+maxHistory {
		return nil, fmt.Errorf("what is asked for has more than %d bytes", maxBytes+maxHistory)
	}
	reader, err := stored.Reader()
	if err != nil {
		return nil, err
	}
	content, err = io.ReadAll(io.LimitReader(reader, stored.Size))
	return present(content), errors.Join(err, reader.Close())
}

// tree returns the tree of a commit; an empty tree for the zero hash.
func (r *repository) tree(commit plumbing.Hash) (*object.Tree, error) {
	if commit.IsZero() {
		return &object.Tree{}, nil
	}
	found, err := object.GetCommit(r.objects, commit)
	if err != nil {
		return nil, fmt.Errorf("reading commit %s: %w", commit, err)
	}
	return object.GetTree(r.objects, found.TreeHash)
}

func isTree(entry object.TreeEntry) bool { return entry.Mode == filemode.Dir }

func isSubmodule(entry object.TreeEntry) bool { return entry.Mode == filemode.Submodule }

// edit returns the hash of tree with files added, replaced or removed. Other entries stay
// unchanged.
func (r *repository) edit(tree *object.Tree, files map[string]blob) (plumbing.Hash, error) {
	below := map[string]map[string]blob{}
	edited := object.Tree{Entries: slices.Clone(tree.Entries)}
	set := func(name string, entry object.TreeEntry) {
		edited.Entries = slices.DeleteFunc(edited.Entries, func(e object.TreeEntry) bool { return e.Name == name })
		if !entry.Hash.IsZero() {
			edited.Entries = append(edited.Entries, entry)
		}
	}
	for name, file := range files {
		first, rest, nested := strings.Cut(name, "/")
		switch {
		case nested && below[first] == nil:
			below[first] = map[string]blob{rest: file}
		case nested:
			below[first][rest] = file
		default:
			set(first, object.TreeEntry{Name: first, Mode: file.mode, Hash: file.hash})
		}
	}
	for name, files := range below {
		child, err := r.subtree(tree, name)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		hash, err := r.edit(child, files)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if hash == emptyTree {
			hash = plumbing.ZeroHash
		}
		set(name, object.TreeEntry{Name: name, Mode: filemode.Dir, Hash: hash})
	}
	sort.Sort(object.TreeEntrySorter(edited.Entries))
	return r.put(plumbing.TreeObject, edited.Encode)
}

// emptyTree is git's hash of a tree without entries.
var emptyTree = plumbing.ComputeHash(plumbing.TreeObject, nil)

// subtree returns the tree at a path; an empty tree if there is none.
func (r *repository) subtree(tree *object.Tree, name string) (*object.Tree, error) {
	if name == "" || name == "." {
		return tree, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		i := slices.IndexFunc(tree.Entries, func(e object.TreeEntry) bool { return e.Name == part && isTree(e) })
		if i < 0 {
			return &object.Tree{}, nil
		}
		var err error
		if tree, err = object.GetTree(r.objects, tree.Entries[i].Hash); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// isAncestor reports whether a commit in the clone is another commit or its ancestor.
func (r *repository) isAncestor(commit, of plumbing.Hash) (bool, error) {
	first, err := object.GetCommit(r.objects, commit)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading commit %s: %w", commit, err)
	}
	last, err := object.GetCommit(r.objects, of)
	if err != nil {
		return false, fmt.Errorf("reading commit %s: %w", of, err)
	}
	return first.IsAncestor(last)
}

// ancestors calls f for a commit and all its ancestors.
func (r *repository) ancestors(commit plumbing.Hash, f func(plumbing.Hash)) error {
	seen := map[plumbing.Hash]bool{plumbing.ZeroHash: true}
	for next := []plumbing.Hash{commit}; len(next) > 0; {
		hash := next[len(next)-1]
		next = next[:len(next)-1]
		if seen[hash] {
			continue
		}
		seen[hash] = true
		f(hash)
		found, err := object.GetCommit(r.objects, hash)
		if err != nil {
			return fmt.Errorf("reading commit %s: %w", hash, err)
		}
		next = append(next, found.ParentHashes...)
	}
	return nil
}

// order is the position of one commit relative to another.
type order int

const (
	level order = iota
	behind
	ahead
	apart
)

func (r *repository) compare(here, there plumbing.Hash) (order, error) {
	switch {
	case here == there:
		return level, nil
	case here.IsZero():
		return behind, nil
	case there.IsZero():
		return ahead, nil
	}
	if is, err := r.isAncestor(here, there); is || err != nil {
		return behind, err
	}
	if is, err := r.isAncestor(there, here); is || err != nil {
		return ahead, err
	}
	return apart, nil
}

// walk calls f for the files of a notes tree.
func (r *repository) walk(tree *object.Tree, prefix string, f func(name string, entry object.TreeEntry) error) error {
	const maxDepth = 8
	for _, entry := range tree.Entries {
		name := path.Join(prefix, entry.Name)
		if !isTree(entry) {
			if err := f(name, entry); err != nil {
				return err
			}
			continue
		}
		if strings.Count(name, "/") >= maxDepth {
			continue
		}
		below, err := object.GetTree(r.objects, entry.Hash)
		if err != nil {
			return err
		}
		if err := r.walk(below, name, f); err != nil {
			return err
		}
	}
	return nil
}

// committed returns the files of the fleet in a commit. It refuses files that are not
// part of a fleet, or too large, before it reads any of them.
func (r *repository) committed(commit plumbing.Hash) (generator.Files, error) {
	tree, err := r.tree(commit)
	if err != nil {
		return nil, err
	}
	if tree, err = r.fleetTree(tree); err != nil {
		return nil, err
	}
	c := &reading{repository: r, blobs: map[string]plumbing.Hash{}}
	if err := c.list(tree, ""); err != nil {
		return nil, err
	}
	files := generator.Files{}
	for name, hash := range c.blobs {
		if files[name], err = r.content(hash); err != nil {
			return nil, fmt.Errorf("reading %s of %s: %w", shown(name), r.where(), err)
		}
	}
	return files, nil
}

// fleetTree returns the tree of the fleet's directory.
func (r *repository) fleetTree(tree *object.Tree) (*object.Tree, error) {
	if r.config.Subdir == "" {
		return tree, nil
	}
	at := ""
	for part := range strings.SplitSeq(r.config.Subdir, "/") {
		at = path.Join(at, part)
		n := 0
		for _, entry := range tree.Entries {
			if entry.Name != part {
				continue
			}
			if n++; n > 1 || !isTree(entry) {
				return nil, r.refused(at, "is where the fleet is, and no directory")
			}
		}
		var err error
		if tree, err = r.subtree(tree, part); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

func (r *repository) refused(name, problem string) error {
	fix := "remove it in a checkout, git rm -r --cached " + quoted(name) + " && git commit && git push" +
		", or keep the fleet in a directory of its own and name that in fleet.git.subdir"
	if misleads(name) {
		fix = "git itself makes no such tree: find out who pushed it, and reset the branch to the commit before it"
	}
	return &RefusedError{Where: r.where(), Path: name, Problem: problem, Fix: fix}
}

// misleads reports whether git interprets a part of the path as another place.
func misleads(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool {
		return part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git")
	})
}

// reading lists the files of a commit's fleet.
type reading struct {
	*repository
	census census
	blobs  map[string]plumbing.Hash
}

func (c *reading) list(tree *object.Tree, prefix string) error {
	names := map[string]bool{}
	for _, entry := range tree.Entries {
		name := prefix + entry.Name
		if c.config.Subdir == "" && prefix == "" && beside(entry.Name) {
			continue
		}
		what := roleOf(name, isTree(entry))
		if names[entry.Name] {
			return c.refused(c.inRepository(name), "is there twice")
		}
		names[entry.Name] = true
		if problem := unfit(entry, what); problem != "" {
			return c.refused(c.inRepository(name), problem)
		}
		if what == roleSkipped {
			continue
		}
		if err := c.count(name, what, entry.Hash); err != nil {
			return err
		}
		if what != roleDir {
			continue
		}
		below, err := object.GetTree(c.objects, entry.Hash)
		if err == nil {
			err = c.list(below, name+"/")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unfit returns why a tree entry is not part of a fleet, or "".
func unfit(entry object.TreeEntry, what role) string {
	switch {
	case entry.Mode == filemode.Symlink:
		return "is a symbolic link: a fleet's files are ordinary files"
	case isSubmodule(entry):
		return "is a submodule: a fleet's files are ordinary files"
	case what == roleRefused, strings.Contains(entry.Name, "/"):
		return "is no part of a fleet"
	case entry.Mode == filemode.Executable:
		return "is executable: a fleet's files are ordinary files (git update-index --chmod=-x makes it one)"
	case !isTree(entry) && entry.Mode != filemode.Regular && entry.Mode != filemode.Deprecated:
		return fmt.Sprintf("has the mode %s: a fleet's files are ordinary files", entry.Mode)
	}
	return ""
}

// count counts an entry against the limits, and adds it to the files to read.
func (c *reading) count(name string, what role, hash plumbing.Hash) error {
	size := int64(0)
	if what == roleFile {
		var err error
		size, err = c.objects.size(hash)
		if errors.Is(err, plumbing.ErrObjectNotFound) {
			return c.refused(c.inRepository(name), fmt.Sprintf("was not sent by the remote, so it has more than %d bytes", maxRecord))
		}
		if err != nil {
			return fmt.Errorf("reading %s of %s: %w", shown(name), c.where(), err)
		}
		c.blobs[name] = hash
	}
	if problem := c.census.count(name, what, size); problem != "" {
		return c.refused(c.inRepository(name), problem)
	}
	return nil
}
