package scaler

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/numaform/numaform/generator"
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
	// Agree returns nil if the lock is to be released, and otherwise the reason why not.
	// engines are the processes of other engines on this machine that use the state; known
	// is false if they cannot be listed.
	Agree func(held *state.LockedError, engines []int, known bool) error
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

// Unlock releases the lock of a state in a backend other than local, after Agree. It
// returns ErrNotLocked if the lock is free, and a *LockChangedError if it is no longer the
// lock that Agree has seen.
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
		return errors.Join(u.release(ctx, workspace), workspace.Close())
	})
}

// release releases the lock of a workspace's state.
func (u *Unlocking) release(ctx context.Context, workspace *state.Workspace) error {
	held, err := heldLock(ctx, workspace)
	if err != nil {
		return err
	}
	engines, known := workspace.OtherEngines()
	if err := u.Agree(held, engines, known); err != nil {
		return err
	}
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
