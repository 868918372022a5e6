package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/testenv"
)

// statesWith kills a process at a request to a state server.
type statesWith struct {
	*httputil.ReverseProxy

	// mu guards the fields below.
	mu sync.Mutex
	// kill is called before, or after, the nth request that writes; nil kills nothing.
	kill     func()
	nth      int
	after    bool
	requests []string
}

func (s *statesWith) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	var kill func()
	if r.Method != http.MethodGet {
		s.requests = append(s.requests, r.Method)
		if len(s.requests) == s.nth {
			kill = s.kill
		}
	}
	after := s.after
	s.mu.Unlock()
	if kill != nil && !after {
		kill()
	}
	s.ReverseProxy.ServeHTTP(w, r)
	if kill != nil && after {
		kill()
	}
}

// arm sets when a process is killed, and forgets earlier requests.
func (s *statesWith) arm(nth int, after bool, kill func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nth, s.after, s.kill, s.requests = nth, after, kill, nil
}

func (s *statesWith) made() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// unlock releases the locks of a state server, as the engine's force-unlock does.
func unlock(t *testing.T, server *url.URL, locks map[string][]byte) {
	t.Helper()
	for path, lock := range locks {
		address := *server
		address.Path = path
		request, err := http.NewRequestWithContext(t.Context(), "UNLOCK", address.String(), bytes.NewReader(lock))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("unlocking %s: %v %v", path, response, err)
		}
		_ = response.Body.Close()
	}
}

// TestKillRestore kills numaform restore before and after each of its writes to the state
// backend, which are before and after it writes the fleet, and repeats it: no VM is created, changed or
// destroyed, no newer VM is in a state without a file, no lock remains, and fleet, history
// and states are equal to the result of a restore that was not killed.
func TestKillRestore(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	server := testenv.HTTPState(t)
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	states := &statesWith{ReverseProxy: httputil.NewSingleHostReverseProxy(target)}
	proxy := httptest.NewServer(states)
	t.Cleanup(proxy.Close)
	edit(t, stage, "numaform.yaml", "backend: {type: local}", "backend: {type: http, config: {address: '"+proxy.URL+"/states'}}")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	file := filepath.Join(stage.Dir, "backup.tar.gz")
	run(t, stage, cli.ExitOK, "backup", "--plain", "-o", file)
	run(t, stage, cli.ExitOK, "remove", vmOf(t, stage, 2000).Name, "-f", stage.Manifests(), "--auto-approve")
	older := guestsOf(stage)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	guests := guestsOf(stage)
	var newer string
	for vmid := range guests {
		if _, existed := older[vmid]; !existed {
			newer = vmOf(t, stage, fleet.VMID(vmid)).Name
		}
	}
	if newer == "" {
		t.Fatal("no VM is newer than the backup")
	}
	saved := server.States()

	// restored checks the result of a complete restore.
	restored := func(at string) {
		t.Helper()
		wantUnchanged(t, stage, guests)
		now, _ := readFleet(t, stage.Fleet())
		if len(now.VMs) != len(guests)-1 {
			t.Errorf("%s: the fleet has %d VMs of %d guests", at, len(now.VMs), len(guests))
		}
		if len(server.States()) != 1 {
			t.Errorf("%s: %d states", at, len(server.States()))
		}
		for path, content := range server.States() {
			if bytes.Contains(content, []byte(`"module":"module.`+newer+`"`)) {
				t.Errorf("%s: the state at %s contains %s, which has no file", at, path, newer)
			}
			if !bytes.Contains(content, []byte(now.VMs[0].Name)) {
				t.Errorf("%s: the state at %s lacks %s", at, path, now.VMs[0].Name)
			}
		}
		if locks := server.Locks(); len(locks) > 0 {
			t.Errorf("%s: locks remain: %v", at, locks)
		}
		if out := run(t, stage, cli.ExitOK, "history"); strings.Contains(out, "unverified") {
			t.Errorf("%s: the history:\n%s", at, out)
		}
	}
	// A newer VM is removed from an existing state before the fleet is written; a lost state is
	// written after it.
	for _, scenario := range []struct {
		name   string
		states map[string][]byte
	}{{"with the states", saved}, {"without states", nil}} {
		lost := func() {
			t.Helper()
			lose(t, stage.Fleet(), stage.StateDir())
			server.Restore(scenario.states)
		}
		lost()
		states.arm(0, false, nil)
		run(t, stage, cli.ExitOK, "restore", file, "--write")
		writes := states.made()
		restored(scenario.name + ", not killed")
		t.Logf("%s, a restore writes to the backend by %v", scenario.name, writes)
		if !slices.Contains(writes, http.MethodPost) {
			t.Fatalf("%s, a restore makes only the requests %v", scenario.name, writes)
		}
		for nth := 1; nth <= len(writes); nth++ {
			if !enginetest.EveryCase() && writes[nth-1] != http.MethodPost {
				continue
			}
			for _, after := range []bool{false, true} {
				at := fmt.Sprintf("%s, killed at %s, request %d, after it: %t", scenario.name, writes[nth-1], nth, after)
				lost()
				command := program(t, stage, "restore", file, "--write")
				var out bytes.Buffer
				command.Stdout, command.Stderr = &out, &out
				states.arm(nth, after, func() { _ = command.Process.Kill() })
				if err := command.Run(); err == nil || command.ProcessState.Exited() {
					t.Fatalf("not %s: %v\n%s", at, err, out.String())
				}
				states.arm(0, false, nil)
				wantUnchanged(t, stage, guests)
				// The engine of the killed process ends, and can leave its lock. The backend does not
				// report the holder, so a person unlocks the state, as the message says.
				if _, code := stage.Numaform(context.Background(), "restore", file, "--write"); code != cli.ExitOK {
					unlock(t, target.JoinPath("states"), server.Locks())
					run(t, stage, cli.ExitOK, "restore", file, "--write")
				}
				restored(at)
			}
		}
	}
}
