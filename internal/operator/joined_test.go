package operator_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/operator"
)

// TestJoinedByACopy checks that the copy of a NodeClaim neither proves nor disproves that its VM
// became a Node.
func TestJoinedByACopy(t *testing.T) {
	t.Parallel()
	vm := fleet.VM{Key: fleet.Key(strings.Repeat("a", 32)), VMID: 2000, Name: "workers-2000"}
	claim := func(name string, registered bool) *karpv1.NodeClaim {
		c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationKey: string(vm.Key)}}}
		if registered {
			c.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		}
		return c
	}
	for _, registered := range []bool{true, false} {
		live := fake.NewClientBuilder().WithScheme(clientgo.Scheme).
			WithObjects(claim("a-copy", !registered), claim(vm.Name, registered), claim("z-copy", !registered)).Build()
		if got, err := operator.Joined(live)(t.Context(), vm); err != nil || got != registered {
			t.Errorf("joined is %v (%v), but the VM's NodeClaim is registered: %v", got, err, registered)
		}
	}
	live := fake.NewClientBuilder().WithScheme(clientgo.Scheme).WithObjects(claim("copy", true)).Build()
	if got, err := operator.Joined(live)(t.Context(), vm); err != nil || got {
		t.Errorf("joined is %v (%v), but only a copy is registered", got, err)
	}
}
