package scheduling

import (
	"cmp"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// workload is the common part of Deployments, ReplicaSets, StatefulSets and Jobs.
type workload struct {
	client.Object
	kind     string
	replicas int32
	template corev1.PodTemplateSpec
	selector *metav1.LabelSelector
	claims   []corev1.PersistentVolumeClaim
}

// expandWorkloads replaces workloads by the pods that they would create, minus their pods
// that are among the objects.
func expandWorkloads(objects []client.Object) ([]client.Object, error) {
	var kept []client.Object
	var workloads []workload
	for _, object := range objects {
		if w, ok := asWorkload(object); !ok {
			kept = append(kept, object)
		} else if metav1.GetControllerOf(object) == nil {
			workloads = append(workloads, w)
		}
	}
	for i := range workloads {
		pods, err := workloads[i].missingPods(kept)
		if err != nil {
			return nil, err
		}
		kept = append(kept, pods...)
	}
	return kept, nil
}

func asWorkload(object client.Object) (workload, bool) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return workload{Object: o, kind: "ReplicaSet", replicas: orOne(o.Spec.Replicas), template: o.Spec.Template, selector: o.Spec.Selector}, true
	case *appsv1.ReplicaSet:
		return workload{Object: o, kind: "ReplicaSet", replicas: orOne(o.Spec.Replicas), template: o.Spec.Template, selector: o.Spec.Selector}, true
	case *appsv1.StatefulSet:
		return workload{
			Object: o, kind: "StatefulSet", replicas: orOne(o.Spec.Replicas), template: o.Spec.Template,
			selector: o.Spec.Selector, claims: o.Spec.VolumeClaimTemplates,
		}, true
	case *batchv1.Job:
		replicas := orOne(o.Spec.Parallelism)
		if o.Spec.Completions != nil {
			replicas = min(replicas, *o.Spec.Completions)
		}
		return workload{
			Object: o, kind: "Job", replicas: replicas, template: o.Spec.Template,
			selector: &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.JobNameLabel: o.Name}},
		}, true
	}
	return workload{}, false
}

// mostPods is the maximum number of pods of a workload: a Kubernetes cluster has no more.
const mostPods = 150_000

// validate refuses values that would fill the memory, and values that no API server
// accepts.
func (w *workload) validate() error {
	kind := w.GetObjectKind().GroupVersionKind().Kind
	if w.replicas > mostPods {
		return fmt.Errorf("%s %q: asks for %d pods, and a cluster has at most %d: lower its number", kind, w.GetName(), w.replicas, mostPods)
	}
	if err := amountsOf(&w.template.Spec); err != nil {
		return fmt.Errorf("%s %q: spec.template.spec.%w", kind, w.GetName(), err)
	}
	return nil
}

func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

func (w *workload) missingPods(objects []client.Object) ([]client.Object, error) {
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil {
		return nil, fmt.Errorf("reading the selector of %s %s: %w", w.kind, w.GetName(), err)
	}
	namespace := cmp.Or(w.GetNamespace(), corev1.NamespaceDefault)
	taken := map[string]bool{}
	missing := int(w.replicas)
	for _, object := range objects {
		pod, ok := object.(*corev1.Pod)
		if !ok || cmp.Or(pod.Namespace, corev1.NamespaceDefault) != namespace || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		taken[pod.Name] = true
		missing--
	}
	var made []client.Object
	for i := 0; missing > 0; i++ {
		name := fmt.Sprintf("%s-%d", w.GetName(), i)
		if taken[name] {
			continue
		}
		missing--
		made = append(made, w.pod(namespace, name))
		for _, claim := range w.volumeClaims(namespace, name) {
			if !slices.ContainsFunc(objects, func(o client.Object) bool { return sameClaim(o, claim) }) {
				made = append(made, claim)
			}
		}
	}
	return made, nil
}

func sameClaim(object client.Object, claim *corev1.PersistentVolumeClaim) bool {
	other, ok := object.(*corev1.PersistentVolumeClaim)
	return ok && other.Name == claim.Name && cmp.Or(other.Namespace, corev1.NamespaceDefault) == claim.Namespace
}

func (w *workload) pod(namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *w.template.ObjectMeta.DeepCopy(), Spec: *w.template.Spec.DeepCopy()}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	pod.Namespace, pod.Name, pod.GenerateName = namespace, name, ""
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: w.kind, Name: w.GetName(), Controller: new(true)}}
	if w.kind == "Job" {
		pod.OwnerReferences[0].APIVersion = "batch/v1"
	}
	for _, claim := range w.claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: claim.Name,
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + name},
			},
		})
	}
	return pod
}

func (w *workload) volumeClaims(namespace, pod string) []*corev1.PersistentVolumeClaim {
	var claims []*corev1.PersistentVolumeClaim
	for i := range w.claims {
		claim := w.claims[i].DeepCopy()
		claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
		claim.Namespace, claim.Name = namespace, claim.Name+"-"+pod
		claims = append(claims, claim)
	}
	return claims
}
