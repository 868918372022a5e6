package scaler_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

// TestRecord checks the record of a change before it is applied.
func TestRecord(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil, vm(pve2, 2000))
	s.Begin(t, pve2, vm(pve2, 2000))
	change := propose(t, s, snapshot(), request(pve1))
	created := guard.Target{Address: "module.a", Key: "a"}
	plans := []scaler.RootPlan{
		{Host: pve1, Touched: true, Intent: guard.Intent{
			Create: []guard.Target{created},
			Import: []guard.Target{{Address: "module.b", Key: "b", Incomplete: true}, {Address: "module.c", Key: "c"}},
		}},
		{Host: pve2},
	}
	plans[1].Note("broke a lock")
	record := s.Record(change, plans)
	if record.Kind != audit.KindScaleUp || record.Why != "create workers-2001" || !strings.HasPrefix(record.ID, record.Time.Format("20060102T150405Z-")) {
		t.Errorf("record %s: %s, %q", record.ID, record.Kind, record.Why)
	}
	before, err := s.History(t.Context(), time.Time{})
	if err != nil || len(before) != 1 {
		t.Fatalf("history %v, %v", before, err)
	}
	wantOpen := []audit.Open{
		{Host: pve1, Made: []guard.Target{created, {Address: "module.b", Key: "b", Incomplete: true}}, Updated: []fleet.Key{"b"}, Change: record.ID},
		{Host: pve2, Removed: []fleet.VM{vm(pve2, 2000)}, Change: before[0].Change.ID},
	}
	if diff := cmp.Diff(wantOpen, record.Open); diff != "" {
		t.Errorf("open (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"broke a lock"}, record.Outside); diff != "" {
		t.Errorf("outside (-want +got):\n%s", diff)
	}
	if !before[0].Change.Time.Before(record.Time) || before[0].Change.ID >= record.ID {
		t.Errorf("history %v: want one change before %s", before, record.ID)
	}
}

// TestRecordOfRestedVMs checks that a VM that is a standby VM again is no unfinished work, and
// that the wakes of other VMs still are.
func TestRecordOfRestedVMs(t *testing.T) {
	t.Parallel()
	rested, waits := vm(pve1, 2000), vm(pve1, 2001)
	for _, woken := range [][]fleet.VM{{rested}, {rested, waits}} {
		change := propose(t, newScaler(t, nil), snapshot()).Waking(pve1, woken...)
		change.Rested = []fleet.VM{rested}
		record := newScaler(t, nil).Record(change, nil)
		var left []audit.Open
		if len(woken) > 1 {
			left = []audit.Open{{Host: pve1, Woken: []fleet.Key{waits.Key}}}
		}
		if diff := cmp.Diff(left, record.Open); diff != "" {
			t.Errorf("open (-want +got):\n%s", diff)
		}
		if record.Kind != audit.KindRecovery || record.Why != "not started, standby again: workers-2000" || !record.Names(rested.Name) {
			t.Errorf("it is a %s: %s", record.Kind, record.Why)
		}
	}
}

