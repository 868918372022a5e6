package operator_test

import (
	"context"
	"reflect"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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

// TestBoundedWorkers checks that no controller has more than 100 workers.
func TestBoundedWorkers(t *testing.T) {
	t.Parallel()
	inner := &adding{}
	m := operator.Bounded(inner)
	skip := true
	for workers, want := range map[int]int64{1: 1, 10: 10, 100: 100, 1000: 100} {
		c, err := controller.NewUnmanaged("test", controller.Options{
			MaxConcurrentReconciles: workers, SkipNameValidation: &skip, Reconciler: reconcile.Func(nil),
		})
		if err != nil {
			t.Fatal(err)
		}
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
