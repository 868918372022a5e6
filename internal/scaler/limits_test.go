package scaler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
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

// TestEventsOfRetriedRemovals checks that a VM whose removal is retried counts as one delete on
// its host, at the time of the last attempt, and not at all in a change that retries it again. A
// VM that was re-created meanwhile counts twice.
func TestEventsOfRetriedRemovals(t *testing.T) {
	t.Parallel()
	now := time.Now()
	target := func(key fleet.Key) guard.Target { return guard.Target{Key: key, Pool: "a"} }
	entry := func(id string, age time.Duration, hosts ...audit.HostPlan) audit.Entry {
		return audit.Entry{Verified: true, Change: audit.Change{ID: id, Time: now.Add(-age), Hosts: hosts}}
	}
	history := []audit.Entry{
		entry("removes it the first time", 5*time.Minute, audit.HostPlan{Host: pve1, Delete: []guard.Target{target("back")}}),
		entry("creates it again", 4*time.Minute, audit.HostPlan{Host: pve1, Create: []guard.Target{target("back")}}),
		entry("removes", 3*time.Minute, audit.HostPlan{Host: pve1, Create: []guard.Target{target("new")}, Delete: []guard.Target{target("stuck"), target("back")}}),
		entry("removes elsewhere", 2*time.Minute, audit.HostPlan{Host: pve2, Delete: []guard.Target{target("stuck")}}),
		entry("retries", time.Minute, audit.HostPlan{Host: pve1, Delete: []guard.Target{target("stuck")}}),
	}
	event := func(id string, age int64, host topology.HostID, amount guard.Amount) guard.Event {
		return guard.Event{Change: id, AgeSeconds: age, Host: host, Pool: "a", Amount: amount}
	}
	first, other := event("removes", 180, pve1, guard.Amount{Creates: 1, Deletes: 1}), event("removes elsewhere", 120, pve2, guard.Amount{Deletes: 1})
	back := []guard.Event{
		event("removes it the first time", 300, pve1, guard.Amount{Deletes: 1}), event("creates it again", 240, pve1, guard.Amount{Creates: 1}),
	}
	want := append(slices.Clone(back), first, other, event("retries", 60, pve1, guard.Amount{Deletes: 1}))
	if diff := cmp.Diff(want, scaler.EventsOf(history, now)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	again := guard.HostIntent{Host: pve1, Intent: guard.Intent{Delete: []guard.Target{target("stuck")}}}
	if diff := cmp.Diff(append(back, first, other), scaler.EventsOf(history, now, again)); diff != "" {
		t.Errorf("events for a change that retries it (-want +got):\n%s", diff)
	}
}

// TestClockWasAhead records one change while the clock is a month ahead. Once the clock is
// right again, changes leave the window of the limits as usual, although their records have times
// after the first one.
func TestClockWasAhead(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	clock := clocktesting.NewFakeClock(now.AddDate(0, 0, 30))
	s := newScaler(t, func(config *scaler.Config) { config.Clock = clock }, vm(pve1, 2000))
	ten := make([]guard.Target, 10)
	for i := range ten {
		ten[i].Pool = "workers"
	}
	for range 32 {
		parts := []guard.HostIntent{{Host: pve1, Intent: guard.Intent{Create: ten}}}
		if verdict := guard.CheckLimits(parts, s.Events(t), guard.DefaultLimits()); verdict.Decision != guard.Allow {
			t.Fatalf("at %s: %+v", clock.Now(), verdict)
		}
		change := propose(t, s, snapshot())
		record := s.Record(change, nil)
		record.Hosts = []audit.HostPlan{{Host: pve1, Create: ten}}
		record.Open = []audit.Open{{Host: pve1}}
		_, revision, err := s.Store().Read(t.Context())
		if err == nil {
			err = s.Store().Begin(t.Context(), revision, change.AfterFiles, record)
		}
		began := clock.Now()
		clock.Step(time.Minute)
		if err == nil {
			err = s.Store().End(t.Context(), s.Outcome(record.ID, began, []scaler.Result{{Host: pve1, Duration: time.Minute}}))
		}
		if err != nil {
			t.Fatal(err)
		}
		if clock.Now().After(now.AddDate(0, 0, 30)) {
			clock.SetTime(now)
		}
		clock.Step(14 * time.Minute)
	}
}

// TestEventsOfAClockThatWasAhead checks the ages of changes whose times are in the future: not
// before the change ended, nor after the next change.
func TestEventsOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	now := time.Now()
	entry := func(id string, at, ended time.Duration, verified bool) audit.Entry {
		e := audit.Entry{Verified: true, Change: audit.Change{
			ID: id, Time: now.Add(at), Hosts: []audit.HostPlan{{Host: pve1, Create: make([]guard.Target, 1)}},
		}}
		if ended != 0 {
			e.Outcome, e.OutcomeVerified = &audit.Outcome{ID: id, Time: now.Add(ended)}, verified
		}
		return e
	}
	const month = 30 * 24 * time.Hour
	history := []audit.Entry{
		entry("before", -3*time.Hour, -time.Hour, true),
		entry("ahead", month, month+time.Minute, true),
		entry("died", month+1, 0, false),
		entry("ended", month+2, -time.Hour, true),
		entry("forged", month+3, -2*time.Hour, false),
		entry("in parallel", month+4, -time.Minute, true),
		entry("ended first", month+5, -2*time.Minute, true),
		entry("applied now", month+6, 0, false),
	}
	ages := map[string]int64{}
	for _, event := range scaler.EventsOf(history, now) {
		ages[event.Change] = event.AgeSeconds
	}
	want := map[string]int64{
		"before": 10800, "ahead": 3600, "died": 3600, "ended": 3600, "forged": 120, "in parallel": 120, "ended first": 120, "applied now": 0,
	}
	if diff := cmp.Diff(want, ages); diff != "" {
		t.Errorf("ages (-want +got):\n%s", diff)
	}
}
