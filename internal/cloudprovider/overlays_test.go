package cloudprovider_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	karpstate "sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

const overlaid = "c1.4VCPU-8GB"

func newOverlay(name, price, key, value string) *karpv1alpha1.NodeOverlay {
	o := &karpv1alpha1.NodeOverlay{}
	o.Name = name
	o.Spec.Requirements = []karpv1alpha1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}
	if price != "" {
		o.Spec.Price = &price
	} else {
		o.Spec.Capacity = corev1.ResourceList{"example.com/fpga": resource.MustParse("2")}
	}
	return o
}

// newOverlaid returns a world without room, with NodeOverlays, two of which conflict and
// one of which is invalid.
func newOverlaid(t *testing.T) *world {
	t.Helper()
	foreign := `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: foreign}
spec:
  template:
    spec:
      nodeClassRef: {group: example.com, kind: Other, name: shared}
      requirements: []
---
`
	w := newWorld(t, class, pool, foreign)
	for i, at := range []topology.HostID{pve1, pve1, pve2, pve2} {
		w.fleet.states = append(w.fleet.states, state(vm(at, fleet.VMID(2001+i)), scaler.PhaseMade))
	}
	for _, o := range []*karpv1alpha1.NodeOverlay{
		newOverlay("second", "7", corev1.LabelInstanceTypeStable, overlaid),
		newOverlay("first", "8", corev1.LabelInstanceTypeStable, overlaid),
		newOverlay("wrong", "9", corev1.LabelHostname, "workers-2001"),
		newOverlay("fpga", "", corev1.LabelInstanceTypeStable, overlaid),
	} {
		if err := w.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	w.config.Overlays = true
	w.CloudProvider = cloudprovider.New(w.config)
	return w
}

// TestOverlaysAreJudged checks that the result of Karpenter's validation of NodeOverlays is
// respected.
func TestOverlaysAreJudged(t *testing.T) {
	t.Parallel()
	w := newOverlaid(t)
	judge := nodeoverlay.NewController(w.clock, w.client, w.Everywhere(), nodeoverlay.NewInstanceTypeStore(), karpstate.NewCluster(w.clock, w.client, w))
	if _, err := judge.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	var list karpv1alpha1.NodeOverlayList
	if err := w.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for i := range list.Items {
		valid := list.Items[i].StatusConditions().Get(karpv1alpha1.ConditionTypeValidationSucceeded)
		got[list.Items[i].Name] = string(valid.Status) + " " + valid.Reason
	}
	want := map[string]string{
		"second": "True ValidationSucceeded", "fpga": "True ValidationSucceeded",
		"first": "False Conflict", "wrong": "False RuntimeValidation",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if price := priceOf(t, w); price != 7 {
		t.Errorf("the live VMs' type costs %g", price)
	}
	// After the NodeOverlay in conflict with it is removed, "first" applies once it is
	// validated again.
	if err := w.client.Delete(t.Context(), newOverlay("second", "7", "", "")); err != nil {
		t.Fatal(err)
	}
	if price := priceOf(t, w); price == 8 {
		t.Error("a NodeOverlay counts that is still refused")
	}
	if _, err := judge.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	if price := priceOf(t, w); price != 8 {
		t.Errorf("the live VMs' type costs %g after the next verdict", price)
	}
}

// priceOf returns the only price of the live VMs' type.
func priceOf(t *testing.T, w *world) float64 {
	t.Helper()
	for _, it := range typesOf(t, w) {
		if it.Name == overlaid {
			if len(it.Offerings) != 2 || it.Offerings.Cheapest().Price != it.Offerings.MostExpensive().Price {
				t.Fatalf("its offerings are %v", it.Offerings)
			}
			return it.Offerings[0].Price
		}
	}
	t.Fatalf("no type %s", overlaid)
	return 0
}

// TestOverlaidNodeIsPromisedWhole checks that a new NodeClaim lists the resources that
// NodeOverlays add to its node, if NodeOverlays are enabled.
func TestOverlaidNodeIsPromisedWhole(t *testing.T) {
	t.Parallel()
	for _, counts := range []bool{true, false} {
		w := newOverlaid(t)
		w.config.Overlays = counts
		w.CloudProvider = cloudprovider.New(w.config)
		standing := w.fleet.states[0].VM
		created, err := w.Create(t.Context(), claimOf(standing))
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range []corev1.ResourceList{created.Status.Capacity, created.Status.Allocatable} {
			if amount := list["example.com/fpga"]; (amount.Value() == 2) != counts {
				t.Errorf("counting %t: the node is promised %s", counts, amount.String())
			}
		}
	}
}
