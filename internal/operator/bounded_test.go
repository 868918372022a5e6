package operator_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	metricspod "sigs.k8s.io/karpenter/pkg/controllers/metrics/pod"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/podevents"
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
	m := operator.Bounded(inner, testingclock.NewFakeClock(time.Now()), func() int { return 0 }, nil)
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
			m := operator.Bounded(inner, testingclock.NewFakeClock(time.Now()), func() int { return c.nodes }, nil)
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
	m := operator.Bounded(&adding{}, clk, func() int { counted++; return 1000 * counted }, nil)
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

// TestBoundedPodEvents checks that a start does not count as an event of each pod.
func TestBoundedPodEvents(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	bound := func(at time.Time, phase corev1.PodPhase, deleted bool) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		pod.Status.Phase = phase
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}}
		if deleted {
			pod.DeletionTimestamp, pod.Finalizers = &metav1.Time{Time: at}, []string{"example.com/wait"}
		}
		return pod
	}
	unbound := bound(began.Add(-time.Hour), corev1.PodPending, false)
	unbound.Status.Conditions[0].Status = corev1.ConditionFalse
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		handled bool
	}{
		"running for an hour":      {bound(began.Add(-time.Hour), corev1.PodRunning, false), false},
		"its image is pulled":      {bound(began.Add(-time.Hour), corev1.PodPending, false), false},
		"bound before the start":   {bound(began.Add(-time.Minute), corev1.PodRunning, false), true},
		"bound after the start":    {bound(began.Add(time.Hour), corev1.PodRunning, false), true},
		"ended":                    {bound(began.Add(-time.Hour), corev1.PodSucceeded, false), true},
		"failed":                   {bound(began.Add(-time.Hour), corev1.PodFailed, false), true},
		"being deleted":            {bound(began.Add(-time.Hour), corev1.PodRunning, true), true},
		"not bound":                {unbound, true},
		"bound at an unknown time": {&corev1.Pod{ObjectMeta: unbound.ObjectMeta}, true},
		"deleted":                  {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := fakeclient.NewClientBuilder()
			if c.pod != nil {
				cluster = cluster.WithObjects(c.pod)
			}
			// The replica was built a day before it led.
			clock := testingclock.NewFakeClock(began.AddDate(0, 0, -1))
			m := operator.Bounded(&adding{}, clock, nil, cluster.Build())
			handled := false
			next := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				handled = true
				return reconcile.Result{}, nil
			})
			added := unmanaged(t, podevents.NewController(nil, nil, nil).Name(), controller.Options{Reconciler: next})
			if err := m.Add(added); err != nil {
				t.Fatal(err)
			}
			clock.SetTime(began)
			do, _ := reflect.ValueOf(added).Elem().FieldByName("Do").Interface().(reconcile.Reconciler)
			if _, err := do.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}}); err != nil || handled != c.handled {
				t.Errorf("handled: %v, %v; want %v", handled, err, c.handled)
			}
		})
	}
}
