package operator_test

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	"sigs.k8s.io/karpenter/pkg/controllers/capacitybuffer"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"github.com/numaform/numaform/internal/controllers/provisioning"
	"github.com/numaform/numaform/internal/operator"
)

// TestLargeBuffers checks that a CapacityBuffer with too many replicas has no pods and a
// condition, whatever the number of its replicas derives from, and pods once it is smaller.
func TestLargeBuffers(t *testing.T) {
	t.Parallel()
	const many = provisioning.MaxReplicas + 1
	name := metav1.ObjectMeta{Namespace: "shop", Name: "web"}
	replicas, all := int32(many), int32(100)
	pod := corev1.PodTemplateSpec{}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}}}
	template := &corev1.PodTemplate{ObjectMeta: name, Template: pod}
	deployment := &appsv1.Deployment{ObjectMeta: name}
	deployment.Spec.Template, deployment.Spec.Replicas = pod, &replicas
	cpus := func(n int) autoscalingv1beta1.Limits {
		return autoscalingv1beta1.Limits{"cpu": resource.MustParse(fmt.Sprint(n))}
	}
	ofTemplate := &autoscalingv1beta1.LocalObjectRef{Name: name.Name}
	for _, test := range []struct {
		name string
		spec autoscalingv1beta1.CapacityBufferSpec
	}{
		{name: "replicas", spec: autoscalingv1beta1.CapacityBufferSpec{PodTemplateRef: ofTemplate, Replicas: &replicas}},
		{name: "limits", spec: autoscalingv1beta1.CapacityBufferSpec{PodTemplateRef: ofTemplate, Limits: cpus(many)}},
		{name: "percentage", spec: autoscalingv1beta1.CapacityBufferSpec{
			ScalableRef: &autoscalingv1beta1.ScalableRef{Kind: autoscalingv1beta1.KindDeployment, Name: name.Name}, Percentage: &all,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			buffer := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: name, Spec: test.spec}
			api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(template.DeepCopy(), deployment.DeepCopy(), buffer).WithStatusSubresource(buffer).Build()
			limited := operator.LimitBuffers(api)
			want := func(status metav1.ConditionStatus, reason string, pods int) {
				t.Helper()
				cache := virtualpods.NewVirtualPodCache(limited)
				if got := len(cache.GetAll(t.Context())); got > provisioning.MaxReplicas {
					t.Errorf("%d pods before the reconciliation", got)
				}
				request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(buffer)}
				if _, err := capacitybuffer.NewController(limited, nil, cache).Reconcile(t.Context(), request); err != nil {
					t.Fatal(err)
				}
				if err := api.Get(t.Context(), request.NamespacedName, buffer); err != nil {
					t.Fatal(err)
				}
				ready := apimeta.FindStatusCondition(buffer.Status.Conditions, autoscalingv1beta1.ReadyForProvisioningCondition)
				if ready == nil || ready.Status != status || ready.Reason != reason {
					t.Errorf("the condition is %+v, want %s %s", ready, status, reason)
				}
				if got := len(cache.GetAll(t.Context())); got != pods {
					t.Errorf("%d pods, want %d", got, pods)
				}
			}
			want(metav1.ConditionFalse, "TooManyReplicas", 0)
			version := buffer.ResourceVersion
			want(metav1.ConditionFalse, "TooManyReplicas", 0)
			if buffer.ResourceVersion != version {
				t.Error("the second reconciliation changes the buffer again")
			}

			// Another client writes the status.
			buffer.SetCondition(autoscalingv1beta1.ReadyForProvisioningCondition, metav1.ConditionTrue, "Resolved", "")
			if err := api.Status().Update(t.Context(), buffer); err != nil {
				t.Fatal(err)
			}
			want(metav1.ConditionFalse, "TooManyReplicas", 0)

			buffer.Spec.Limits = cpus(3)
			if err := api.Update(t.Context(), buffer); err != nil {
				t.Fatal(err)
			}
			want(metav1.ConditionTrue, "Resolved", 3)
		})
	}
}
