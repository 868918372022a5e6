package operator_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/internal/operator"
)

// TestCachedObjectsAreSlim checks that the cache omits the parts of pods and Nodes that no
// controller reads, and that the resources of a pod stay the same, also during a resize.
func TestCachedObjectsAreSlim(t *testing.T) {
	t.Parallel()
	cpu := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(text)}
	}
	always := corev1.ContainerRestartPolicyAlways
	managed := metav1.ObjectMeta{Name: "a", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}
	pod := &corev1.Pod{ObjectMeta: managed}
	pod.Spec.NodeName = "node-1"
	pod.Spec.Volumes = []corev1.Volume{{Name: "data"}}
	pod.Spec.Containers = []corev1.Container{{
		Name: "main", Image: "registry/app:1", Command: []string{"run"}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
		VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}, LivenessProbe: &corev1.Probe{PeriodSeconds: 1},
		Ports: []corev1.ContainerPort{{HostPort: 80}}, Resources: corev1.ResourceRequirements{Requests: cpu("1"), Limits: cpu("2")},
	}}
	pod.Spec.InitContainers = []corev1.Container{{
		Name: "sidecar", Image: "registry/sidecar:1", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Requests: cpu("500m")},
	}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", ImageID: "sha256:1", AllocatedResources: cpu("3"), Resources: &corev1.ResourceRequirements{Requests: cpu("3")},
	}}
	before := resources.RequestsForPods(pod.DeepCopy())

	want := pod.DeepCopy()
	want.ManagedFields = nil
	want.Spec.Containers[0] = corev1.Container{Name: "main", Ports: pod.Spec.Containers[0].Ports, Resources: pod.Spec.Containers[0].Resources}
	want.Spec.InitContainers[0].Image = ""
	want.Status.ContainerStatuses[0].ImageID = ""
	got, err := operator.Slim(pod)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cached pod (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, resources.RequestsForPods(got.(*corev1.Pod))); diff != "" {
		t.Errorf("requests of the cached pod (-want +got):\n%s", diff)
	}
	if quantity := before[corev1.ResourceCPU]; quantity.String() != "3500m" {
		t.Errorf("the pod requests %s, want the resources in its status", quantity.String())
	}

	node := &corev1.Node{ObjectMeta: managed}
	node.Status.Capacity = cpu("4")
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"registry/app:1"}}}
	wantNode := node.DeepCopy()
	wantNode.ManagedFields, wantNode.Status.Images = nil, nil
	if got, err = operator.Slim(node); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantNode, got); diff != "" {
		t.Errorf("cached Node (-want +got):\n%s", diff)
	}
}
