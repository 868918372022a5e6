package pvesim

import (
	"context"
	"net/http"
	"regexp"
	"sync"
	"time"
)

// Fault makes requests fail. The zero value matches every request and does
// nothing; give at least one of the effects.
type Fault struct {
	// Method and Path select requests: Path is a regular expression for the path
	// after /api2/json. Empty means any.
	Method string
	Path   string
	// Skip lets that many matching requests pass first.
	Skip int
	// Times is how many requests fail; 0 means all.
	Times int

	// After lets Proxmox do what was asked before the answer is replaced by
	// Status, Hang or Disconnect: the client does not learn that it was done.
	After bool
	// Delay is waited before anything else.
	Delay time.Duration
	// Hit is called once for each request that fails, after Delay or, with After,
	// once Proxmox did what was asked. The request waits until it returns, which
	// must be when ctx ends, as it does when the client or the server is gone.
	Hit func(ctx context.Context, call Call) `json:"-"`
	// Status and Reason are answered. A status of 595 to 599 has no body.
	Status int
	Reason string
	// Hang keeps the connection open without an answer.
	Hang bool
	// Disconnect closes the connection without an answer.
	Disconnect bool
	// TaskExit makes the task that the request starts end with this text.
	TaskExit string
	// LeaveLock makes that task die without cleaning up: its lock stays.
	LeaveLock bool
}

// AddFault makes matching requests fail from now on, and returns how to stop it.
// It panics if Path is no regular expression.
func (s *Server) AddFault(f Fault) (remove func()) {
	armed := &armedFault{Fault: f, path: regexp.MustCompile(f.Path)}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.armed = append(s.faults.armed, armed)
	return func() {
		s.faults.mu.Lock()
		defer s.faults.mu.Unlock()
		armed.spent = true
	}
}

type armedFault struct {
	Fault
	path  *regexp.Regexp
	seen  int
	spent bool
}

type faultList struct {
	// mu guards armed and the counters of its elements.
	mu    sync.Mutex
	armed []*armedFault
}

// match returns the first fault for the request, counting it, or nil.
func (l *faultList) match(method, path string) *Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.armed {
		if f.spent || (f.Method != "" && f.Method != method) || !f.path.MatchString(path) {
			continue
		}
		f.seen++
		if f.seen <= f.Skip {
			continue
		}
		if f.Times > 0 && f.seen-f.Skip >= f.Times {
			f.spent = true
		}
		hit := f.Fault
		return &hit
	}
	return nil
}

// replaces reports whether the fault has an answer of its own.
func (f *Fault) replaces() bool {
	return f != nil && (f.Status != 0 || f.Hang || f.Disconnect)
}

// hit tells who armed the fault that it struck, if this is its moment.
func (l *callLog) hit(ctx context.Context, f *Fault, c *Call, after bool) {
	if f == nil || f.Hit == nil || f.After != after {
		return
	}
	l.mu.Lock()
	call := *c
	l.mu.Unlock()
	f.Hit(ctx, call)
}

// strike answers in the fault's way.
func (s *Server) strike(w http.ResponseWriter, r *http.Request, f *Fault) int {
	switch {
	case f.Hang:
		select {
		case <-r.Context().Done():
		case <-s.ctx.Done():
		}
		dropConnection(w)
		return 0
	case f.Disconnect:
		dropConnection(w)
		return 0
	}
	reason := f.Reason
	if reason == "" {
		reason = http.StatusText(f.Status)
	}
	s.writeError(w, &apiError{code: f.Status, message: reason, bare: f.Status >= 595})
	return f.Status
}
