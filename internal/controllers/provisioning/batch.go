package provisioning

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// alone is how long a pod waits for the next one of a burst. The pods of a ReplicaSet come
// within milliseconds, or within some tenths of a second on a busy API server.
const alone = 250 * time.Millisecond

// batch waits until no further pod triggers it, so that a burst of pods leads to one
// decision. A pod that comes alone does not wait for others.
type batch struct {
	clock     clock.Clock
	idle, max time.Duration
	triggered chan struct{}
	// later triggers a batch at that time, or is nil. Only the goroutine that waits uses
	// both.
	later   clock.Timer
	laterAt time.Time
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

// triggerIn begins a batch after a while, if none begins earlier. Call it between calls of
// wait only.
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

// stopLater forgets the time set by triggerIn.
func (b *batch) stopLater() {
	if b.later != nil {
		b.later.Stop()
		b.later = nil
	}
}

// wait returns true when a batch is complete, and false if ctx ended.
func (b *batch) wait(ctx context.Context) bool {
	defer b.stopLater()
	var later <-chan time.Time
	if b.later != nil {
		later = b.later.C()
	}
	select {
	case <-b.triggered:
	case <-later:
		return true
	case <-ctx.Done():
		return false
	}
	longest, idle := b.clock.NewTimer(b.max), b.clock.NewTimer(min(alone, b.idle))
	defer func() {
		longest.Stop()
		idle.Stop()
	}()
	for {
		select {
		case <-b.triggered:
			idle.Stop()
			idle = b.clock.NewTimer(b.idle)
		case <-idle.C():
			return true
		case <-longest.C():
			return true
		case <-ctx.Done():
			return false
		}
	}
}
