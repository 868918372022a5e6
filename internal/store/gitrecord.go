package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/shell"
)

// skew is the maximum difference between the clocks of committers. With larger differences,
// a search of the recent history may miss changes.
const skew = 24 * time.Hour

// notesAttempts limits the attempts to push a note while other clients push first.
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

// place describes the record for errors, with the fix if numaform did not write it.
func (c *committedRecord) place() (where, hint string) {
	return fmt.Sprintf("%s of commit %.12s", c.path, c.commit), "numaform did not write this content: inspect it with git show, and rewrite that commit"
}

// notePlace describes the note on the record's commit for errors, with the fix.
func (c *committedRecord) notePlace() (where, hint string) {
	return fmt.Sprintf("in the note on commit %.12s", c.commit), fmt.Sprintf("restore it with git notes --ref=numaform edit %.12s", c.commit)
}

// records returns the records that the commits of the branch added, by change ID: all
// records since the given time, always the last one, and possibly earlier ones. Later edits
// of a record's file have no effect.
func (r *repository) records(since time.Time) (map[string]committedRecord, error) {
	head, err := r.hash(r.branch)
	if err != nil || head.IsZero() {
		return nil, err
	}
	commits, err := r.repo.Log(&git.LogOptions{From: head, Order: git.LogOrderCommitterTime})
	if err != nil {
		return nil, fmt.Errorf("reading the log of branch %s: %w", r.config.Branch, err)
	}
	records, err := r.added(commits, since)
	if err != nil {
		return nil, fmt.Errorf("reading the log of branch %s: %w", r.config.Branch, err)
	}
	return records, nil
}

// added returns the records that commits, the newest first, added: see records.
func (r *repository) added(commits object.CommitIter, since time.Time) (map[string]committedRecord, error) {
	defer commits.Close()
	dir := r.inRepository(HistoryDir)
	records := map[string]committedRecord{}
	last := ""
	err := commits.ForEach(func(c *object.Commit) error {
		if c.Committer.When.Before(horizon(since, last)) {
			return storer.ErrStop
		}
		trees, err := r.treesOf(c, dir)
		if err != nil {
			return err
		}
		return r.walkNew(dir, trees[0], trees[1:], func(name string, entry object.TreeEntry, exists bool) error {
			below := strings.TrimPrefix(name, strings.TrimSuffix(dir, HistoryDir))
			if roleOf(below, isTree(entry)) == roleRefused {
				return fs.SkipDir // not a record; committed refuses it if it still exists
			}
			id, is := strings.CutSuffix(path.Base(name), ".json")
			if entry.Mode.IsFile() && !exists && is && changeID.MatchString(id) {
				records[id] = committedRecord{commit: c.Hash, blob: entry.Hash, path: name}
				last = max(last, id)
			}
			return nil
		})
	})
	return records, err
}

// horizon returns the time before which commits can be skipped, because they added neither
// a requested record nor the last one. The zero time means that none can be skipped.
func horizon(since time.Time, last string) time.Time {
	if since.IsZero() || last == "" {
		return time.Time{}
	}
	if began, err := time.Parse(idTime, last[:len(idTime)]); err == nil && began.Before(since) {
		since = began
	}
	return since.Add(-skew)
}

// entry reads a change, and the note on its commit. notes and err are the result of notesTree.
func (r *repository) entry(notes *object.Tree, err error, id string, at committedRecord) loadEntry {
	entry := audit.Entry{Commit: at.commit.String()}
	where, hint := at.place()
	change, changeErr := r.content(at.blob)
	if changeErr != nil {
		return func() (audit.Entry, error) { return entry, r.unreadRecord(where, hint, true, changeErr) }
	}

	whereNote, hintNote := at.notePlace()
	var note plumbing.Hash
	exists := false
	if err == nil {
		note, exists, err = r.noteOn(notes, at.commit)
	}
	var outcome []byte
	if exists {
		outcome, err = r.content(note)
	}
	return func() (audit.Entry, error) {
		if err := decode(where, hint, id, change, &entry.Change); err != nil {
			return entry, err
		}
		if err != nil || !exists {
			return entry, r.unreadRecord(whereNote, hintNote, exists, err)
		}
		entry.Outcome = &audit.Outcome{}
		return entry, decode(whereNote, hintNote, id, outcome, entry.Outcome)
	}
}

