package operator

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
)

// HistoryWatch verifies a history.
type HistoryWatch struct {
	watch historyWatch
	// Held is whether changes are held, and Places the number of places with the checkpoint.
	Held   bool
	Places int
	Faults []audit.Finding
	// Readable is whether the last check could read the history.
	Readable bool
	// PutBacks counts copies that were pushed again, or could not be.
	PutBacks map[bool]int
}

// NewHistoryWatch returns a watch of a store.
func NewHistoryWatch(
	s *store.Sealed, clk clock.PassiveClock, recorder events.Recorder,
	accept func(ctx context.Context, kind audit.Kind, why string, findings []audit.Finding) (string, error), places ...store.CheckpointPlace,
) *HistoryWatch {
	h := &HistoryWatch{PutBacks: map[bool]int{}}
	h.watch = historyWatch{
		wake: make(chan struct{}, 1), putBacks: func(pushed bool) { h.PutBacks[pushed]++ },
		store: s, places: places, accept: accept, recorder: recorder, self: &corev1.ConfigMap{}, clock: clk, every: time.Minute,
		hold: func(held bool) { h.Held = held },
		read: func(readable bool) { h.Readable = readable },
		observe: func(report *audit.Report, _ bool, places int) {
			h.Faults, h.Places = report.Open(), places
		},
	}
	s.PutBack(h.watch.putBack)
	return h
}

// Check verifies the history once, and returns the reasons why new nodes wait.
func (h *HistoryWatch) Check(ctx context.Context) (waits int, err error) {
	err = h.watch.check(ctx)
	return len(h.watch.waits("pool")), err
}

// RunWithoutDrift runs the watches of a controller whose drift check is disabled, until ctx ends.
func (h *HistoryWatch) RunWithoutDrift(ctx context.Context) error {
	h.watch.every = 0
	for _, run := range watches(&h.watch, nil, 0) {
		if err := run(ctx); err != nil {
			return err
		}
	}
	return nil
}
