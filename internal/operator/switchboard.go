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

// switchboard remembers what people asked of all controllers: to pause, and which
// hosts to leave.
type switchboard struct {
	source *control.Switch
	now    func() time.Time

	// mu guards what follows.
	mu    sync.Mutex
	state control.State
	// told is what was wrong with the switch the last time, and failing since when it
	// cannot be read.
	told    string
	failing time.Time
}

const (
	// askSwitch is how often the switch is read.
	askSwitch = 2 * time.Second
	// tellSwitch is how long it may be unreadable until people should know.
	tellSwitch = time.Minute
)

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
	s.state, s.failing = state, time.Time{}
	if err == nil {
		s.told = ""
	} else if s.news(err) {
		log.FromContext(ctx).Error(err, "pausing, as what was asked cannot be understood")
	}
	return nil
}

// news reports whether something else is wrong than was told last.
func (s *switchboard) news(err error) bool {
	known := s.told == err.Error()
	s.told = err.Error()
	return !known
}

// unread tells once of a switch that nobody lets numaform read, or that cannot be read
// for long: what was asked before counts until then.
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

// ask reads the switch, and keeps what was asked before if that fails.
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

// paused is Paused for those who ask with a context.
func (s *switchboard) paused(context.Context) (bool, error) { return s.Paused(), nil }

// evacuated returns the hosts that nodes are to leave.
func (s *switchboard) evacuated(context.Context) ([]topology.HostID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Evacuated, nil
}
