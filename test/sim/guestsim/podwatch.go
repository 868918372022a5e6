package guestsim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// nodeIndex is the index of pods by the node to which they are bound.
const nodeIndex = "node"

// podWatch watches all bound pods once, for all kubelets.
type podWatch struct {
	informer cache.SharedIndexInformer

	// mu guards wake.
	mu   sync.Mutex
	wake map[string]chan struct{} // by node
}

func newPodWatch(client kubernetes.Interface) *podWatch {
	bound := fields.OneTermNotEqualSelector("spec.nodeName", "")
	w := &podWatch{wake: map[string]chan struct{}{}}
	w.informer = cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", corev1.NamespaceAll, bound), &corev1.Pod{}, 0,
		cache.Indexers{nodeIndex: func(object any) ([]string, error) {
			pod, ok := object.(*corev1.Pod)
			if !ok {
				return nil, errors.New("indexing pods: object is not a pod")
			}
			return []string{pod.Spec.NodeName}, nil
		}},
	)
	return w
}

func (w *podWatch) run(ctx context.Context) {
	changed := func(object any) {
		if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if pod, ok := object.(*corev1.Pod); ok {
			w.changed(pod.Spec.NodeName)
		}
	}
	_, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, DeleteFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
	})
	if err != nil { // the informer was stopped before it started
		return
	}
	w.informer.RunWithContext(ctx)
}

// synced waits until the initial list of pods is loaded, and reports false if the context
// ends first.
func (w *podWatch) synced(ctx context.Context) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !w.informer.HasSynced() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (w *podWatch) changed(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.wake[node] <- struct{}{}:
	default: // no kubelet, or it is notified already
	}
}

// subscribe returns a channel that receives a value when a node's pods change. The caller
// must call unsubscribe.
func (w *podWatch) subscribe(node string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	wake := make(chan struct{}, 1)
	w.wake[node] = wake
	return wake
}

// unsubscribe ends a subscription, unless another kubelet of that node has replaced it.
func (w *podWatch) unsubscribe(node string, wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wake[node] == wake {
		delete(w.wake, node)
	}
}

// of returns the pods that are bound to a node, sorted by namespace and name. They must not
// be modified.
func (w *podWatch) of(node string) []*corev1.Pod {
	objects, err := w.informer.GetIndexer().ByIndex(nodeIndex, node)
	if err != nil {
		return nil // impossible: the index exists
	}
	var pods []*corev1.Pod
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return pods
}
