package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
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
	"github.com/numaform/numaform/internal/shell"
)

// current returns the head of the branch and the fleet's files at the head. It returns an
// error if the checkout has changes of the fleet that are not on the branch.
func (r *repository) current() (head plumbing.Hash, files generator.Files, err error) {
	if head, err = r.hash(r.branch); err != nil {
		return head, nil, err
	}
	if err := r.checkout.checkClean(r, head); err != nil {
		return head, nil, err
	}
	files, err = r.committed(head)
	return head, files, err
}

// begin commits files and the change's record, and publishes or proposes the commit.
func (r *repository) begin(ctx context.Context, base Revision, files generator.Files, change *audit.Change, record []byte) error {
	head, have, err := r.current()
	if err != nil {
		return err
	}
	if RevisionOf(generator.Select(have)) != base {
		return fmt.Errorf("writing fleet into %s: %w", r.where(), ErrMoved)
	}
	if err := checkOwner(r.where(), have, files); err != nil {
		return err
	}
	records, err := r.records(change.Time)
	if err != nil {
		return err
	}
	if known, exists := records[change.ID]; exists {
		return fmt.Errorf("adding the record of change %s: commit %s already contains it; nothing was written: %w", change.ID, known.commit, fs.ErrExist)
	}

	next := steps(have, files)
	changes := len(next) > 0
	next = append(next, step{Path: gitRecordName(change.ID), After: record})
	commit, err := r.commitSteps(head, next, message(change), change.Time)
	if err != nil {
		return err
	}
	if r.config.Review && changes {
		return r.propose(ctx, commit, change.ID)
	}
	return r.publish(ctx, head, commit)
}

// commit stores a commit of tree with edits and returns its hash once it is on disk. A zero
// parent means the first commit.
func (r *repository) commit(parent plumbing.Hash, tree *object.Tree, edits map[string]blob, message string, at time.Time) (plumbing.Hash, error) {
	edited, err := r.edit(tree, edits)
	if err != nil {
		return edited, fmt.Errorf("writing a commit: %w", err)
	}
	who := object.Signature{Name: r.config.Author.Name, Email: r.config.Author.Email, When: at.UTC()}
	commit := object.Commit{Author: who, Committer: who, Message: message, TreeHash: edited}
	if !parent.IsZero() {
		commit.ParentHashes = []plumbing.Hash{parent}
	}
	hash, err := r.put(plumbing.CommitObject, commit.Encode)
	if err == nil {
		err = r.objects.sync()
	}
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
		return nil, fmt.Errorf("the requested files have more than %d bytes", maxBytes+maxHistory)
	}
	reader, err := stored.Reader()
	if err != nil {
		return nil, err
	}
	content, err = io.ReadAll(io.LimitReader(reader, stored.Size))
	return nonNil(content), errors.Join(err, reader.Close())
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
		child, err := r.objects.subtree(tree, name)
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

// treesOf returns the hashes of the trees at a path in a commit and in each of its parents; a zero
// hash where there is none.
func (r *repository) treesOf(commit *object.Commit, name string) ([]plumbing.Hash, error) {
	trees := make([]plumbing.Hash, 0, 1+len(commit.ParentHashes))
	for _, hash := range append([]plumbing.Hash{commit.Hash}, commit.ParentHashes...) {
		tree, err := r.objects.tree(hash)
		if err != nil {
			return nil, err
		}
		if tree, err = r.objects.subtree(tree, name); err != nil {
			return nil, err
		}
		trees = append(trees, tree.Hash)
	}
	return trees, nil
}

// comparison finds the entries of a tree in an earlier one. Most are the same, in the same
// order, so it seldom searches for a name.
type comparison struct {
	tree *object.Tree
	// next is the first entry of the earlier tree that has not been found.
	next int
	// last is the name of the entry that was looked for last. sorted is set while the names
	// are in order, so that none is a duplicate.
	last   string
	sorted bool
}

// find returns the hash of the entry with that name in the earlier tree, and whether it is a
// file; a zero hash if there is none.
func (c *comparison) find(entry object.TreeEntry) (hash plumbing.Hash, file bool) {
	c.sorted = c.sorted && c.last < entry.Name
	c.last = entry.Name
	if c.next < len(c.tree.Entries) && c.tree.Entries[c.next] == entry {
		c.next++
		return entry.Hash, entry.Mode.IsFile()
	}
	if c.sorted && c.next == len(c.tree.Entries) {
		return plumbing.ZeroHash, false // all entries of the earlier tree have been found
	}
	found, err := c.tree.FindEntry(entry.Name)
	if err != nil {
		return plumbing.ZeroHash, false
	}
	return found.Hash, found.Mode.IsFile()
}

// visitor is called for an entry of a tree with its name from the root.
type visitor func(name string, entry object.TreeEntry, exists bool) error

