package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// next makes the commit that a change shall be, and says what the working copy then
// needs, and whether the change is about more than its record. References and
// files are as before.
func (w *worktree) next(base Revision, files generator.Files, change *audit.Change, record []byte) (next staged, changes bool, err error) {
	have, err := w.fleet.scan()
	if err != nil {
		return next, false, err
	}
	if RevisionOf(generator.Select(have)) != base {
		return next, false, fmt.Errorf("writing fleet into %s: %w", w.fleet.path, ErrMoved)
	}
	if err := errors.Join(w.fleet.refuse(have, files), w.newRecord(change)); err != nil {
		return next, false, err
	}
	head, err := w.hash(w.branch)
	if err != nil {
		return next, false, err
	}
	tree, err := w.tree(head)
	if err != nil {
		return next, false, err
	}
	next = staged{Steps: steps(have, files), From: head.String()}
	edits, err := w.edits(tree, have, next.Steps)
	if err != nil {
		return next, false, err
	}
	name := gitRecordName(change.ID)
	if edits[w.inRepository(name)], err = w.putBlob(record); err != nil {
		return next, false, err
	}
	next.Steps = append(next.Steps, step{Path: name, After: record})
	for i := range next.Steps {
		next.Steps[i].Path = w.inRepository(next.Steps[i].Path)
	}
	next.Commit, err = w.commit(tree, edits, commitOf{message: message(change), time: change.Time, parents: parents(head)})
	return next, len(edits) > 1, err
}

// newRecord refuses to replace a record.
func (w *worktree) newRecord(change *audit.Change) error {
	records, err := w.records(change.Time)
	if err != nil {
		return err
	}
	if known, exists := records[change.ID]; exists {
		return fmt.Errorf("adding the record of change %s, which commit %s holds: nothing was written: %w", change.ID, known.commit, fs.ErrExist)
	}
	return w.fleet.absent(gitRecordName(change.ID))
}

// edits returns how the committed files of the fleet change if the steps are done
// to those that exist. What people changed and did not commit is among it.
func (w *worktree) edits(tree *object.Tree, have generator.Files, steps []step) (map[string]blob, error) {
	old, err := w.committed(tree)
	if err != nil {
		return nil, err
	}
	wanted := maps.Clone(have)
	for _, s := range steps {
		wanted[s.Path] = s.After
		if s.After == nil {
			delete(wanted, s.Path)
		}
	}
	wanted = generator.Select(wanted)
	edits := map[string]blob{}
	for name := range old {
		if _, exists := wanted[name]; !exists {
			edits[w.inRepository(name)] = blob{}
		}
	}
	for name, content := range wanted {
		if before, exists := old[name]; exists && same(present(before), present(content)) {
			continue
		}
		if edits[w.inRepository(name)], err = w.putBlob(content); err != nil {
			return nil, err
		}
	}
	return edits, nil
}

func parents(head plumbing.Hash) []plumbing.Hash {
	if head.IsZero() {
		return nil
	}
	return []plumbing.Hash{head}
}

// commitOf is what a commit says.
type commitOf struct {
	message string
	time    time.Time
	parents []plumbing.Hash
}

// commit stores a commit of tree with edits and returns its hash.
func (w *worktree) commit(tree *object.Tree, edits map[string]blob, of commitOf) (string, error) {
	edited, err := w.edit(tree, edits)
	if err != nil {
		return "", fmt.Errorf("writing a commit: %w", err)
	}
	who := object.Signature{Name: w.config.Author.Name, Email: w.config.Author.Email, When: of.time.UTC()}
	commit := object.Commit{Author: who, Committer: who, Message: of.message, TreeHash: edited, ParentHashes: of.parents}
	hash, err := w.put(plumbing.CommitObject, commit.Encode)
	if err != nil {
		return "", fmt.Errorf("writing a commit: %w", err)
	}
	return hash.String(), nil
}

// land brings the branch and the working copy to a commit. If it is cut off, resume
// does the rest.
func (w *worktree) land(next staged) error {
	if err := w.root.stage(next); err != nil {
		return err
	}
	return w.finish(next)
}

// resume does what is left of a land that was cut off.
func (w *worktree) resume() error {
	next, err := w.root.staged()
	if err != nil || next.empty() {
		return err
	}
	return w.finish(next)
}

func (w *worktree) finish(next staged) error {
	from, to := plumbing.NewHash(next.From), plumbing.NewHash(next.Commit)
	if err := w.move(from, to); err != nil {
		return err
	}
	if err := w.root.doAll(next); err != nil {
		return err
	}
	if err := w.index(from, to); err != nil {
		return fmt.Errorf("writing the index of %s: %w", w.config.Dir, err)
	}
	return w.root.clear()
}

// move sets the branch.
func (w *worktree) move(from, to plumbing.Hash) error {
	if err := w.root.interrupted("branch"); err != nil {
		return err
	}
	head, err := w.hash(w.branch)
	if err != nil || head == to {
		return err
	}
	if head != from {
		return fmt.Errorf("branch %s of %s was moved after a write was cut off: remove %s to keep everything as it is",
			w.config.Branch, w.config.Dir, w.root.stagedPath())
	}
	return w.repo.Storer.SetReference(plumbing.NewHashReference(w.branch, to))
}

