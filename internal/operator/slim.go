package operator

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// slim removes the parts of an object that no controller reads before the object is cached:
// managed fields, which are often half of an object, and most of a pod or Node. No
// controller updates pods or Nodes from the cache: patches contain only differences from
// the cached object.
func slim(object any) (any, error) {
	object, err := cache.TransformStripManagedFields()(object)
	switch o := object.(type) {
	case *corev1.Pod:
		slimContainers(o.Spec.Containers)
		slimContainers(o.Spec.InitContainers)
		o.Spec.EphemeralContainers = nil
		slimStatuses(o.Status.ContainerStatuses)
		slimStatuses(o.Status.InitContainerStatuses)
		o.Status.EphemeralContainerStatuses = nil
	case *corev1.Node:
		o.Status.Images = nil
	}
	return object, err
}

// slimContainers keeps what affects scheduling.
func slimContainers(containers []corev1.Container) {
	for i := range containers {
		c := &containers[i]
		containers[i] = corev1.Container{Name: c.Name, Ports: c.Ports, Resources: c.Resources, ResizePolicy: c.ResizePolicy, RestartPolicy: c.RestartPolicy}
	}
}

// slimStatuses keeps the resources, which Karpenter reads because they may differ from the
// spec during a resize.
func slimStatuses(statuses []corev1.ContainerStatus) {
	for i := range statuses {
		s := &statuses[i]
		statuses[i] = corev1.ContainerStatus{Name: s.Name, AllocatedResources: s.AllocatedResources, Resources: s.Resources}
	}
}
