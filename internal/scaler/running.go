package scaler

import (
	"maps"
	"sync"

	"github.com/numaform/numaform/fleet"
)

// running is what a process does to shards at this moment. Another process is kept
// out by the store's lock; within one, changes of different shards go on side by
// side, and each must not take the others for what a crash left.
type running struct {
	// mu guards what follows.
	mu sync.Mutex
	// busy counts the changes that are applied to a shard: one, or none.
	busy map[fleet.Shard]bool
	// done are the shards that ended well in changes that have no outcome yet.
	done map[endedShard]bool
}

// endedShard is a shard's part in a change.
type endedShard struct {
	change string
	shard  fleet.Shard
}

func newRunning() *running {
	return &running{busy: map[fleet.Shard]bool{}, done: map[endedShard]bool{}}
}

// now returns what runs, and what has ended well in changes that still run.
func (r *running) now() (busy map[fleet.Shard]bool, done map[endedShard]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.busy), maps.Clone(r.done)
}

// begin marks shards as being applied.
func (r *running) begin(shards []fleet.Shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, shard := range shards {
		r.busy[shard] = true
	}
}

// end marks a shard as free again.
func (r *running) end(change string, shard fleet.Shard, well bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, shard)
	if well && change != "" {
		r.done[endedShard{change, shard}] = true
	}
}

// forget drops a change that has its outcome.
func (r *running) forget(change string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.done, func(e endedShard, _ bool) bool { return e.change == change })
}