// unreadRecord returns the error for a record that cannot be read; nil if err is nil. It is
// a RecordError if the record is too large, because numaform did not write it, or if an object
// is missing. isFile is set if that object is a file, which the remote does not send if it is
// too large.
func (r *repository) unreadRecord(where, hint string, isFile bool, err error) error {
	_, large := errors.AsType[*tooLargeError](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, plumbing.ErrObjectNotFound) && r.remote == nil:
		err = fmt.Errorf("the repository is damaged: %w", err)
		hint = fmt.Sprintf("run git -C %s fsck, and restore the missing objects from a backup", shell.Quote(r.config.Dir))
	case errors.Is(err, plumbing.ErrObjectNotFound):
		repair := fmt.Sprintf("remove the directory %s, and numaform clones the repository again", r.config.Clone)
		if isFile {
			err = fmt.Errorf("the clone does not have it, because it has more than %d bytes, or because the clone is damaged: %w", maxRecord, err)
			hint = "if the clone is damaged, " + repair + "; otherwise, " + hint
		} else {
			err = fmt.Errorf("the clone is damaged: %w", err)
			hint = repair
		}
	case !large:
		return fmt.Errorf("reading the record %s: %w", where, err)
	}
	return &RecordError{Where: where, Hint: hint, Err: err}
}

// notesTree returns the tree of the local notes.
func (r *repository) notesTree() (*object.Tree, error) {
	head, err := r.hash(r.notes)
	if err != nil {
		return nil, err
	}
	return r.objects.tree(head)
}

// noteOn returns the note on a commit, and whether it exists. The notes can be grouped in
// up to three levels of directories.
func (r *repository) noteOn(notes *object.Tree, commit plumbing.Hash) (note plumbing.Hash, exists bool, err error) {
	name := commit.String()
	for depth := range 4 {
		dir := ""
		for i := range depth {
			dir = path.Join(dir, name[2*i:2*i+2])
		}
		tree, err := r.objects.subtree(notes, dir)
		if err != nil {
			return plumbing.ZeroHash, false, err
		}
		for _, entry := range tree.Entries {
			if entry.Name == name[2*depth:] && entry.Mode.IsFile() {
				return entry.Hash, true, nil
			}
		}
	}
	return plumbing.ZeroHash, false, nil
}

// noteName returns the path of the note on a commit, given its hash: 256 directories keep
// the trees that git stores for each note small.
func noteName(commit string) string { return commit[:2] + "/" + commit[2:] }

// note adds a note to a commit that has none, and pushes it together with notes that
// could not be pushed before.
func (r *repository) note(ctx context.Context, commit plumbing.Hash, content []byte, at time.Time) error {
	notes, err := r.notesTree()
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
	message := "numaform: note the outcome of " + commit.String() + "\n"
	if err := r.setNotes(head, notes, map[string]blob{noteName(commit.String()): note}, message, at); err != nil {
		return err
	}
	return r.pushNotes(ctx)
}

// setNotes commits edits of the notes.
func (r *repository) setNotes(parent plumbing.Hash, notes *object.Tree, edits map[string]blob, message string, at time.Time) error {
	hash, err := r.commit(parent, notes, edits, message, at)
	if err != nil {
		return err
	}
	return r.setReference(r.notes, hash)
}

