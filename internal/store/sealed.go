package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/translog"
)

// Sealed is a store whose records have a MAC with this installation's key, and a seal of the
// installation's log (see translog). Anyone with write access to the store can still add,
// change and remove records, but History reports which records this installation wrote, and
// Audit what was changed or removed. The first write creates the key.
type Sealed struct {
	Store
	vault   Vault
	cluster string
	clock   clock.PassiveClock

	// sealing is held while a record is written, and guards log and held.
	sealing sync.Mutex
	log     historyLog
	// held is returned by Begin while the history must not be continued: see Hold.
	held *RewrittenError
	// unread is set if log must be read again.
	unread atomic.Bool

	// mu guards the following fields.
	mu   sync.Mutex
	keys *keyring
	// begun are the digests of changes without an outcome, by ID.
	begun map[string]audit.Digest
	// newest is the time at which the last known verified change began.
	newest time.Time
	// read is what was read of the installation's logs, by their IDs.
	read map[string]*known
}

var _ Store = (*Sealed)(nil)

// NewSealed returns a cluster's store with records sealed by the key in vault. It does no
// I/O.
func NewSealed(inner Store, vault Vault, cluster string) *Sealed {
	return &Sealed{Store: inner, vault: vault, cluster: cluster, clock: clock.RealClock{}, begun: map[string]audit.Digest{}, read: map[string]*known{}}
}

// Unwrap returns the inner store.
func (s *Sealed) Unwrap() Store { return s.Store }

// KeyPlace returns where the key is stored.
func (s *Sealed) KeyPlace() string { return s.vault.String() }

// PublicKey returns the key that verifies the installation's log, or nil if the installation
// has no key yet.
func (s *Sealed) PublicKey(ctx context.Context) (*translog.Key, error) {
	keys, err := s.load(ctx)
	if err != nil || keys == nil {
		return nil, err
	}
	signer, err := keys.key.Signer(s.cluster)
	if err != nil {
		return nil, err
	}
	return signer.Key(), nil
}

// Hold makes Begin return an error until it is called with nil, except for changes that
// accept what happened to the history.
func (s *Sealed) Hold(held *RewrittenError) {
	s.sealing.Lock()
	defer s.sealing.Unlock()
	s.held = held
}

// PutBack makes a fleet in git push again what its remote's branch loses: see Git.PutBack.
// report must not use the store. Call PutBack before the store is used.
func (s *Sealed) PutBack(report func(PutBack)) {
	git, is := s.Store.(*Git)
	if !is {
		return
	}
	git.PutBack(s.acceptsRestore, func(done PutBack) {
		s.unread.Store(true)
		report(done)
	})
}

// acceptsRestore reports whether one of the entries is this installation's acceptance of a
// restore.
func (s *Sealed) acceptsRestore(ctx context.Context, list []audit.Entry) (bool, error) {
	keys, err := s.load(ctx)
	if err != nil || keys == nil {
		return false, err
	}
	for i := range list {
		keys.key.Verify(s.cluster, keys.adopted, &list[i])
	}
	return slices.ContainsFunc(list, func(e audit.Entry) bool { return e.Verified && e.Change.Kind == audit.KindAcceptRestore }), nil
}

// keep makes the last change with a verified outcome part of what PutBack pushes again. A
// merged proposal that was not applied yet is not part of it.
func (s *Sealed) keep(list []audit.Entry) error {
	git, is := s.Store.(*Git)
	if !is || git.copies == nil {
		return nil
	}
	for i := range slices.Backward(list) {
		if list[i].Verified && list[i].OutcomeVerified && list[i].Commit != "" {
			return git.Keep(list[i].Commit)
		}
	}
	return nil
}

