package testenv

import (
	"net/http/httptest"
	"testing"

	"github.com/numaform/numaform/internal/statesim"
)

// StateServer keeps states and locks for the http backend, below its URL.
type StateServer struct {
	*statesim.Server
	URL string

	server *httptest.Server
}

// HTTPState starts a state server that ends with the test.
func HTTPState(t testing.TB) *StateServer {
	t.Helper()
	s := &StateServer{Server: statesim.New()}
	s.server = httptest.NewServer(s.Server)
	s.URL = s.server.URL
	t.Cleanup(s.Close)
	return s
}

// Close ends the server: nothing answers at its address any more.
func (s *StateServer) Close() { s.server.Close() }