// pushNotes adds the notes that other clients have pushed to the local ones, and pushes
// the result. It tries again if another client pushes meanwhile.
func (r *repository) pushNotes(ctx context.Context) error {
	if r.remote == nil {
		return nil
	}
	var pushErr error
	for range notesAttempts {
		seen, err := r.hash(r.seenNotes)
		if err == nil {
			err = r.joinNotes(seen)
		}
		if err != nil {
			return errors.Join(pushErr, err)
		}
		mine, err := r.hash(r.notes)
		if err != nil {
			return err
		}
		pushErr = r.push(ctx, localNotes, seen, mine)
		if pushErr == nil {
			return r.setReference(r.seenNotes, mine)
		}
		pushErr = fmt.Errorf("pushing the outcome to %s: it is stored in %s and will be pushed with the next one: %w", r.remote.url, r.config.Clone, pushErr)

		if r.fetch(ctx) != nil {
			return pushErr
		}
		fetched, err := r.hash(r.seenNotes)
		switch {
		case err != nil:
			return err
		case fetched == mine:
			return nil // the push succeeded and only the response was lost
		case fetched == seen:
			return pushErr // no other client pushed
		}
	}
	return pushErr
}

// joinNotes adds the remote's notes to the local ones. Notes are never removed, so the union
// is correct.
func (r *repository) joinNotes(remote plumbing.Hash) error {
	local, err := r.hash(r.notes)
	if err != nil || remote.IsZero() || local == remote {
		return err
	}
	behind := local.IsZero()
	if !behind {
		behind, err = r.isAncestor(local, remote)
	}
	if err != nil {
		return err
	}
	if behind {
		return r.setReference(r.notes, remote)
	}
	if ahead, err := r.isAncestor(remote, local); ahead || err != nil {
		return err
	}
	return r.addNotes(remote, r.objects, local, "numaform: join the outcomes of two sides\n")
}

// addNotes adds the notes of another commit, which is in from, to the notes of a commit. It
// creates no merge commit, because a note is complete without its history.
func (r *repository) addNotes(commit plumbing.Hash, from *objects, other plumbing.Hash, message string) error {
	notes, err := r.objects.tree(commit)
	if err != nil {
		return err
	}
	last, err := object.GetCommit(from, other)
	if err != nil {
		return fmt.Errorf("joining notes: %w", err)
	}
	others, err := from.tree(other)
	if err != nil {
		return err
	}
	missing := map[string]blob{}
	if err := r.missingNotes(notes, from, others, "", missing); err != nil {
		return fmt.Errorf("joining notes: %w", err)
	}
	for name, note := range missing {
		if r.objects.HasEncodedObject(note.hash) == nil {
			continue
		}
		stored, err := from.EncodedObject(plumbing.BlobObject, note.hash)
		if _, large := errors.AsType[*tooLargeError](err); large || errors.Is(err, plumbing.ErrObjectNotFound) {
			delete(missing, name) // numaform did not write it: it is too large, or the remote did not send it
			continue
		}
		if err == nil {
			_, err = r.objects.SetEncodedObject(stored)
		}
		if err != nil {
			return fmt.Errorf("joining notes: %w", err)
		}
	}
	return r.setNotes(commit, notes, missing, message, last.Committer.When)
}

// missingNotes adds the entries of others that are not in notes to missing, by path.
func (r *repository) missingNotes(notes *object.Tree, from *objects, others *object.Tree, prefix string, missing map[string]blob) error {
	const maxDepth = 8
	for _, entry := range others.Entries {
		name := path.Join(prefix, entry.Name)
		if isTree(entry) {
			if strings.Count(name, "/") >= maxDepth {
				continue
			}
			below, err := object.GetTree(from, entry.Hash)
			if err == nil {
				err = r.missingNotes(notes, from, below, name, missing)
			}
			if err != nil {
				return err
			}
			continue
		}
		commit := strings.ReplaceAll(name, "/", "")
		if len(commit) != len(plumbing.ZeroHash)*2 || !entry.Mode.IsFile() {
			continue
		}
		_, exists, err := r.noteOn(notes, plumbing.NewHash(commit))
		if err != nil {
			return err
		}
		if !exists {
			missing[noteName(commit)] = blob{mode: entry.Mode, hash: entry.Hash}
		}
	}
	return nil
}
