package operator_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/operator"
)

// TestHeap checks that memory is returned once when the controller becomes idle, and that
// garbage is collected lazily again when it becomes active.
func TestHeap(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakeClock(time.Now())
	var got []string
	h := operator.NewTestHeap(clk, func(percent int) int {
		got = append(got, fmt.Sprintf("collect %d", percent))
		return 0
	}, func() { got = append(got, "release") })
	expect := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		got = nil
	}

	expect("at the start", "collect 100")
	clk.Step(19 * time.Second)
	h.Rest()
	expect("shortly after it worked")
	h.Work()
	clk.Step(19 * time.Second)
	h.Rest()
	expect("shortly after it worked again")
	clk.Step(time.Second)
	h.Rest()
	expect("idle", "collect 50", "release")
	clk.Step(time.Hour)
	h.Rest()
	expect("still idle")
	h.Work()
	h.Work()
	expect("working", "collect 100")
	clk.Step(time.Hour)
	h.Rest()
	expect("idle again", "collect 50", "release")
}

// TestHeapWorksWhileItReturnsMemory checks that a decision does not wait until the memory
// is returned.
func TestHeapWorksWhileItReturnsMemory(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakeClock(time.Now())
	var h operator.Heap
	released := false
	h = operator.NewTestHeap(clk, func(int) int { return 0 }, func() {
		worked := make(chan struct{})
		go func() {
			defer close(worked)
			h.Work()
		}()
		select {
		case <-worked:
			released = true
		case <-time.After(10 * time.Second):
		}
	})
	clk.Step(time.Minute)
	h.Rest()
	if !released {
		t.Error("a decision waits until the memory is returned")
	}
}

// TestHeapRun checks that memory is returned only after the apply.
func TestHeapRun(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakeClock(time.Now())
	var busy, released atomic.Bool
	busy.Store(true)
	asked := make(chan struct{})
	h := operator.NewTestHeap(clk, func(int) int { return 0 }, func() { released.Store(true) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx, func() bool {
			asked <- struct{}{}
			return busy.Load()
		})
	}()
	until(t, "it waits", clk.HasWaiters)
	tick := func() {
		clk.Step(5 * time.Second)
		<-asked
	}
	for range 10 {
		tick()
	}
	if released.Load() {
		t.Error("it returned memory during an apply")
	}
	busy.Store(false)
	for range 6 {
		tick()
	}
	cancel()
	<-ended
	if !released.Load() {
		t.Error("it returned no memory after the apply")
	}
}
