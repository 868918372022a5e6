package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/translog"
)

// historyLog is the log of the installation's records. A record gets its number by a
// compare-and-swap of the head in the vault, before the store writes it. If the write fails,
// the number remains without a record, and the next record names it.
type historyLog struct {
	signer *translog.Signer
	// content is the head as the vault has it, or nil if it is not known or does not exist;
	// known distinguishes the two.
	content []byte
	known   bool
	head    head
	// late are the records that a version without the log wrote after the last sealed one.
	late []translog.Leaf
	// broken is set if the history ends before the head: only an acceptance may continue.
	broken *RewrittenError
}

// head is the end of the log.
type head struct {
	Format int `json:"format"`
	// ID distinguishes the logs of the installation's key.
	ID string `json:"id"`
	// Base is the tree that ends with the last record that is known to be written, and Change
	// the last change in it.
	Base   translog.Tree `json:"base"`
	Change string        `json:"change,omitempty"`
	// Pending are the leaves after Base: without a seal, or with a record that was perhaps
	// not written.
	Pending []translog.Leaf `json:"pending,omitempty"`
	// Start is set until startCopies records of the log are known to be written.
	Start *audit.LogStart `json:"start,omitempty"`
	Time  time.Time       `json:"time"`
}

func (h *head) tree() translog.Tree {
	tree := h.Base
	for _, leaf := range h.Pending {
		tree = tree.Add(leaf)
	}
	return tree
}

// written makes the first n pending leaves part of Base.
func (h *head) written(n int) {
	for _, leaf := range h.Pending[:n] {
		h.Base = h.Base.Add(leaf)
		if leaf.Kind == translog.KindChange {
			h.Change = leaf.ID
		}
	}
	h.Pending = slices.Clone(h.Pending[n:])
	if h.Start != nil && h.Base.Size >= h.imported()+startCopies {
		h.Start = nil
	}
}

// startCopies is the number of records with the start of their log, so that the loss of the
// first one does not make it unknown which older records the log has.
const startCopies = 2

// imported returns the number of records from before a log whose Start is set.
func (h *head) imported() int64 { return int64(len(h.Start.Imported) / audit.ImportedSize) }

// empty reports whether no record of the log is known to be written.
func (h *head) empty() bool { return h.Start != nil && h.Base.Size == h.imported() }

// RewrittenError is returned by Begin while numaform does not write, because records of its
// own are missing from the history or were replaced, until the finding is accepted.
type RewrittenError struct {
	// Findings describe the faults.
	Findings []audit.Finding
	// Older is set if the newest change is missing, as after a restore: the fleet's files may
	// then be as old as the history.
	Older bool
}

// Error describes the first finding.
func (e *RewrittenError) Error() string {
	text := "the fleet's history was rewritten"
	if e.Older {
		text = "the fleet's store is older than the history, as after a restore"
	}
	if len(e.Findings) > 0 {
		text += ": " + e.Findings[0].Text
	}
	if len(e.Findings) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(e.Findings)-1)
	}
	text += ": nothing is changed: find the cause with `numaform history verify`, then run "
	if e.Older {
		return text + "`numaform history accept-restore --reason TEXT`"
	}
	return text + "`numaform history accept --reason TEXT`"
}

const (
	// headAttempts limits the attempts to get a number while other processes get theirs.
	headAttempts = 10
	// maxPending limits the leaves without a known record: after it, another log begins.
	maxPending = 1000
)

// accepts reports whether a change of a kind may be recorded in a history that was rewritten.
func accepts(kind audit.Kind) bool {
	return kind == audit.KindAccept || kind == audit.KindAcceptRestore || kind == audit.KindContinue
}

