package backends_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state"
)

// applying returns the process IDs of the engines that are applying in a directory.
func applying(t testing.TB, dir string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	var pids []int
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // the process ended
		}
		words := bytes.Split(line, []byte{0})
		cwd, err := os.Readlink(filepath.Join(filepath.Dir(file), "cwd"))
		if err != nil || cwd != dir || len(words) < 2 || string(words[1]) != "apply" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		must(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// TestEngineKilled checks that the next run detects that the engine was killed, and lists the
// VM as lost from the state. The engine is killed with SIGKILL during a clone, which its
// provider then finishes. numaform breaks the lock if the backend reports its holder;
// otherwise the test unlocks the state.
func TestEngineKilled(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string, engine *state.Engine) {
		r := newRoot(t, newSite(t, kind, false), engine, 1)
		w := r.open(t, here)
		done, release := r.applyHeld(t, w)
		pids := applying(t, w.Dir())
		if len(pids) != 1 {
			t.Fatalf("engines %v, want one", pids)
		}
		must(t, syscall.Kill(pids[0], syscall.SIGKILL))
		var failed *state.CommandError
		if err := <-done; !errors.As(err, &failed) {
			t.Fatalf("got %v, want a CommandError", err)
		}
		release()
		r.goesOn(t, w, engine)
	})
}

// TestNumaformKilled checks that the next run detects that numaform was killed during an
// apply, which also ends its engine and its provider, and lists the VM as lost from the
// state. If the provider ends first, the engine reports that and releases its lock.
func TestNumaformKilled(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			numaformKilled(t, kind, engines(t)[0])
		})
	}
}

func numaformKilled(t *testing.T, kind string, engine *state.Engine) {
	t.Helper()
	r := newRoot(t, newSite(t, kind, false), engine, 1)
	reached, release := r.holdClone(t)
	c := r.config(t, here)
	text, err := json.Marshal(child{Dir: c.Dir, PluginDir: c.PluginDir, Engine: c.Engine, Env: c.Env, BackendConfig: c.BackendConfig})
	must(t, err)
	numaform := exec.CommandContext(t.Context(), os.Args[0])
	numaform.Env = append(os.Environ(), childVariable+"="+string(text))
	must(t, numaform.Start())
	ended := make(chan error, 1)
	go func() { ended <- numaform.Wait() }()
	select {
	case <-reached:
	case err := <-ended:
		t.Fatalf("the process ended before the clone: %v", err)
	}
	must(t, numaform.Process.Kill())
	if err := <-ended; err == nil {
		t.Error("the killed process succeeded")
	}
	release()
	w := r.open(t, here)
	await(t, "the engine to end", func() bool { return len(applying(t, w.Dir())) == 0 })
	if r.locks(t) == 0 {
		r.outlives = false
	}
	r.goesOn(t, w, engine)
}

// goesOn checks the backend after a process was killed during an apply: Recover detects the
// crash and breaks the lock of the dead process, or the test unlocks the state if the backend
// does not report the holder of the lock. The next plan lists the VM as lost from the state.
func (r *root) goesOn(t *testing.T, w *state.Workspace, engine *state.Engine) {
	t.Helper()
	await(t, "the lock to remain or to be released, depending on the backend", func() bool { return r.locks(t) > 0 == r.outlives })
	recovery, err := w.Recover(t.Context())
	if !recovery.Crashed {
		t.Errorf("no crash was detected: %+v", recovery)
	}
	if r.outlives && !r.tells(engine) {
		var locked *state.LockedError
		if !errors.As(err, &locked) || locked.Holder != state.HolderUnknown {
			t.Fatalf("got %v, want a lock of an unknown holder", err)
		}
		must(t, w.Unlock(t.Context(), locked.ID))
		recovery, err = w.Recover(t.Context())
	}
	must(t, err)
	t.Logf("%+v", recovery)
	if want := r.outlives && r.tells(engine); want != slices.ContainsFunc(recovery.Outside, func(line string) bool {
		return strings.HasPrefix(line, "broke lock ") && strings.Contains(line, "no process that it started remains")
	}) {
		t.Errorf("outside the plan: %q, want the proof: %v", recovery.Outside, want)
	}
	if pids := applying(t, w.Dir()); len(pids) > 0 || r.locks(t) > 0 {
		t.Errorf("engines %v and %d locks are left", pids, r.locks(t))
	}
	p := plan(t, w, state.PlanOptions{})
	if !p.Changes || !slices.Contains(p.Lost, generator.Address(&r.fleet.VMs[0])) {
		t.Errorf("changes %v, lost %v: no state was saved", p.Changes, p.Lost)
	}
}
