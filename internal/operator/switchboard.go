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

// switchboard caches the users' requests to all controllers: whether to pause, and
// which hosts to evacuate.
type switchboard struct {
	source *control.Switch
	now    func() time.Time

	// mu guards the fields below.
	mu    sync.Mutex
	state control.State
	// held is set while the history was rewritten: see historyWatch.
	held bool
	// reported is the last reported problem with the switch, and failing is the time of the
	// first failed attempt since the switch was last read.
	reported string
	failing  time.Time
}

const (
	// switchInterval is the minimum interval between watches of the switch, and the
	// interval at which other parts check its state.
	switchInterval = 2 * time.Second
	// switchWatch is the duration of one watch. It is short, because a proxy with HTTP/1.1 can
	// hide that the connection is dead.
	switchWatch = time.Minute
	// switchPatience is how long reads of the switch may fail before the failure is
	// reported.
	switchPatience = time.Minute
)

// run reads the switch whenever it changes, until ctx ends.
func (s *switchboard) run(ctx context.Context) {
	ticker := time.NewTicker(switchInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		watchCtx, cancel := context.WithTimeout(ctx, switchWatch)
		failed := false
		err := s.source.Watch(watchCtx, func() error {
			err := s.refresh(ctx)
			failed = err != nil
			return err
		})
		cancel()
		if err != nil && !failed {
			_ = s.refresh(ctx) // which reports its error
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// refresh reads the switch. If that fails, the previous requests remain in effect. It
// reports the failure once, if numaform lacks permission or the failure persists.
func (s *switchboard) refresh(ctx context.Context) error {
	err := s.read(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing.IsZero() {
		s.failing = s.now()
	}
	if (apierrors.IsForbidden(err) || s.now().Sub(s.failing) > switchPatience) && s.reported != err.Error() {
		s.reported = err.Error()
		log.FromContext(ctx).Error(err, "could not read configmap numaform-control: its previous requests remain in effect")
		return err
	}
	log.FromContext(ctx).V(1).Info("could not read configmap numaform-control: its previous requests remain in effect", logkey.Reason, err.Error())
	return err
}

// read reads the switch. Invalid content counts as a pause, and is reported once.
func (s *switchboard) read(ctx context.Context) error {
	state, err := s.source.Read(ctx)
	var malformed *control.MalformedError
	if err != nil && !errors.As(err, &malformed) {
		return fmt.Errorf("reading whether numaform is paused: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if state.Paused != s.state.Paused {
		log.FromContext(ctx).Info("received a request to pause or resume", "paused", state.Paused, "by", state.By)
	}
	s.state = state
	s.failing = time.Time{}
	problem := ""
	if err != nil {
		problem = err.Error()
		if s.reported != problem {
			log.FromContext(ctx).Error(err, "paused because configmap numaform-control is invalid")
		}
	}
	s.reported = problem
	return nil
}

// Paused reports whether no change may start.
func (s *switchboard) Paused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Paused
}

// Stopped reports whether no VM may be created or removed now: during a pause, and while the
// history was rewritten.
func (s *switchboard) Stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Paused || s.held
}

// hold sets whether no VM may be created or removed, whatever users requested.
func (s *switchboard) hold(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = held
}

// pausedBy reports whether no change may start, and who requested that, if it is known.
func (s *switchboard) pausedBy() (paused bool, by string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Paused, s.state.By
}

// evacuated returns the hosts being evacuated.
func (s *switchboard) evacuated() []topology.HostID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Evacuated
}
