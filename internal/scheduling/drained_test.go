package scheduling_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
)

// bound returns a pod on node n.
func bound(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, change := range change {
		change(pod)
	}
	return pod
}

func owned(kind string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "o", UID: "o"}}
	}
}

func TestDrained(t *testing.T) {
	t.Parallel()
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	disrupted := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{karpv1.DisruptedNoScheduleTaint} }
	unregistered := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{karpv1.UnregisteredNoExecuteTaint} }
	tolerant := func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	stuck := func(pod *corev1.Pod) {
		long := metav1.NewTime(time.Now().Add(-time.Hour))
		pod.DeletionTimestamp, pod.Finalizers = &long, []string{"example.com/stays"}
	}
	for _, tt := range []struct {
		name string
		node func(*corev1.Node) // nil: it does not exist
		// claim is set if the node's NodeClaim exists and is not being deleted.
		claim bool
		pod   *corev1.Pod
		want  string // "" means drained
	}{
		{name: "no node"},
		{name: "no node and a pod of it", pod: bound(), want: "still runs pods"},
		{name: "open", node: func(*corev1.Node) {}, want: "not cordoned"},
		{name: "cordoned", node: cordoned},
		{name: "cordoned with a pod", node: cordoned, pod: bound(), want: "including default/p"},
		{name: "cordoned with a daemon", node: cordoned, pod: bound(owned("DaemonSet"))},
		{name: "cordoned with a pod that tolerates all", node: cordoned, pod: bound(tolerant), want: "still runs pods"},
		{name: "being emptied", node: disrupted},
		{name: "being emptied with a pod", node: disrupted, pod: bound(), want: "still runs pods"},
		{name: "being emptied with a pod that tolerates it", node: disrupted, pod: bound(tolerant)},
		{name: "being emptied with a pod that does not end", node: disrupted, pod: bound(stuck)},
		{name: "unregistered", node: unregistered},
		{name: "unregistered with a pod that tolerates all", node: unregistered, pod: bound(tolerant), want: "still runs pods"},
		{name: "unregistered with a daemon", node: unregistered, pod: bound(owned("DaemonSet"))},
		{name: "about to be registered", node: unregistered, claim: true, want: "not cordoned"},
		{name: "cordoned with a pod that does not end", node: cordoned, pod: bound(stuck), want: "still runs pods"},
		{name: "cordoned with a pod that ended", node: cordoned, pod: bound(func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var objects []client.Object
			if tt.node != nil {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
				tt.node(node)
				objects = append(objects, node)
			}
			if tt.claim {
				claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Annotations: map[string]string{v1alpha1.AnnotationVM: "n"}}}
				objects = append(objects, claim)
			}
			if tt.pod != nil {
				objects = append(objects, tt.pod)
			}
			err := scheduling.FromObjects(objects).Drained(t.Context(), "n")
			if drained := err == nil; drained != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
