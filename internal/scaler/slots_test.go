package scaler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/numaform/numaform/internal/scaler"
)

// TestSlots checks that no more engines run than the limit allows, which changes meanwhile,
// and that callers stop waiting when their context ends.
func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var limit atomic.Int64
		limit.Store(2)
		take, _ := scaler.NewSlots(func() int { return int(limit.Load()) })
		first, second := take(t.Context()), take(t.Context())

		ctx, cancel := context.WithCancel(t.Context())
		var running atomic.Int64
		for range 3 {
			go func() {
				release := take(ctx)
				running.Add(1)
				<-ctx.Done()
				release()
			}()
		}
		expect := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := running.Load(); got != want {
				t.Errorf("%s: %d more engines run, want %d", when, got, want)
			}
		}
		expect("two run", 0)
		first()
		expect("one ended", 1)
		limit.Store(1)
		second()
		expect("another ended, but there is less memory", 1)
		cancel()
		expect("the changes were given up", 3)
	})
}

// TestAppliesLeaveASlotToPlans checks that applies leave one slot for plans, unless the
// limit is one engine.
func TestAppliesLeaveASlotToPlans(t *testing.T) {
	t.Parallel()
	for limit, applies := range map[int]int{1: 1, 2: 1, 4: 3} {
		synctest.Test(t, func(t *testing.T) {
			plan, apply := scaler.NewSlots(func() int { return limit })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var applying, planning atomic.Int64
			take := func(take func(ctx context.Context) (release func()), running *atomic.Int64) {
				defer take(ctx)()
				if ctx.Err() == nil {
					running.Add(1)
				}
				<-ctx.Done()
			}
			for range 5 {
				go take(apply, &applying)
			}
			synctest.Wait()
			for range 5 {
				go take(plan, &planning)
			}
			synctest.Wait()
			if int(applying.Load()) != applies || int(planning.Load()) != limit-applies {
				t.Errorf("of %d engines, %d apply and %d plan, want %d applies", limit, applying.Load(), planning.Load(), applies)
			}
		})
	}
}
