package operator_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	metricspod "sigs.k8s.io/karpenter/pkg/controllers/metrics/pod"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"

	"github.com/numaform/numaform/internal/operator"
)

// adding is a manager that stores what is added.
type adding struct {
	manager.Manager

	added []manager.Runnable
}

func (a *adding) Add(runnable manager.Runnable) error {
	a.added = append(a.added, runnable)
	return nil
}

// unmanaged returns a controller as controller-runtime creates it.
func unmanaged(t *testing.T, name string, options controller.Options) controller.Controller {
	t.Helper()
	skip := true
	options.SkipNameValidation = &skip
	c, err := controller.NewUnmanaged(name, options)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestBoundedWorkers checks that no controller has more than 100 workers.
func TestBoundedWorkers(t *testing.T) {
	t.Parallel()
	inner := &adding{}
	m := operator.Bounded(inner, testingclock.NewFakeClock(time.Now()), func() int { return 0 })
	for workers, want := range map[int]int64{1: 1, 10: 10, 100: 100, 1000: 100} {
		c := unmanaged(t, "test", controller.Options{MaxConcurrentReconciles: workers, Reconciler: reconcile.Func(nil)})
		if err := m.Add(c); err != nil {
			t.Fatal(err)
		}
		if got := reflect.ValueOf(c).Elem().FieldByName("MaxConcurrentReconciles").Int(); got != want {
			t.Errorf("a controller with %d workers gets %d, want %d", workers, got, want)
		}
	}
	if err := m.Add(manager.RunnableFunc(func(context.Context) error { return nil })); err != nil || len(inner.added) != 5 {
		t.Errorf("%d runnables were added, want 5: %v", len(inner.added), err)
	}
}

// TestBoundedIntervals checks the interval at which controllers handle unchanged objects
// again.
func TestBoundedIntervals(t *testing.T) {
	t.Parallel()
	after := func(wait time.Duration) reconcile.Result { return reconcile.Result{RequeueAfter: wait} }
	for name, c := range map[string]struct {
		controller string
		nodes      int
		next, want reconcile.Result
	}{
		"no nodes":               {informer.NewNodeController(nil, nil).Name(), 0, after(time.Minute), after(time.Minute)},
		"a small fleet":          {informer.NewPodController(nil, nil).Name(), 600, after(time.Minute), after(time.Minute)},
		"a large one":            {informer.NewPodController(nil, nil).Name(), 1000, after(time.Minute), after(100 * time.Second)},
		"its nodeclaims":         {informer.NewNodeClaimController(nil, nil, nil, nil).Name(), 5000, after(time.Minute), after(500 * time.Second)},
		"its nodes":              {informer.NewNodeController(nil, nil).Name(), 5000, after(time.Minute), after(500 * time.Second)},
		"the metrics of pods":    {metricspod.NewController(nil, nil).Name(), 1000, after(30 * time.Second), after(100 * time.Second)},
		"the metrics of nodes":   {"operatorpkg.node.status", 200, after(10 * time.Second), after(20 * time.Second)},
		"status of nodeclaims":   {"operatorpkg.nodeclaim.status", 200, after(10 * time.Second), after(20 * time.Second)},
		"a very large one":       {informer.NewPodController(nil, nil).Name(), 100_000, after(time.Minute), after(10 * time.Minute)},
		"an object is repeated":  {informer.NewPodController(nil, nil).Name(), 5000, after(time.Second), after(time.Second)},
		"it is not handled":      {informer.NewPodController(nil, nil).Name(), 5000, reconcile.Result{}, reconcile.Result{}},
		"a controller with work": {"nodeclaim.lifecycle", 5000, after(5 * time.Second), after(5 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := &adding{}
			m := operator.Bounded(inner, testingclock.NewFakeClock(time.Now()), func() int { return c.nodes })
			next := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return c.next, nil })
			added := unmanaged(t, c.controller, controller.Options{Reconciler: next})
			if err := m.Add(added); err != nil {
				t.Fatal(err)
			}
			do, ok := reflect.ValueOf(added).Elem().FieldByName("Do").Interface().(reconcile.Reconciler)
			if !ok {
				t.Fatal("a controller of controller-runtime has no reconciler")
			}
			got, err := do.Reconcile(t.Context(), reconcile.Request{})
			if err != nil || got != c.want {
				t.Errorf("next time %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

// TestBoundedCounts checks that Nodes are counted at most every ten seconds, because each
// of many objects asks for the interval.
func TestBoundedCounts(t *testing.T) {
	t.Parallel()
	counted := 0
	clk := testingclock.NewFakeClock(time.Now())
	m := operator.Bounded(&adding{}, clk, func() int { counted++; return 1000 * counted })
	next := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{RequeueAfter: time.Minute}, nil
	})
	added := unmanaged(t, "state.pod", controller.Options{Reconciler: next})
	if err := m.Add(added); err != nil {
		t.Fatal(err)
	}
	do, _ := reflect.ValueOf(added).Elem().FieldByName("Do").Interface().(reconcile.Reconciler)
	for i, want := range []time.Duration{100 * time.Second, 100 * time.Second, 200 * time.Second} {
		if i == 2 {
			clk.Step(10 * time.Second)
		}
		got, err := do.Reconcile(t.Context(), reconcile.Request{})
		if err != nil || got.RequeueAfter != want {
			t.Errorf("next time after %s, %v; want %s", got.RequeueAfter, err, want)
		}
	}
	if counted != 2 {
		t.Errorf("the Nodes were counted %d times, want 2", counted)
	}
}
