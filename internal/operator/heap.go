package operator

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
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
	// busyGarbage is the maximum garbage in bytes while the controller is busy, unless
	// idleGC allows more.
	busyGarbage = 256 << 20
)

const (
	// heapInterval is the interval between checks of the live heap, and whether the
	// controller is idle.
	heapInterval = time.Second
	// heapPatience is the time without activity after which the controller is idle.
	heapPatience = 20 * time.Second
)

// heap sets how much garbage may accumulate before the controller's garbage collector runs:
// more while the fleet changes, less while the controller is idle.
type heap struct {
	clock clock.WithTicker
	// collect sets the garbage collector's percentage, release returns free memory to the
	// operating system, and live returns the size of the live heap; tests replace them.
	collect func(percent int) int
	release func()
	live    func() uint64

	// mu guards the fields below it.
	mu   sync.Mutex
	idle bool
	// worked is the time of the last decision or apply.
	worked time.Time
	// percent is the garbage collector's percentage.
	percent int
}

func newHeap(clk clock.WithTicker) *heap {
	h := &heap{clock: clk, collect: debug.SetGCPercent, release: debug.FreeOSMemory, live: liveHeap, worked: clk.Now()}
	h.adjust()
	return h
}

// liveHeap returns the bytes that the last collection found in use.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// adjust sets the garbage collector's percentage. The caller locks mu.
func (h *heap) adjust() {
	percent := uint64(idleGC)
	if !h.idle {
		percent = max(idleGC, min(busyGC, 100*busyGarbage/max(1, h.live())))
	}
	if next := int(percent / 10 * 10); next != h.percent { // in steps, because each change stops the process briefly
		h.percent = next
		h.collect(next)
	}
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
		h.adjust()
	}
}

// run adjusts the garbage collector to the live heap, and returns memory whenever the
// controller becomes idle, until ctx ends. busy reports whether a change is being applied.
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

// rest adjusts the garbage collector, and returns free memory if the controller has become
// idle.
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
	defer h.adjust()
	if h.idle || h.clock.Since(h.worked) < heapPatience {
		return false
	}
	h.idle = true
	return true
}
