package operator_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/topology"
)

// TestEvacuationMarks checks that NodeClaims on an evacuated host are marked while the
// evacuation lasts, and that an idle controller reads all NodeClaims only once a minute.
func TestEvacuationMarks(t *testing.T) {
	t.Parallel()
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: "a", Labels: map[string]string{corev1.LabelTopologyRegion: "lab", corev1.LabelTopologyZone: "pve1"},
	}}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: "c"}
	lists := 0
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(claim).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			lists++
			return c.List(ctx, list, opts...)
		},
	}).Build()
	clk := testclock.NewFakeClock(time.Now())
	var hosts []topology.HostID
	e := operator.Evacuation(api, clk, func() []topology.HostID { return hosts })
	round := func(want bool) {
		t.Helper()
		if _, err := e.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got karpv1.NodeClaim
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(claim), &got); err != nil {
			t.Fatal(err)
		}
		if _, marked := got.Annotations[v1alpha1.AnnotationEvacuated]; marked != want {
			t.Errorf("the NodeClaim is marked: %t, want %t", marked, want)
		}
		clk.Step(2 * time.Second)
	}

	for range 31 { // 62 seconds
		round(false)
	}
	if lists != 2 {
		t.Errorf("read all NodeClaims %d times in a minute without evacuations, want 2", lists)
	}
	hosts = []topology.HostID{{Region: "lab", Host: "pve1"}}
	round(true)
	round(true)
	hosts = nil
	round(false)
	round(false)
	lists = 0
	round(false)
	if lists != 0 {
		t.Error("read all NodeClaims although nothing changed")
	}
}
