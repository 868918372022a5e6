package scaler_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

// TestRecord looks at what a change leaves in the history before it happens.
func TestRecord(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil, vm(pve2, 2000))
	s.Begin(t, pve2, vm(pve2, 2000))
	change := propose(t, s, snapshot(), request(pve1))
	created := guard.Target{Address: "module.a", Key: "a"}
	plans := []scaler.ShardPlan{
		{Shard: pve1, Touched: true, Intent: guard.Intent{
			Create: []guard.Target{created},
			Import: []guard.Target{{Address: "module.b", Key: "b", Incomplete: true}, {Address: "module.c", Key: "c"}},
		}},
		{Shard: pve2},
	}
	plans[1].Note("broke a lock")
	record := s.Record(change, plans)
	if record.Kind != audit.KindScaleUp || !strings.Contains(record.Why, "pods need workers-2001") || !strings.HasPrefix(record.ID, record.Time.Format("20060102T150405Z-")) {
		t.Errorf("record %s: %s, %q", record.ID, record.Kind, record.Why)
	}
	before, err := s.History(t.Context(), time.Time{})
	if err != nil || len(before) != 1 {
		t.Fatalf("history %v, %v", before, err)
	}
	wantOpen := []audit.Open{
		{Host: pve1, Made: []guard.Target{created, {Address: "module.b", Key: "b", Incomplete: true}}, Change: record.ID},
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
