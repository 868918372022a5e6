// Package statesim runs a server for the http backend of OpenTofu and Terraform, which
// keeps states and locks in memory and fails on demand. It is a program of the module
// test/sim. Start at New.
package statesim

import (
	"github.com/numaform/numaform/internal/simprogram"
)

// Server keeps states and locks, as the http backend asks for them.
type Server struct {
	// URL is where it is: a state is at any path below.
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

// Close ends the server for its clients: nothing answers at its URL any more.
func (s *Server) Close() { s.program.Must("DELETE", "/url", nil, nil) }

// End ends the server; nothing can be asked of it afterwards.
func (s *Server) End() error { return s.program.Close() }

// Refuse makes the server answer 500 to these methods from now on, and to no
// others: GET for a server that is down at a plan, POST for one that does not
// save, LOCK for one that does not lock. Without methods all is well again.
func (s *Server) Refuse(methods ...string) { s.program.Must("PUT", "/refused", methods, nil) }

// Demand makes the server answer 401 to whoever does not log in with these.
func (s *Server) Demand(user, password string) {
	s.program.Must("PUT", "/login", struct{ User, Password string }{user, password}, nil)
}

// States returns the states by their paths.
func (s *Server) States() (states map[string][]byte) {
	s.program.Must("GET", "/states", nil, &states)
	return states
}

// Restore makes the states those that States returned before.
func (s *Server) Restore(states map[string][]byte) { s.program.Must("PUT", "/states", states, nil) }

// Locks returns the locks that are held, by their paths.
func (s *Server) Locks() (locks map[string][]byte) {
	s.program.Must("GET", "/locks", nil, &locks)
	return locks
}

// Taken counts the locks that were ever taken.
func (s *Server) Taken() (count int) {
	s.program.Must("GET", "/taken", nil, &count)
	return count
}
