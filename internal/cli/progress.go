package cli

import (
	"sync"

	"github.com/numaform/numaform/internal/term"
)

// progress shows the duration of the activity what, until stop is called.
func (p *Process) progress(what string) (stop func()) {
	if p.screen == nil {
		return func() {}
	}
	return p.screen.Start(what, 0).Stop
}

// steps shows how many hosts of the current step of a change are done. A step ends with its
// last host, so that nothing is drawn while the command asks or prints.
type steps struct {
	screen *term.Screen

	mu      sync.Mutex
	current *term.Progress // guarded by mu; nil between steps
}

// count implements the Count function of a scaler.Config.
func (s *steps) count(step string, done, total int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && (done == 0 || done == total) {
		s.current.Stop()
		s.current = nil
	}
	switch {
	case done == 0 && total > 0 && s.screen != nil:
		s.current = s.screen.Start(step, total)
	case s.current != nil: // nil if the last host is already counted
		s.current.Done(done, total)
	}
}
