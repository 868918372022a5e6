package operator

import (
	"context"

	"k8s.io/utils/clock"
)

// Heap is a heap that reports its effects on the garbage collector instead of causing
// them.
type Heap struct{ *heap }

// NewTestHeap returns a busy heap.
func NewTestHeap(clk clock.WithTicker, collect func(percent int) int, release func()) Heap {
	h := &heap{clock: clk, collect: collect, release: release, worked: clk.Now()}
	h.collect(busyGC)
	return Heap{h}
}

// Work records that a decision is in progress.
func (h Heap) Work() { h.work() }

// Rest returns memory if the controller is idle.
func (h Heap) Rest() { h.rest() }

// Run returns memory whenever the controller becomes idle, until ctx ends.
func (h Heap) Run(ctx context.Context, busy func() bool) { h.run(ctx, busy) }

// EnginesIn returns how many engines fit in a memory limit.
func EnginesIn(limit, resident int64) int { return enginesIn(limit, resident) }
