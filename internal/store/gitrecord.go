package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/numaform/numaform/internal/audit"
)

// skew is how far the clocks of those who commit may be apart for a look at the
// recent history to be exact.
const skew = 24 * time.Hour

// notesAttempts is how often a note is pushed before somebody else's.
const notesAttempts = 5

// gitRecordName is the path of a change's record below the fleet's directory: by
// month, so that the trees that git keeps for each commit stay small.
func gitRecordName(id string) string { return path.Join(HistoryDir, id[:4], id[4:6], id+".json") }

// committedRecord is a record and the first commit that holds it.
type committedRecord struct {
	commit, blob plumbing.Hash
	path         string
}

// records returns the records that the commits of the branch brought, by the ID of
// their changes: those of since and later, some earlier ones, and the last one in
// any case. What became of a record's file later is no matter.
func (w *worktree) records(since time.Time) (map[string]committedRecord, error) {
	head, err := w.hash(w.branch)
	if err != nil || head.IsZero() {
		return nil, err
	}
	commits, err := w.repo.Log(&git.LogOptions{From: head, Order: git.LogOrderCommitterTime})
	if err != nil {
		return nil, fmt.Errorf("reading the log of %s: %w", w.config.Branch, err)
	}
	records := map[string]committedRecord{}
	last := ""
	err = commits.ForEach(func(c *object.Commit) error {
		if c.Committer.When.Before(horizon(since, last)) {
			return storer.ErrStop
		}
		return w.brought(c, func(name string, entry object.TreeEntry) error {
			if id, is := strings.CutSuffix(path.Base(name), ".json"); is && changeID.MatchString(id) {
				records[id] = committedRecord{commit: c.Hash, blob: entry.Hash, path: name}
				last = max(last, id)
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("reading the log of %s: %w", w.config.Branch, err)
	}
	return records, nil
}

// horizon returns the time before which no commit matters: none that it brings is
// asked for, nor can it have brought the last change first.
func horizon(since time.Time, last string) time.Time {
	if since.IsZero() || last == "" {
		return time.Time{}
	}
	if began, err := time.Parse(idTime, last[:len(idTime)]); err == nil && began.Before(since) {
		since = began
	}
	return since.Add(-skew)
}

// brought calls f for the files of the history that a commit has and none of its
// parents.
func (w *worktree) brought(c *object.Commit, f func(name string, entry object.TreeEntry) error) error {
	trees := make([]*object.Tree, 0, 1+len(c.ParentHashes))
	for _, hash := range append([]plumbing.Hash{c.Hash}, c.ParentHashes...) {
		tree, err := w.tree(hash)
		if err != nil {
			return err
		}
		if tree, err = w.subtree(tree, w.inRepository(HistoryDir)); err != nil {
			return err
		}
		trees = append(trees, tree)
	}
	return w.added(w.inRepository(HistoryDir), trees[0], trees[1:], f)
}

// added calls f for the files of tree that are not in others.
func (w *worktree) added(prefix string, tree *object.Tree, others []*object.Tree, f func(name string, entry object.TreeEntry) error) error {
	if slices.ContainsFunc(others, func(other *object.Tree) bool { return other.Hash == tree.Hash }) {
		return nil
	}
	for _, entry := range tree.Entries {
		name := path.Join(prefix, entry.Name)
		if entry.Mode.IsFile() {
			known := func(other *object.Tree) bool {
				return slices.ContainsFunc(other.Entries, func(e object.TreeEntry) bool { return e.Name == entry.Name })
			}
			if slices.ContainsFunc(others, known) {
				continue
			}
			if err := f(name, entry); err != nil {
				return err
			}
			continue
		}
		below := make([]*object.Tree, 0, 1+len(others))
		for _, parent := range append([]*object.Tree{tree}, others...) {
			child, err := w.subtree(parent, entry.Name)
			if err != nil {
				return err
			}
			below = append(below, child)
		}
		if err := w.added(name, below[0], below[1:], f); err != nil {
			return err
		}
	}
	return nil
}

// entry reads a change and the note on its commit.
func (w *worktree) entry(id string, at committedRecord) (audit.Entry, error) {
	entry := audit.Entry{Commit: at.commit.String()}
	content, err := w.content(at.blob)
	if err != nil {
		return entry, fmt.Errorf("reading %s of commit %s: %w", at.path, at.commit, err)
	}
	where := fmt.Sprintf("%s of commit %.12s", at.path, at.commit)
	if err := decode(where, "numaform did not write it so: see git show, and rewrite that commit", id, content, &entry.Change); err != nil {
		return entry, err
	}
	notes, err := w.notes(notesRef)
	if err != nil {
		return entry, err
	}
	note, exists, err := w.noteOn(notes, at.commit)
	if err != nil || !exists {
		return entry, err
	}
	if content, err = w.content(note); err != nil {
		return entry, fmt.Errorf("reading the note on commit %s: %w", at.commit, err)
	}
	entry.Outcome = &audit.Outcome{}
	where = fmt.Sprintf("in the note on commit %.12s", at.commit)
	return entry, decode(where, "mend it with git notes --ref=numaform edit", id, content, entry.Outcome)
}

// notes returns the tree of a reference of notes.
func (w *worktree) notes(name plumbing.ReferenceName) (*object.Tree, error) {
	head, err := w.hash(name)
	if err != nil {
		return nil, err
	}
	return w.tree(head)
}

// noteOn finds the note on a commit, in any of the layouts that git knows.
func (w *worktree) noteOn(notes *object.Tree, commit plumbing.Hash) (note plumbing.Hash, exists bool, err error) {
	name := commit.String()
	for depth := range 4 {
		dir, err := w.subtree(notes, path.Join(pairs(name, depth)...))
		if err != nil {
			return plumbing.ZeroHash, false, err
		}
		for _, entry := range dir.Entries {
			if entry.Name == name[2*depth:] && entry.Mode.IsFile() {
				return entry.Hash, true, nil
			}
		}
	}
	return plumbing.ZeroHash, false, nil
}

// pairs returns the first n pairs of digits of a hash.
func pairs(hash string, n int) []string {
	var list []string
	for i := range n {
		list = append(list, hash[2*i:2*i+2])
	}
	return list
}

// noteName is the path of the note on a commit, given its hash: 256 directories
// keep what git stores anew for each note small.
func noteName(commit string) string { return commit[:2] + "/" + commit[2:] }

// note adds a note to a commit, once, and pushes it along with those that could not
// be pushed before.
func (w *worktree) note(ctx context.Context, commit plumbing.Hash, content []byte, at time.Time) error {
	notes, err := w.notes(notesRef)
	if err != nil {
		return err
	}
	_, exists, err := w.noteOn(notes, commit)
	if err == nil && exists {
		err = fs.ErrExist
	}
	if err != nil {
		return fmt.Errorf("adding a note to commit %s: nothing was written: %w", commit, err)
	}
	note, err := w.putBlob(content)
	if err != nil {
		return fmt.Errorf("adding a note to commit %s: %w", commit, err)
	}
	head, err := w.hash(notesRef)
	if err != nil {
		return err
	}
	what := commitOf{message: "numaform: note the outcome of " + commit.String() + "\n", time: at, parents: parents(head)}
	if err := w.setNotes(notes, map[string]blob{noteName(commit.String()): note}, what); err != nil {
		return err
	}
	return w.pushNotes(ctx)
}

func (w *worktree) setNotes(notes *object.Tree, edits map[string]blob, what commitOf) error {
	hash, err := w.commit(notes, edits, what)
	if err != nil {
		return err
	}
	return w.repo.Storer.SetReference(plumbing.NewHashReference(notesRef, plumbing.NewHash(hash)))
}

// pushNotes pushes the notes. Those that others pushed meanwhile are joined first.
func (w *worktree) pushNotes(ctx context.Context) error {
	if w.remote == nil {
		return nil
	}
	for attempt := 1; ; attempt++ {
		done, err := w.pushNotesOnce(ctx)
		if done || attempt == notesAttempts {
			return err
		}
		if joined := w.joinNotes(); joined != nil {
			return errors.Join(err, joined)
		}
	}
}

// pushNotesOnce pushes the notes, and reports whether it is no use to try again: it
// went well, or nobody else was faster.
func (w *worktree) pushNotesOnce(ctx context.Context) (done bool, err error) {
	mine, err := w.hash(notesRef)
	if err != nil {
		return true, err
	}
	seen, err := w.hash(seenNotes)
	if err != nil {
		return true, err
	}
	pushed := w.push(ctx, mine, seen, notesRef)
	if pushed == nil {
		return true, w.repo.Storer.SetReference(plumbing.NewHashReference(seenNotes, mine))
	}
	pushed = fmt.Errorf("pushing the outcome to %s: it is in %s and goes with the next one: %w", w.url(), w.config.Dir, pushed)
	if w.fetch(ctx) != nil {
		return true, pushed
	}
	there, err := w.hash(seenNotes)
	if err != nil || there == mine {
		return true, err
	}
	return there == seen, pushed
}

// joinNotes adds the notes of the remote to those here. Notes are only ever added,
// so their union is right.
func (w *worktree) joinNotes() error {
	here, err := w.hash(notesRef)
	if err != nil {
		return err
	}
	there, err := w.hash(seenNotes)
	if err != nil {
		return err
	}
	switch order, err := w.compare(here, there); {
	case err != nil:
		return err
	case order == behind:
		return w.repo.Storer.SetReference(plumbing.NewHashReference(notesRef, there))
	case order == apart:
		return w.uniteNotes(here, there)
	}
	return nil
}

func (w *worktree) uniteNotes(here, there plumbing.Hash) error {
	mine, err := w.tree(here)
	if err != nil {
		return err
	}
	theirs, err := w.tree(there)
	if err != nil {
		return err
	}
	missing := map[string]blob{}
	err = w.walk(mine, "", func(string) bool { return true }, func(name string, entry object.TreeEntry) error {
		commit := strings.ReplaceAll(name, "/", "")
		_, exists, err := w.noteOn(theirs, plumbing.NewHash(commit))
		if len(commit) == len(plumbing.ZeroHash)*2 && !exists {
			missing[noteName(commit)] = blob{mode: entry.Mode, hash: entry.Hash}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("joining notes: %w", err)
	}
	last, err := w.repo.CommitObject(here)
	if err != nil {
		return fmt.Errorf("joining notes: %w", err)
	}
	what := commitOf{message: "numaform: join the outcomes of two sides\n", time: last.Committer.When, parents: []plumbing.Hash{there, here}}
	return w.setNotes(theirs, missing, what)
}
