package provisioning

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// alone is how long a single pod waits for further pods of a burst. The pods of a ReplicaSet
// are created within milliseconds, or within tenths of a second on a busy API server.
const alone = 250 * time.Millisecond

// brief is the pause between pods after which standby VMs are woken. It is shorter than
// alone: if more pods of the burst follow, another change wakes VMs for them.
const brief = 100 * time.Millisecond

// gaps is how many times the longest gap between its pods a burst waits for another pod.
const gaps = 4

// batch waits until no further pod triggers it, so that a burst of pods leads to one
// decision. A single pod waits only briefly, and a burst longer if its pods arrive slowly.
type batch struct {
	clock clock.Clock
	// idle is the longest wait for another pod, and max the longest duration of a batch.
	idle, max time.Duration
	triggered chan struct{}
	// burst is the incomplete batch, or nil. If wait returns at a pause, the next call
	// continues it.
	burst *burst
	// later is the timer of triggerIn, or nil. Only the waiting goroutine uses burst and
	// later.
	later   clock.Timer
	laterAt time.Time
}

// burst is a batch that is not complete yet.
type burst struct {
	longest, idle clock.Timer
	// last is when the last pod arrived, and gap the longest time between two pods.
	last time.Time
	gap  time.Duration
	// pause fires at the first brief pause after a pod, and is nil afterwards.
	pause clock.Timer
}

func newBatch(clk clock.Clock, idle, longest time.Duration) *batch {
	return &batch{clock: clk, idle: idle, max: longest, triggered: make(chan struct{}, 1)}
}

// trigger begins a batch, or extends the current one.
func (b *batch) trigger() {
	select {
	case b.triggered <- struct{}{}:
	default:
	}
}

// triggerIn begins a batch after a while, if none begins earlier. Call it only between calls
// of wait.
func (b *batch) triggerIn(after time.Duration) {
	at := b.clock.Now().Add(after)
	if b.later != nil {
		if b.laterAt.Before(at) {
			return
		}
		b.later.Stop()
	}
	b.later, b.laterAt = b.clock.NewTimer(after), at
}

// wait returns with complete set when a batch is complete. It also returns once at the first
// brief pause; the next call then waits for the rest of the batch.
// ok is false if ctx ended.
func (b *batch) wait(ctx context.Context) (complete, ok bool) {
	defer func() { // cancel triggerIn
		if b.later != nil {
			b.later.Stop()
			b.later = nil
		}
	}()
	if b.burst == nil {
		var later <-chan time.Time
		if b.later != nil {
			later = b.later.C()
		}
		select {
		case <-b.triggered:
		case <-later:
			return true, true
		case <-ctx.Done():
			return false, false
		}
		b.burst = &burst{longest: b.clock.NewTimer(b.max), idle: b.clock.NewTimer(min(alone, b.idle)), last: b.clock.Now()}
		if b.idle > brief {
			b.burst.pause = b.clock.NewTimer(brief)
		}
	}

	for {
		var pause <-chan time.Time
		if b.burst.pause != nil {
			pause = b.burst.pause.C()
		}
		select {
		case <-b.triggered:
			b.extend()
		case <-pause:
			b.burst.pause = nil
			return false, true
		case <-b.burst.idle.C():
			b.end()
			return true, true
		case <-b.burst.longest.C():
			b.end()
			return true, true
		case <-ctx.Done():
			b.end()
			return false, false
		}
	}
}

// extend restarts the timers of a burst after a further pod.
func (b *batch) extend() {
	now := b.clock.Now()
	b.burst.gap, b.burst.last = max(b.burst.gap, now.Sub(b.burst.last)), now
	b.burst.idle.Stop()
	b.burst.idle = b.clock.NewTimer(min(max(alone, gaps*b.burst.gap), b.idle))
	if b.burst.pause != nil {
		b.burst.pause.Stop()
		b.burst.pause = b.clock.NewTimer(brief)
	}
}

// end ends a batch, if there is one.
func (b *batch) end() {
	if b.burst == nil {
		return
	}
	for _, timer := range []clock.Timer{b.burst.longest, b.burst.idle, b.burst.pause} {
		if timer != nil {
			timer.Stop()
		}
	}
	b.burst = nil
}
