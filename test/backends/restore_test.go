package backends_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
)

// elsewhere returns another checkout of the fleet, with an empty backend.
func (r *root) elsewhere(t *testing.T, s *site) *root {
	t.Helper()
	other := *r
	other.site, other.dir, other.home = s, t.TempDir(), filepath.Join(t.TempDir(), "terraform.tfstate")
	other.fleet.Backend = s.Backend
	other.render(t)
	return &other
}

// TestBackup reads a state for a backup, and restores it into an empty backend of the same kind:
// the next plan has no changes, and no VM was touched. A state that the backend already has is
// not written again, and no lock remains.
func TestBackup(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string, engine *state.Engine) {
		r := newRoot(t, newSite(t, kind, false), engine, 1)
		w := r.open(t, here)
		if content, err := w.Pull(t.Context()); err != nil || content != nil {
			t.Errorf("a backup of no state: %q, %v", content, err)
		}
		apply(t, w, plan(t, w, state.PlanOptions{}))
		content, err := w.Pull(t.Context())
		must(t, err)
		if !strings.Contains(string(content), r.fleet.VMs[0].Name) {
			t.Fatalf("the backup is %.300s", content)
		}
		r.unlocked(t)
		before, _ := r.sim.Guest(2001)

		lost := r.elsewhere(t, newSite(t, kind, false))
		restored := lost.open(t, here)
		if kept, err := restored.Restore(t.Context(), content); err != nil || kept != "" {
			t.Fatalf("the state was not written: %q, %v", kept, err)
		}
		if diff := cmp.Diff([]string{generator.Address(&r.fleet.VMs[0])}, addresses(t, restored)); diff != "" {
			t.Errorf("state: %s", diff)
		}
		settled(t, restored)
		// The engines give a state in an empty remote backend another lineage.
		if kept, err := restored.Restore(t.Context(), content); err != nil || !strings.Contains(kept, "serial") && !strings.Contains(kept, "lineage") {
			t.Errorf("the state was written again: %q, %v", kept, err)
		}
		lost.unlocked(t)
		if after, _ := r.sim.Guest(2001); after.Raw != before.Raw || !after.Running {
			t.Errorf("the VM changed: %s", cmp.Diff(before.Raw, after.Raw))
		}
	})
}

// TestBackupOfEncryptedState checks that a backup contains a state decrypted, because the backup
// itself is encrypted, and that a restore encrypts it again.
func TestBackupOfEncryptedState(t *testing.T) {
	t.Parallel()
	tofu := engines(t)[0]
	r := newRoot(t, newSite(t, "http", false), tofu, 1)
	w := r.open(t, here, encrypted)
	apply(t, w, plan(t, w, state.PlanOptions{}))
	content, err := w.Pull(t.Context())
	must(t, err)
	name := r.fleet.VMs[0].Name
	if !strings.Contains(string(content), name) || strings.Contains(string(content), "encrypted_data") {
		t.Fatalf("the backup is not decrypted: %.300s", content)
	}
	server := testenv.HTTPState(t)
	s := &site{locks: func(testing.TB) int { return len(server.Locks()) }}
	s.Type, s.Config = "http", map[string]string{"address": server.URL, "retry_max": "0"}
	restored := r.elsewhere(t, s).open(t, here, encrypted)
	if kept, err := restored.Restore(t.Context(), content); err != nil || kept != "" {
		t.Fatalf("the state was not written: %q, %v", kept, err)
	}
	settled(t, restored)
	if len(server.States()) != 1 {
		t.Errorf("%d states", len(server.States()))
	}
	for path, stored := range server.States() {
		if text := string(stored); strings.Contains(text, name) || !strings.Contains(text, "encrypted_data") {
			t.Errorf("the restored state at %s is not encrypted: %.300s", path, text)
		}
	}
}
