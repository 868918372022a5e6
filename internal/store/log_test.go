package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
)

// auditOf audits a store, and checks the number of records in its newest log.
func auditOf(t *testing.T, s *store.Sealed, size int64, checkpoints ...[]byte) *store.Audit {
	t.Helper()
	found, err := s.Audit(t.Context(), checkpoints...)
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Logs) == 0 || found.Logs[len(found.Logs)-1].Size != size {
		t.Errorf("logs %+v, want one with %d records", found.Logs, size)
	}
	return found
}

// wantIntact checks that a history has no faults.
func wantIntact(t *testing.T, s *store.Sealed, size int64) *store.Audit {
	t.Helper()
	found := auditOf(t, s, size)
	if len(found.Findings) > 0 || found.Rewritten != nil {
		t.Fatalf("findings %+v, rewritten %v", found.Findings, found.Rewritten)
	}
	return found
}

func TestLog(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		s, key := installation(t, p.open(t))
		for i := range 2 {
			begin(t, s, desired(), changed(i, 2000))
			end(t, s, changed(i))
		}
		if found := wantIntact(t, s, 4); len(found.Checkpoint) == 0 || found.Logs[0].Change != changed(1).ID {
			t.Errorf("checkpoint %q, logs %+v", found.Checkpoint, found.Logs)
		}
		again := store.NewSealed(p.open(t), store.FileVault(key), "prod")
		begin(t, again, desired(), changed(2))
		wantIntact(t, s, 5)
		begin(t, s, desired(), changed(3)) // its head is outdated
		end(t, again, changed(2))
		if found := wantIntact(t, again, 7); len(found.Unwritten) > 0 {
			t.Errorf("unwritten %+v", found.Unwritten)
		}
	})
}

// TestLogOfOlderHistory checks that records of versions without the log are its first leaves,
// and that records that such a version adds after a rollback are taken over.
func TestLogOfOlderHistory(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		old := p.open(t)
		begin(t, old, desired(), changed(0))
		end(t, old, changed(0))
		s, key := installation(t, p.open(t))
		begin(t, s, desired(), changed(1))
		end(t, s, changed(1))
		if found := wantIntact(t, s, 4); found.Logs[0].Imported != 2 {
			t.Errorf("logs %+v", found.Logs)
		}

		later := changed(int(time.Since(began).Minutes()) + 2)
		content, err := os.ReadFile(key)
		var stored struct{ Key []byte }
		if err == nil {
			err = json.Unmarshal(content, &stored)
		}
		if err != nil {
			t.Fatal(err)
		}
		private := audit.Key(stored.Key)
		sealed, err := private.SealChange("prod", later)
		if err != nil {
			t.Fatal(err)
		}
		begin(t, old, desired(), sealed)
		begin(t, old, desired(), changed(3)) // forged
		again := store.NewSealed(p.open(t), store.FileVault(key), "prod")
		last := changed(int(time.Since(began).Minutes()) + 5)
		begin(t, again, desired(), last)
		found := auditOf(t, again, 6)
		if len(found.Findings) != 1 || found.Findings[0].Fault != audit.FaultUnsealed || found.Findings[0].Change != changed(3).ID || found.Rewritten != nil {
			t.Errorf("findings %+v, want only the forged change", found.Findings)
		}
	})
}

// faulty is a store whose writes fail.
type faulty struct {
	store.Store
	err error
}

func (f *faulty) Begin(context.Context, store.Revision, generator.Files, audit.Change) error {
	return f.err
}

func (f *faulty) End(context.Context, audit.Outcome) error { return f.err }

// TestLogAfterFailedWrites checks that a number whose record was not written is named, and is
// no fault, and that a refused write uses no number.
func TestLogAfterFailedWrites(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p place) {
		s, key := installation(t, p.open(t))
		refuse := func(n int, want error) {
			t.Helper()
			broken := store.NewSealed(&faulty{p.open(t), want}, store.FileVault(key), "prod")
			_, base := readFrom(t, broken)
			if err := broken.Begin(t.Context(), base, desired(), changed(n)); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
		killed := errors.New("killed")
		refuse(0, killed) // the first record of the log
		begin(t, s, desired(), changed(1))
		refuse(2, store.ErrMoved)
		refuse(3, killed)
		refuse(4, killed)
		if found := auditOf(t, s, 2); found.Rewritten != nil || len(found.Findings) > 0 {
			t.Errorf("after a crash: %+v", found.Findings)
		}
		end(t, s, changed(1))
		found := wantIntact(t, s, 5)
		var unwritten []string
		for _, f := range found.Unwritten {
			unwritten = append(unwritten, f.Change)
		}
		if want := []string{changed(0).ID, changed(3).ID, changed(4).ID}; !slices.Equal(unwritten, want) {
			t.Errorf("unwritten %q, want %q", unwritten, want)
		}
	})
}

