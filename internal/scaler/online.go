package scaler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// A provider that waits for a clone to be unlocked takes each error for one that
// passes: for a host that went down it waits as long as a clone may take, and does not
// stop when the engine asks it to. So the cluster is asked meanwhile whether it still
// has the host.
const (
	// onlinePoll is how often it is asked, and offlineReadings how often in a row it
	// must say no: a host whose cluster network fails for a moment is back before.
	onlinePoll      = 10 * time.Second
	offlineReadings = 3
)

// HostLostError says that a host went offline while a plan was applied to it, and
// that the apply was canceled.
type HostLostError struct {
	Host topology.HostID
	// Offline is for how long at least the cluster did not reach it.
	Offline time.Duration
}

func (e *HostLostError) Error() string {
	return fmt.Sprintf("host %s went offline during the apply, and was not back after %s, so the apply was canceled: "+
		"start the host, or look at its cluster network (pvecm status); once it is back, the next apply finds what was made there and finishes it",
		e.Host, e.Offline)
}

// Unwrap lets providers that wait for the host be ended.
func (e *HostLostError) Unwrap() error { return state.ErrHostLost }

// applyWatched applies a shard's plan, and cancels that in good order if its host is
// lost: the engine saves the state and releases its lock.
func (s *Scaler) applyWatched(ctx context.Context, plan *ShardPlan) error {
	ctx, stop := s.watch(ctx, plan.Shard)
	_, err := plan.workspace.Apply(ctx, plan.Plan)
	return stop(err)
}

// watch returns a context that ends when a host is lost. stop ends the watch, and
// adds to what failed under it that this was the reason.
func (s *Scaler) watch(ctx context.Context, shard fleet.Shard) (watched context.Context, stop func(error) error) {
	live := s.region(shard.Region).Live
	if live == nil {
		return ctx, func(err error) error { return err }
	}
	watched, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if lost := s.awaitLoss(watched, live, shard); lost != nil {
			s.config.Progress(shard, "the host is offline: canceling the apply")
			cancel(lost)
		}
	}()
	return watched, func(err error) error {
		cancel(nil)
		<-done
		var lost *HostLostError
		if err != nil && errors.As(context.Cause(watched), &lost) {
			return fmt.Errorf("%w: %w", lost, err)
		}
		return err
	}
}

// awaitLoss returns once a host is lost, or nil when ctx ends. No answer, or one that
// is an error, says nothing of the host.
func (s *Scaler) awaitLoss(ctx context.Context, live Proxmox, shard fleet.Shard) error {
	ticker := s.config.Clock.NewTicker(onlinePoll)
	defer ticker.Stop()
	offline := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		online, err := live.Online(ctx, shard.Host)
		switch {
		case err != nil || online:
			offline = 0
		case offline+1 == offlineReadings:
			return &HostLostError{Host: shard, Offline: (offlineReadings - 1) * onlinePoll}
		default:
			offline++
		}
	}
}