// logRecord gets the number of the next record and calls write with its seal. place sets the
// record's place and returns its leaf. kind is the kind of a change, or empty for an outcome,
// which is recorded in any case. The caller holds s.sealing.
func (s *Sealed) logRecord(
	ctx context.Context, keys *keyring, kind audit.Kind, place func(audit.Logged) (translog.Leaf, error), write func(*translog.Seal) error,
) error {
	l := &s.log
	for attempt := 1; ; attempt++ {
		if s.unread.Swap(false) {
			l.known = false
		}
		if !l.known || l.broken != nil { // another process may have accepted what is broken
			if err := s.loadHead(ctx, keys); err != nil {
				return fmt.Errorf("reading the head of the history's log: %w", err)
			}
		}
		if err := s.mayRecord(ctx, keys, kind); err != nil {
			return err
		}
		next := l.head
		next.Pending = slices.Concat(next.Pending, l.late)
		leaf, err := place(audit.Logged{Unsealed: next.Pending, Start: next.Start})
		if err != nil {
			return err
		}
		seal, err := next.tree().Seal(leaf, l.signer, next.ID)
		if err != nil {
			return err
		}
		next.Pending = append(next.Pending, leaf)
		next.Time = s.clock.Now().UTC()
		content, err := json.Marshal(next)
		if err != nil {
			return err
		}
		before, was := l.head, l.content
		err = s.vault.SetHead(ctx, was, content)
		if errors.Is(err, errHeadMoved) && attempt < headAttempts {
			l.known = false
			continue
		}
		if err != nil {
			l.known = false
			return fmt.Errorf("writing the head of the history's log beside the key in %s: %w", s.vault, err)
		}
		l.head, l.content = next, content
		err = write(seal)
		switch {
		case err == nil:
			l.head.written(len(next.Pending))
			l.late = nil
		case errors.Is(err, ErrMoved) && was != nil && s.vault.SetHead(ctx, content, was) == nil:
			l.head, l.content = before, was // nothing was written
		default:
			l.known = false // whether it was written shows when the head is read again
		}
		return err
	}
}

// mayRecord returns an error if no change of a kind may be recorded now. It begins another
// log if the acceptance of a history that ends too early is recorded, because numbers of the
// lost records must not be used again, and if the log has too many pending leaves.
func (s *Sealed) mayRecord(ctx context.Context, keys *keyring, kind audit.Kind) error {
	l := &s.log
	cut := l.broken != nil || kind == audit.KindAcceptRestore || s.held != nil && slices.ContainsFunc(s.held.Findings, func(f audit.Finding) bool {
		return f.Fault == audit.FaultCut && f.Log == l.signer.Key().Origin(l.head.ID)
	})
	switch {
	case accepts(kind) && cut:
	case l.broken != nil && kind != "":
		return l.broken
	case len(l.head.Pending)+len(l.late) < maxPending:
		return nil
	}
	list, err := s.verifiedHistory(ctx, keys)
	if err != nil {
		return err
	}
	var ended []string
	if cut && !l.head.empty() {
		ended = append(ended, string(l.signer.Checkpoint(l.head.Base, l.head.ID)))
	}
	s.newLog(list, ended...)
	l.broken = nil
	return nil
}

// newLog begins a log with the verified records without a seal.
func (s *Sealed) newLog(list []audit.Entry, ended ...string) {
	l := &s.log
	h := head{Format: 1, ID: rand.Text(), Start: &audit.LogStart{}}
	h.Base, h.Start.Imported = audit.Imported(list, maxAdopted)
	h.Start.Continues = append(audit.Ends(list, l.signer.Key()), ended...)
	l.head, l.late = h, nil
}

// verifiedHistory returns all entries with Verified set.
func (s *Sealed) verifiedHistory(ctx context.Context, keys *keyring) ([]audit.Entry, error) {
	list, err := s.Store.History(ctx, time.Time{})
	if err == nil {
		_, err = s.verify(keys, list)
	}
	return list, err
}

// loadHead reads the head from the vault and compares it with the history. If there is none,
// a log begins.
func (s *Sealed) loadHead(ctx context.Context, keys *keyring) error {
	content, err := s.vault.Head(ctx)
	if err != nil {
		return err
	}
	l := &s.log
	*l = historyLog{content: content}
	if l.signer, err = keys.key.Signer(s.cluster); err != nil {
		return err
	}
	if content == nil {
		list, err := s.verifiedHistory(ctx, keys)
		if err != nil {
			return err
		}
		s.newLog(list)
		l.known = true
		return nil
	}
	if l.head, err = s.parseHead(content); err != nil {
		return err
	}
	// The last record is usually young. If it does not match the head, read all.
	for _, since := range []time.Time{l.head.Time.Add(-skew), {}} {
		list, err := s.Store.History(ctx, since)
		if err != nil {
			return err
		}
		if _, err = s.verify(keys, list); err != nil {
			return err
		}
		if l.broken = l.compare(list); l.broken == nil {
			break
		}
	}
	l.known = true
	return nil
}

