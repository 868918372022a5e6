package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/numaform/numaform/internal/audit"
)

// putBackAttempts limits the attempts to push while other clients move the branch.
const putBackAttempts = 5

// PutBack reports that a branch had lost what numaform had written to it, because someone
// forced a push, deleted the branch, or restored the repository.
type PutBack struct {
	// Where describes the branch.
	Where string
	// Lost are the IDs of the changes whose records were missing, sorted.
	Lost []string
	// From is the commit at which the branch was, or empty if the branch was deleted. To is
	// the commit to which numaform moved it: usually the one at which it had been. If the
	// branch had other commits by then, the records and the fleet's files are in new commits.
	From, To string
	// Err is why it could not be pushed, or nil.
	Err error
}

// String describes what happened in one line.
func (p *PutBack) String() string {
	at := "was deleted"
	if p.From != "" {
		at = fmt.Sprintf("was moved to commit %.12s", p.From)
	}
	lost := "no records"
	if n := len(p.Lost); n > 0 {
		lost = fmt.Sprintf("the records of %d changes, from %s to %s", n, p.Lost[0], p.Lost[n-1])
	}
	if p.Err != nil {
		return fmt.Sprintf("%s %s and lacks %s, but numaform cannot push its copy: %v", p.Where, at, lost, p.Err)
	}
	return fmt.Sprintf("%s %s and lacked %s: numaform pushed its copy again: commit %.12s", p.Where, at, lost, p.To)
}

// copies are the settings of PutBack.
type copies struct {
	accepted func(context.Context, []audit.Entry) (bool, error)
	report   func(PutBack)
}

// PutBack makes the store push again what the remote's branch loses of numaform's commits,
// whenever it fetches. It never forces a push. accepted reports whether one of the changes
// that only the remote has accepts the loss: then nothing is pushed. report is called after
// each push. Call PutBack before the store is used.
func (g *Git) PutBack(accepted func(context.Context, []audit.Entry) (bool, error), report func(PutBack)) {
	g.copies = &copies{accepted, report}
}

// Keep makes a commit of the branch, which numaform relies on, part of what PutBack pushes
// again.
func (g *Git) Keep(commit string) error {
	return g.with(func(r *repository) error {
		if r.remote == nil {
			return nil
		}
		to := plumbing.NewHash(commit)
		kept, err := r.hash(r.kept)
		if err == nil && !kept.IsZero() {
			var newer bool
			if newer, err = r.isAncestor(kept, to); !newer {
				return err
			}
		}
		if err != nil || kept == to {
			return err
		}
		return r.setReference(r.kept, to)
	})
}

// putBack pushes what the branch lacks of the kept commit, after a fetch with the given
// result. If that is not possible, it is reported.
func (r *repository) putBack(ctx context.Context, fetched error) error {
	if r.copies == nil || fetched != nil && !errors.Is(fetched, errBranchGone) {
		return fetched
	}
	for range putBackAttempts {
		lost, err := r.lost(ctx, fetched != nil)
		if err != nil || lost == nil {
			return errors.Join(fetched, err)
		}
		err = r.pushKept(ctx, lost)
		if err != nil {
			again := r.fetch(ctx)
			at, herr := r.hash(r.branch)
			switch {
			case herr != nil:
				return herr
			case again == nil && at == lost.to:
				err = r.follow(lost.to) // the push succeeded and only the response was lost
			case again == nil && at != lost.from, (again != nil) != (fetched != nil) && errors.Is(again, errBranchGone):
				fetched = again
				continue // another client moved the branch meanwhile
			}
		}
		if err == nil {
			r.copies.report(lost.PutBack)
			return nil
		}
		lost.Err = r.scrub(err)
		r.copies.report(lost.PutBack)
		return fetched
	}
	return errors.Join(fetched, fmt.Errorf("pushing numaform's copy to %s: %w", r.where(), ErrMoved))
}

// loss is what the branch lacks of the kept commit.
type loss struct {
	PutBack
	// from is the head of the branch, or zero if it was deleted, kept is numaform's copy, and
	// to is the commit that numaform pushes.
	from, kept, to plumbing.Hash
	records        map[string]committedRecord
}

// lost returns what the branch lacks of the kept commit, or nil. gone is set if the branch
// was deleted.
func (r *repository) lost(ctx context.Context, gone bool) (*loss, error) {
	l := &loss{PutBack: PutBack{Where: r.where()}, records: map[string]committedRecord{}}
	var err error
	if l.kept, err = r.hash(r.kept); err != nil || l.kept.IsZero() || r.objects.HasEncodedObject(l.kept) != nil {
		return nil, err
	}
	if !gone {
		if l.from, err = r.hash(r.branch); err != nil {
			return nil, err
		}
		l.From = l.from.String()
		if has, err := r.isAncestor(l.kept, l.from); has || err != nil {
			return nil, err
		}
	}
	mine, err := r.addedBetween(l.from, l.kept)
	if err != nil {
		return nil, err
	}
	theirs, err := r.addedBetween(l.kept, l.from)
	if err != nil {
		return nil, err
	}
	for id, record := range mine {
		if theirs[id].blob != record.blob {
			l.records[id] = record
		}
	}
	l.Lost = slices.Sorted(maps.Keys(l.records))

	notes, notesErr := r.notesTree()
	var others []audit.Entry
	for id, at := range theirs {
		if mine[id].blob == at.blob {
			continue // an acceptance that the kept commit already has is not one of this loss
		}
		entry, err := readable(id, r.entry(notes, notesErr, id, at))
		if err != nil {
			return nil, err
		}
		others = append(others, entry)
	}
	accepted, err := r.copies.accepted(ctx, others)
	if err != nil {
		return nil, err
	}
	if err := r.moveNotes(mine, theirs); err != nil {
		return nil, err
	}
	if gone || !accepted && len(l.records) > 0 {
		return l, nil
	}
	return nil, r.setReference(r.kept, l.from)
}

