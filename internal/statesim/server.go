// Package statesim runs a server for the http backend of OpenTofu and Terraform, which stores
// states and locks in memory and fails on demand. The server is a program of the module
// test/sim. Start at New.
package statesim

import (
	"github.com/numaform/numaform/internal/simprogram"
)

// Server stores states and locks for the http backend.
type Server struct {
	// URL is the server's address. Each path below it is a state.
	URL string

	program *simprogram.Program
}

// New starts a server without states.
func New() (*Server, error) {
	program, err := simprogram.Start("statesim", nil, func(func(simprogram.Hook) string) (any, error) { return struct{}{}, nil })
	if err != nil {
		return nil, err
	}
	s := &Server{program: program}
	program.Must("GET", "/url", nil, &s.URL)
	return s, nil
}

// Close stops the HTTP server at URL. Control requests still work.
func (s *Server) Close() { s.program.Must("DELETE", "/url", nil, nil) }

// End ends the program; no other method may be called afterwards.
func (s *Server) End() error { return s.program.Close() }

// Refuse makes the server return 500 for these methods only: GET simulates a server that is
// down during a plan, POST one that cannot save, LOCK one that cannot lock. Without
// methods, all requests succeed again.
func (s *Server) Refuse(methods ...string) { s.program.Must("PUT", "/refused", methods, nil) }

// Demand makes the server return 401 for requests without these credentials.
func (s *Server) Demand(user, password string) {
	s.program.Must("PUT", "/login", struct{ User, Password string }{user, password}, nil)
}

// States returns the states by path.
func (s *Server) States() (states map[string][]byte) {
	s.program.Must("GET", "/states", nil, &states)
	return states
}

// Restore replaces the states with an earlier result of States.
func (s *Server) Restore(states map[string][]byte) { s.program.Must("PUT", "/states", states, nil) }

// Locks returns the current locks by path.
func (s *Server) Locks() (locks map[string][]byte) {
	s.program.Must("GET", "/locks", nil, &locks)
	return locks
}

// Taken returns the number of locks ever taken.
func (s *Server) Taken() (count int) {
	s.program.Must("GET", "/taken", nil, &count)
	return count
}