// TestKinds checks which kind of change the history shows.
func TestKinds(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil, vm(pve1, 2000))
	one := []fleet.VM{vm(pve1, 2000)}
	updated := guard.Intent{Update: []guard.Target{{Address: "module.a"}}}
	empty := func() *scaler.Change { return propose(t, s, snapshot(guestOf(one[0]))) }
	repair := func() *scaler.Change {
		change := empty()
		change.Kind = audit.KindRepair
		return change
	}
	for _, tt := range []struct {
		name   string
		change *scaler.Change
		plan   scaler.RootPlan
		want   audit.Kind
	}{
		{"new VMs", propose(t, s, snapshot(guestOf(one[0])), request(pve1)), scaler.RootPlan{TakenOut: one}, audit.KindScaleUp},
		{"nothing", empty(), scaler.RootPlan{}, audit.KindRecovery},
		{"a file deleted", empty(), scaler.RootPlan{TakenOut: one}, audit.KindByHand},
		{"a file added", empty(), scaler.RootPlan{Made: one}, audit.KindByHand},
		{"a file of a change that did not end", empty().Begun(pve1), scaler.RootPlan{Made: one}, audit.KindRecovery},
		{"an update", empty(), scaler.RootPlan{Intent: updated}, audit.KindRecovery},
		{"a repair", repair(), scaler.RootPlan{Intent: updated}, audit.KindRepair},
		{"a repair of nothing", repair(), scaler.RootPlan{}, audit.KindRecovery},
		{"a repair beside a deleted file", repair(), scaler.RootPlan{Intent: updated, TakenOut: one}, audit.KindByHand},
	} {
		tt.plan.Host = pve1
		record := s.Record(tt.change, []scaler.RootPlan{tt.plan})
		if record.Kind != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, record.Kind, tt.want)
		}
		// A repeated apply adds nothing: the unfinished change has the VM in its record.
		if added := len(record.Added); tt.want == audit.KindByHand && added != len(tt.plan.Made) {
			t.Errorf("%s: %d VMs added, want %d", tt.name, added, len(tt.plan.Made))
		}
		if tt.want == audit.KindRecovery && len(record.Added) != 0 {
			t.Errorf("%s: %v added, want none", tt.name, record.Added)
		}
	}
}

// TestWritesOutsideAPlan checks that writes that no plan contains are recorded soon, even
// without another change, because they are lost if the process dies.
func TestWritesOutsideAPlan(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	s := newScaler(t, func(config *scaler.Config) { config.Clock = clock }, vm(pve2, 2000))
	change := propose(t, s, snapshot())
	if change.Writes() {
		t.Error("a change of nothing is recorded")
	}
	if !change.Writes("uploaded a seed") {
		t.Error("a write that no plan holds is not recorded")
	}
	writer := scaler.NewWriter(s, scaler.WriterConfig{})
	for i, want := range []bool{false, false, true} {
		if got := writer.OutsideDue(); got != want {
			t.Errorf("after %d seconds: %t, want %t", i, got, want)
		}
		writer.Record([]string{"uploaded a seed"})
		clock.Step(time.Second)
	}
}

// TestTimesOfRecords checks the times and IDs of records, which sort in the order of the
// changes even if a clock is behind.
func TestTimesOfRecords(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 13, 0, 0, 123456789, time.FixedZone("CET", 3600))
	clock := clocktesting.NewFakeClock(now)
	s := newScaler(t, func(config *scaler.Config) { config.Clock = clock }, vm(pve1, 2000))
	first := s.Record(propose(t, s, snapshot(), request(pve1)), nil)
	if !first.Time.Equal(now) || first.Time.Location() != time.UTC || !strings.HasPrefix(first.ID, "20261122T120000Z-123456") {
		t.Errorf("record %s is of %s, want %s in UTC", first.ID, first.Time, now)
	}
	begin(t, s, propose(t, s, snapshot(), request(pve1)), nil)
	clock.SetTime(now.Add(-time.Hour)) // another machine of this installation
	if next := s.Record(propose(t, s, snapshot()), nil); !next.Time.Equal(now.Add(time.Microsecond)) || next.ID <= first.ID {
		t.Errorf("record %s is of %s, want right after %s", next.ID, next.Time, first.ID)
	}
	clock.SetTime(now.Add(3 * time.Minute))
	got := s.Outcome(first.ID, now.Add(time.Minute), []scaler.Result{{Host: pve1, Duration: time.Second}, {Host: pve2, Duration: 2 * time.Second, Err: errors.New("no room")}})
	want := audit.Outcome{ID: first.ID, Time: now.Add(3 * time.Minute).UTC(), Duration: 2 * time.Minute, Hosts: []audit.Ended{
		{Host: pve1, Duration: time.Second}, {Host: pve2, Duration: 2 * time.Second, Error: "no room"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
}
