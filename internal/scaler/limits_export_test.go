package scaler

import (
	"testing"
	"time"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Failures returns the changes in a history that count as failed while hosts are being
// applied.
func Failures(entries []audit.Entry, busy ...topology.HostID) (ids []string) {
	from := &reading{recent: entries, busy: map[topology.HostID]bool{}}
	for _, shard := range busy {
		from.busy[shard] = true
	}
	for _, event := range events(from, time.Now()) {
		if event.Failed {
			ids = append(ids, event.Change)
		}
	}
	return ids
}

// Events returns the events in the fleet's history for the limits.
func (s *Scaler) Events(t *testing.T) []guard.Event {
	t.Helper()
	now, err := s.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return events(now, s.config.Clock.Now())
}
