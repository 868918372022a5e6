package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
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

// expandWorkloads replaces workloads with the pods that they would create, minus their pods
// that are among the objects. It drops workloads that another one controls, such as a
// Deployment's ReplicaSets.
func expandWorkloads(objects []client.Object) ([]client.Object, error) {
	var others []client.Object
	var workloads []workload
	for _, object := range objects {
		if w, ok := asWorkload(object); !ok {
			others = append(others, object)
		} else if metav1.GetControllerOf(object) == nil {
			workloads = append(workloads, w)
		}
	}
	for i := range workloads {
		pods, err := workloads[i].missingPods(others)
		if err != nil {
			return nil, err
		}
		others = append(others, pods...)
	}
	return others, nil
}

func asWorkload(object client.Object) (workload, bool) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return workload{Object: o, kind: "ReplicaSet", replicas: ptr.Deref(o.Spec.Replicas, 1), template: o.Spec.Template, selector: o.Spec.Selector}, true
	case *appsv1.ReplicaSet:
		return workload{Object: o, kind: "ReplicaSet", replicas: ptr.Deref(o.Spec.Replicas, 1), template: o.Spec.Template, selector: o.Spec.Selector}, true
	case *appsv1.StatefulSet:
		return workload{
			Object: o, kind: "StatefulSet", replicas: ptr.Deref(o.Spec.Replicas, 1), template: o.Spec.Template,
			selector: o.Spec.Selector, claims: o.Spec.VolumeClaimTemplates,
		}, true
	case *batchv1.Job:
		replicas := ptr.Deref(o.Spec.Parallelism, 1)
		return workload{
			Object: o, kind: "Job", replicas: min(replicas, ptr.Deref(o.Spec.Completions, replicas)), template: o.Spec.Template,
			selector: &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.JobNameLabel: o.Name}},
		}, true
	}
	return workload{}, false
}

// mostPods is the maximum number of pods of a workload: Kubernetes supports no more in a
// cluster.
const mostPods = 150_000

// validate refuses values that would exhaust memory, and values that no API server
// accepts.
func (w *workload) validate() error {
	kind := w.GetObjectKind().GroupVersionKind().Kind
	if w.replicas > mostPods {
		return fmt.Errorf("%s %q: requests %d pods, but a cluster has at most %d: lower the number", kind, w.GetName(), w.replicas, mostPods)
	}
	if err := validateResources(&w.template.Spec); err != nil {
		return fmt.Errorf("%s %q: spec.template.spec.%w", kind, w.GetName(), err)
	}
	return nil
}

// missingPods returns the pods that the workload lacks among the objects, each followed by
// the volume claims that it lacks.
func (w *workload) missingPods(objects []client.Object) ([]client.Object, error) {
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil {
		return nil, fmt.Errorf("%s %q: spec.selector: %w", w.GetObjectKind().GroupVersionKind().Kind, w.GetName(), err)
	}
	namespace := cmp.Or(w.GetNamespace(), corev1.NamespaceDefault)
	pods, claims := map[string]bool{}, map[string]bool{}
	missing := int(w.replicas)
	for _, object := range objects {
		if cmp.Or(object.GetNamespace(), corev1.NamespaceDefault) != namespace {
			continue
		}
		switch o := object.(type) {
		case *corev1.Pod:
			if selector.Matches(labels.Set(o.Labels)) {
				pods[o.Name] = true
				missing--
			}
		case *corev1.PersistentVolumeClaim:
			claims[o.Name] = true
		}
	}

	var made []client.Object
	for i := 0; missing > 0; i++ {
		name := fmt.Sprintf("%s-%d", w.GetName(), i)
		if pods[name] {
			continue
		}
		missing--
		made = append(made, w.pod(namespace, name))
		for i := range w.claims {
			claim := w.claims[i].DeepCopy()
			claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
			claim.Namespace, claim.Name = namespace, claim.Name+"-"+name
			if !claims[claim.Name] {
				made = append(made, claim)
			}
		}
	}
	return made, nil
}

func (w *workload) pod(namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *w.template.ObjectMeta.DeepCopy(), Spec: *w.template.Spec.DeepCopy()}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	pod.Namespace, pod.Name, pod.GenerateName = namespace, name, ""
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: w.kind, Name: w.GetName(), Controller: new(true)}
	if w.kind == "Job" {
		owner.APIVersion = "batch/v1"
	}
	pod.OwnerReferences = []metav1.OwnerReference{owner}
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

