package scaler

import (
	"context"
	"sync"
)

// slots limit how many engines run at once. The limit may change while they run.
type slots struct {
	// limit returns how many may run at once; no function, or 0, means no limit.
	limit func() int

	// mu guards the fields below.
	mu      sync.Mutex
	running int
	// freed is closed when an engine has ended; nil while none is awaited.
	freed chan struct{}
}

// take waits until one more engine may run, and returns what to call when it has ended. If
// ctx ends first, no engine starts: it returns at once.
func (s *slots) take(ctx context.Context) (release func()) {
	for {
		freed := s.try()
		if freed == nil {
			return s.release
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return func() {}
		}
	}
}

// try takes a slot, or returns a channel that is closed when one becomes free.
func (s *slots) try() (freed <-chan struct{}) {
	limit := 0
	if s.limit != nil {
		limit = s.limit()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit <= 0 || s.running < limit {
		s.running++
		return nil
	}
	if s.freed == nil {
		s.freed = make(chan struct{})
	}
	return s.freed
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}
