package scaler

import (
	"context"
	"errors"
	"fmt"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
)

// recordAttempts limits the attempts to record something while other processes change the
// fleet.
const recordAttempts = 5

// AcceptHistory records that the fleet's history continues although it was rewritten or
// restored: why, and which findings that accepts. It changes nothing else. kind is
// audit.KindAccept, KindAcceptRestore or KindContinue. It returns the ID of the record.
func (s *Scaler) AcceptHistory(ctx context.Context, kind audit.Kind, why string, findings []audit.Finding) (id string, err error) {
	record, err := s.recordOnly(ctx, why, func(record *audit.Change) {
		record.Kind, record.Accepts = kind, audit.AcceptsOf(findings)
	})
	if err != nil {
		return "", fmt.Errorf("recording the acceptance: %w", err)
	}
	return record.ID, s.config.Store.End(ctx, s.outcome(record.ID, record.Time, nil))
}

// recordOnly begins a change that leaves the fleet's files and its unfinished work as they
// are, with the fields that complete sets. It does not need the fleet's lock.
func (s *Scaler) recordOnly(ctx context.Context, why string, complete func(*audit.Change)) (audit.Change, error) {
	for range recordAttempts {
		r, err := s.read(ctx)
		if err != nil {
			return audit.Change{}, err
		}
		record := s.record(&Change{Why: why, from: r, open: r.open, rotations: r.rotations}, nil, "")
		complete(&record)
		err = s.config.Store.Begin(ctx, r.revision, r.files, record)
		if !errors.Is(err, store.ErrMoved) {
			return record, err
		}
	}
	return audit.Change{}, store.ErrMoved
}