// compare sets the head's Base to the last record of the log in a history, and returns an
// error if the history ends before the head.
func (l *historyLog) compare(list []audit.Entry) *RewrittenError {
	last := audit.LastSealed(list, l.signer.Key())
	h := &l.head
	end, exists := last[h.ID]
	var tree translog.Tree
	if exists {
		tree = end.Seal.Before.Add(end.Leaf)
	}
	defer func() { l.late = l.unsealedAfter(list) }()
	switch {
	case !exists && h.empty():
		return nil // no record of the log was written yet
	case tree.Size > h.Base.Size+int64(len(h.Pending)):
		// The vault is older than the history: it was restored, and the key signed what follows.
		h.Base, h.Pending, h.Start = tree, nil, nil
		if end.Leaf.Kind == translog.KindChange {
			h.Change = end.Leaf.ID
		}
		return nil
	}
	next := h.Base
	for n := 0; ; n++ {
		if exists && next.Equal(tree) {
			h.written(n)
			return nil
		}
		if n == len(h.Pending) {
			break
		}
		next = next.Add(h.Pending[n])
	}
	have := min(tree.Size, h.Base.Size)
	return &RewrittenError{
		Older: h.Change != "" && !slices.ContainsFunc(list, func(e audit.Entry) bool { return e.Verified && e.Change.ID >= h.Change }),
		Findings: []audit.Finding{{
			Fault: audit.FaultCut, Log: l.signer.Key().Origin(h.ID), Number: have, Last: h.Base.Size - 1,
			Text: fmt.Sprintf("the last record of %s is the one with number %d, but numaform wrote %d", l.signer.Key().Origin(h.ID), tree.Size-1, h.Base.Size),
		}},
	}
}

// unsealedAfter returns the leaves of the verified records without a seal that are younger
// than the head: a version without the log wrote them.
func (l *historyLog) unsealedAfter(list []audit.Entry) []translog.Leaf {
	young := slices.DeleteFunc(slices.Clone(list), func(e audit.Entry) bool { return !e.Change.Time.After(l.head.Time) })
	return slices.DeleteFunc(audit.UnsealedOf(young), func(leaf translog.Leaf) bool { return slices.Contains(l.head.Pending, leaf) })
}

// parseHead parses a head of the vault.
func (s *Sealed) parseHead(content []byte) (head, error) {
	var h head
	err := json.Unmarshal(content, &h)
	switch {
	case err != nil:
		err = fmt.Errorf("%w: remove it, and another log begins", err)
	case h.Format > 1:
		err = fmt.Errorf("a newer numaform wrote it (format %d, but this version supports only 1): use that version", h.Format)
	case h.Format < 1 || h.ID == "" || !h.Base.Valid():
		err = errors.New("it is not the head of a log: remove it, and another log begins")
	}
	if err != nil {
		return h, fmt.Errorf("the head beside the key in %s: %w", s.vault, err)
	}
	return h, nil
}

// Audit is the result of checking a history.
type Audit struct {
	*audit.Report
	// Key is the installation's key.
	Key *translog.Key
	// Checkpoint is the signed checkpoint of the last record of the installation's log, or
	// empty, and Log the ID of that log.
	Checkpoint []byte
	Log        string
	// Continued is when the controller last went on by itself.
	Continued time.Time
	// Rewritten is set if records of this installation are missing or were replaced, and no
	// user accepted it: see RewrittenError.
	Rewritten *RewrittenError
}

// Audit checks the complete history against the head and signed checkpoints from other
// places. It returns nil if the installation has no key yet.
func (s *Sealed) Audit(ctx context.Context, checkpoints ...[]byte) (*Audit, error) {
	return s.Verify(ctx, audit.Evidence{Checkpoints: checkpoints})
}

