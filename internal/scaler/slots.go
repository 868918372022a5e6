package scaler

import (
	"context"
	"sync"
)

// slots limit how many engines run at once. The limit may change while they run.
type slots struct {
	// limit returns how many may run at once; if it is nil or returns 0, there is no limit.
	limit func() int

	// mu guards the fields below.
	mu sync.Mutex
	// running counts the running engines, and applying the engines that apply a plan.
	running, applying int
	// freed is closed when an engine has ended; nil while no caller waits.
	freed chan struct{}
}

// plan waits until one more engine may run, and returns the function to call when it has
// ended. If ctx ends first, plan returns at once without a slot, because no engine
// starts.
func (s *slots) plan(ctx context.Context) (release func()) { return s.take(ctx, false) }

// apply is like plan, for an apply. Unless only one slot exists, applies leave one slot
// for plans, because an apply waits for clones and shutdowns.
func (s *slots) apply(ctx context.Context) (release func()) { return s.take(ctx, true) }

func (s *slots) take(ctx context.Context, apply bool) (release func()) {
	for {
		freed := s.try(apply)
		if freed == nil {
			return sync.OnceFunc(func() { s.release(apply) })
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return func() {}
		}
	}
}

// try takes a slot and returns nil, or returns a channel that is closed when a slot becomes
// free.
func (s *slots) try(apply bool) (freed <-chan struct{}) {
	limit := 0
	if s.limit != nil {
		limit = s.limit()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit <= 0 || s.running < limit && (!apply || s.applying < max(1, limit-1)) {
		s.running++
		if apply {
			s.applying++
		}
		return nil
	}
	if s.freed == nil {
		s.freed = make(chan struct{})
	}
	return s.freed
}

func (s *slots) release(apply bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if apply {
		s.applying--
	}
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}
