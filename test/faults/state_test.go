package faults_test

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
)

// TestBackendDown checks that numaform, if the backend fails at a step of an apply, changes
// nothing without a backend, and that a state that could not be saved is stored locally and
// saved by the next successful run.
func TestBackendDown(t *testing.T) {
	t.Parallel()
	always := func(*http.Request) bool { return true }
	for name, tt := range map[string]struct {
		// at returns the gate at which the backend begins to fail requests, fails selects
		// these requests, and made is set if VMs are created nevertheless.
		at    func(w *world) *gate
		fails func(r *http.Request) bool
		made  bool
	}{
		"at plan":      {func(w *world) *gate { return w.doorman.hold("init", false) }, always, false},
		"before apply": {func(w *world) *gate { return w.doorman.hold("apply", false) }, always, false},
		"during apply": {func(w *world) *gate { return w.holdCall(clone()) }, always, true},
		"at save":      {func(w *world) *gate { return w.holdCall(clone()) }, func(r *http.Request) bool { return r.Method == http.MethodPost }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := tt.at(w)
			r := w.start(w.applyArgs()...)
			r.await(g)
			w.backend.failing(tt.fails)
			g.open(false)
			if code := r.wait(); code != cli.ExitFailed {
				t.Errorf("exit code %d, want %d\n%s", code, cli.ExitFailed, r.said())
			}
			if made := len(w.ours()) > 0; made != tt.made {
				t.Errorf("VMs were created: %t, want %t", made, tt.made)
			}
			if kept := len(w.kept()) > 0; kept != tt.made {
				t.Errorf("a state was kept: %t, want %t", kept, tt.made)
			}
			w.backend.failing(always)
			w.mark()
			w.apply(cli.ExitFailed)
			if writes := w.writes(); len(writes) > 0 {
				t.Errorf("numaform wrote without a backend: %v", writes)
			}
			if kept := len(w.kept()) > 0; kept != tt.made {
				t.Errorf("after another apply a state is kept: %t, want %t", kept, tt.made)
			}
			w.backend.failing(nil)
			w.backend.unlock() // the failed apply may have left a lock
			w.converge(scaledUp)
			if kept := w.kept(); len(kept) > 0 {
				t.Errorf("states are still kept: %v", kept)
			}
		})
	}
}

// kept returns the states that could not be saved.
func (w *world) kept() []string {
	w.t.Helper()
	var kept []string
	w.must(filepath.WalkDir(w.dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Name() == "errored.tfstate" {
			kept = append(kept, path)
		}
		return err
	}))
	return kept
}

// replaceState changes the only state in the backend, and returns the original.
func (w *world) replaceState(change func([]byte) []byte) []byte {
	w.t.Helper()
	w.backend.mu.Lock()
	defer w.backend.mu.Unlock()
	paths := slices.Collect(maps.Keys(w.backend.states))
	if len(paths) != 1 {
		w.t.Fatalf("the backend has states %v, want one", paths)
	}
	before := w.backend.states[paths[0]]
	w.backend.states[paths[0]] = change(before)
	return before
}

// TestStateRolledBack checks that, after an older state was restored, VMs that are missing
// from it are imported.
func TestStateRolledBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.edit("manifests/pods.yaml", "replicas: 2", "replicas: 1")
	w.apply(cli.ExitOK)
	old := w.replaceState(func(state []byte) []byte { return state })
	w.edit("manifests/pods.yaml", "replicas: 1", "replicas: 2")
	w.apply(cli.ExitOK)
	made := w.ours()
	w.replaceState(func([]byte) []byte { return old })
	w.converge(len(made))
	if counts := w.clones(); len(counts) != len(made) {
		t.Errorf("clones %v, want %d", counts, len(made))
	}
	for name, guest := range made {
		if now := w.ours()[name]; now.Raw != guest.Raw {
			t.Errorf("%s was changed by its import:\n%s\nbefore:\n%s", name, now.Raw, guest.Raw)
		}
	}
}

// TestStateCorrupted checks that nothing is changed if the state is truncated or replaced
// with other content, and that the error names the state.
func TestStateCorrupted(t *testing.T) {
	t.Parallel()
	for name, corrupt := range map[string]func([]byte) []byte{
		"cut off": func(state []byte) []byte { return state[:len(state)/2] },
		"no JSON": func([]byte) []byte { return []byte("<html>Welcome to your new proxy</html>") },
		"format":  func([]byte) []byte { return []byte(`{"version": 99}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.apply(cli.ExitOK)
			good := w.replaceState(corrupt)
			w.mark()
			if out := w.apply(cli.ExitFailed); !strings.Contains(out, busyHost) || !strings.Contains(out, "state") {
				t.Errorf("the error does not name the state:\n%s", out)
			}
			if writes := w.writes(); len(writes) > 0 {
				t.Errorf("numaform wrote without a state: %v", writes)
			}
			w.replaceState(func([]byte) []byte { return good })
			w.converge(scaledUp)
		})
	}
}
