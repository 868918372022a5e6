package scaler_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// reading is a response of Proxmox about a host.
type reading struct {
	online bool
	err    error
}

// watchful is a Proxmox whose readings a test controls one by one.
type watchful struct {
	live
	readings chan reading
}

func (w watchful) Online(ctx context.Context, host topology.HostName) (bool, error) {
	select {
	case r := <-w.readings:
		return r.online && host == pve1.Host, r.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// TestWatchedHost checks that an operation is canceled only after three consecutive
// readings report its host as offline.
func TestWatchedHost(t *testing.T) {
	t.Parallel()
	up, down, silent := reading{online: true}, reading{}, reading{err: errors.New("595 No route to host")}
	for _, tt := range []struct {
		name     string
		readings []reading
		lost     bool
	}{
		{"online", []reading{up, up, up, up}, false},
		{"offline", []reading{up, down, down, down}, true},
		{"offline for a moment", []reading{down, down, up, down, down}, false},
		{"no answer", []reading{silent, silent, silent, silent}, false},
		{"no answer in between", []reading{down, down, silent, down, down}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			clock := clocktesting.NewFakeClock(time.Now())
			proxmox := watchful{readings: make(chan reading)}
			s := newScaler(t, func(c *scaler.Config) { c.Clock, c.Regions[0].Live = clock, proxmox })
			watched, stop := s.Watch(t.Context(), pve1)
			proxmox.say(watched, t, clock, tt.readings...)
			if tt.lost {
				until(t, "it is canceled", func() bool { return watched.Err() != nil })
			}
			failure := errors.New("the engine was canceled")
			err := stop(failure)
			var lost *scaler.HostLostError
			if errors.As(err, &lost) != tt.lost || !errors.Is(err, failure) {
				t.Errorf("it fails with %v, want a lost host: %t", err, tt.lost)
			}
			if tt.lost && (lost.Host != pve1 || !strings.Contains(err.Error(), "host lab/pve-1 went offline")) {
				t.Errorf("lost is %v: %v", lost.Host, err)
			}
		})
	}
}

// TestWatchedSource checks that an operation is also canceled if the host with the template of
// its VMs is lost.
func TestWatchedSource(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	proxmox := watchful{readings: make(chan reading)}
	s := newScaler(t, func(c *scaler.Config) { c.Clock, c.Regions[0].Live = clock, proxmox })
	watched, stop := s.Watch(t.Context(), pve1, pve2)
	up := reading{online: true} // of pve-1 only
	proxmox.say(watched, t, clock, up, up, up, up, up, up)
	until(t, "it is canceled", func() bool { return watched.Err() != nil })
	var lost *scaler.HostLostError
	if err := stop(errors.New("the engine was canceled")); !errors.As(err, &lost) || lost.Host != pve2 {
		t.Errorf("it fails with %v, want %s lost", err, pve2)
	}
}

// TestWatchEndsWithTheApply stops a watch of a host that was lost although the apply
// succeeded, and a watch that the caller canceled: neither returns a HostLostError.
func TestWatchEndsWithTheApply(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	proxmox := watchful{readings: make(chan reading)}
	s := newScaler(t, func(c *scaler.Config) { c.Clock, c.Regions[0].Live = clock, proxmox })
	watched, stop := s.Watch(t.Context(), pve1)
	proxmox.say(watched, t, clock, reading{}, reading{}, reading{})
	until(t, "it is canceled", func() bool { return watched.Err() != nil })
	if err := stop(nil); err != nil {
		t.Errorf("what ended well fails with %v", err)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	watched, stop = s.Watch(ctx, pve1)
	leases := errors.New("the lease is lost")
	cancel(leases)
	<-watched.Done()
	if err := stop(context.Cause(watched)); as[*scaler.HostLostError](err) || !errors.Is(err, leases) {
		t.Errorf("what others cancel fails with %v", err)
	}
}

// say answers one check of the host with each reading. The checks are 10 seconds apart.
func (w watchful) say(watched context.Context, t *testing.T, clock *clocktesting.FakeClock, readings ...reading) {
	t.Helper()
	for i, r := range readings {
		until(t, "somebody waits for the clock", func() bool { return clock.HasWaiters() || watched.Err() != nil })
		clock.Step(10 * time.Second)
		select {
		case w.readings <- r:
		case <-watched.Done():
			t.Fatalf("it is canceled before reading %d", i+1)
		}
	}
}

// until polls until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatal("waiting in vain: " + what)
		}
	}
}
