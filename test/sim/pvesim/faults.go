package pvesim

import (
	"context"
	"net/http"
	"regexp"
	"sync"
	"time"
)

// Fault makes requests fail. The zero value matches every request and does nothing; set at
// least one of the effects.
type Fault struct {
	// Method and Path select requests: Path is a regular expression for the path
	// after /api2/json. Empty means any.
	Method string
	Path   string
	// Skip is the number of matching requests that pass first.
	Skip int
	// Times is the number of requests that fail; 0 means all.
	Times int

	// After makes Proxmox execute the request before the response is replaced by Status,
	// Hang or Disconnect: the client does not learn that the request succeeded.
	After bool
	// Delay is the time to wait before anything else.
	Delay time.Duration
	// Hit is called once for each request that fails: after Delay or, with After, once
	// Proxmox has executed the request. The request waits until Hit returns. Hit must
	// return when ctx ends, which happens when the client disconnects or the server stops.
	Hit func(ctx context.Context, call Call) `json:"-"`
	// Status and Reason are the response. A status of 595 to 599 has no body.
	Status int
	Reason string
	// Hang keeps the connection open without a response.
	Hang bool
	// Disconnect closes the connection without a response.
	Disconnect bool
	// TaskExit makes the task of the request end with this exit status.
	TaskExit string
	// LeaveLock makes the task of the request end without cleaning up: the guest stays
	// locked.
	LeaveLock bool
}

// AddFault makes matching requests fail from now on, and returns a function that removes
// the fault. It panics if Path is not a valid regular expression.
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

// match returns the first fault that applies to a request, or nil, and counts the request.
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

// replaces reports whether the fault replaces the response.
func (f *Fault) replaces() bool {
	return f != nil && (f.Status != 0 || f.Hang || f.Disconnect)
}

// hit calls the fault's Hit if it is due: after is true once Proxmox has executed the
// request.
func (l *callLog) hit(ctx context.Context, f *Fault, c *Call, after bool) {
	if f == nil || f.Hit == nil || f.After != after {
		return
	}
	l.mu.Lock()
	call := *c
	l.mu.Unlock()
	f.Hit(ctx, call)
}

// strike sends the fault's response and returns its status. For Hang and Disconnect, it drops
// the connection and returns 0.
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
