package scaler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/numaform/numaform/internal/audit"
)

// Records are evidence only if this installation wrote them, because anyone with write
// access to the fleet's store can add and change records. Records that cannot be verified
// decide nothing. Everything that they could describe can be found in the fleet's files,
// the states and Proxmox, at the cost of a plan of every host.

// verified returns the entries that this installation recorded.
func verified(entries []audit.Entry) []audit.Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e audit.Entry) bool { return !e.Verified })
}

// verifiedHistory returns all changes that this installation recorded, oldest first.
func (s *Scaler) verifiedHistory(ctx context.Context) ([]audit.Entry, error) {
	entries, err := s.config.Store.History(ctx, time.Time{})
	return verified(entries), err
}

// clockSkew is the maximum difference between two machines' clocks for which the order of
// their records is correct.
const clockSkew = 5 * time.Minute

// later returns the changes that others recorded after this installation's last one. It
// ignores records from the future, because one would remain the latest forever.
func (s *Scaler) later(history []audit.Entry) []audit.Entry {
	var last time.Time
	for i := range history {
		if history[i].Verified {
			last = history[i].Change.Time
		}
	}
	until := s.config.Clock.Now().Add(clockSkew)
	return slices.DeleteFunc(slices.Clone(history), func(e audit.Entry) bool {
		return e.Verified || !e.Change.Time.After(last) || e.Change.Time.After(until)
	})
}

// noteOthers reports once, for the latest of them, that others recorded changes.
func (s *Scaler) noteOthers(others []audit.Entry) {
	latest := lastOf(others)
	s.mu.Lock()
	known := s.noticed == latest
	s.noticed = latest
	s.mu.Unlock()
	if known {
		return
	}
	s.config.Notice(fmt.Sprintf("the history holds %d changes, the last one %s, that this installation did not record after its own last one: "+
		"nothing is decided from them, and every host is planned; if another machine changes this fleet too, give both the same key "+
		"(history.key_file in numaform.yaml); `numaform history` shows them as unverified", len(others), latest))
}
