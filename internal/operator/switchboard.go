package operator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/topology"
)

// switchboard remembers what people asked of all controllers: to pause, and which
// hosts to leave.
type switchboard struct {
	source *control.Switch

	// mu guards what follows.
	mu    sync.Mutex
	state control.State
}

// askSwitch is how often the switch is read.
const askSwitch = 2 * time.Second

// read reads the switch. While the API server does not answer, what was asked before
// counts; what nobody understands counts as a pause.
func (s *switchboard) read(ctx context.Context) error {
	state, err := s.source.Read(ctx)
	var malformed *control.MalformedError
	if err != nil && !errors.As(err, &malformed) {
		return fmt.Errorf("reading whether numaform is paused: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if state.Paused != s.state.Paused {
		log.FromContext(ctx).Info("was told to pause or to go on", "paused", state.Paused, "by", state.By)
	}
	s.state = state
	if err != nil {
		log.FromContext(ctx).Error(err, "pausing, as what was asked cannot be understood")
	}
	return nil
}

// run reads the switch until ctx ends.
func (s *switchboard) run(ctx context.Context) {
	ticker := time.NewTicker(askSwitch)
	defer ticker.Stop()
	for {
		if err := s.read(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).V(1).Info("kept what was asked before", "error", err.Error())
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Paused reports whether nothing may be begun.
func (s *switchboard) Paused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Paused
}

// paused is Paused for those who ask with a context.
func (s *switchboard) paused(context.Context) (bool, error) { return s.Paused(), nil }

// evacuated returns the hosts that nodes are to leave.
func (s *switchboard) evacuated(context.Context) ([]topology.HostID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Evacuated, nil
}
