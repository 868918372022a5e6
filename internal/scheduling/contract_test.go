package scheduling_test

import (
	"context"
	"runtime/debug"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// These tests check the properties of Karpenter that DESIGN.md relies on: a test that fails
// after an upgrade shows what to review.

func TestContractKarpenterVersion(t *testing.T) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("the test has no build info")
	}
	for _, module := range info.Deps {
		if module.Path == "sigs.k8s.io/karpenter" && version.MustParse(module.Version).String() != "1.14.1" {
			t.Errorf("Karpenter is %s: read its scheduling, state and utils packages again, then change this line", module.Version)
		}
	}
}

type quiet struct{}

func (quiet) Publish(...events.Event) {}

// run is the input of Karpenter's scheduler. Its pools may have the same name.
type run struct {
	limits corev1.ResourceList
	pools  []*karpv1.NodePool
	zones  []string // of the one instance type
	claims []*karpv1.NodeClaim
}

func (r run) solve(t *testing.T, pods ...*corev1.Pod) karpscheduling.Results {
	t.Helper()
	ctx := log.IntoContext(context.Background(), logr.Discard())
	ctx = options.ToContext(ctx, &options.Options{PreferencePolicy: options.PreferencePolicyRespect, IgnoreDRARequests: true})
	c := fake.NewClientBuilder().WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.NodeName}
	}).Build()
	cluster := state.NewCluster(clock.RealClock{}, c, nil)
	for _, claim := range r.claims {
		cluster.UpdateNodeClaim(claim)
	}
	for _, pool := range r.pools {
		pool.Spec.Limits = karpv1.Limits(r.limits)
	}
	types := map[string][]*cloudprovider.InstanceType{r.pools[0].Name: {contractType(r.zones...)}}
	nodes := cluster.DeepCopyNodes()
	topology, err := karpscheduling.NewTopology(ctx, c, cluster, nodes, r.pools[:1], types, pods)
	if err != nil {
		t.Fatal(err)
	}
	s := karpscheduling.NewScheduler(ctx, c, r.pools, cluster, nodes, topology, types, nil, quiet{}, clock.RealClock{}, nil, nil)
	results, err := s.Solve(ctx, pods)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func contractPool(zones ...string) *karpv1.NodePool {
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "numaform.dev", Kind: "ProxmoxNodeClass", Name: "c"}
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{
		{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: zones},
	}
	return pool
}

func contractType(zones ...string) *cloudprovider.InstanceType {
	it := &cloudprovider.InstanceType{
		Name: "four",
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("100"), "nodes": resource.MustParse("1"),
		},
		Overhead: &cloudprovider.InstanceTypeOverhead{},
		Requirements: scheduling.NewRequirements(
			scheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "four"),
			scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zones...),
		),
	}
	for _, zone := range zones {
		it.Offerings = append(it.Offerings, &cloudprovider.Offering{Available: true, Price: 1, Requirements: scheduling.NewLabelRequirements(
			map[string]string{corev1.LabelTopologyZone: zone, karpv1.CapacityTypeLabelKey: "on-demand"},
		)})
	}
	return it
}

func contractPod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": "a"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
}

func spreadOverZones(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
	}}
	return pod
}

// TestContractPoolsOfOneNameAreTriedInOrder checks that templates with the same NodePool
// name are tried in order, so a spread over zones uses the first allowed zone.
func TestContractPoolsOfOneNameAreTriedInOrder(t *testing.T) {
	pools := []*karpv1.NodePool{contractPool("z1", "z2", "z3"), contractPool("z3"), contractPool("z1"), contractPool("z2")}
	results := run{pools: pools[:1], zones: []string{"z1", "z2", "z3"}}.solve(t, contractPod("a", "1"))
	if got := len(results.NewNodeClaims[0].Requirements.Get(corev1.LabelTopologyZone).Values()); got != 3 {
		t.Errorf("a pod without constraints leaves %d zones, want 3", got)
	}
	pools[0].Spec.Template.Spec.Taints = []corev1.Taint{{Key: "not", Effect: corev1.TaintEffectNoSchedule}}
	results = run{pools: pools, zones: []string{"z1", "z2", "z3"}}.solve(t,
		spreadOverZones(contractPod("a", "1")), spreadOverZones(contractPod("b", "1")), spreadOverZones(contractPod("c", "1")))
	zones := map[string]string{}
	for _, claim := range results.NewNodeClaims {
		zones[claim.Pods[0].Name] = claim.Requirements.Get(corev1.LabelTopologyZone).Any()
	}
	if zones["a"] != "z3" || zones["b"] != "z1" || zones["c"] != "z2" {
		t.Errorf("zones are %v, want a on z3, b on z1, c on z2", zones)
	}
}