// walkNew calls f for the entries of tree, at any depth, that differ from the entries of
// every tree in others. exists reports whether one of the others has a file with the
// name. If f returns fs.SkipDir, the walk does not enter the entry. A zero hash is an empty tree.
func (r *repository) walkNew(prefix string, tree plumbing.Hash, others []plumbing.Hash, f visitor) error {
	if slices.Contains(others, tree) {
		return nil
	}
	if len(others) == 1 {
		entries, is, err := r.objects.appended(tree, others[0])
		if err != nil {
			return err
		}
		if is {
			for _, entry := range entries {
				if err := r.visitNew(prefix, entry, false, []plumbing.Hash{plumbing.ZeroHash}, f); err != nil {
					return err
				}
			}
			return nil
		}
	}

	decoded, err := r.objects.readTree(tree)
	if err != nil {
		return err
	}
	earlier := make([]comparison, len(others))
	for i, other := range others {
		earlier[i] = comparison{sorted: true}
		if earlier[i].tree, err = r.objects.readTree(other); err != nil {
			return err
		}
	}
	for _, entry := range decoded.Entries {
		same, exists := false, false
		for i := range earlier {
			hash, file := earlier[i].find(entry)
			same, exists = same || hash == entry.Hash, exists || file
		}
		if same {
			continue
		}
		below := make([]plumbing.Hash, len(others))
		for i := range earlier {
			entries := earlier[i].tree.Entries
			if at := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return isTree(entry) && e.Name == entry.Name && isTree(e) }); at >= 0 {
				below[i] = entries[at].Hash
			}
		}
		if err := r.visitNew(prefix, entry, exists, below, f); err != nil {
			return err
		}
	}
	return nil
}

// visitNew calls f for an entry of a tree, and for the new entries below it.
func (r *repository) visitNew(prefix string, entry object.TreeEntry, exists bool, others []plumbing.Hash, f visitor) error {
	name := path.Join(prefix, entry.Name)
	err := f(name, entry, exists)
	if errors.Is(err, fs.SkipDir) {
		return nil
	}
	if err != nil || !isTree(entry) {
		return err
	}
	return r.walkNew(name, entry.Hash, others, f)
}

// isAncestor reports whether the first commit is the second one or an ancestor of it;
// false if the clone does not have the first.
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

// ancestors calls f for a commit and all its ancestors, the nearest first, until f returns
// storer.ErrStop.
func (r *repository) ancestors(commit plumbing.Hash, f func(plumbing.Hash) error) error {
	if commit.IsZero() {
		return nil
	}
	found, err := object.GetCommit(r.objects, commit)
	if err == nil {
		err = object.NewCommitIterBSF(found, nil, nil).ForEach(func(c *object.Commit) error { return f(c.Hash) })
	}
	if err != nil {
		return fmt.Errorf("reading commit %s and its ancestors: %w", commit, err)
	}
	return nil
}

// committed returns the files of the fleet in a commit. Before it reads any, it refuses
// files that are not part of a fleet or are too large.
func (r *repository) committed(commit plumbing.Hash) (generator.Files, error) {
	tree, err := r.objects.tree(commit)
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
			return nil, fmt.Errorf("reading %s of %s: %w", printable(name), r.where(), err)
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
				return nil, r.refused(at, "is the directory of the fleet, but it is not a directory")
			}
		}
		var err error
		if tree, err = r.objects.subtree(tree, part); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// executable is the problem of a file that git marks as executable.
const executable = "is executable"

func (r *repository) refused(name, problem string) error {
	fix := "remove it in a checkout, git rm -r --cached " + shell.Quote(name) + " && git commit && git push" +
		", or move the fleet to a separate directory and set fleet.git.subdir to it"
	if problem == executable {
		fix = "clear its mode in a checkout, git update-index --chmod=-x " + shell.Quote(name) + " && git commit && git push"
	}
	misleads := slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool {
		return part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git") // git interprets such a path differently
	})
	if misleads {
		fix = "git does not create such a tree: find out who pushed it, and reset the branch to the commit before it"
	}
	return &RefusedError{Where: r.where(), Path: name, Problem: problem, Fix: fix}
}

// reading lists the files of a commit's fleet.
type reading struct {
	*repository
	census census
	blobs  map[string]plumbing.Hash
}

// list adds the files of a tree, and refuses entries that are not part of a fleet.
func (c *reading) list(tree *object.Tree, prefix string) error {
	names := map[string]bool{}
	for _, entry := range tree.Entries {
		name := prefix + entry.Name
		if c.config.Subdir == "" && prefix == "" && isForgeFile(entry.Name) {
			continue
		}
		role := roleOf(name, isTree(entry))
		problem := entryProblem(entry, role)
		if names[entry.Name] {
			problem = "is a duplicate entry"
		}
		names[entry.Name] = true
		if problem == "" && role == roleSkipped {
			continue
		}

		size := int64(0)
		if problem == "" && role == roleFile {
			var err error
			size, err = c.objects.bounded(entry.Hash, math.MaxInt64)
			if errors.Is(err, plumbing.ErrObjectNotFound) && c.remote != nil {
				problem = fmt.Sprintf("was not sent by the remote, because it has more than %d bytes", maxRecord)
			} else if err != nil {
				return fmt.Errorf("reading %s of %s: %w", printable(name), c.where(), err)
			}
			c.blobs[name] = entry.Hash
		}
		if problem == "" {
			problem = c.census.count(name, role, size)
		}
		if problem != "" {
			return c.refused(c.inRepository(name), problem)
		}

		if role != roleDir {
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

// entryProblem returns the reason why a tree's entry is not part of a fleet, or "".
func entryProblem(entry object.TreeEntry, role role) string {
	switch {
	case entry.Mode == filemode.Symlink:
		return "is a symbolic link: a fleet must contain regular files only"
	case isSubmodule(entry):
		return "is a submodule: a fleet must contain regular files only"
	case role == roleRefused, strings.Contains(entry.Name, "/"):
		return "is not part of a fleet"
	case entry.Mode == filemode.Executable:
		return executable
	case !isTree(entry) && entry.Mode != filemode.Regular && entry.Mode != filemode.Deprecated:
		return fmt.Sprintf("has the mode %s: a fleet must contain regular files only", entry.Mode)
	}
	return ""
}
