package operator_test

import (
	"context"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"

	"github.com/numaform/numaform/internal/operator"
)

// round is a loop that requests the next round.
type round struct {
	controller.Controller
	next reconciler.Result
}

func (r round) Reconcile(context.Context) (reconciler.Result, error) {
	return r.next, nil
}

func TestPaced(t *testing.T) {
	t.Parallel()
	after := func(wait time.Duration) reconciler.Result { return reconciler.Result{RequeueAfter: wait} }
	for name, c := range map[string]struct {
		nodes      int
		next, want reconciler.Result
	}{
		"no nodes":               {0, after(10 * time.Second), after(10 * time.Second)},
		"a small fleet":          {250, after(5 * time.Second), after(5 * time.Second)},
		"a large one":            {1000, after(5 * time.Second), after(20 * time.Second)},
		"a larger one":           {5000, after(10 * time.Second), after(100 * time.Second)},
		"a very large one":       {10_000, after(10 * time.Second), after(2 * time.Minute)},
		"there is more to do":    {5000, after(singleton.RequeueImmediately), after(singleton.RequeueImmediately)},
		"it waits for its cache": {5000, after(time.Second), after(time.Second)},
		"it is repeated":         {5000, reconciler.Result{Requeue: true}, reconciler.Result{Requeue: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loop := operator.Paced(round{next: c.next}, "test", func() int { return c.nodes })
			got, err := loop.Reconcile(t.Context())
			if err != nil || got != c.want {
				t.Errorf("next round %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}
