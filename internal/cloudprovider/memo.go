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
	m.mu.Lock()
	if m.snapshot != snapshot {
		m.snapshot, m.results = snapshot, map[any]any{}
	}
	known, found := m.results[key].(T)
	m.mu.Unlock()
	if found {
		return known, nil
	}

	result, err := compute()
	if err != nil {
		return result, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.snapshot == snapshot {
		m.results[key] = result
	}
	return result, nil
}
