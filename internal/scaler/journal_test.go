package scaler_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
)

func TestJournal(t *testing.T) {
	t.Parallel()
	s := newScaler(t, func(config *scaler.Config) {
		// Characters that a pattern would take for its own.
		config.Store = store.NewDirectory(filepath.Join(t.TempDir(), "fl[e]e*t"))
	})
	j := s.Journal()
	check := func(when string, shards []fleet.Shard, removed ...fleet.VM) {
		t.Helper()
		got, err := j.Shards()
		if diff := cmp.Diff(shards, got); err != nil || diff != "" {
			t.Errorf("%s: shards (-want +got): %v\n%s", when, err, diff)
		}
		vms, err := j.Removed(pve1)
		if diff := cmp.Diff(removed, vms); err != nil || diff != "" {
			t.Errorf("%s: removed (-want +got): %v\n%s", when, err, diff)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check("at first", nil)
	must(j.Begin(pve1, nil))
	check("begun", []fleet.Shard{pve1})
	must(j.Begin(pve1, []fleet.VM{vm(pve1, 2000)}))
	// The run died; the next adds to what it left.
	must(j.Begin(pve1, []fleet.VM{vm(pve1, 2001)}))
	must(j.Begin(pve2, nil))
	check("begun again", []fleet.Shard{pve1, pve2}, vm(pve1, 2000), vm(pve1, 2001))
	must(j.End(pve1))
	must(j.End(pve1))
	check("ended", []fleet.Shard{pve2})
}

func TestJournalThatIsBroken(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil, vm(pve1, 2000))
	j := s.Journal()
	if err := j.Begin(pve1, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(j.Path(pve1), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := s.Look(t.Context(), propose(t, s, snapshot()), pve1)
	if err == nil || !strings.Contains(err.Error(), j.Path(pve1)) || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("got %v", err)
	}
}
