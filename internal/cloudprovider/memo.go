package cloudprovider

import (
	"sync"

	"github.com/numaform/numaform/topology"
)

// memo caches results computed from one snapshot. Karpenter requests the types of each
// NodePool and checks each NodeClaim for drift every few seconds: without the cache, the cost
// of an idle controller grows with the fleet.
type memo struct {
	// mu guards the fields below.
	mu       sync.Mutex
	snapshot *topology.Snapshot
	results  map[any]any
}

// memoized returns the result of compute for a snapshot and a key, which together determine
// it. Callers must not modify the result.
func memoized[T any](m *memo, snapshot *topology.Snapshot, key any, compute func() (T, error)) (T, error) {
	if known, found := recalled[T](m, snapshot, key); found {
		return known, nil
	}
	result, err := compute()
	if err == nil {
		remember(m, snapshot, key, result)
	}
	return result, err
}

// recalled returns a remembered result, and whether there is one. Callers must not modify it.
func recalled[T any](m *memo, snapshot *topology.Snapshot, key any) (result T, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.snapshot != snapshot {
		m.snapshot, m.results = snapshot, map[any]any{}
	}
	result, found = m.results[key].(T)
	return result, found
}

// remember keeps a result until recalled is called for another snapshot.
func remember[T any](m *memo, snapshot *topology.Snapshot, key any, result T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.snapshot == snapshot {
		m.results[key] = result
	}
}