// index notes the files that differ between two commits as git does for those that
// it checked out.
func (w *worktree) index(from, to plumbing.Hash) error {
	if err := w.root.interrupted("index"); err != nil {
		return err
	}
	changed, err := w.differences(from, to)
	if err != nil {
		return err
	}
	idx, err := w.repo.Storer.Index()
	if err != nil {
		return err
	}
	paths := map[string]bool{}
	for _, d := range changed {
		paths[d.path] = true
	}
	idx.Entries = slices.DeleteFunc(idx.Entries, func(e *index.Entry) bool { return paths[e.Name] })
	for _, d := range changed {
		if d.after == (blob{}) {
			continue
		}
		entry := &index.Entry{Name: d.path, Hash: d.after.hash, Mode: d.after.mode}
		if info, err := os.Lstat(w.root.target(d.path)); err == nil {
			entry.ModifiedAt, entry.Size = info.ModTime(), uint32(info.Size()) //nolint:gosec // git keeps 32 bits of it
		}
		idx.Entries = append(idx.Entries, entry)
	}
	idx.Cache, idx.ResolveUndo = nil, nil // they speak of the entries as they were
	return w.repo.Storer.SetIndex(idx)
}

// pull fetches and brings the working copy forward. It neither forces nor merges:
// where both sides have commits, a person must.
func (w *worktree) pull(ctx context.Context) error {
	if w.remote == nil {
		return nil
	}
	if err := w.fetch(ctx); err != nil {
		return err
	}
	if err := w.joinNotes(); err != nil {
		return err
	}
	here, err := w.hash(w.branch)
	if err != nil {
		return err
	}
	there, err := w.hash(w.seen)
	if err != nil {
		return err
	}
	order, err := w.compare(here, there)
	switch {
	case err != nil:
		return err
	case order == apart:
		return fmt.Errorf("the working copy %s and %s of %s have different commits: bring them together with git pull --rebase, "+
			"or drop those of this side with git reset --keep %s", w.config.Dir, w.config.Branch, w.url(), w.seen.Short())
	case order == behind:
		return w.forward(here, there)
	}
	return nil
}

// order is how one commit stands to another.
type order int

const (
	level order = iota
	behind
	ahead
	apart
)

func (w *worktree) compare(here, there plumbing.Hash) (order, error) {
	switch {
	case here == there:
		return level, nil
	case here.IsZero():
		return behind, nil
	case there.IsZero():
		return ahead, nil
	}
	mine, err := w.repo.CommitObject(here)
	if err != nil {
		return apart, fmt.Errorf("reading commit %s: %w", here, err)
	}
	theirs, err := w.repo.CommitObject(there)
	if err != nil {
		return apart, fmt.Errorf("reading commit %s: %w", there, err)
	}
	if is, err := mine.IsAncestor(theirs); is || err != nil {
		return behind, err
	}
	if is, err := theirs.IsAncestor(mine); is || err != nil {
		return ahead, err
	}
	return apart, nil
}

// forward brings branch and files to a later commit. Files that people changed and
// did not commit stay as they are; if the commit changes them too, all stays.
func (w *worktree) forward(from, to plumbing.Hash) error {
	changed, err := w.differences(from, to)
	if err != nil {
		return err
	}
	next := staged{Commit: to.String(), From: from.String()}
	for _, d := range changed {
		s, err := w.step(d)
		if err != nil {
			return err
		}
		current, err := w.root.current(s.Path)
		switch {
		case err != nil:
			return err
		case same(current, s.After) && s.Mode == "":
		case same(current, s.Before), same(current, s.After):
			next.Steps = append(next.Steps, s)
		default:
			return fmt.Errorf("%s has changes that are not committed, and %s of %s changes it too: commit it and run git pull --rebase, "+
				"or give it up with git checkout HEAD -- %s", w.root.target(d.path), w.config.Branch, w.url(), d.path)
		}
	}
	return w.land(next)
}

// step returns what makes one side of a difference the other.
func (w *worktree) step(d difference) (s step, err error) {
	s.Path = d.path
	if d.before != (blob{}) {
		if s.Before, err = w.content(d.before.hash); err != nil {
			return s, err
		}
	}
	if d.after != (blob{}) {
		if s.After, err = w.content(d.after.hash); err != nil {
			return s, err
		}
	}
	switch d.after.mode {
	case filemode.Executable:
		s.Mode = modeExecutable
	case filemode.Symlink:
		s.Mode = modeLink
	}
	return s, nil
}

// current returns the content of a file, of a link its target, or nil.
func (d *Directory) current(name string) ([]byte, error) {
	if d.tree {
		if target, err := os.Readlink(d.target(name)); err == nil {
			return present([]byte(target)), nil
		}
	}
	content, err := os.ReadFile(d.target(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return present(content), nil
}

// prune removes the directories above a file that are empty without it, as git does.
func (d *Directory) prune(name string) {
	for dir := filepath.Dir(d.target(name)); dir != filepath.Clean(d.path); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil {
			return
		}
	}
}
