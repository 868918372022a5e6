package state_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/state"
)

// TestMovedStates checks that a local state at a new path is used if it was moved there
// after the engine recorded the old path, and refused if it was copied.
func TestMovedStates(t *testing.T) {
	t.Parallel()
	at := func(path string) func(*state.Config) {
		return func(c *state.Config) { c.BackendConfig = map[string]string{"path": path} }
	}
	// applied returns a directory with a state at was.
	applied := func(t *testing.T, was string) string {
		t.Helper()
		dir := root(t, localBackend)
		w := open(t, dir, at(was))
		mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	settled := func(t *testing.T, dir, now string) {
		t.Helper()
		if plan := mustPlan(t, open(t, dir, at(now)), state.PlanOptions{}); plan.Changes {
			t.Errorf("the state at the new path is not used:\n%s", plan.Text)
		}
	}

	t.Run("moved", func(t *testing.T) {
		t.Parallel()
		states := t.TempDir()
		was, now := filepath.Join(states, "was.tfstate"), filepath.Join(states, "now.tfstate")
		dir := applied(t, was)
		if err := os.Rename(was, now); err != nil {
			t.Fatal(err)
		}
		settled(t, dir, now)
	})
	t.Run("the same file", func(t *testing.T) {
		t.Parallel()
		states := t.TempDir()
		was, now := filepath.Join(states, "was.tfstate"), filepath.Join(states, "now.tfstate")
		dir := applied(t, was)
		if err := os.Symlink(was, now); err != nil {
			t.Fatal(err)
		}
		settled(t, dir, now)
	})
	t.Run("relative, and moved", func(t *testing.T) {
		t.Parallel()
		dir := applied(t, "was.tfstate")
		now := filepath.Join(t.TempDir(), "now.tfstate")
		if err := os.Rename(filepath.Join(dir, "was.tfstate"), now); err != nil {
			t.Fatal(err)
		}
		settled(t, dir, now)
	})
	for name, was := range map[string]string{"copied": filepath.Join(t.TempDir(), "was.tfstate"), "relative, and copied": "was.tfstate"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := applied(t, was)
			if !filepath.IsAbs(was) {
				was = filepath.Join(dir, was)
			}
			now := filepath.Join(t.TempDir(), "now.tfstate")
			write(t, filepath.Dir(now), "now.tfstate", string(mustRead(t, was)))
			_, err := open(t, dir, at(now)).Plan(t.Context(), state.PlanOptions{})
			var moved *state.MovedStateError
			if !errors.As(err, &moved) || *moved != (state.MovedStateError{Dir: dir, Was: was, Wanted: now}) {
				t.Fatalf("got %v, want a refusal that names both files", err)
			}
			if text := err.Error(); !strings.Contains(text, was) || !strings.Contains(text, now) || !strings.Contains(text, "remove the other") {
				t.Errorf("message is %q", text)
			}
		})
	}
	t.Run("another backend", func(t *testing.T) {
		t.Parallel()
		was := filepath.Join(t.TempDir(), "was.tfstate")
		dir := applied(t, was)
		b := newBackend(t)
		write(t, dir, "main.tf", httpBackend(b))
		if _, err := open(t, dir, nil).Plan(t.Context(), state.PlanOptions{}); err == nil || !strings.Contains(err.Error(), "Backend configuration changed") {
			t.Errorf("got %v, want the engine's refusal: the states would remain in the old backend", err)
		}
	})
}
