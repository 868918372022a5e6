package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/numaform/numaform/generator"
)

// Content fetches, and returns the files and the history of the branch.
func (g *Git) Content(ctx context.Context) (*Content, error) {
	content := &Content{}
	err := g.with(func(r *repository) error {
		if err := r.pull(ctx); err != nil {
			return err
		}
		_, have, err := r.current()
		if err != nil {
			return err
		}
		content.Files = generator.Select(have)
		_, err = r.stored(content)
		return err
	})
	if err != nil {
		return nil, err
	}
	return content, nil
}

// stored sets the history of content as it is stored, and returns the commits with the records
// of the branch.
func (r *repository) stored(content *Content) (map[string]committedRecord, error) {
	records, err := r.records(time.Time{})
	if err != nil {
		return nil, err
	}
	notes, err := r.notesTree()
	if err != nil {
		return nil, err
	}
	found := map[string]Record{}
	unreadable := map[string]error{}
	if r.config.Dir != "" {
		before, err := NewDirectory(r.fleetDir()).stored() // see Git.History
		if err != nil {
			return nil, err
		}
		for _, record := range before {
			found[record.ID] = record
		}
	}
	for id, at := range records {
		record, unread, err := r.recordOf(notes, id, at)
		if err != nil {
			return nil, err
		}
		if unread != nil {
			unreadable[id] = unread
		}
		if record.Change == nil {
			continue
		}
		if record.Outcome == nil {
			record.Outcome = found[id].Outcome
		}
		found[id] = record
	}
	for _, record := range found {
		content.Records = append(content.Records, record)
	}
	sortRecords(content.Records)
	if len(unreadable) > 0 {
		content.Unread = unreadable
	}
	return records, nil
}

// recordOf reads a record, and the outcome in notes. What numaform did not write, because it is
// too large, stays nil, and unread is its error.
func (r *repository) recordOf(notes *object.Tree, id string, at committedRecord) (record Record, unread, err error) {
	record.ID = id
	read := func(blob plumbing.Hash, where, hint string) ([]byte, error) {
		content, err := r.content(blob)
		err = r.unreadRecord(where, hint, true, err)
		damaged := r.remote == nil && errors.Is(err, plumbing.ErrObjectNotFound)
		if _, is := errors.AsType[*RecordError](err); is && !damaged {
			unread, err = err, nil
		}
		return content, err
	}
	where, hint := at.place()
	if record.Change, err = read(at.blob, where, hint); err != nil {
		return record, unread, err
	}
	where, hint = at.notePlace()
	note, exists, err := r.noteOn(notes, at.commit)
	if err == nil && exists {
		record.Outcome, err = read(note, where, hint)
	} else {
		err = r.unreadRecord(where, hint, true, err)
	}
	return record, unread, err
}

// Restore commits the content of a backup: a commit for each record, because an outcome is a
// note on the commit of its change, and the files with the last one. The push of the branch
// commits the restore.
func (g *Git) Restore(ctx context.Context, base Revision, content *Content) error {
	if err := checkPaths(g.where(), content.Files); err != nil {
		return err
	}
	return g.with(func(r *repository) error {
		if err := r.pull(ctx); err != nil {
			return err
		}
		return r.restore(ctx, base, content)
	})
}

func (r *repository) restore(ctx context.Context, base Revision, content *Content) error {
	head, have, err := r.current()
	if err != nil {
		return err
	}
	if RevisionOf(generator.Select(have)) != base {
		return fmt.Errorf("writing fleet into %s: %w", r.where(), ErrMoved)
	}
	if err := checkOwner(r.where(), have, content.Files); err != nil {
		return err
	}
	existing := &Content{}
	records, err := r.stored(existing)
	if err != nil {
		return err
	}
	added, err := content.addedTo(existing.Records)
	for _, record := range added {
		if unread := existing.Unread[record.ID]; unread != nil && record.Change != nil {
			err = unread // a commit on top of it does not replace it
		}
	}
	if err != nil {
		return fmt.Errorf("writing fleet into %s: nothing was written: %w", r.where(), err)
	}

	commits := map[string]plumbing.Hash{}
	for id, at := range records {
		commits[id] = at.commit
	}
	next, err := r.addRecords(head, added, steps(have, content.Files), commits)
	if err != nil {
		return err
	}
	if next != head {
		if err := r.publish(ctx, head, next); err != nil {
			return err
		}
	}
	return r.restoreNotes(ctx, added, commits)
}

// addRecords stores a commit for each record on top of head, and the files in the last one. It
// adds the commits to commits, by change ID, and returns the last one.
func (r *repository) addRecords(head plumbing.Hash, records []Record, files []step, commits map[string]plumbing.Hash) (next plumbing.Hash, err error) {
	last := -1
	for i := range records {
		if records[i].Change != nil {
			last = i
		}
	}
	next = head
	for i := range records {
		record := &records[i]
		if record.Change == nil {
			continue
		}
		list := []step{{Path: gitRecordName(record.ID), After: record.Change}}
		if i == last {
			list = append(list, files...)
		}
		if next, err = r.commitSteps(next, list, restoredMessage(record), timeOf(record.ID)); err != nil {
			return next, err
		}
		commits[record.ID] = next
	}
	if last < 0 && len(files) > 0 {
		return r.commitSteps(head, files, "numaform: restore the fleet's files from a backup\n", r.headTime(head))
	}
	return next, nil
}

// restoreNotes adds outcomes to the commits of their changes, and pushes them.
func (r *repository) restoreNotes(ctx context.Context, added []Record, commits map[string]plumbing.Hash) error {
	if err := r.storeNotes(added, commits); err != nil {
		return err
	}
	return r.pushNotes(ctx)
}

// storeNotes adds outcomes to the commits of their changes, in the clone.
func (r *repository) storeNotes(added []Record, commits map[string]plumbing.Hash) error {
	notes := map[string]blob{}
	at := time.Time{}
	for i := range added {
		commit, exists := commits[added[i].ID]
		if added[i].Outcome == nil || !exists {
			continue
		}
		note, err := r.putBlob(added[i].Outcome)
		if err != nil {
			return fmt.Errorf("adding a note to commit %s: %w", commit, err)
		}
		notes[noteName(commit.String())] = note
		at = timeOf(added[i].ID)
	}
	if len(notes) == 0 {
		return nil
	}
	tree, err := r.notesTree()
	if err != nil {
		return err
	}
	head, err := r.hash(r.notes)
	if err != nil {
		return err
	}
	return r.setNotes(head, tree, notes, "numaform: restore outcomes\n", at)
}

// commitSteps stores a commit on top of a parent.
func (r *repository) commitSteps(parent plumbing.Hash, list []step, message string, at time.Time) (plumbing.Hash, error) {
	edits := map[string]blob{}
	for _, s := range list {
		name := r.inRepository(s.Path)
		edits[name] = blob{}
		if s.After == nil {
			continue
		}
		var err error
		if edits[name], err = r.putBlob(s.After); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	tree, err := r.objects.tree(parent)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return r.commit(parent, tree, edits, message, at)
}

// headTime returns the time of a commit, so that a commit on top of it sorts after it.
func (r *repository) headTime(head plumbing.Hash) time.Time {
	if commit, err := object.GetCommit(r.objects, head); err == nil {
		return commit.Committer.When
	}
	return time.Time{}
}

// timeOf returns the time at which a change began, by its ID.
func timeOf(id string) time.Time {
	began, err := time.Parse(idTime, id[:len(idTime)])
	if err != nil {
		return time.Time{}
	}
	return began
}
