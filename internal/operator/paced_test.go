package operator

import (
	"context"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	clocktesting "k8s.io/utils/clock/testing"
)

// round is a loop whose round takes a time and asks for the next one.
type round struct {
	controller.Controller
	clock *clocktesting.FakeClock
	took  time.Duration
	next  reconciler.Result
}

func (r round) Reconcile(context.Context) (reconciler.Result, error) {
	r.clock.Step(r.took)
	return r.next, nil
}

func TestPaced(t *testing.T) {
	t.Parallel()
	after := func(wait time.Duration) reconciler.Result { return reconciler.Result{RequeueAfter: wait} }
	for name, c := range map[string]struct {
		took       time.Duration
		next, want reconciler.Result
	}{
		"a short round":          {100 * time.Millisecond, after(5 * time.Second), after(5 * time.Second)},
		"a long one":             {time.Second, after(5 * time.Second), after(50 * time.Second)},
		"a very long one":        {15 * time.Second, after(10 * time.Second), after(time.Minute)},
		"there is more to do":    {15 * time.Second, after(singleton.RequeueImmediately), after(singleton.RequeueImmediately)},
		"it waits for its cache": {15 * time.Second, after(time.Second), after(time.Second)},
		"it is repeated":         {15 * time.Second, reconciler.Result{Requeue: true}, reconciler.Result{Requeue: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clk := clocktesting.NewFakeClock(time.Now())
			p := &paced{loop: round{clock: clk, took: c.took, next: c.next}, name: "test", clock: clk}
			got, err := p.Reconcile(t.Context())
			if err != nil || got != c.want {
				t.Errorf("next round %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}