// Verify is like Audit, with the keys of other installations as further evidence.
func (s *Sealed) Verify(ctx context.Context, evidence audit.Evidence) (*Audit, error) {
	keys, err := s.load(ctx)
	if errors.Is(err, errKeyHidden) && len(evidence.Keys) > 0 {
		list, err := s.Store.History(ctx, time.Time{})
		if err != nil {
			return nil, err
		}
		return &Audit{Report: audit.Verify(list, evidence), Key: evidence.Keys[0]}, nil
	}
	if err != nil || keys == nil {
		return nil, err
	}
	signer, err := keys.key.Signer(s.cluster)
	if err != nil {
		return nil, err
	}
	// The head first: the history has at least all records until then.
	content, mine, err := s.headOf(ctx, signer)
	if err != nil {
		return nil, err
	}
	list, err := s.verifiedHistory(ctx, keys)
	if err != nil {
		return nil, err
	}
	found := &Audit{Key: signer.Key()}
	if mine != nil && !mine.head.empty() {
		evidence.Checkpoints = append(slices.Clone(evidence.Checkpoints), signer.Checkpoint(mine.head.Base, mine.head.ID))
	}
	evidence.Keys = append([]*translog.Key{signer.Key()}, evidence.Keys...)
	found.Report = audit.Verify(list, evidence)
	found.locate(mine, list, s.clock.Now())

	var broken *RewrittenError
	if mine != nil {
		broken = mine.compare(list)
	}
	if found.Rewritten = found.rewritten(mine, broken); found.Rewritten != nil {
		return found, nil //nolint:nilerr // it is part of the result
	}
	if err := s.keep(list); err != nil {
		return nil, err
	}
	if mine != nil && broken == nil && len(mine.head.Pending) == 0 {
		return found, s.confirm(ctx, content, mine.head)
	}
	return found, nil
}

// locate sets the checkpoint of the log mine, which can be nil, and when the controller last
// went on, as known at now.
func (a *Audit) locate(mine *historyLog, list []audit.Entry, now time.Time) {
	for i := range a.Logs {
		if mine != nil && a.Logs[i].ID == mine.head.ID {
			a.Checkpoint, a.Log = []byte(a.Logs[i].Checkpoint), a.Logs[i].ID
		}
	}
	for i, began := range audit.Began(list, now) {
		if list[i].Verified && list[i].Change.Kind == audit.KindContinue {
			a.Continued = began
		}
	}
}

// headOf returns the head of the history's log as it is stored, and the log with this head;
// nil if there is no head yet.
func (s *Sealed) headOf(ctx context.Context, signer *translog.Signer) ([]byte, *historyLog, error) {
	content, err := s.vault.Head(ctx)
	if err != nil || content == nil {
		if err != nil {
			err = fmt.Errorf("reading the head of the history's log: %w", err)
		}
		return nil, nil, err
	}
	stored, err := s.parseHead(content)
	if err != nil {
		return nil, nil, err
	}
	return content, &historyLog{signer: signer, head: stored}, nil
}

// rewritten returns an error if records are missing or were replaced, and no user accepted it.
// mine is the log of this installation, or nil, and broken how the history differs from its head.
// If the vault was restored as well, only a checkpoint in another place shows that the newest
// change is missing.
func (a *Audit) rewritten(mine *historyLog, broken *RewrittenError) *RewrittenError {
	findings := slices.DeleteFunc(a.Open(), func(f audit.Finding) bool { return !f.Fault.Rewritten() })
	if len(findings) == 0 {
		return nil
	}
	older := mine == nil || broken != nil && broken.Older
	if !older && broken == nil {
		older = slices.ContainsFunc(findings, func(f audit.Finding) bool {
			return f.Fault == audit.FaultCut && f.Log == a.Key.Origin(mine.head.ID)
		})
	}
	return &RewrittenError{Findings: findings, Older: older}
}

// confirm stores that all records until the head are written, so that their loss is not taken
// for a crash.
func (s *Sealed) confirm(ctx context.Context, was []byte, confirmed head) error {
	content, err := json.Marshal(confirmed)
	if err != nil || string(content) == string(was) {
		return err
	}
	s.sealing.Lock()
	defer s.sealing.Unlock()
	err = s.vault.SetHead(ctx, was, content)
	if errors.Is(err, errHeadMoved) {
		return nil // a newer record confirms it
	}
	s.log.known = false
	return err
}
