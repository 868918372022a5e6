package scaler

import (
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state/guard"
)

// Failures returns the changes in a history that count as failed while hosts are being
// applied.
func Failures(entries []audit.Entry, busy ...fleet.Shard) (ids []string) {
	from := &standing{recent: entries, busy: map[fleet.Shard]bool{}}
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
	now, err := s.stand(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return events(now, s.config.Clock.Now())
}