// Begin seals the change and calls the inner store's Begin.
func (s *Sealed) Begin(ctx context.Context, base Revision, files generator.Files, change audit.Change) error {
	keys, err := s.ensureKey(ctx)
	if err != nil {
		return err
	}
	s.sealing.Lock()
	defer s.sealing.Unlock()
	if held := s.held; held != nil && !accepts(change.Kind) {
		return held
	}
	var sealed audit.Change
	err = s.logRecord(ctx, keys, change.Kind, func(at audit.Logged) (translog.Leaf, error) {
		change.Logged = at
		return change.Leaf()
	}, func(seal *translog.Seal) (err error) {
		change.Seal = seal
		if sealed, err = keys.key.SealChange(s.cluster, change); err != nil {
			return err
		}
		return s.Store.Begin(ctx, base, files, sealed)
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[sealed.ID] = sealed.Digest
	return nil
}

// End seals the outcome to the change that Begin wrote and calls the inner store's End. It
// returns fs.ErrExist if the change already has an outcome, and fs.ErrNotExist if there is no
// such change.
func (s *Sealed) End(ctx context.Context, outcome audit.Outcome) error {
	s.mu.Lock()
	change, known := s.begun[outcome.ID]
	keys := s.keys
	s.mu.Unlock()
	if !known || keys == nil {
		return fmt.Errorf("recording the outcome of change %s: nothing was written: %w", outcome.ID, s.notBegun(ctx, outcome.ID))
	}
	s.sealing.Lock()
	defer s.sealing.Unlock()
	err := s.logRecord(ctx, keys, "", func(at audit.Logged) (translog.Leaf, error) {
		outcome.Logged = at
		return outcome.Leaf()
	}, func(seal *translog.Seal) error {
		outcome.Seal = seal
		sealed, err := keys.key.SealOutcome(s.cluster, change, outcome)
		if err != nil {
			return err
		}
		return s.Store.End(ctx, sealed)
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.begun, outcome.ID)
	return nil
}

// notBegun returns why an outcome cannot be added to a change that this process did not begin,
// or ended already.
func (s *Sealed) notBegun(ctx context.Context, id string) error {
	began, err := time.Parse(idTime, id[:min(len(id), len(idTime))])
	if err != nil {
		return fs.ErrNotExist
	}
	entries, err := s.Store.History(ctx, began)
	if err != nil {
		return err
	}
	for i := range entries {
		switch {
		case entries[i].Change.ID != id:
		case entries[i].Outcome != nil:
			return fs.ErrExist
		default:
			return errors.New("this process did not begin it")
		}
	}
	return fs.ErrNotExist
}

// History returns the inner store's history with Verified and OutcomeVerified set, and
// always at least the last verified change, if any. If this user may not read the key, no
// entry is verified.
func (s *Sealed) History(ctx context.Context, since time.Time) ([]audit.Entry, error) {
	return s.history(ctx, since, s.Store.History)
}

// localHistory is a store with a local copy of its history.
type localHistory interface {
	Known(ctx context.Context, since time.Time) ([]audit.Entry, error)
}

// Known is like History but does not contact a git store's remote.
func (s *Sealed) Known(ctx context.Context, since time.Time) ([]audit.Entry, error) {
	local, ok := s.Store.(localHistory)
	if !ok {
		return nil, errors.New("the fleet's store has no local copy of the history: only a git store has one")
	}
	return s.history(ctx, since, local.Known)
}

func (s *Sealed) history(
	ctx context.Context, since time.Time, read func(context.Context, time.Time) ([]audit.Entry, error),
) ([]audit.Entry, error) {
	keys, err := s.load(ctx)
	if err != nil && !errors.Is(err, errKeyHidden) {
		return nil, err
	}
	if keys == nil {
		list, rerr := read(ctx, time.Time{})
		if rerr != nil {
			return nil, rerr
		}
		if err == nil {
			s.trust(list)
		}
		return recentOf(list, since), nil
	}
	s.mu.Lock()
	first := since
	if s.newest.Before(since) && !s.newest.IsZero() {
		first = s.newest // the last verified change is included, whatever follows it
	}
	s.mu.Unlock()
	for i := 0; ; i++ {
		from := first.Add(-margins[i])
		if margins[i] == 0 || first.IsZero() {
			from = time.Time{}
		}
		list, err := read(ctx, from)
		if err != nil {
			return nil, err
		}
		some, err := s.verify(keys, list)
		if err != nil {
			return nil, err
		}
		// Without a verified change, unverified records may hide the last one.
		all := from.IsZero()
		if complete := s.complete(list, since, all); all || some && complete {
			return recentOf(list, since), nil
		}
		if local, ok := s.Store.(localHistory); ok {
			read = local.Known // everything was fetched
		}
	}
}

// verify marks the verified entries and reports whether there are any. It fails if a newer
// numaform of this installation wrote an entry, because its content must not be ignored.
func (s *Sealed) verify(keys *keyring, list []audit.Entry) (some bool, err error) {
	var newest time.Time
	for i := range list {
		e := &list[i]
		keys.key.Verify(s.cluster, keys.adopted, e)
		if e.Verified && !understood(e.Change.Format) || e.OutcomeVerified && !understood(e.Outcome.Format) {
			return false, errors.New(e.Unreadable)
		}
		if e.Verified {
			newest = e.Change.Time
		}
	}
	audit.Explain(list)
	s.mu.Lock()
	defer s.mu.Unlock()
	if newest.After(s.newest) {
		s.newest = newest
	}
	return !newest.IsZero(), nil
}

// understood reports whether this numaform supports records of a format.
func understood(format int) bool { return format >= 1 && format <= audit.FormatVersion }

// recentOf returns the entries that began at or after since, and at least the last
// verified one and the last one.
func recentOf(list []audit.Entry, since time.Time) []audit.Entry {
	verified := -1
	for i := range list {
		if list[i].Verified {
			verified = i
		}
	}
	var found []audit.Entry
	for i := range list {
		if i == verified || i == len(list)-1 || !list[i].Change.Time.Before(since) {
			found = append(found, list[i])
		}
	}
	return found
}

// trust marks the entries to adopt when the key is created: all entries that a version
// without MACs can have written. It marks none if a record has a MAC, because then this
// installation's key was lost, or another installation wrote the record.
func (s *Sealed) trust(list []audit.Entry) {
	if slices.ContainsFunc(list, func(e audit.Entry) bool {
		return e.Change.MAC != "" || e.Outcome != nil && e.Outcome.MAC != ""
	}) {
		return
	}
	for i := range list {
		list[i].Verified = s.plausible(&list[i].Change)
		list[i].OutcomeVerified = list[i].Verified && list[i].Outcome != nil && understood(list[i].Outcome.Format)
	}
}

// plausible reports whether a version without MACs can have written a change.
func (s *Sealed) plausible(change *audit.Change) bool {
	began, err := time.Parse(idTime, change.ID[:min(len(change.ID), len(idTime))])
	return err == nil && understood(change.Format) && change.ClusterID == s.cluster && began.Equal(change.Time.Truncate(time.Second)) &&
		began.Year() >= firstYear && began.Before(s.clock.Now().Add(skew))
}

// firstYear is earlier than any record written by numaform.
const firstYear = 2020

// load returns the key, or nil if it does not exist yet.
func (s *Sealed) load(ctx context.Context) (*keyring, error) {
	s.mu.Lock()
	keys := s.keys
	s.mu.Unlock()
	if keys != nil {
		return keys, nil
	}
	content, err := s.vault.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the key of the fleet's history: %w", err)
	}
	if content == nil {
		return nil, nil
	}
	return s.use(content)
}

// ensureKey returns the key. If there is none, it creates the key and adopts the records
// of older versions, in a single write.
func (s *Sealed) ensureKey(ctx context.Context) (*keyring, error) {
	keys, err := s.load(ctx)
	if err != nil || keys != nil {
		return keys, err
	}
	list, err := s.Store.History(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	s.trust(list)
	content, err := newKeyring(s.cluster, list)
	if err == nil {
		content, err = s.vault.Create(ctx, content)
	}
	if err != nil {
		return nil, fmt.Errorf("creating the key of the fleet's history: %w", err)
	}
	return s.use(content)
}

// use parses and caches the key.
func (s *Sealed) use(content []byte) (*keyring, error) {
	keys, err := parseKeyring(content)
	if errors.Is(err, errNewerKey) {
		return nil, fmt.Errorf("reading the key of the fleet's history in %s: %w: use that version", s.vault, err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the key of the fleet's history in %s: %w: restore the key; if it is lost, move the unreadable key elsewhere: "+
			"the next change creates a new key, and all earlier records become unverified", s.vault, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = keys
	return keys, nil
}
