package provisioning

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Batch is a batch.
type Batch struct{ *batch }

// NewBatch returns a batch.
func NewBatch(clk clock.Clock, idle, longest time.Duration) Batch {
	return Batch{newBatch(clk, idle, longest)}
}

// Trigger triggers the batch, as a pod does.
func (b Batch) Trigger() { b.trigger() }

// Wait waits for a batch.
func (b Batch) Wait(ctx context.Context) bool { return b.wait(ctx) }
