package operator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// switchboard caches what people requested from all controllers: to pause, and which
// hosts to evacuate.
type switchboard struct {
	source *control.Switch
	now    func() time.Time

	// mu guards the fields below.
	mu    sync.Mutex
	state control.State
	// told is the last reported problem with the switch, and failing is since when it
	// cannot be read.
	told    string
	failing time.Time
}

const (
	// askSwitch is the interval between readings of the switch.
	askSwitch = 2 * time.Second
	// tellSwitch is how long the switch may be unreadable before that is reported.
	tellSwitch = time.Minute
)

// read reads the switch. While the API server does not respond, the previous requests
// apply; invalid content counts as a pause.
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
	s.state, s.failing = state, time.Time{}
	if err == nil {
		s.told = ""
	} else if s.news(err) {
		log.FromContext(ctx).Error(err, "pausing, as what was asked cannot be understood")
	}
	return nil
}

// news reports whether the problem differs from the last reported one.
func (s *switchboard) news(err error) bool {
	known := s.told == err.Error()
	s.told = err.Error()
	return !known
}

// unread reports once that numaform may not read the switch, or has not been able to read
// it for a while. The previous requests apply meanwhile.
func (s *switchboard) unread(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing.IsZero() {
		s.failing = s.now()
	}
	if (apierrors.IsForbidden(err) || s.now().Sub(s.failing) > tellSwitch) && s.news(err) {
		log.FromContext(ctx).Error(err, "kept what was asked before, as the switch cannot be read")
		return
	}
	log.FromContext(ctx).V(1).Info("kept what was asked before", logkey.Reason, err.Error())
}

// run reads the switch until ctx ends.
func (s *switchboard) run(ctx context.Context) {
	ticker := time.NewTicker(askSwitch)
	defer ticker.Stop()
	for {
		s.ask(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// ask reads the switch, and keeps the previous requests on failure.
func (s *switchboard) ask(ctx context.Context) {
	if err := s.read(ctx); err != nil && ctx.Err() == nil {
		s.unread(ctx, err)
	}
}

// Paused reports whether nothing may be begun.
func (s *switchboard) Paused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Paused
}

// paused is Paused for callers with a context.
func (s *switchboard) paused(context.Context) (bool, error) { return s.Paused(), nil }

// evacuated returns the hosts being evacuated.
func (s *switchboard) evacuated(context.Context) ([]topology.HostID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Evacuated, nil
}
