package e2e_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/testenv"
)

// stateServer keeps states and locks over HTTP, as the http backend asks for them.
type stateServer struct {
	// mu guards states, locks and taken.
	mu            sync.Mutex
	states, locks map[string][]byte
	taken         int
}

func (s *stateServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path := r.URL.Path
	switch r.Method {
	case http.MethodGet:
		if s.states[path] == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = w.Write(s.states[path]) // the engine notices a state that is cut off
	case http.MethodPost:
		s.states[path] = body
	case "LOCK":
		if s.locks[path] != nil {
			w.WriteHeader(http.StatusLocked)
			_, _ = w.Write(s.locks[path])
			return
		}
		s.locks[path] = body
		s.taken++
	case "UNLOCK":
		delete(s.locks, path)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// TestHTTPBackend keeps the states at a server, and loses the fleet's directory but
// for its files in between.
func TestHTTPBackend(t *testing.T) {
	t.Parallel()
	states := &stateServer{states: map[string][]byte{}, locks: map[string][]byte{}}
	server := httptest.NewServer(states)
	t.Cleanup(server.Close)
	stage := quickstart(t)
	edit(t, stage, "numaform.yaml", "backend: {type: local}", "backend: {type: http, config: {address: '"+server.URL+"/states'}}")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	compare(t, stage)
	if err := os.RemoveAll(stage.Fleet() + "/.numaform"); err != nil {
		t.Fatal(err)
	}
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
	run(t, stage, cli.ExitOK, "remove", vmOf(t, stage, 2000).Name, "-f", stage.Manifests(), "--auto-approve")
	if _, exists := stage.Sim.Guest(2000); exists {
		t.Error("vm 2000 is still there")
	}
	states.mu.Lock()
	defer states.mu.Unlock()
	if len(states.states) != 3 || len(states.locks) != 0 || states.taken == 0 {
		t.Errorf("the server has %d states and %d locks of %d taken, want 3 states and no lock", len(states.states), len(states.locks), states.taken)
	}
}

// TestHomelab runs the example of one small host.
func TestHomelab(t *testing.T) {
	t.Parallel()
	stage := open(t, demo.Config{Example: examples.HomelabK3s(), Region: testenv.Region, Template: "debian-13-k3s"})
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	made, _ := readFleet(t, stage.Fleet())
	if len(made.VMs) == 0 {
		t.Error("no vm was made")
	}
	for _, err := range startFaults(t, stage) {
		t.Error(err)
	}
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
}
