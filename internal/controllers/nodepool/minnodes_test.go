package nodepool_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/controllers/nodepool"
)

func TestMain(m *testing.M) {
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// provider is the part of a cloud provider that budgets need.
type provider struct{ cloudprovider.CloudProvider }

func (provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ProxmoxNodeClass{}}
}

// node is the state of one node.
type node int

const (
	ready node = iota
	starting
	silent
	leaving
	gone
)

// newCluster returns Karpenter's state of the pool's nodes, and a client for the pool.
func newCluster(t *testing.T, pool *karpv1.NodePool, nodes []node) (*state.Cluster, client.Client) {
	t.Helper()
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(pool).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&karpv1.NodeClaim{}, "status.providerID", func(o client.Object) []string { return []string{o.(*karpv1.NodeClaim).Status.ProviderID} }).
		Build()
	cluster := state.NewCluster(clock.RealClock{}, api, provider{})
	for i, how := range nodes {
		id := fmt.Sprintf("proxmox://lab/%d", 2000+i)
		labels := map[string]string{karpv1.NodePoolLabelKey: pool.Name, karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true"}
		if how == starting {
			delete(labels, karpv1.NodeInitializedLabelKey)
		}
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", i), Labels: labels}}
		claim.Status.ProviderID = id
		if how == gone {
			claim.StatusConditions().SetTrue(karpv1.ConditionTypeInstanceTerminating)
		}
		cluster.UpdateNodeClaim(claim)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: labels}, Spec: corev1.NodeSpec{ProviderID: id}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if how == silent {
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
		}
		if err := cluster.UpdateNode(context.Background(), n); err != nil {
			t.Fatal(err)
		}
		if how == leaving {
			cluster.MarkForDeletion(id)
		}
	}
	return cluster, api
}

func newPool(least string, budgets ...karpv1.Budget) *karpv1.NodePool {
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: "c"}
	pool.Spec.Disruption.Budgets = budgets
	if least != "" {
		pool.Annotations = map[string]string{v1alpha1.AnnotationMinNodes: least}
	}
	return pool
}

// TestFloors checks how many nodes of a NodePool with a minimum number of nodes Karpenter
// may disrupt.
func TestFloors(t *testing.T) {
	t.Parallel()
	all := karpv1.Budget{Nodes: "100%"}
	tests := []struct {
		name  string
		least string
		nodes []node
		more  []karpv1.Budget
		want  int // for Empty and for Underutilized
		drift int
	}{
		{"no least number", "", []node{ready, ready, ready}, nil, 3, 3},
		{"two stay of three", "2", []node{ready, ready, ready}, nil, 1, 3},
		{"two stay of two", "2", []node{ready, ready}, nil, 0, 2},
		{"none is made for two of one", "2", []node{ready}, nil, 0, 1},
		{"a starting one is none yet", "2", []node{ready, ready, starting}, nil, 0, 2},
		{"a silent one does not count", "2", []node{ready, ready, ready, silent}, nil, 1, 3},
		{"a leaving one does not count", "2", []node{ready, ready, ready, leaving}, nil, 1, 3},
		{"nor one that is gone", "2", []node{ready, ready, ready, gone}, nil, 1, 3},
		{"the pool's own budget is stricter", "2", []node{ready, ready, ready, ready}, []karpv1.Budget{{Nodes: "1"}}, 1, 1},
		{"of zero", "0", []node{ready, ready}, nil, 2, 2},
		{"nobody understands it", "two", []node{ready, ready, ready}, nil, 0, 3},
		{"less than nothing", "-1", []node{ready, ready, ready}, nil, 0, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cluster, api := newCluster(t, newPool(test.least, append(test.more, all)...), test.nodes)
			floored := nodepool.WithFloors(api, cluster)
			for reason, want := range map[karpv1.DisruptionReason]int{
				karpv1.DisruptionReasonEmpty: test.want, karpv1.DisruptionReasonUnderutilized: test.want, karpv1.DisruptionReasonDrifted: test.drift,
			} {
				may, err := disruption.BuildDisruptionBudgetMapping(t.Context(), cluster, clock.RealClock{}, floored, provider{}, &recorder{}, reason)
				if err != nil || may["general"] != want {
					t.Errorf("%s: %d may go, want %d: %v", reason, may["general"], want, err)
				}
			}
			stored := &karpv1.NodePool{}
			if err := api.Get(t.Context(), client.ObjectKey{Name: "general"}, stored); err != nil || len(stored.Spec.Disruption.Budgets) != 1+len(test.more) {
				t.Errorf("the pool has the budgets %v: %v", stored.Spec.Disruption.Budgets, err)
			}
		})
	}
}
