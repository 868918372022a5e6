package scaler

import (
	"context"
	"errors"
	"fmt"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
)

// acceptAttempts limits the attempts to record an acceptance while other processes change the
// fleet.
const acceptAttempts = 5

// AcceptHistory records that the fleet's history continues although it was rewritten or
// restored: why, and which findings that accepts. It changes nothing else. kind is
// audit.KindAccept, KindAcceptRestore or KindContinue. It returns the ID of the record.
func (s *Scaler) AcceptHistory(ctx context.Context, kind audit.Kind, why string, findings []audit.Finding) (id string, err error) {
	for range acceptAttempts {
		r, err := s.read(ctx)
		if err != nil {
			return "", err
		}
		record := s.record(&Change{Why: why, from: r, open: r.open, rotations: r.rotations}, nil, "")
		record.Kind, record.Accepts = kind, audit.AcceptsOf(findings)
		err = s.config.Store.Begin(ctx, r.revision, r.files, record)
		if errors.Is(err, store.ErrMoved) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("recording the acceptance: %w", err)
		}
		return record.ID, s.config.Store.End(ctx, s.outcome(record.ID, record.Time, nil))
	}
	return "", fmt.Errorf("recording the acceptance: %w", store.ErrMoved)
}
