package provisioning_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	"sigs.k8s.io/karpenter/pkg/controllers/capacitybuffer"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"github.com/numaform/numaform/internal/controllers/provisioning"
	"github.com/numaform/numaform/internal/scheduling"
)

// buffer creates a CapacityBuffer of pods of 3 CPUs, and runs Karpenter's controller.
func (w *world) buffer(t *testing.T, replicas int32) *virtualpods.Cache {
	t.Helper()
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "three"}}
	template.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "c", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3"), corev1.ResourceMemory: resource.MustParse("1Gi")},
	}}}
	b := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "spare", UID: "spare"}}
	b.Spec.PodTemplateRef = &autoscalingv1beta1.LocalObjectRef{Name: template.Name}
	b.Spec.Replicas = &replicas
	for _, object := range []client.Object{template, b} {
		if err := w.client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	cache := virtualpods.NewVirtualPodCache(w.client)
	w.judge(t, cache)
	return cache
}

func (w *world) judge(t *testing.T, cache *virtualpods.Cache) {
	t.Helper()
	request := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "default", Name: "spare"}}
	if _, err := capacitybuffer.NewController(w.client, nil, cache).Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
}

// stands returns the Provisioning condition of the CapacityBuffer.
func (w *world) stands(t *testing.T) string {
	t.Helper()
	b := &autoscalingv1beta1.CapacityBuffer{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "spare"}, b); err != nil {
		t.Fatal(err)
	}
	condition := apimeta.FindStatusCondition(b.Status.Conditions, autoscalingv1beta1.ProvisioningCondition)
	if condition == nil {
		return ""
	}
	return string(condition.Status) + " " + condition.Reason + ": " + condition.Message
}

// provision decides, and checks the CapacityBuffer's condition.
func (w *world) provision(t *testing.T, made int, want string) {
	t.Helper()
	claims, err := w.Provision(asOperator(t))
	if err != nil || len(claims) != made {
		t.Errorf("made %d claims, want %d: %v", len(claims), made, err)
	}
	if got := w.stands(t); got != want {
		t.Errorf("the buffer is %q, want %q", got, want)
	}
}

// launch sets the provider ID of each NodeClaim, as Karpenter does, and returns the IDs.
func (w *world) launch(t *testing.T) []string {
	t.Helper()
	var ids []string
	for i, claim := range w.claims(t) {
		claim.Status = scheduling.Launched(w.writer.wanted[i], nil).Status
		if err := w.client.Update(t.Context(), &claim); err != nil {
			t.Fatal(err)
		}
		w.state.UpdateNodeClaim(&claim)
		ids = append(ids, claim.Status.ProviderID)
	}
	return ids
}

// asOperator returns a context with the options that Karpenter's code reads.
func asOperator(t *testing.T) context.Context {
	t.Helper()
	return options.ToContext(t.Context(), &options.Options{BatchMaxDuration: time.Minute})
}

// TestBuffers checks that a CapacityBuffer gets a VM, which remains while the buffer exists,
// and whose room new pods use.
func TestBuffers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, poolOfTwo)
	cache := w.buffer(t, 2)
	w.config.Virtual = cache.GetAll
	w.Controller = provisioning.New(w.config)
	w.provision(t, 1, "False RequiresNewCapacity: 2 of 2 replicas need new nodes")
	ids := w.launch(t)
	w.provision(t, 0, "True FitsExistingCapacity: all 2 replicas have room, on nodes or on VMs that are joining")
	if held := w.state.BufferPodCount(ids[0]); held != 2 {
		t.Errorf("the node holds room for %d pods", held)
	}
	if w.state.IsNodeNominated(ids[0]) || w.told("Nominated") > 0 {
		t.Error("the node is nominated for pods that will never come")
	}

	// The host has no room for another VM.
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "comes", UID: "comes"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("7"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}},
	}
	if err := w.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Provision(asOperator(t)); err != nil {
		t.Fatal(err)
	}
	if held := w.state.BufferPodCount(ids[0]); held != 0 || !w.state.IsNodeNominated(ids[0]) || w.told("Nominated") != 1 {
		t.Errorf("the node holds room for %d pods, and the one that came is nominated %d times", held, w.told("Nominated"))
	}
	if got, want := w.stands(t), "False RequiresNewCapacity: 2 of 2 replicas have no room: "; !strings.HasPrefix(got, want) {
		t.Errorf("the buffer is %q, want %q and why", got, want)
	}
	if w.told("FailedScheduling") > 0 {
		t.Error("pods that do not exist are told that they have no place")
	}
}

// TestBufferGoes checks that a deleted CapacityBuffer releases its room.
func TestBufferGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, poolOfTwo)
	cache := w.buffer(t, 1)
	w.config.Virtual = cache.GetAll
	w.Controller = provisioning.New(w.config)
	if _, err := w.Provision(asOperator(t)); err != nil {
		t.Fatal(err)
	}
	ids := w.launch(t)
	w.provision(t, 0, "True FitsExistingCapacity: all 1 replicas have room, on nodes or on VMs that are joining")
	b := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "spare"}}
	if err := w.client.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	w.judge(t, cache)
	if _, err := w.Provision(asOperator(t)); err != nil {
		t.Fatal(err)
	}
	if held := w.state.BufferPodCount(ids[0]); held != 0 {
		t.Errorf("the node holds room for %d pods of a buffer that is gone", held)
	}
	// If the feature gate is disabled, no CapacityBuffer is read.
	w.config.Virtual = nil
	w.config.Client = refusing{w.client}
	if _, err := provisioning.New(w.config).Provision(t.Context()); err != nil {
		t.Error(err)
	}
}

// refusing fails the test if CapacityBuffers are read.
type refusing struct{ client.Client }

func (r refusing) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, read := list.(*autoscalingv1beta1.CapacityBufferList); read {
		panic("capacitybuffers are read with the gate shut")
	}
	return r.Client.List(ctx, list, opts...)
}
