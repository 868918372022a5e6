// Package statesim is a server for the http backend of OpenTofu and Terraform, which stores
// states and locks in memory and fails on demand. Start at New.
package statesim

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"sync"
)

// Server stores states and locks for the http backend: GET, POST, DELETE, LOCK and UNLOCK
// of any path. It is an http.Handler.
type Server struct {
	// mu guards the fields below.
	mu            sync.Mutex
	states, locks map[string][]byte
	taken         int
	refused       []string
	user          string
	password      string
}

// New returns a server without states.
func New() *Server { return &Server{states: map[string][]byte{}, locks: map[string][]byte{}} }

// Refuse makes the server return 500 for these methods only: GET simulates a server that is
// down during a plan, POST one that cannot save, LOCK one that cannot lock. Without
// methods, all requests succeed again.
func (s *Server) Refuse(methods ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = methods
}

// Demand makes the server return 401 for requests without these credentials.
func (s *Server) Demand(user, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.user, s.password = user, password
}

// States returns the states by path.
func (s *Server) States() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return copyOf(s.states)
}

// Restore replaces the states with an earlier result of States.
func (s *Server) Restore(states map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states = copyOf(states)
}

// Locks returns the current locks by path.
func (s *Server) Locks() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return copyOf(s.locks)
}

// Taken returns the number of locks ever taken.
func (s *Server) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

func copyOf(m map[string][]byte) map[string][]byte {
	c := make(map[string][]byte, len(m))
	for name, content := range m {
		c[name] = slices.Clone(content)
	}
	return c
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admit(w, r) {
		s.answer(w, r, body)
	}
}

// admit reports whether a request may proceed. It rejects requests that Refuse makes fail,
// or that lack the credentials of Demand.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) bool {
	// Requests of a client that was killed in the meantime are ignored.
	if slices.Contains(s.refused, r.Method) || r.Context().Err() != nil {
		http.Error(w, "out of order", http.StatusInternalServerError)
		return false
	}
	if user, password, _ := r.BasicAuth(); user != s.user || password != s.password {
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}
	return true
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, body []byte) {
	path := r.URL.Path
	switch r.Method {
	case http.MethodGet:
		if s.states[path] == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = w.Write(s.states[path]) // the engine detects a truncated state
	case http.MethodPost:
		s.states[path] = body
	case http.MethodDelete:
		delete(s.states, path)
	case "LOCK":
		s.lock(w, path, body)
	case "UNLOCK":
		s.unlock(w, path, body)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (s *Server) lock(w http.ResponseWriter, path string, lock []byte) {
	if s.locks[path] != nil {
		w.WriteHeader(http.StatusLocked)
		_, _ = w.Write(s.locks[path])
		return
	}
	s.locks[path] = lock
	s.taken++
}

// unlock also accepts an empty body, which Terraform sends for force-unlock.
func (s *Server) unlock(w http.ResponseWriter, path string, lock []byte) {
	if len(lock) > 0 {
		want, got := lockID(s.locks[path]), lockID(lock)
		if got == "" || got != want {
			w.WriteHeader(http.StatusConflict)
			return
		}
	}
	delete(s.locks, path)
}

// lockID returns the ID in a lock, or "" if the lock is invalid.
func lockID(lock []byte) string {
	var info struct{ ID string }
	if err := json.Unmarshal(lock, &info); err != nil {
		return ""
	}
	return info.ID
}
