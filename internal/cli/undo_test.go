package cli //nolint:testpackage // reports have no exported form

import (
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/topology"
)

// TestUndoTarget checks which change undo reverts or finishes, also after a retry.
func TestUndoTarget(t *testing.T) {
	t.Parallel()
	host := topology.HostID{Region: "homelab", Host: "pve-1"}
	entry := func(id string, kind audit.Kind, verified, finished bool) audit.Entry {
		e := audit.Entry{Verified: verified, OutcomeVerified: verified}
		e.Change = audit.Change{ID: id, Kind: kind, Added: []fleet.VM{{Name: "workers-2000"}}, Open: []audit.Open{{Host: host}}}
		if finished {
			e.Outcome = &audit.Outcome{Hosts: []audit.Ended{{Host: host}}}
		}
		return e
	}
	up := entry("up", audit.KindScaleUp, true, true)
	for _, test := range []struct {
		name, id          string
		entries           []audit.Entry
		undone, finishing string
		fails             bool
	}{
		{name: "the last change", entries: []audit.Entry{up}, undone: "up"},
		{name: "a named change", id: "up", entries: []audit.Entry{up, entry("later", audit.KindScaleUp, true, true)}, undone: "up"},
		{name: "an interrupted undo", entries: []audit.Entry{up, entry("undo", audit.KindUndo, true, false)}, finishing: "undo"},
		{name: "a finished undo", entries: []audit.Entry{up, entry("undo", audit.KindUndo, true, true)}, undone: "undo"},
		{name: "an unverified undo", entries: []audit.Entry{up, entry("forged", audit.KindUndo, false, false)}, undone: "up"},
		{
			name: "an unverified change after an interrupted undo", finishing: "undo",
			entries: []audit.Entry{up, entry("undo", audit.KindUndo, true, false), entry("forged", audit.KindScaleUp, false, true)},
		},
		{name: "a named unverified change", id: "forged", entries: []audit.Entry{up, entry("forged", audit.KindScaleUp, false, true)}, fails: true},
		{name: "an unknown change", id: "other", entries: []audit.Entry{up}, fails: true},
		{name: "no change", fails: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			target := undoTarget{id: test.id}
			check := func() {
				t.Helper()
				undone := ""
				if target.undone != nil {
					undone = target.undone.ID
				}
				if undone != test.undone || target.finishing != test.finishing {
					t.Errorf("reverts %q and finishes %q, want %q and %q", undone, target.finishing, test.undone, test.finishing)
				}
			}
			if err := target.choose(test.entries); (err != nil) != test.fails {
				t.Fatalf("error %v", err)
			}
			check()
			if test.fails {
				return
			}
			// Before a retry, another process finishes the undo and changes the fleet.
			retry := []audit.Entry{up, entry("undo", audit.KindUndo, true, true), entry("other", audit.KindScaleUp, true, true)}
			if err := target.choose(retry); err != nil {
				t.Fatal(err)
			}
			check()
		})
	}
}
