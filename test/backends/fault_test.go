package backends_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
)

// TestBackendDown checks that a plan changes nothing while the state server is unreachable,
// and that an apply during which the server becomes unreachable stores the state locally, so
// that the next run saves it.
func TestBackendDown(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string, engine *state.Engine) {
		if kind == "local" {
			return // a file cannot be unreachable
		}
		r := newRoot(t, newSite(t, kind, true), engine, 1)
		w := r.open(t, here)
		must(t, w.Init(t.Context()))
		r.down(t)
		_, err := w.Plan(t.Context(), state.PlanOptions{})
		tellsBackend(t, err, kind, "nothing was changed")
		_, err = r.beside(t, engine).open(t, here).Recover(t.Context())
		must(t, err) // no repair is needed, so the server is not used
		r.up(t)

		done, release := r.applyHeld(t, w)
		r.down(t)
		release()
		tellsBackend(t, <-done, kind, "errored.tfstate and the next run saves it first")
		r.up(t)
		r.saves(t, w, engine)
		settled(t, w)
		if diff := cmp.Diff([]string{generator.Address(&r.fleet.VMs[0])}, addresses(t, w)); diff != "" {
			t.Errorf("state: %s", diff)
		}
	})
}

// saves checks that Recover saves the state that the backend did not accept. The lock could
// not be released either; Recover breaks it if the backend reports its holder.
func (r *root) saves(t *testing.T, w *state.Workspace, engine *state.Engine) {
	t.Helper()
	recovery, err := w.Recover(t.Context())
	outside := recovery.Outside
	if r.outlives && !r.tells(engine) {
		var locked *state.LockedError
		if !errors.As(err, &locked) {
			t.Fatalf("got %v, want a lock of an unknown holder", err)
		}
		must(t, w.Unlock(t.Context(), locked.ID))
		recovery, err = w.Recover(t.Context())
		outside = append(outside, recovery.Outside...)
	}
	must(t, err)
	lines := strings.Join(outside, "\n")
	broken := strings.Contains(lines, "that process is this one, and saw its engine end")
	if !recovery.Pushed || !strings.Contains(lines, "that the backend had not accepted") || broken != (r.outlives && r.tells(engine)) {
		t.Errorf("recovery is %+v with %q, want the state saved", recovery, outside)
	}
}

// tellsBackend checks that an error names the backend and a fix.
func tellsBackend(t *testing.T, err error, kind, text string) {
	t.Helper()
	var failed *state.CommandError
	if !errors.As(err, &failed) || failed.Backend != kind || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "then run numaform again") {
		t.Fatalf("got %v, want an error of the %s backend with %q", err, kind, text)
	}
	t.Log(err)
}

// TestMovedFleet checks that numaform rejects a copy of a fleet with local states while the
// original exists, and finds the states of a fleet that was moved.
func TestMovedFleet(t *testing.T) {
	t.Parallel()
	for _, engine := range engines(t) {
		t.Run(engine.Name(), func(t *testing.T) {
			t.Parallel()
			r := newRoot(t, newSite(t, "local", false), engine, 1)
			r.home = filepath.Join(r.dir, "states", "terraform.tfstate")
			w := r.open(t, here)
			apply(t, w, plan(t, w, state.PlanOptions{}))
			must(t, w.Close())

			copied := filepath.Join(t.TempDir(), "copy")
			must(t, os.CopyFS(copied, os.DirFS(r.dir)))
			moved := *r
			moved.dir = copied
			moved.home = filepath.Join(moved.dir, "states", "terraform.tfstate")
			_, err := moved.open(t, here).Plan(t.Context(), state.PlanOptions{})
			var elsewhere *state.MovedStateError
			if !errors.As(err, &elsewhere) || elsewhere.Was != r.home || elsewhere.Wanted != moved.home {
				t.Errorf("a copy: got %v, want a refusal that names both files", err)
			}

			moved.dir = filepath.Join(t.TempDir(), "moved")
			moved.home = filepath.Join(moved.dir, "states", "terraform.tfstate")
			must(t, os.Rename(r.dir, moved.dir))
			settled(t, moved.open(t, here))
		})
	}
}

// TestStateInTheDirectory checks that a local state in the engine's working directory is still
// used after the engine's other files were deleted. Without protection, the engine would treat
// the file as a state to migrate, and empty it.
func TestStateInTheDirectory(t *testing.T) {
	t.Parallel()
	for _, engine := range engines(t) {
		t.Run(engine.Name(), func(t *testing.T) {
			t.Parallel()
			r := newRoot(t, newSite(t, "local", false), engine, 1)
			r.home = filepath.Join(r.root(here), "terraform.tfstate")
			w := r.open(t, here)
			apply(t, w, plan(t, w, state.PlanOptions{}))
			rebuild(t, w)
			settled(t, w)
		})
	}
}

// encryption is OpenTofu's encryption configuration, with its key.
const encryption = `key_provider "pbkdf2" "k" {
  passphrase = "canary-of-encryption"
}
method "aes_gcm" "m" {
  keys = key_provider.pbkdf2.k
}
state {
  method   = method.aes_gcm.m
  enforced = true
}`

// TestEncryptedState checks that OpenTofu encrypts states, including one that it could not
// save at first.
func TestEncryptedState(t *testing.T) {
	t.Parallel()
	tofu := engines(t)[0]
	server := testenv.HTTPState(t)
	s := &site{locks: func(testing.TB) int { return len(server.Locks()) }}
	s.Type, s.Config = "http", map[string]string{"address": server.URL, "retry_max": "0"}
	r := newRoot(t, s, tofu, 1)
	w := r.open(t, here, encrypted)
	p := plan(t, w, state.PlanOptions{})
	server.Refuse("POST")
	if _, err := w.Apply(t.Context(), p); err == nil {
		t.Fatal("the state was saved by a server that must refuse it")
	}
	server.Refuse()
	name := r.fleet.VMs[0].Name
	for _, secret := range []string{"canary-of-encryption", `"` + name + `"`} {
		for _, file := range search(t, r.dir, secret) {
			if strings.HasSuffix(file, "tfstate") {
				t.Errorf("%s contains %s", file, secret)
			}
		}
	}
	recovery, err := w.Recover(t.Context())
	if err != nil || !recovery.Pushed {
		t.Fatalf("got %+v, %v, want the state saved", recovery, err)
	}
	settled(t, w)
	for path, content := range server.States() {
		if text := string(content); strings.Contains(text, name) || !strings.Contains(text, "encrypted_data") {
			t.Errorf("the state at %s is not encrypted: %.300s", path, text)
		}
	}
	for _, engine := range engines(t)[1:] {
		config := r.config(t, here)
		config.Engine = engine
		encrypted(&config)
		if _, err := state.New(config); err == nil || !strings.Contains(err.Error(), "engine is terraform") {
			t.Errorf("with terraform: %v", err)
		}
	}
}

func encrypted(c *state.Config) {
	c.Encryption = true
	c.Env["TF_ENCRYPTION"] = encryption
}
