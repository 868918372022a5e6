package provisioning

import (
	"context"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/numaform/numaform/internal/scheduling"
)

// Batch exports batch.
type Batch struct{ *batch }

// NewBatch returns a batch.
func NewBatch(clk clock.Clock, idle, longest time.Duration) Batch {
	return Batch{newBatch(clk, idle, longest)}
}

// Trigger triggers the batch, as a pod does.
func (b Batch) Trigger() { b.trigger() }

// Wait waits for a complete batch.
func (b Batch) Wait(ctx context.Context) bool {
	for {
		complete, ok := b.wait(ctx)
		if complete || !ok {
			return ok
		}
	}
}

// Pause waits for a pause in a batch, or its end.
func (b Batch) Pause(ctx context.Context) (complete, ok bool) { return b.wait(ctx) }

// ProvisionAtPause provisions like Reconcile at a pause in a batch, and reports whether the
// batch still waits for its end.
func (c *Controller) ProvisionAtPause(ctx context.Context) (waits bool, err error) {
	c.batch.burst = &burst{longest: c.config.Clock.NewTimer(time.Hour), idle: c.config.Clock.NewTimer(time.Hour)}
	_, err = c.wakeEarly(ctx)
	return c.batch.burst != nil, err
}

// Refill returns the new VMs of a decision that may be created now.
func (c *Controller) Refill(d *scheduling.Decision) []scheduling.Placed { return c.refill(d) }

// EndsOfClaims exports endsOfClaims.
func (c *Controller) EndsOfClaims() handler.EventHandler { return c.endsOfClaims() }

// RetriggerAfter returns the interval until another decision, if the last one took so long.
func (c *Controller) RetriggerAfter(took time.Duration) time.Duration {
	c.took = took
	return c.retriggerAfter()
}

// ClaimsEnded reports whether the end of a NodeClaim triggers a decision, if the last one was
// about so many pods.
func (c *Controller) ClaimsEnded(asked int) bool {
	c.asked = asked
	c.claimsEnded()
	select {
	case <-c.batch.triggered:
		return true
	default:
		return false
	}
}
