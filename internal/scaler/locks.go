package scaler

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scratch"
	"github.com/numaform/numaform/topology"
)

// HostLock is the lock of one host's state.
type HostLock struct {
	Host fleet.Shard
	// Err is a *state.LockedError if another client holds the lock, or the reason why its
	// state is unknown.
	Err error
}

// LocalStates reports whether the states are files of this machine, whose locks end with
// the process that acquired them.
func (s *Scaler) LocalStates() bool { return s.config.Backend.Type == "local" }

// Locks returns the lock of each host's state, from the backend. Local states have no
// such locks.
func (s *Scaler) Locks(ctx context.Context) (locks []HostLock, err error) {
	now, err := s.stand(ctx)
	if err != nil || s.LocalStates() || len(now.fleet.Shards()) == 0 {
		return nil, err
	}
	if s.config.Engine == nil {
		return nil, ErrNoEngine
	}
	temporary, err := scratch.New("locks")
	if err != nil {
		return nil, fmt.Errorf("looking at the locks of states: %w", err)
	}
	defer func() { err = errors.Join(err, temporary.Remove()) }()
	at, err := dryPlaces(temporary.Path())
	if err != nil {
		return nil, fmt.Errorf("looking at the locks of states: %w", err)
	}
	change := s.changeFrom(now, &topology.Snapshot{})
	if err := s.render(change); err != nil {
		return nil, err
	}
	hosts := now.fleet.Shards()
	if err := s.writeCAs(at.work); err != nil {
		return nil, err
	}
	locks = make([]HostLock, len(hosts))
	var group errgroup.Group
	group.SetLimit(maxParallelShards)
	for i, host := range hosts {
		group.Go(func() error {
			locks[i] = HostLock{Host: host, Err: s.lockOf(ctx, change, at, host)}
			return nil
		})
	}
	return locks, group.Wait()
}

func (s *Scaler) lockOf(ctx context.Context, change *Change, at places, host fleet.Shard) error {
	workspace, err := s.workspace(change, at, host)
	if err != nil {
		return err
	}
	return errors.Join(workspace.Locked(ctx), workspace.Close())
}