// writtenAt is the creation time of objects without one, 2020-01-01. It is fixed because
// Karpenter schedules pods of the same size by age.
const writtenAt = 1577836800

// setDefaults sets the fields that an API server and Karpenter's controllers would set.
// UIDs derive from the objects' names, so pods of the same size and age are scheduled in
// the order of their names.
func setDefaults(object client.Object) {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if slices.Contains(clusterKinds(), kind) {
		object.SetNamespace("")
	} else if object.GetNamespace() == "" {
		object.SetNamespace(corev1.NamespaceDefault)
	}
	if object.GetName() == "" {
		object.SetName(object.GetGenerateName() + "0")
	}
	if object.GetUID() == "" {
		object.SetUID(types.UID(strings.ToLower(kind) + "/" + object.GetNamespace() + "/" + object.GetName()))
	}
	if stamp := object.GetCreationTimestamp(); stamp.IsZero() {
		object.SetCreationTimestamp(metav1.Unix(writtenAt, 0))
	}
	switch o := object.(type) {
	case *corev1.Pod:
		defaultPod(o)
	case *corev1.Node:
		defaultNode(o)
	case *corev1.PersistentVolumeClaim:
		if o.Spec.VolumeName != "" && o.Status.Phase == "" {
			// Karpenter looks for the annotation that the volume controller sets when
			// binding.
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
			o.Status.Phase = corev1.ClaimBound
		}
	case *karpv1.NodePool:
		setTrue(o.StatusConditions(), karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady)
	case *v1alpha1.ProxmoxNodeClass:
		setTrue(o.StatusConditions(), v1alpha1.ConditionValid, v1alpha1.ConditionTemplateReady,
			v1alpha1.ConditionPlacementReady, v1alpha1.ConditionMetadataReady)
	}
}

// clusterKinds returns the cluster-scoped kinds.
func clusterKinds() []string {
	return []string{
		"Node", "Namespace", "PersistentVolume", "StorageClass", "CSINode", "VolumeAttachment",
		"NodePool", "NodeClaim", "NodeOverlay", v1alpha1.KindProxmoxNodeClass, v1alpha1.KindProxmoxTemplate, "ScalePlan",
	}
}

// setTrue sets conditions that are unknown or missing to true.
func setTrue(conditions status.ConditionSet, names ...string) {
	for _, name := range names {
		if c := conditions.Get(name); c == nil || c.IsUnknown() {
			conditions.SetTrue(name)
		}
	}
}

func defaultPod(pod *corev1.Pod) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			// A resource with only a limit requests its limit.
			resources := &containers[i].Resources
			if len(resources.Limits) > 0 {
				requests := maps.Clone(resources.Limits)
				maps.Copy(requests, resources.Requests)
				resources.Requests = requests
			}
		}
	}

	if pod.Status.Phase == "" {
		pod.Status.Phase = corev1.PodPending
		if pod.Spec.NodeName != "" {
			pod.Status.Phase = corev1.PodRunning
		}
	}
	evaluated := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	if pod.Spec.NodeName == "" && pod.Status.Phase == corev1.PodPending && !evaluated && len(pod.Spec.SchedulingGates) == 0 {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		})
	}
}

// defaultNode derives a missing capacity or missing allocatable resources from each other,
// and sets the labels that kubelet sets.
func defaultNode(node *corev1.Node) {
	if len(node.Status.Capacity) == 0 {
		node.Status.Capacity = node.Status.Allocatable
	}
	if len(node.Status.Capacity) > 0 {
		node.Status.Capacity = maps.Clone(node.Status.Capacity)
		if _, ok := node.Status.Capacity[corev1.ResourcePods]; !ok {
			node.Status.Capacity[corev1.ResourcePods] = *resource.NewQuantity(110, resource.DecimalSI)
		}
	}
	allocatable := maps.Clone(node.Status.Capacity)
	maps.Copy(allocatable, node.Status.Allocatable)
	node.Status.Allocatable = allocatable
	labels := map[string]string{
		corev1.LabelHostname: node.Name, corev1.LabelOSStable: string(corev1.Linux), corev1.LabelArchStable: karpv1.ArchitectureAmd64,
	}
	maps.Copy(labels, node.Labels)
	node.Labels = labels
}
