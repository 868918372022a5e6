package scaler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// TestFailures checks which changes count as failed: not the changes in progress, and not
// the changes that a later one completed. It ignores outcomes that this installation did
// not write.
func TestFailures(t *testing.T) {
	t.Parallel()
	begun := func(id string, creates int) audit.Entry {
		return audit.Entry{Verified: true, Change: audit.Change{
			ID: id, Time: time.Now(), Hosts: []audit.HostPlan{{Host: pve1, Create: make([]guard.Target, creates)}}, Open: []audit.Open{{Host: pve1}},
		}}
	}
	ended := func(id string, creates int, failure string) audit.Entry {
		e := begun(id, creates)
		e.Outcome, e.OutcomeVerified = &audit.Outcome{ID: id, Hosts: []audit.Ended{{Host: pve1, Error: failure}}}, true
		return e
	}
	failed := ended("failed", 1, "no room")
	if got := scaler.Failures([]audit.Entry{failed, begun("died", 1)}); !slices.Equal(got, []string{"failed", "died"}) {
		t.Errorf("with nobody at work: %v", got)
	}
	if got := scaler.Failures([]audit.Entry{failed, begun("goes on", 1)}, pve1); !slices.Equal(got, []string{"failed"}) {
		t.Errorf("while the last goes on: %v", got)
	}
	history := []audit.Entry{failed, begun("died", 1), ended("also failed", 1, "no room"), ended("finished it", 0, "")}
	if got := scaler.Failures(history); !slices.Equal(got, []string{"failed", "also failed"}) {
		t.Errorf("once another has finished it: %v", got)
	}
	if got := scaler.Failures([]audit.Entry{begun("died", 1), ended("too", 0, "no room")}); !slices.Equal(got, []string{"died"}) {
		t.Errorf("when what was to finish it failed: %v", got)
	}
	forged := ended("well", 1, "no room")
	forged.OutcomeVerified = false
	if got := scaler.Failures([]audit.Entry{forged}); len(got) > 0 {
		t.Errorf("an outcome that somebody else wrote: %v", got)
	}
	finish := ended("finished it", 0, "")
	finish.OutcomeVerified = false
	if got := scaler.Failures([]audit.Entry{begun("died", 1), finish}); !slices.Equal(got, []string{"died"}) {
		t.Errorf("a good end that somebody else wrote: %v", got)
	}
}

// TestEvents checks the numbers of creates and deletes of a change by host and pool.
func TestEvents(t *testing.T) {
	t.Parallel()
	now := time.Now()
	pve3 := topology.HostID{Region: pve1.Region, Host: "pve-3"}
	entry := audit.Entry{Verified: true, Change: audit.Change{ID: "c", Time: now.Add(-time.Minute), Hosts: []audit.HostPlan{
		{Host: pve1, Create: []guard.Target{{Pool: "a"}, {Pool: "b"}, {Pool: "a"}}, Delete: []guard.Target{{Pool: "a"}}},
		{Host: pve2, Update: []guard.Target{{Pool: "a"}}},
		{Host: pve3, Delete: []guard.Target{{Pool: "b"}, {Pool: "b"}}},
	}}}
	event := func(host topology.HostID, pool string, amount guard.Amount) guard.Event {
		return guard.Event{Change: "c", AgeSeconds: 60, Host: host, Pool: pool, Amount: amount}
	}
	want := []guard.Event{
		event(pve1, "a", guard.Amount{Creates: 2, Deletes: 1}),
		event(pve1, "b", guard.Amount{Creates: 1}),
		event(pve3, "b", guard.Amount{Deletes: 2}),
	}
	if diff := cmp.Diff(want, scaler.EventsOf([]audit.Entry{entry}, now)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