// TestLostRecords removes records, and accepts that.
func TestLostRecords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fleet")
	s, key := installation(t, store.NewDirectory(dir))
	for i := range 4 {
		begin(t, s, desired(), changed(i))
		end(t, s, changed(i))
	}
	remove := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.Remove(filepath.Join(dir, "history", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantIntact(t, s, 8)
	open := func() *store.Sealed { return store.NewSealed(store.NewDirectory(dir), store.FileVault(key), "prod") }
	accept := func(s *store.Sealed, n int, kind audit.Kind, found *store.Audit) {
		t.Helper()
		change := changed(n)
		change.Kind, change.Accepts = kind, audit.AcceptsOf(found.Open())
		begin(t, s, desired(), change)
		end(t, s, change)
	}
	refused := func(s *store.Sealed, older bool, want string) {
		t.Helper()
		_, base := readFrom(t, s)
		err := s.Begin(t.Context(), base, desired(), changed(20))
		held, is := errors.AsType[*store.RewrittenError](err)
		if !is || held.Older != older || !strings.Contains(err.Error(), want) {
			t.Errorf("a change after records were removed: %v", err)
		}
	}

	// A record in the middle: the writer learns it from the audit.
	remove(changed(1).ID + ".json")
	found := auditOf(t, s, 8)
	if found.Rewritten == nil || found.Rewritten.Older || len(found.Findings) != 1 || found.Findings[0].Number != 2 {
		t.Fatalf("a removed change: %+v", found.Findings)
	}
	s.Hold(found.Rewritten)
	refused(s, false, "numaform history accept --reason")
	accept(s, 5, audit.KindAccept, found)
	if found = auditOf(t, s, 10); found.Rewritten != nil || len(found.Open()) > 0 || len(found.Findings) != 1 {
		t.Fatalf("accepted: %+v", found.Findings)
	}
	s.Hold(nil)

	// The last outcome: the newest change is still there.
	remove(changed(5).ID + ".outcome.json")
	refused(open(), false, "numaform history accept --reason")
	// The last change: the store may be older than the history.
	remove(changed(5).ID + ".json")
	s = open()
	running := open() // another process, such as a controller
	refused(s, true, "numaform history accept-restore --reason")
	refused(running, true, "numaform history accept-restore --reason")
	found = auditOf(t, s, 8)
	if found.Rewritten == nil || !found.Rewritten.Older {
		t.Fatalf("a removed end: %+v", found.Findings)
	}
	accept(s, 7, audit.KindAcceptRestore, found)
	again := open()
	if found = auditOf(t, again, 2); found.Rewritten != nil || len(found.Logs) != 2 {
		t.Fatalf("accepted: %+v, logs %+v", found.Open(), found.Logs)
	}
	begin(t, again, desired(), changed(8))
	begin(t, running, desired(), changed(9))
}

// TestRestoredVault restores the store and the vault to an older state: only a checkpoint in
// another place shows it.
func TestRestoredVault(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fleet, keys, backup := filepath.Join(dir, "fleet"), filepath.Join(dir, "keys"), filepath.Join(dir, "backup")
	open := func() *store.Sealed {
		return store.NewSealed(store.NewDirectory(fleet), store.FileVault(filepath.Join(keys, "key")), "prod")
	}
	s := open()
	for i := range 2 {
		begin(t, s, desired(), changed(i))
		end(t, s, changed(i))
	}
	wantIntact(t, s, 4)
	for _, part := range []string{fleet, keys} {
		if err := os.CopyFS(filepath.Join(backup, filepath.Base(part)), os.DirFS(part)); err != nil {
			t.Fatal(err)
		}
	}
	begin(t, s, desired(), changed(2))
	elsewhere := wantIntact(t, s, 5).Checkpoint
	for _, part := range []string{fleet, keys} {
		if err := os.RemoveAll(part); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(part, os.DirFS(filepath.Join(backup, filepath.Base(part)))); err != nil {
			t.Fatal(err)
		}
	}
	s = open()
	wantIntact(t, s, 4)
	found := auditOf(t, s, 4, elsewhere)
	if found.Rewritten == nil || !found.Rewritten.Older {
		t.Fatalf("restored: %+v", found.Findings)
	}
	s.Hold(found.Rewritten)
	accept := changed(3)
	accept.Kind, accept.Accepts = audit.KindAcceptRestore, audit.AcceptsOf(found.Open())
	begin(t, s, desired(), accept)
	s.Hold(nil)
	for i := range 3 {
		begin(t, s, desired(), changed(4+i))
	}
	if found = auditOf(t, open(), 4, elsewhere); found.Rewritten != nil || len(found.Findings) != 1 {
		t.Errorf("accepted: %+v", found.Findings)
	}
}

// TestTwoMachines checks that two machines with one key and one repository have a log each.
func TestTwoMachines(t *testing.T) {
	t.Parallel()
	remote := bare(t)
	open := func(key string) *store.Sealed {
		return store.NewSealed(openGit(t, store.GitConfig{Clone: t.TempDir(), Remote: remote}), store.FileVault(key), "prod")
	}
	first, second := filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "key")
	a := open(first)
	begin(t, a, desired(), changed(0))
	content, err := os.ReadFile(first)
	if err == nil {
		err = os.WriteFile(second, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := open(second)
	begin(t, b, desired(), changed(1))
	begin(t, a, desired(), changed(2))
	end(t, b, changed(1))
	end(t, a, changed(0))
	end(t, a, changed(2))
	for _, s := range []*store.Sealed{a, b, open(first)} {
		found, err := s.Audit(t.Context())
		if err != nil || len(found.Findings) > 0 || len(found.Logs) != 2 || found.Logs[0].Size != 4 || found.Logs[1].Size != 2 {
			t.Errorf("%+v, %v", found, err)
		}
	}
}
