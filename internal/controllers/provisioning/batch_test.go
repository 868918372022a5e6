package provisioning_test

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

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

// TestBatchOfQuickPods checks that a burst waits for another pod according to the gaps between
// its pods.
func TestBatchOfQuickPods(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ gap, wait time.Duration }{
		{gap: 10 * time.Millisecond, wait: 250 * time.Millisecond},
		{gap: 100 * time.Millisecond, wait: 400 * time.Millisecond},
		{gap: 240 * time.Millisecond, wait: 960 * time.Millisecond},
	} {
		clk := testclock.NewFakeClock(time.Unix(0, 0))
		b := provisioning.NewBatch(clk, 2*time.Second, 10*time.Second)
		done := waiting(b)
		b.Trigger()
		settled(t, clk, 3)
		for _, gap := range []time.Duration{tt.gap, time.Millisecond} { // the longest gap counts
			clk.Step(gap)
			b.Trigger()
			if ended(done) {
				t.Fatalf("the batch ended %s after a pod", gap)
			}
		}
		clk.Step(tt.wait - time.Millisecond)
		if ended(done) {
			t.Errorf("with a gap of %s, the batch ended within %s of the last pod", tt.gap, tt.wait)
			continue
		}
		clk.Step(2 * time.Millisecond)
		if !ended(done) {
			t.Errorf("with a gap of %s, the batch did not end %s after the last pod", tt.gap, tt.wait)
		}
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
		clk.Step(90 * time.Millisecond)
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
			t.Fatal("the batch is complete at its pause")
		}

		next()
		b.Trigger()
		if ended(pauses) {
			t.Fatal("the batch ended while a pod came")
		}
		clk.Step(400 * time.Millisecond)
		if ended(pauses) {
			t.Fatal("the batch paused again, or ended within four times the longest gap between its pods")
		}
		clk.Step(100 * time.Millisecond)
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

// TestLongDecisionsAreRare checks that pods that wait for their VMs do not make a controller of a
// large fleet decide all the time.
func TestLongDecisionsAreRare(t *testing.T) {
	t.Parallel()
	c := provisioning.New(provisioning.Config{})
	for took, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, 100 * time.Millisecond: 10 * time.Second, 2 * time.Second: 40 * time.Second, time.Minute: time.Minute,
	} {
		if got := c.RetriggerAfter(took); got != want {
			t.Errorf("after a decision of %s, the next one after %s, want %s", took, got, want)
		}
	}
	if c.ClaimsEnded(0) || !c.ClaimsEnded(1) {
		t.Error("the end of a NodeClaim triggers a decision without pods, or none with pods")
	}
}

// delays records the delays of a queue.
type delays struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	all []time.Duration
}

func (d *delays) AddAfter(_ reconcile.Request, after time.Duration) { d.all = append(d.all, after) }

// TestEndsOfClaims checks that a decision follows the end of a NodeClaim whose VM failed, when
// the end begins and when it is complete, and that none follows the end of a Node.
func TestEndsOfClaims(t *testing.T) {
	t.Parallel()
	c := provisioning.New(provisioning.Config{})
	ends, queue := c.EndsOfClaims(), &delays{}
	making, failed := &karpv1.NodeClaim{}, &karpv1.NodeClaim{}
	failed.DeletionTimestamp = &metav1.Time{Time: time.Unix(0, 0)}
	node, drained := making.DeepCopy(), failed.DeepCopy()
	node.Status.NodeName, drained.Status.NodeName = "workers-2000", "workers-2000"
	for name, test := range map[string]struct {
		event func()
		want  int
	}{
		"created":                            {func() { ends.Create(t.Context(), event.CreateEvent{Object: making}, queue) }, 0},
		"changed":                            {func() { ends.Update(t.Context(), event.UpdateEvent{ObjectOld: making, ObjectNew: making}, queue) }, 0},
		"deletion begins":                    {func() { ends.Update(t.Context(), event.UpdateEvent{ObjectOld: making, ObjectNew: failed}, queue) }, 1},
		"deletion continues":                 {func() { ends.Update(t.Context(), event.UpdateEvent{ObjectOld: failed, ObjectNew: failed}, queue) }, 0},
		"deleted":                            {func() { ends.Delete(t.Context(), event.DeleteEvent{Object: failed}, queue) }, 1},
		"deletion of one with a Node begins": {func() { ends.Update(t.Context(), event.UpdateEvent{ObjectOld: node, ObjectNew: drained}, queue) }, 0},
		"deleted with a Node":                {func() { ends.Delete(t.Context(), event.DeleteEvent{Object: drained}, queue) }, 0},
	} {
		queue.all = nil
		if test.event(); len(queue.all) != test.want || test.want > 0 && queue.all[0] != 3*time.Second {
			t.Errorf("%s: decisions after %v, want %d", name, queue.all, test.want)
		}
	}
}
