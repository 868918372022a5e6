package scaler

import (
	"maps"
	"sync"

	"github.com/numaform/numaform/fleet"
)

// running is what this process currently does to hosts. The store's lock excludes other
// processes; within one process, changes of different hosts run concurrently, and must
// not treat each other as leftovers of a crash.
type running struct {
	// mu guards the fields below.
	mu sync.Mutex
	// busy counts the changes being applied on a host: one, or none.
	busy map[fleet.Shard]bool
	// done are the hosts that ended successfully in changes without an outcome yet.
	done map[endedShard]bool
}

// endedShard is a host's part in a change.
type endedShard struct {
	change string
	shard  fleet.Shard
}

func newRunning() *running {
	return &running{busy: map[fleet.Shard]bool{}, done: map[endedShard]bool{}}
}

// now returns the hosts in progress, and the hosts that ended successfully in changes
// that are still in progress.
func (r *running) now() (busy map[fleet.Shard]bool, done map[endedShard]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.busy), maps.Clone(r.done)
}

// begin marks hosts as being applied.
func (r *running) begin(shards []fleet.Shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, shard := range shards {
		r.busy[shard] = true
	}
}

// end marks a host as free again.
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
