package pvesim

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Call is a recorded request. Calls are recorded in the order of their arrival.
type Call struct {
	Method string
	// Path is the part after /api2/json.
	Path string
	// Params are the parameters of body and query, unchecked; each password is replaced
	// with "<hidden>".
	Params map[string]string
	// Host is the Proxmox node in the path, or empty.
	Host string
	// User is the user or token, or empty if not authenticated.
	User string
	// Agent is the client's User-Agent.
	Agent string
	Time  time.Time
	// Status is the status of the response; 0 means no response yet.
	Status int
}

// Calls returns the requests since the last ResetCalls.
func (s *Server) Calls() []Call {
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	result := make([]Call, 0, len(s.calls.list))
	for _, c := range s.calls.list {
		result = append(result, *c)
	}
	return result
}

// ResetCalls discards the recorded requests.
func (s *Server) ResetCalls() {
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	s.calls.list = nil
	s.calls.most = s.calls.open
}

// MaxInFlight returns the largest number of concurrent requests since the last ResetCalls.
func (s *Server) MaxInFlight() int {
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	return s.calls.most
}

type callLog struct {
	clock clock.PassiveClock
	// mu guards list with its elements, open and most.
	mu         sync.Mutex
	list       []*Call
	open, most int
}

func newCallLog(c clock.PassiveClock) *callLog { return &callLog{clock: c} }

func (l *callLog) begin(r *http.Request, path string) *Call {
	c := &Call{Method: r.Method, Path: path, Agent: r.UserAgent(), Time: l.clock.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, c)
	l.open++
	l.most = max(l.most, l.open)
	return c
}

// edit changes a call under the log's lock.
func (l *callLog) edit(c *Call, change func(*Call)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(c)
}

func (l *callLog) end(c *Call, status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.Status = status
	l.open--
}

// visible formats parameters for the log, without passwords.
func visible(given map[string]value) map[string]string {
	texts := make(map[string]string, len(given))
	for name, v := range given {
		texts[name] = v.text
		if name == "password" || name == "cipassword" {
			texts[name] = "<hidden>"
		}
	}
	return texts
}
