package faults_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
)

// unlockCommand matches the command that releases a lock, with the host and the ID.
var unlockCommand = regexp.MustCompile("`numaform unlock (\\S+) (\\S+)`")

// TestLockOfTheLiving checks that a second numaform, on the same machine and with a copy of
// the fleet as on another machine, fails, reports the holder and respects the lock while
// the first numaform holds the lock of the state.
func TestLockOfTheLiving(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(cli.ExitOK)
	w.must(os.CopyFS(filepath.Join(w.dir, "copy"), os.DirFS(w.fleet())))
	w.edit("manifests/pods.yaml", "replicas: 2", "replicas: 3")
	g := w.backend.hold("LOCK", operationApply, true)
	first := w.start(w.applyArgs()...)
	first.await(g)
	held := w.backend.locked()
	if out := w.numaform(cli.ExitFailed, w.applyArgs()...); !strings.Contains(out, "another numaform") {
		t.Errorf("a second numaform on this machine does not report the first:\n%s", out)
	}
	env := w.env
	w.env = append(env[:len(env):len(env)], "NUMAFORM_FLEET_DIR="+filepath.Join(w.dir, "copy"), "NUMAFORM_STATE_DIR="+filepath.Join(w.dir, "copy-state"))
	out := w.numaform(cli.ExitFailed, w.applyArgs()...)
	w.env = env
	if !strings.Contains(out, "locked by") {
		t.Errorf("a second numaform on another machine does not report the lock:\n%s", out)
	}
	if out := w.numaform(cli.ExitFailed, "unlock", busyHost); !strings.Contains(out, "the holder seems to run; nothing was released") {
		t.Errorf("unlock does not refuse to release the lock of a running apply:\n%s", out)
	}
	if now := w.backend.locked(); len(now) != 1 || now[0] != held[0] {
		t.Errorf("locks %v, were %v", now, held)
	}
	g.open(false)
	if code := first.wait(); code != cli.ExitOK {
		t.Errorf("the first numaform failed: exit code %d\n%s", code, first.said())
	}
	w.must(errors.Join(os.RemoveAll(filepath.Join(w.dir, "copy")), os.RemoveAll(filepath.Join(w.dir, "copy-state"))))
	w.converge(scaledUp + 1)
}

// TestLockOfTheUnknown checks that apply respects and reports a lock whose holder may be
// alive, and continues once an operator has released the lock with the command that apply
// and doctor print.
func TestLockOfTheUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(cli.ExitOK)
	w.edit("manifests/pods.yaml", "replicas: 2", "replicas: 3")
	account, err := json.Marshal(map[string]string{
		"ID": "5e1f0b9e-0000-4000-8000-000000000001", "Operation": operationApply, "Who": "mallory@elsewhere", "Created": "2026-01-02T03:04:05Z",
	})
	w.must(err)
	w.backend.mu.Lock()
	for path := range w.backend.states {
		w.backend.locks[path] = account
	}
	w.backend.mu.Unlock()
	w.mark()
	out := w.apply(cli.ExitFailed)
	if !strings.Contains(out, "5e1f0b9e-0000-4000-8000-000000000001") || !strings.Contains(out, "holder unknown") {
		t.Errorf("apply does not report the lock:\n%s", out)
	}
	if writes, locks := w.writes(), w.backend.locked(); len(writes) > 0 || len(locks) != 1 || !strings.Contains(locks[0], "mallory") {
		t.Errorf("writes %v, locks %v: want no writes, and the unknown holder's lock", writes, locks)
	}
	command := unlockCommand.FindStringSubmatch(out)
	if command == nil || !strings.Contains(w.numaform(cli.ExitFailed, "doctor"), command[0]) {
		t.Fatalf("apply and doctor do not print the command that releases the lock:\n%s", out)
	}
	if out := w.numaform(cli.ExitOK, "unlock", command[1], command[2], "--yes", "--reason", "elsewhere was sold"); !strings.Contains(out, "elsewhere is another machine") {
		t.Errorf("unlock does not say that the holder is unknown:\n%s", out)
	}
	if out := w.numaform(cli.ExitOK, "history"); !strings.Contains(out, "elsewhere was sold") {
		t.Errorf("the history does not show why the lock was released:\n%s", out)
	}
	w.numaform(cli.ExitOK, "history", "verify")
	w.converge(scaledUp + 1)
}