// moveNotes adds the outcomes of records that are in other commits now, as after a rebase, to
// these commits. A commit with several records can have only one outcome.
func (r *repository) moveNotes(mine, theirs map[string]committedRecord) error {
	notes, err := r.notesTree()
	if err != nil {
		return err
	}
	var moved []Record
	commits := map[string]plumbing.Hash{}
	for _, id := range slices.Sorted(maps.Keys(mine)) {
		to, exists := theirs[id]
		if !exists || to.blob != mine[id].blob {
			continue
		}
		if _, has, err := r.noteOn(notes, to.commit); has || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		record, _, err := r.recordOf(notes, id, mine[id])
		if err != nil {
			return err
		}
		moved, commits[id] = append(moved, record), to.commit
	}
	return r.storeNotes(moved, commits)
}

// addedBetween returns the records that were added by the commits of between.
func (r *repository) addedBetween(not, of plumbing.Hash) (map[string]committedRecord, error) {
	if of.IsZero() {
		return nil, nil
	}
	commits, err := r.between(not, of)
	if err != nil {
		return nil, err
	}
	return r.added(commits, time.Time{})
}

// between returns the commits that are ancestors of one commit and not of another one.
func (r *repository) between(not, of plumbing.Hash) (object.CommitIter, error) {
	known := map[plumbing.Hash]bool{}
	err := r.ancestors(not, func(commit plumbing.Hash) error {
		known[commit] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	last, err := object.GetCommit(r.objects, of)
	if err != nil {
		return nil, fmt.Errorf("reading commit %s: %w", of, err)
	}
	return object.NewCommitIterBSF(last, known, nil), nil
}

// pushKept moves the branch to the kept commit, if that adds only commits. Otherwise, it adds
// the lost records in new commits, and the fleet's files as the kept commit has them.
func (r *repository) pushKept(ctx context.Context, l *loss) error {
	forward, err := r.onlyAdds(l.from, l.kept)
	if err != nil {
		return err
	}
	l.to = l.kept
	var records []Record
	commits := map[string]plumbing.Hash{}
	if !forward {
		if records, err = r.keptRecords(l); err != nil {
			return err
		}
		have, err := r.committed(l.from)
		if err != nil {
			return err
		}
		files, err := r.committed(l.kept)
		if err != nil {
			return err
		}
		if l.to, err = r.addRecords(l.from, records, steps(have, files), commits); err != nil {
			return err
		}
	}
	objects, err := r.newObjects(l.to, l.from)
	if err != nil {
		return err
	}
	l.To = l.to.String()
	if err := r.remote.push(ctx, r.objects, plumbing.NewBranchReferenceName(r.config.Branch), l.from, l.to, objects); err != nil {
		return err
	}
	if err := r.follow(l.to); err != nil {
		return err
	}
	_ = r.restoreNotes(ctx, records, commits) // notes that cannot be pushed now are pushed with the next one
	return nil
}

// onlyAdds reports whether the commits from one commit to another change nothing outside the
// fleet's directory, and remove no commit.
func (r *repository) onlyAdds(from, to plumbing.Hash) (bool, error) {
	if from.IsZero() {
		return true, nil // the branch was deleted
	}
	if ahead, err := r.isAncestor(from, to); !ahead || err != nil || r.config.Subdir == "" {
		return ahead, err
	}
	// Another file may have been removed on purpose, such as one with a password.
	before, err := r.outside(from)
	if err != nil {
		return false, err
	}
	commits, err := r.between(from, to)
	if err != nil {
		return false, err
	}
	same := true
	err = commits.ForEach(func(c *object.Commit) error {
		rest, err := r.outside(c.Hash)
		same = same && rest == before
		return err
	})
	return same, err
}

// outside returns the hash of a commit's tree without the fleet's directory.
func (r *repository) outside(commit plumbing.Hash) (plumbing.Hash, error) {
	tree, err := r.objects.tree(commit)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return r.edit(tree, map[string]blob{r.config.Subdir: {}})
}

// keptRecords reads the lost records, with their outcomes.
func (r *repository) keptRecords(l *loss) ([]Record, error) {
	notes, err := r.notesTree()
	if err != nil {
		return nil, err
	}
	var list []Record
	for _, id := range l.Lost {
		record, _, err := r.recordOf(notes, id, l.records[id])
		if err != nil {
			return nil, err
		}
		list = append(list, record)
	}
	return list, nil
}
