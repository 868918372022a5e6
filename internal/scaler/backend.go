package scaler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// BackendDownError reports that the backend of the states does not respond correctly, so
// that changes wait until it does. Another host would not help, because all hosts have the
// same backend.
type BackendDownError struct {
	// Backend is the type of the backend, such as kubernetes.
	Backend string
	// Since is the time of the first failure.
	Since time.Time
	// Reason is the engine's message.
	Reason string
	err    error
}

func (e *BackendDownError) Error() string { return e.Summary() + ": " + e.Reason }

// Summary describes the outage in one sentence, with the fix, but without the engine's
// message, which changes with each attempt.
func (e *BackendDownError) Summary() string {
	return fmt.Sprintf("waits: the %s state backend has been unreachable since %s: check that it runs, and that its address and numaform's credential "+
		"for it are correct; numaform retries", e.Backend, e.Since.UTC().Format(time.RFC3339))
}

// Unwrap returns the engine's error.
func (e *BackendDownError) Unwrap() error { return e.err }

// Cause implements Outage.
func (e *BackendDownError) Cause() (reason string, since time.Time) {
	return v1alpha1.ReasonStateBackendUnreachable, e.Since
}

// PostponedError reports that no change can begin, whatever its VMs: for example, the
// fleet's repository cannot be reached or refuses a push.
type PostponedError struct {
	// Since is the time of the first failure.
	Since time.Time
	// Err is the last failure.
	Err error
}

func (e *PostponedError) Error() string { return e.Summary() }

// Summary implements Outage.
func (e *PostponedError) Summary() string {
	return fmt.Sprintf("waits: no change could begin since %s: %v; numaform retries", e.Since.UTC().Format(time.RFC3339), e.Err)
}

// Unwrap returns the last failure.
func (e *PostponedError) Unwrap() error { return e.Err }

// Cause implements Outage.
func (e *PostponedError) Cause() (reason string, since time.Time) {
	return v1alpha1.ReasonChangePostponed, e.Since
}

// Outage is an error for which VMs wait although nothing is wrong with them or their hosts:
// a BackendDownError or a PostponedError.
type Outage interface {
	error
	// Summary describes the outage in one sentence, with the fix.
	Summary() string
	// Cause returns the reason of events and conditions about the outage, one of v1alpha1,
	// and the time of the first failure.
	Cause() (reason string, since time.Time)
}

// OutageOf returns the outage for which a VM waits, or nil.
func OutageOf(state *VMState) Outage {
	if down := BackendDown(state.Err, state.Since); down != nil {
		return down
	}
	if postponed := new(PostponedError); errors.As(state.Err, &postponed) {
		return postponed
	}
	return nil
}

// postpone records on all VMs that wait for their creation, wake or removal that no change
// can begin.
func (w *Writer) postpone(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if m.Phase == PhaseReserved || m.Phase == PhaseRemoving {
			m.Err = w.postponed(m, err)
		}
	}
}

// endOutage removes what postpone recorded, after what failed has succeeded. A VM may still wait
// for something else, such as another change of its host. A VM whose own change could not begin
// keeps its error until the next attempt.
func (w *Writer) endOutage() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if errors.As(m.Err, new(*PostponedError)) && m.retry.tries == 0 {
			m.Err = nil
		}
	}
}

// postponed returns the PostponedError of a VM, with the beginning of the outage. The caller
// holds w.mu.
func (w *Writer) postponed(m *member, err error) error {
	known := &PostponedError{Since: w.scaler.config.Clock.Now()}
	_ = errors.As(m.Err, &known)
	return &PostponedError{Since: known.Since, Err: err}
}

// BackendDown returns the BackendDownError for an error, or nil if the error has another
// cause. since is the time of the first failure, unless the error already contains it.
func BackendDown(err error, since time.Time) *BackendDownError {
	var down *BackendDownError
	if errors.As(err, &down) {
		return down
	}
	var failed *state.CommandError
	if !errors.As(err, &failed) || failed.Backend == "" {
		return nil
	}
	return &BackendDownError{Backend: failed.Backend, Since: since, Reason: failed.Text, err: err}
}

// outage is a period in which the backend of a host's state failed at each attempt.
type outage struct{ since, last time.Time }

// forgetOutageAfter is the time without an attempt after which the next failure begins
// another outage. While something waits, the attempts are at most longestDelay apart.
const forgetOutageAfter = 3 * longestDelay

// noteBackend records whether the backend of a host's state responded. It returns err, or
// a BackendDownError with the beginning of the outage.
func (w *Writer) noteBackend(ctx context.Context, host topology.HostID, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.scaler.config.Clock.Now()
	known, out := w.outages[host]
	if out && now.Sub(known.last) > forgetOutageAfter {
		known, out = outage{}, false
	}
	if !out {
		known.since = now
	}
	down := BackendDown(err, known.since)
	switch {
	case err == nil:
		delete(w.outages, host)
		if out {
			log.FromContext(ctx).Info("reached the state backend again", logkey.Host, host.String(), logkey.Age, now.Sub(known.since).String())
		}
		return nil
	case down == nil:
		return err
	}
	w.outages[host] = outage{since: known.since, last: now}
	if !out {
		log.FromContext(ctx).Info("could not reach the state backend", logkey.Host, host.String(), logkey.Reason, down.Error())
	}
	return down
}
