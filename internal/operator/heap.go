package operator

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// The garbage collector's percentages. A scale-up allocates much memory for a short time,
// while engines need the CPUs, so its collector is lazier than that of an idle controller,
// which allocates little. Up to three times as much garbage as live heap would save CPU time of
// the controller, but cost 50 to 60 MiB: see docs/adr/0028.
const (
	busyGC = 100
	idleGC = 50
)

const (
	// heapInterval is the interval between checks whether the controller is idle.
	heapInterval = time.Second
	// heapPatience is the time without activity after which the controller is idle.
	heapPatience = 20 * time.Second
)

// heap sets how much garbage may accumulate before the controller's garbage collector runs:
// more while the fleet changes, less while the controller is idle.
type heap struct {
	clock clock.WithTicker
	// collect sets the garbage collector's percentage, and release returns free memory to the
	// operating system; tests replace them.
	collect func(percent int) int
	release func()

	// mu guards the fields below it.
	mu   sync.Mutex
	idle bool
	// worked is the time of the last decision or apply.
	worked time.Time
}

func newHeap(clk clock.WithTicker) *heap {
	h := &heap{clock: clk, collect: debug.SetGCPercent, release: debug.FreeOSMemory, worked: clk.Now()}
	h.collect(busyGC)
	return h
}

// work records that a decision or an apply is in progress. A nil heap does nothing.
func (h *heap) work() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.worked = h.clock.Now()
	if h.idle {
		h.idle = false
		h.collect(busyGC)
	}
}

// run returns memory whenever the controller becomes idle, until ctx ends. busy reports whether
// a change is being applied.
func (h *heap) run(ctx context.Context, busy func() bool) {
	ticker := h.clock.NewTicker(heapInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
		if busy() {
			h.work()
		}
		h.rest()
	}
}

// rest returns free memory if the controller has become idle.
func (h *heap) rest() {
	if h.becomesIdle() {
		h.release() // without mu: this takes long, and every decision locks mu
	}
}

// becomesIdle changes to idle after heapPatience without activity, and reports whether it
// did.
func (h *heap) becomesIdle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.idle || h.clock.Since(h.worked) < heapPatience {
		return false
	}
	h.idle = true
	h.collect(idleGC)
	return true
}