// TestContractPoolsOfOneNameShareTheirLimit checks that the limits of NodePools with the
// same name are one limit, including nodes if the types' capacity has them.
func TestContractPoolsOfOneNameShareTheirLimit(t *testing.T) {
	for name, limits := range map[string]corev1.ResourceList{
		"cpu":   {corev1.ResourceCPU: resource.MustParse("11")},
		"nodes": {"nodes": resource.MustParse("2")},
	} {
		results := run{
			limits: limits, zones: []string{"z1", "z2"},
			pools: []*karpv1.NodePool{contractPool("z1", "z2"), contractPool("z1"), contractPool("z2")},
		}.solve(t, contractPod("a", "3"), contractPod("b", "3"), contractPod("c", "3"))
		if len(results.NewNodeClaims) != 2 || len(results.PodErrors) != 1 {
			t.Errorf("limit of %s: %d claims and %d errors, want 2 and 1", name, len(results.NewNodeClaims), len(results.PodErrors))
		}
	}
}

// TestContractClaimsAreFilledByName checks that nodes are filled in name order, a NodeClaim
// with a provider ID is a node, and its capacity counts against the limit.
func TestContractClaimsAreFilledByName(t *testing.T) {
	var claims []*karpv1.NodeClaim
	for _, name := range []string{"n2", "n1"} {
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			karpv1.NodePoolLabelKey: "pool", corev1.LabelTopologyZone: "z1",
		}}}
		claim.Status.ProviderID = "id-" + name
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("9")}
		claim.Status.Allocatable = claim.Status.Capacity
		claims = append(claims, claim)
	}
	results := run{
		limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")},
		pools:  []*karpv1.NodePool{contractPool("z1")}, zones: []string{"z1"}, claims: claims,
	}.solve(t, contractPod("a", "2"), contractPod("b", "2"), contractPod("c", "2"), contractPod("d", "3"))
	filled := map[string]int{}
	for _, node := range results.ExistingNodes {
		filled[node.ProviderID()] = len(node.Pods)
	}
	// d is the largest and is placed first; then a pod of 2 does not fit next to it.
	if filled["id-n1"] != 1 || filled["id-n2"] != 2 || len(results.NewNodeClaims) != 0 || len(results.PodErrors) != 1 {
		t.Errorf("filled %v, %d claims, %d errors; want n1: 1, n2: 2, none, 1", filled, len(results.NewNodeClaims), len(results.PodErrors))
	}
}

// TestContractNotInAllowsNodesWithoutTheLabel checks that a NotIn requirement keeps a pod
// off nodes with the value, not off nodes without the label: this is how a pod refuses VMs
// without a fixed host.
func TestContractNotInAllowsNodesWithoutTheLabel(t *testing.T) {
	open := scheduling.NewRequirements(scheduling.NewRequirement("choice", corev1.NodeSelectorOpIn, "any"))
	refuses := scheduling.NewRequirements(scheduling.NewRequirement("choice", corev1.NodeSelectorOpNotIn, "any"))
	if open.IsCompatible(refuses) {
		t.Error("a node with the value is accepted")
	}
	if !scheduling.NewRequirements().IsCompatible(refuses) {
		t.Error("a node without the label is refused")
	}
}

// TestContractOptionsComeThroughTheContext checks that Karpenter panics without options in
// the context.
func TestContractOptionsComeThroughTheContext(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("options are found in an empty context")
		}
	}()
	options.FromContext(context.Background())
}
