package cloudprovider_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// counted counts how often instance types are computed.
type counted struct {
	cloudprovider.Cluster
	times int
}

func (c *counted) InstanceTypes(ctx context.Context, request scheduling.Request, pool *karpv1.NodePool) ([]*karpenter.InstanceType, error) {
	c.times++
	return c.Cluster.InstanceTypes(ctx, request, pool)
}

// TestInstanceTypesAreComputedOnce checks that the types of a NodePool are computed again
// only when an input has changed, and are then correct.
func TestInstanceTypesAreComputedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	cluster := &counted{Cluster: w.config.Cluster}
	config := w.config
	config.Cluster = cluster
	config.Recent = func(context.Context) (*topology.Snapshot, error) { return w.snapshot, nil }
	remembering := cloudprovider.New(config)
	np := &karpv1.NodePool{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "workers"}, np); err != nil {
		t.Fatal(err)
	}
	changes := []struct {
		name   string
		change func()
	}{
		{"nothing was known", func() {}},
		{"a VM was reserved", func() {
			w.fleet.states = append(w.fleet.states, scaler.VMState{VM: vm(pve1, 2000), Phase: scaler.PhaseReserved, Since: epoch})
		}},
		{"an offering became unavailable", func() {
			w.config.Unavailable.Mark(scheduling.OfferingSelector{Host: pve1}, epoch.Add(time.Hour))
		}},
		{"a host is evacuated", func() { w.evacuated = []topology.HostID{pve2} }},
		{"the class changed", func() {
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.Hosts = []string{string(pve1.Host)} })
		}},
		{"the NodePool changed", func() {
			np.Spec.Template.Labels = map[string]string{"a": "b"}
			if err := w.client.Update(t.Context(), np); err != nil {
				t.Fatal(err)
			}
		}},
		{"the snapshot is new", func() {
			w.snapshot = lab()
			w.snapshot.Host(pve1).Problem = "is down"
		}},
	}
	for i, c := range changes {
		c.change()
		for range 3 {
			got, err := remembering.GetInstanceTypes(t.Context(), np)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			want, err := w.GetInstanceTypes(t.Context(), np)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if diff := cmp.Diff(summary(want), summary(got)); diff != "" {
				t.Errorf("%s: types (-want +got):\n%s", c.name, diff)
			}
		}
		if cluster.times != i+1 {
			t.Errorf("%s: computed %d times, want %d", c.name, cluster.times, i+1)
		}
	}

	// Earlier results for the same snapshot are used again.
	w.clock.Step(2 * time.Hour)
	if _, err := remembering.GetInstanceTypes(t.Context(), np); err != nil || cluster.times != len(changes)+1 {
		t.Errorf("an offering became available again: computed %d times, want %d (%v)", cluster.times, len(changes)+1, err)
	}
	w.config.Unavailable.Mark(scheduling.OfferingSelector{Host: pve1}, w.clock.Now().Add(time.Hour))
	if _, err := remembering.GetInstanceTypes(t.Context(), np); err != nil || cluster.times != len(changes)+1 {
		t.Errorf("the same offering is unavailable again: computed %d times, want %d (%v)", cluster.times, len(changes)+1, err)
	}
	copied := w.fleet.copied
	if _, err := remembering.GetInstanceTypes(t.Context(), np); err != nil || w.fleet.copied != copied {
		t.Errorf("known types copied the VMs of the fleet (%v)", err)
	}
}

// summary returns the offerings of types, one per line.
func summary(types []*karpenter.InstanceType) []string {
	var lines []string
	for _, it := range types {
		for _, offering := range it.Offerings {
			zone := offering.Requirements.Get(corev1.LabelTopologyZone).Any()
			lines = append(lines, fmt.Sprintln(it.Name, zone, offering.Available, offering.Price))
		}
	}
	return lines
}
