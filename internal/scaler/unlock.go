package scaler

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// ErrNotLocked reports that no client holds the lock of a state.
var ErrNotLocked = errors.New("the state is not locked")

// Unlocking describes how to release the lock of a state.
type Unlocking struct {
	Host topology.HostID
	// Templates selects the state of the host's templates instead of that of its nodes.
	Templates bool
	// Agree returns what is known about the holder, for the history, if the lock is to be
	// released, and otherwise the reason why not. engines are the processes of other engines on
	// this machine that use the state; known is false if they cannot be listed.
	Agree func(held *state.LockedError, engines []int, known bool) (holder string, err error)
	// Reason is the user's reason for the history, or empty.
	Reason string
	// DeleteLease deletes a Lease in the namespace of the states, if it still has the
	// holder. It releases the locks that the engine cannot release.
	DeleteLease func(ctx context.Context, name, holder string) error
}

// LockChangedError reports that another client acquired a lock after an operator agreed to
// release it. It was not released.
type LockChangedError struct{ Held *state.LockedError }

func (e *LockChangedError) Error() string {
	return fmt.Sprintf("the lock has changed and was not released: it is now lock %s of %s: run the command again to see it", e.Held.ID, e.Held.Who)
}

// UnrecordedError reports that a lock was released, but that the history could not record
// it.
type UnrecordedError struct{ Err error }

func (e *UnrecordedError) Error() string {
	return fmt.Sprintf("the lock was released, but the history does not record it: %v", e.Err)
}

func (e *UnrecordedError) Unwrap() error { return e.Err }

// Unlock releases the lock of a state in a backend other than local, after Agree, and records
// it in the history. It returns ErrNotLocked if the lock is free, a *LockChangedError if it is
// no longer the lock that Agree has seen, and an *UnrecordedError if it released the lock
// although the history cannot be written.
func (s *Scaler) Unlock(ctx context.Context, u Unlocking) error {
	if s.config.Engine == nil {
		return ErrNoEngine
	}
	from, err := s.read(ctx)
	if err != nil {
		return err
	}
	change := newChange(from, &topology.Snapshot{})
	if err := s.render(change); err != nil {
		return err
	}
	switch {
	case !u.Templates && !slices.Contains(from.fleet.AllHosts(), u.Host):
		return fmt.Errorf("the fleet has no state of host %s: numaform get hosts lists the hosts", u.Host)
	case u.Templates:
		roots, err := s.templateRoots(change)
		if err != nil {
			return err
		}
		templates := roots[generator.TemplateRootDir(u.Host)]
		if templates == nil {
			return fmt.Errorf("the fleet has no templates on %s, so numaform uses no state of them", u.Host)
		}
		change = templates.in(change)
	}
	return s.inScratch("unlock", "releasing the lock of "+u.Host.String(), func(at places) error {
		workspace, err := s.workspace(change, at, u.Host)
		if err != nil {
			return err
		}
		return errors.Join(s.release(ctx, &u, workspace), workspace.Close())
	})
}

// release releases the lock of a workspace's state, and records it. Like each change, it is
// recorded before it happens. A lock that blocks the fleet is released even if the history
// cannot be written.
func (s *Scaler) release(ctx context.Context, u *Unlocking, workspace *state.Workspace) error {
	held, err := heldLock(ctx, workspace)
	if err != nil {
		return err
	}
	engines, known := workspace.OtherEngines()
	holder, err := u.Agree(held, engines, known)
	if err != nil {
		return err
	}
	record, unrecorded := s.recordOnly(ctx, u.why(), func(record *audit.Change) {
		record.Outside = append(record.Outside, fmt.Sprintf("release of lock %s of the %s: %s acquired the lock at %s for %s. %s",
			held.ID, u.State(), held.Who, held.Since(), held.Operation, holder))
	})

	err = u.releaseIf(ctx, workspace, held)
	if unrecorded == nil {
		// A host without an error in an outcome has no unfinished work, but a released lock
		// finishes none.
		var failed []Result
		if err != nil {
			failed = append(failed, Result{Host: u.Host, Err: err, templates: u.Templates})
		}
		unrecorded = s.config.Store.End(context.WithoutCancel(ctx), s.outcome(record.ID, record.Time, failed))
	}
	if err == nil && unrecorded != nil {
		return &UnrecordedError{Err: unrecorded}
	}
	return err
}

// State names the state.
func (u *Unlocking) State() string {
	if u.Templates {
		return "state of the templates of " + u.Host.String()
	}
	return "state of " + u.Host.String()
}

// why returns the reason for the history.
func (u *Unlocking) why() string {
	why := "release the lock of the " + u.State()
	if u.Reason != "" {
		why += ": " + u.Reason
	}
	return why
}

// releaseIf releases the lock of a workspace's state if it is still the one that was held.
func (u *Unlocking) releaseIf(ctx context.Context, workspace *state.Workspace, held *state.LockedError) error {
	// An operator may take long to agree, and not every backend compares the ID.
	now, err := heldLock(ctx, workspace)
	switch {
	case err != nil:
		return err
	case now.ID != held.ID || now.Who != held.Who || !now.Created.Equal(held.Created):
		return &LockChangedError{Held: now}
	case held.Lease != "":
		return u.DeleteLease(ctx, held.Lease, held.ID)
	}
	return workspace.Unlock(ctx, held.ID)
}

// heldLock returns the held lock of a workspace's state.
func heldLock(ctx context.Context, workspace *state.Workspace) (*state.LockedError, error) {
	err := workspace.Locked(ctx)
	var held *state.LockedError
	switch {
	case errors.As(err, &held):
		return held, nil
	case err == nil:
		return nil, ErrNotLocked
	}
	return nil, err
}
