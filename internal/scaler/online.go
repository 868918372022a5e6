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

// While it waits for a clone to be unlocked, the provider treats each error as temporary:
// if the host went down, it waits as long as a clone may take, and does not stop when the
// engine asks it to. So the scaler checks meanwhile whether the cluster still reaches the
// host.
const (
	// onlinePoll is the interval between checks, and offlineReadings how many must fail
	// in a row: a brief failure of a host's cluster network is shorter.
	onlinePoll      = 10 * time.Second
	offlineReadings = 3
)

// HostLostError reports that a host went offline while a plan was applied to it, and that
// the apply was canceled.
type HostLostError struct {
	Host topology.HostID
	// Offline is the minimum time for which the cluster has not reached the host.
	Offline time.Duration
}

func (e *HostLostError) Error() string {
	return fmt.Sprintf("host %s went offline during the apply, and was not back after %s, so the apply was canceled: "+
		"start the host, or look at its cluster network (pvecm status); once it is back, the next apply finds what was made there and finishes it",
		e.Host, e.Offline)
}

// Unwrap returns state.ErrHostLost, which makes providers end without waiting for the
// host.
func (e *HostLostError) Unwrap() error { return state.ErrHostLost }

// applyWatched applies a host's plan, and cancels the apply in an orderly way if the host
// is lost: the engine saves the state and releases its lock.
func (s *Scaler) applyWatched(ctx context.Context, plan *ShardPlan) error {
	ctx, stop := s.watch(ctx, plan.Shard)
	_, err := plan.workspace.Apply(ctx, plan.Plan)
	return stop(err)
}

// watch returns a context that ends when a host is lost. stop ends the watch, and adds
// that reason to an error.
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

// awaitLoss returns a HostLostError once a host is lost, or nil when ctx ends. A missing
// response, or an error, says nothing about the host.
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
