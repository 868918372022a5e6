package provisioning_test

import (
	"context"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/controllers/provisioning"
)

// waiting starts to wait for a batch, and returns a channel for its end.
func waiting(b provisioning.Batch) <-chan bool {
	done := make(chan bool, 1)
	go func() { done <- b.Wait(context.Background()) }()
	return done
}

// settled waits until this many timers have waiters.
func settled(t *testing.T, clk *testclock.FakeClock, timers int) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for range 5000 {
		if clk.Waiters() == timers {
			return
		}
		<-ticker.C
	}
	t.Fatalf("%d timers are waited for, want %d", clk.Waiters(), timers)
}

func ended(done <-chan bool) bool {
	select {
	case <-done:
		return true
	case <-time.After(20 * time.Millisecond):
		return false
	}
}

// burst triggers a batch twice in quick succession, so that it counts as a burst.
func burst(t *testing.T, b provisioning.Batch, clk *testclock.FakeClock, done <-chan bool) {
	t.Helper()
	b.Trigger()
	settled(t, clk, 3)
	clk.Step(240 * time.Millisecond)
	b.Trigger()
	if ended(done) {
		t.Fatal("the batch ended while a pod came")
	}
}

// TestBatchOfOnePod checks that a single pod waits only briefly for others.
func TestBatchOfOnePod(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakeClock(time.Unix(0, 0))
	b := provisioning.NewBatch(clk, time.Second, 10*time.Second)
	done := waiting(b)
	b.Trigger()
	settled(t, clk, 3)
	clk.Step(240 * time.Millisecond)
	if ended(done) {
		t.Fatal("the batch ended before another pod of a burst could come")
	}
	clk.Step(20 * time.Millisecond)
	if !<-done {
		t.Error("the batch was given up")
	}
}

func TestBatchEndsWhenNobodyAsksAnyMore(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakeClock(time.Unix(0, 0))
	b := provisioning.NewBatch(clk, time.Second, 10*time.Second)
	done := waiting(b)
	if ended(done) {
		t.Fatal("a batch without a pod ended")
	}
	burst(t, b, clk, done)
	clk.Step(900 * time.Millisecond)
	b.Trigger()
	// The second pod restarts the idle time of one second; its timer replaces the first.
	if ended(done) {
		t.Fatal("the batch ended while a pod came")
	}
	clk.Step(900 * time.Millisecond)
	if ended(done) {
		t.Fatal("the batch ended within a second of the last pod")
	}
	clk.Step(200 * time.Millisecond)
	if !<-done {
		t.Error("the batch was given up")
	}
}

func TestBatchDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakeClock(time.Unix(0, 0))
	b := provisioning.NewBatch(clk, time.Second, 3*time.Second)
	done := waiting(b)
	burst(t, b, clk, done)
	for range 3 {
		clk.Step(900 * time.Millisecond)
		b.Trigger()
		if ended(done) {
			t.Fatal("the batch ended too early")
		}
	}
	clk.Step(900 * time.Millisecond)
	if !<-done {
		t.Error("the batch was given up")
	}
}

// TestBatchPauses checks that a burst has one pause, a moment after its pods, and that the
// next wait continues with the rest of the burst.
func TestBatchPauses(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakeClock(time.Unix(0, 0))
	b := provisioning.NewBatch(clk, time.Second, 10*time.Second)
	for range 2 { // a batch does not affect the next one
		pauses := make(chan bool, 1)
		next := func() { go func() { complete, _ := b.Pause(context.Background()); pauses <- complete }() }
		next()
		b.Trigger()
		settled(t, clk, 3)
		clk.Step(60 * time.Millisecond)
		b.Trigger()
		if ended(pauses) {
			t.Fatal("the batch ended while a pod came")
		}
		clk.Step(90 * time.Millisecond)
		if ended(pauses) {
			t.Fatal("the batch paused before another pod of a burst could come")
		}
		clk.Step(20 * time.Millisecond)
		if complete := <-pauses; complete {
			t.Fatal("the batch is complete before its pods had a second")
		}

		next()
		b.Trigger()
		if ended(pauses) {
			t.Fatal("the batch ended while a pod came")
		}
		clk.Step(900 * time.Millisecond)
		if ended(pauses) {
			t.Fatal("the batch paused again, or ended within a second of the last pod")
		}
		clk.Step(200 * time.Millisecond)
		if complete := <-pauses; !complete {
			t.Fatal("the batch is not complete")
		}
		settled(t, clk, 0)
	}
}

func TestBatchIsGivenUp(t *testing.T) {
	t.Parallel()
	b := provisioning.NewBatch(testclock.NewFakeClock(time.Unix(0, 0)), time.Second, time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if b.Wait(ctx) {
		t.Error("a canceled batch is complete")
	}
}
