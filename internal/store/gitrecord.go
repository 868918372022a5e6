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

// skew is the maximum difference between committers' clocks for which a search of the
// recent history is exact.
const skew = 24 * time.Hour

// notesAttempts limits how often to retry pushing a note when others push first.
const notesAttempts = 5

// gitRecordName returns the path of a change's record relative to the fleet's directory.
// Records are grouped by month, so that the trees that git stores for each commit stay
// small.
func gitRecordName(id string) string { return path.Join(HistoryDir, id[:4], id[4:6], id+".json") }

// committedRecord is a record and the first commit that contains it.
type committedRecord struct {
	commit, blob plumbing.Hash
	path         string
}

// records returns the records added by the commits of the branch, by change ID: the
// records from since on, possibly some earlier ones, and always the last one. Later
// changes to a record's file do not matter.
func (r *repository) records(since time.Time) (map[string]committedRecord, error) {
	head, err := r.hash(r.branch)
	if err != nil || head.IsZero() {
		return nil, err
	}
	commits, err := r.repo.Log(&git.LogOptions{From: head, Order: git.LogOrderCommitterTime})
	if err != nil {
		return nil, fmt.Errorf("reading the log of %s: %w", r.config.Branch, err)
	}
	defer commits.Close()
	records := map[string]committedRecord{}
	last := ""
	err = commits.ForEach(func(c *object.Commit) error {
		if c.Committer.When.Before(horizon(since, last)) {
			return storer.ErrStop
		}
		return r.brought(c, func(name string, entry object.TreeEntry) error {
			if id, is := strings.CutSuffix(path.Base(name), ".json"); is && changeID.MatchString(id) {
				records[id] = committedRecord{commit: c.Hash, blob: entry.Hash, path: name}
				last = max(last, id)
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("reading the log of %s: %w", r.config.Branch, err)
	}
	return records, nil
}

// horizon returns the time before which commits can be skipped: they added neither a
// requested record nor the last one.
func horizon(since time.Time, last string) time.Time {
	if since.IsZero() || last == "" {
		return time.Time{}
	}
	if began, err := time.Parse(idTime, last[:len(idTime)]); err == nil && began.Before(since) {
		since = began
	}
	return since.Add(-skew)
}

// brought calls f for the history files that are in a commit but in none of its parents.
func (r *repository) brought(c *object.Commit, f func(name string, entry object.TreeEntry) error) error {
	trees := make([]*object.Tree, 0, 1+len(c.ParentHashes))
	for _, hash := range append([]plumbing.Hash{c.Hash}, c.ParentHashes...) {
		tree, err := r.tree(hash)
		if err != nil {
			return err
		}
		if tree, err = r.subtree(tree, r.inRepository(HistoryDir)); err != nil {
			return err
		}
		trees = append(trees, tree)
	}
	return r.added(r.inRepository(HistoryDir), trees[0], trees[1:], f)
}

// added calls f for the files of tree that are not in others.
func (r *repository) added(prefix string, tree *object.Tree, others []*object.Tree, f func(name string, entry object.TreeEntry) error) error {
	if slices.ContainsFunc(others, func(other *object.Tree) bool { return other.Hash == tree.Hash }) {
		return nil
	}
	known := map[string]bool{}
	for _, other := range others {
		for _, entry := range other.Entries {
			known[entry.Name] = known[entry.Name] || entry.Mode.IsFile()
		}
	}
	for _, entry := range tree.Entries {
		name := path.Join(prefix, entry.Name)
		if roleOf(r.belowFleet(name), isTree(entry)) == roleRefused {
			continue // not a record; if it still exists, it is refused elsewhere
		}
		if entry.Mode.IsFile() {
			if known[entry.Name] {
				continue
			}
			if err := f(name, entry); err != nil {
				return err
			}
			continue
		}
		below := make([]*object.Tree, 0, 1+len(others))
		for _, parent := range append([]*object.Tree{tree}, others...) {
			child, err := r.subtree(parent, entry.Name)
			if err != nil {
				return err
			}
			below = append(below, child)
		}
		if err := r.added(name, below[0], below[1:], f); err != nil {
			return err
		}
	}
	return nil
}

// entry reads a change and the note on its commit.
func (r *repository) entry(id string, at committedRecord) (audit.Entry, error) {
	entry := audit.Entry{Commit: at.commit.String()}
	where, fix := fmt.Sprintf("%s of commit %.12s", at.path, at.commit), "numaform did not write it so: see git show, and rewrite that commit"
	content, err := r.content(at.blob)
	if err != nil {
		return entry, unsent(where, fix, err)
	}
	if err := decode(where, fix, id, content, &entry.Change); err != nil {
		return entry, err
	}
	where, fix = fmt.Sprintf("in the note on commit %.12s", at.commit), "restore it with git notes --ref=numaform edit"
	notes, err := r.notesOf(r.notes)
	if err != nil {
		return entry, unsent(where, fix, err)
	}
	note, exists, err := r.noteOn(notes, at.commit)
	if err == nil && exists {
		content, err = r.content(note)
	}
	if err != nil || !exists {
		return entry, unsent(where, fix, err)
	}
	entry.Outcome = &audit.Outcome{}
	return entry, decode(where, fix, id, content, entry.Outcome)
}

// unsent explains why a record could not be read. A record that is too large is not ours,
// and a remote does not even send it.
func unsent(where, fix string, err error) error {
	_, large := errors.AsType[*tooLargeError](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, plumbing.ErrObjectNotFound):
		err = fmt.Errorf("the remote did not send it, so it has more than %d bytes: %w", maxRecord, err)
	case !large:
		return fmt.Errorf("reading the record %s: %w", where, err)
	}
	return &RecordError{Where: where, Mend: fix, Err: err}
}

// notesOf returns the tree of a notes reference.
func (r *repository) notesOf(name plumbing.ReferenceName) (*object.Tree, error) {
	head, err := r.hash(name)
	if err != nil {
		return nil, err
	}
	return r.tree(head)
}

// noteOn finds the note on a commit, in any layout that git supports.
func (r *repository) noteOn(notes *object.Tree, commit plumbing.Hash) (note plumbing.Hash, exists bool, err error) {
	name := commit.String()
	for depth := range 4 {
		dir, err := r.subtree(notes, path.Join(pairs(name, depth)...))
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

// noteName returns the path of the note on a commit, given its hash: 256 directories keep
// the trees that git stores for each note small.
func noteName(commit string) string { return commit[:2] + "/" + commit[2:] }

// note adds a note to a commit that has none, and pushes it together with notes that
// could not be pushed before.
func (r *repository) note(ctx context.Context, commit plumbing.Hash, content []byte, at time.Time) error {
	notes, err := r.notesOf(r.notes)
	if err != nil {
		return err
	}
	_, exists, err := r.noteOn(notes, commit)
	if err == nil && exists {
		err = fs.ErrExist
	}
	if err != nil {
		return fmt.Errorf("adding a note to commit %s: nothing was written: %w", commit, err)
	}
	note, err := r.putBlob(content)
	if err != nil {
		return fmt.Errorf("adding a note to commit %s: %w", commit, err)
	}
	head, err := r.hash(r.notes)
	if err != nil {
		return err
	}
	what := commitOf{message: "numaform: note the outcome of " + commit.String() + "\n", time: at, parents: parents(head)}
	if err := r.setNotes(notes, map[string]blob{noteName(commit.String()): note}, what); err != nil {
		return err
	}
	return r.pushNotes(ctx)
}

func (r *repository) setNotes(notes *object.Tree, edits map[string]blob, what commitOf) error {
	hash, err := r.commit(notes, edits, what)
	if err != nil {
		return err
	}
	return r.repo.Storer.SetReference(plumbing.NewHashReference(r.notes, hash))
}

// pushNotes pushes the notes, after merging notes that others pushed meanwhile.
func (r *repository) pushNotes(ctx context.Context) error {
	if r.remote == nil {
		return nil
	}
	for attempt := 1; ; attempt++ {
		done, err := r.pushNotesOnce(ctx)
		if done || attempt == notesAttempts {
			return err
		}
		there, failed := r.hash(r.seenNotes)
		if failed == nil {
			failed = r.joinNotes(there)
		}
		if failed != nil {
			return errors.Join(err, failed)
		}
	}
}

// pushNotesOnce pushes the notes. It reports done if the push succeeded, or failed for a
// reason other than a concurrent push.
func (r *repository) pushNotesOnce(ctx context.Context) (done bool, err error) {
	mine, err := r.hash(r.notes)
	if err != nil {
		return true, err
	}
	seen, err := r.hash(r.seenNotes)
	if err != nil {
		return true, err
	}
	pushed := r.push(ctx, localNotes, seen, mine)
	if pushed == nil {
		return true, r.repo.Storer.SetReference(plumbing.NewHashReference(r.seenNotes, mine))
	}
	pushed = fmt.Errorf("pushing the outcome to %s: it is in %s and goes with the next one: %w", r.remote.url, r.config.Clone, pushed)
	if r.fetch(ctx) != nil {
		return true, pushed
	}
	there, err := r.hash(r.seenNotes)
	if err != nil || there == mine {
		return true, err
	}
	return there == seen, pushed
}

// joinNotes adds notes from elsewhere to the local ones. Notes are never removed, so the
// union is correct.
func (r *repository) joinNotes(there plumbing.Hash) error {
	here, err := r.hash(r.notes)
	if err != nil {
		return err
	}
	switch order, err := r.compare(here, there); {
	case err != nil:
		return err
	case order == behind:
		return r.repo.Storer.SetReference(plumbing.NewHashReference(r.notes, there))
	case order == apart:
		return r.uniteNotes(here, there)
	}
	return nil
}

func (r *repository) uniteNotes(here, there plumbing.Hash) error {
	mine, err := r.tree(here)
	if err != nil {
		return err
	}
	theirs, err := r.tree(there)
	if err != nil {
		return err
	}
	missing := map[string]blob{}
	err = r.walk(mine, "", func(name string, entry object.TreeEntry) error {
		commit := strings.ReplaceAll(name, "/", "")
		_, exists, err := r.noteOn(theirs, plumbing.NewHash(commit))
		if len(commit) == len(plumbing.ZeroHash)*2 && !exists {
			missing[noteName(commit)] = blob{mode: entry.Mode, hash: entry.Hash}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("joining notes: %w", err)
	}
	last, err := object.GetCommit(r.objects, here)
	if err != nil {
		return fmt.Errorf("joining notes: %w", err)
	}
	what := commitOf{message: "numaform: join the outcomes of two sides\n", time: last.Committer.When, parents: []plumbing.Hash{there, here}}
	return r.setNotes(theirs, missing, what)
}
