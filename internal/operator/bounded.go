package operator

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// maxWorkers is the maximum number of workers of a controller. A worker handles one object
// at a time. More would only wait for the client's limit of 200 requests per second.
const maxWorkers = 100

// repeating are the controllers of Karpenter that handle each of their objects again and
// again although it has not changed, at intervals of 10 seconds to a minute: its cluster
// state, which follows from events, and the metrics of each object.
var repeating = map[string]bool{
	"state.node":                   true,
	"state.nodeclaim":              true,
	"state.pod":                    true,
	"metrics.pod":                  true,
	"operatorpkg.node.status":      true,
	"operatorpkg.nodeclaim.status": true,
}

// podEvents is the controller of Karpenter that writes to a NodeClaim when a pod of its Node
// was bound, or ended.
const podEvents = "nodeclaim.podevents"

// bounded is a manager that limits the work of controllers. The type of controller-runtime's
// controllers is internal, so it is changed by reflection.
//
// Some of Karpenter's controllers start 1,000 workers, because they call the API of a cloud,
// which may take seconds. Here they only reserve VMs in memory, and the stacks of idle
// workers need 4 KiB each, or more after a start with many nodes. Others handle each object
// again at a fixed interval, which becomes most of the work in a large idle cluster. And one
// writes to the NodeClaims of all pods after each start.
type bounded struct {
	manager.Manager

	pace *objectPace
	// pods reads pods from the cache.
	pods client.Reader
}

// Add adds a runnable.
func (b bounded) Add(runnable manager.Runnable) error {
	value := reflect.Indirect(reflect.ValueOf(runnable))
	if value.Kind() != reflect.Struct {
		return b.Manager.Add(runnable)
	}
	if workers := value.FieldByName("MaxConcurrentReconciles"); workers.CanSet() && workers.CanInt() {
		workers.SetInt(min(workers.Int(), maxWorkers))
	}
	if name := value.FieldByName("Name"); name.Kind() == reflect.String && (repeating[name.String()] || name.String() == podEvents) {
		field := value.FieldByName("Do")
		if !field.CanSet() {
			return fmt.Errorf("adding controller %s: it has no reconciler that can be replaced", name)
		}
		inner, ok := field.Interface().(reconcile.Reconciler)
		if !ok {
			return fmt.Errorf("adding controller %s: its reconciler is a %s", name, field.Type())
		}
		if name.String() == podEvents {
			field.Set(reflect.ValueOf(recentPods{inner, b.pods, sync.OnceValue(b.pace.clock.Now)}))
		} else {
			field.Set(reflect.ValueOf(repeated{inner, b.pace}))
		}
	}
	return b.Manager.Add(runnable)
}

// repeated is the reconciler of a controller in repeating. Its intervals grow with the
// number of Nodes. Events do not wait for them.
type repeated struct {
	reconcile.Reconciler

	pace *objectPace
}

// Reconcile handles an object.
func (r repeated) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.Reconciler.Reconcile(ctx, request)
	if err == nil && result.RequeueAfter > time.Second {
		result.RequeueAfter = max(result.RequeueAfter, r.pace.interval())
	}
	return result, err
}

// recentPods is the reconciler of podEvents. It omits pods to which nothing has happened for
// ten minutes when the controller starts. The cache reports each of them as new then, and
// Karpenter would write the current time to the NodeClaim, up to once for each pod: with
// 20,000 pods on 5,000 Nodes, 19,000 writes. Each of these Nodes would also count as changed,
// and would have to wait for its pool's consolidateAfter again.
type recentPods struct {
	reconcile.Reconciler

	pods client.Reader
	// began returns when it was first called. A standby replica may be built days before it
	// leads, and handles nothing until then.
	began func() time.Time
}

// Reconcile handles a pod.
func (r recentPods) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	r.began()
	var pod corev1.Pod
	if err := r.pods.Get(ctx, request.NamespacedName, &pod, client.UnsafeDisableDeepCopy); err == nil && r.old(&pod) {
		return reconcile.Result{}, nil
	}
	return r.Reconciler.Reconcile(ctx, request)
}

// old reports whether a pod was bound long before the start, and has not ended.
func (r recentPods) old(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionTrue {
			return condition.LastTransitionTime.Add(10 * time.Minute).Before(r.began())
		}
	}
	return false
}

const (
	// objectInterval is the minimum interval per Node at which an unchanged object is
	// handled again: ten Nodes each second, and their NodeClaims and pods.
	objectInterval = time.Second / 10
	// maxObjectInterval limits the interval that follows from the number of Nodes.
	maxObjectInterval = 10 * time.Minute
	// countAge is the maximum age of the number of Nodes.
	countAge = 10 * time.Second
)

// objectPace determines the interval at which unchanged objects are handled again.
type objectPace struct {
	clock clock.PassiveClock
	// nodes returns the number of Nodes, which takes long if there are many.
	nodes func() int

	// mu guards the fields below.
	mu        sync.Mutex
	count     int
	countedAt time.Time
}

// interval returns the minimum interval.
func (p *objectPace) interval() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.clock.Now(); now.Sub(p.countedAt) >= countAge {
		p.count, p.countedAt = p.nodes(), now
	}
	return min(time.Duration(p.count)*objectInterval, maxObjectInterval)
}
