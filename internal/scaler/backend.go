package scaler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

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
