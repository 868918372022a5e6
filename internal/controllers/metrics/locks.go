package metrics

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state"
)

// locks provides the age of the locks for which numaform waits: locks that it was
// notified of, and locks for which VMs wait.
type locks struct {
	config Config
	age    *prometheus.Desc

	// mu guards the field below.
	mu    sync.Mutex
	since map[fleet.Shard]time.Time
}

func newLocks(config Config) *locks {
	return &locks{
		config: config, since: map[fleet.Shard]time.Time{},
		age: describe("state_lock_age_seconds", "How long somebody else has held the lock of a host's state that numaform waits for.",
			labelRegion, labelHost),
	}
}

// note records the lock in the result of an apply.
func (l *locks) note(shard fleet.Shard, err error) {
	var locked *state.LockedError
	if errors.As(err, &locked) {
		l.set(shard, locked.Created)
	} else if err == nil {
		l.set(shard, time.Time{})
	}
}

// set records since when a lock is held; the zero time means that it is not held, or that
// the time is unknown.
func (l *locks) set(shard fleet.Shard, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if since.IsZero() {
		delete(l.since, shard)
		return
	}
	l.since[shard] = since
}

// Describe sends the description of the metric.
func (l *locks) Describe(out chan<- *prometheus.Desc) { out <- l.age }

// Collect sends the age of each lock.
func (l *locks) Collect(out chan<- prometheus.Metric) {
	l.mu.Lock()
	held := maps.Clone(l.since)
	l.mu.Unlock()
	for _, vm := range l.config.VMs() {
		var locked *state.LockedError
		if errors.As(vm.Err, &locked) && !locked.Created.IsZero() {
			held[vm.VM.Host] = locked.Created
		}
	}
	for shard, since := range held {
		gauge(out, l.age, l.config.Clock.Since(since).Seconds(), string(shard.Region), string(shard.Host))
	}
}
