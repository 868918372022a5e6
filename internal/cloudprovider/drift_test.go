package cloudprovider_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// launch returns a launched NodeClaim.
func (w *world) launch(t *testing.T) *karpv1.NodeClaim {
	t.Helper()
	own := vm(pve1, 2000)
	w.fleet.states = []scaler.VMState{state(own, scaler.PhaseMade)}
	w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, guest(own))
	c := claimOf(own)
	created, err := w.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	c.Labels, c.Annotations, c.Status = created.Labels, created.Annotations, created.Status
	return c
}

func TestIsDrifted(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		edit func(t *testing.T, w *world, c *karpv1.NodeClaim)
		want karpenter.DriftReason
	}{
		{"nothing changed", func(*testing.T, *world, *karpv1.NodeClaim) {}, ""},
		{"boot device", func(t *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.BootDevice = &v1alpha1.BootDevice{Size: "40G"} })
		}, cloudprovider.DriftClass},
		{"placement", func(t *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.Placement.Policy = "NUMA" })
		}, cloudprovider.DriftClass},
		{"tags", func(t *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.Tags = []string{"blue"} })
		}, ""},
		{"class hashed by another version", func(_ *testing.T, _ *world, c *karpv1.NodeClaim) {
			c.Annotations[v1alpha1.AnnotationClassHash], c.Annotations[v1alpha1.AnnotationClassHashVersion] = "old", "v0"
		}, ""},
		{"class never hashed", func(_ *testing.T, _ *world, c *karpv1.NodeClaim) {
			delete(c.Annotations, v1alpha1.AnnotationClassHash)
		}, ""},
		{"class gone", func(t *testing.T, w *world, _ *karpv1.NodeClaim) { w.editClass(t, nil) }, ""},
		{"template made anew", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.snapshot.Hosts[0].Templates[0].VMID = 9100
		}, cloudprovider.DriftImage},
		{"template of another host made anew", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.snapshot.Hosts[1].Templates[0].VMID = 9100
		}, ""},
		{"template gone", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) { w.snapshot.Hosts[0].Templates = nil }, ""},
		{"image not known", func(_ *testing.T, _ *world, c *karpv1.NodeClaim) { c.Status.ImageID = "" }, ""},
		{"moved", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.snapshot.Hosts[1].Guests, w.snapshot.Hosts[0].Guests = w.snapshot.Hosts[0].Guests, nil
		}, cloudprovider.DriftHost},
		{"being moved", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.snapshot.Hosts[1].Guests, w.snapshot.Hosts[0].Guests = w.snapshot.Hosts[0].Guests, nil
			w.snapshot.Hosts[1].Guests[0].Lock = "migrate"
		}, ""},
		{"being cloned from another host's template", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.snapshot.Hosts[1].Guests, w.snapshot.Hosts[0].Guests = w.snapshot.Hosts[0].Guests, nil
			w.snapshot.Hosts[1].Guests[0].Lock = "clone"
		}, ""},
		{"seen on both hosts", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.snapshot.Hosts[1].Guests = append(w.snapshot.Hosts[1].Guests, guest(vm(pve1, 2000)))
		}, ""},
		{"moved, but not its clone", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.snapshot.Hosts[1].Guests, w.snapshot.Hosts[0].Guests = w.snapshot.Hosts[0].Guests, []topology.Guest{cloneOf(vm(pve1, 2000))}
		}, cloudprovider.DriftHost},
		{"clone on another host", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.snapshot.Hosts[1].Guests, w.snapshot.Hosts[0].Guests = []topology.Guest{cloneOf(vm(pve1, 2000))}, nil
		}, ""},
		{"host down", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) { down(&w.snapshot.Hosts[0]) }, ""},
		{"host not allowed any more", func(t *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.Hosts = []string{"pve-2"} })
		}, cloudprovider.DriftNotAllowed},
		{"host still allowed", func(t *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.Hosts = []string{"lab/pve-1"} })
		}, ""},
		{"template named by its tags", func(t *testing.T, w *world, _ *karpv1.NodeClaim) {
			w.snapshot.Hosts[0].Templates[0].Tags = []string{"golden"}
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) {
				nc.Spec.Template = v1alpha1.TemplateReference{Tags: []string{"golden"}}
			})
		}, ""},
		{"another template", func(t *testing.T, w *world, _ *karpv1.NodeClaim) {
			other := w.snapshot.Hosts[0].Templates[0]
			other.VMID, other.Name = 9200, "ubuntu"
			w.snapshot.Hosts[0].Templates = append(w.snapshot.Hosts[0].Templates, other)
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.Template.Name = "ubuntu" })
		}, cloudprovider.DriftImage},
		{"evacuated", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) { w.evacuated = []topology.HostID{pve1} }, cloudprovider.DriftEvacuated},
		{"another host evacuated", func(_ *testing.T, w *world, _ *karpv1.NodeClaim) { w.evacuated = []topology.HostID{pve2} }, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			c := w.launch(t)
			test.edit(t, w, c)
			if got, err := w.IsDrifted(t.Context(), c); got != test.want || err != nil {
				t.Errorf("drifted: %q, %v; want %q", got, err, test.want)
			}
		})
	}
}

// TestIsDriftedFailsClosed checks that no node is replaced because Proxmox is
// unreadable.
func TestIsDriftedFailsClosed(t *testing.T) {
	t.Parallel()
	broken := errors.New("no answer")
	w := newWorld(t, class, pool)
	c := w.launch(t)
	w.config.Snapshot = func(context.Context) (*topology.Snapshot, error) { return nil, broken }
	if reason, err := cloudprovider.New(w.config).IsDrifted(t.Context(), c); reason != "" || !errors.Is(err, broken) {
		t.Errorf("drifted: %q, %v", reason, err)
	}
}

// TestClassChangedBeforeTheLaunch checks that a change of the class before the launch is
// drift at once: the hash written by provisioning belongs to the class from which the VM
// was created.
func TestClassChangedBeforeTheLaunch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	own := vm(pve1, 2000)
	w.fleet.states = []scaler.VMState{state(own, scaler.PhaseReserved)}
	c := claimOf(own)
	c.Annotations[v1alpha1.AnnotationClassHash] = "of an earlier class"
	created, err := w.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if got := created.Annotations; got[v1alpha1.AnnotationClassHash] != "of an earlier class" || got[v1alpha1.AnnotationClassHashVersion] != scheduling.ClassHashVersion {
		t.Errorf("annotations are %v", got)
	}
	c.Labels, c.Annotations = created.Labels, created.Annotations
	if got, err := w.IsDrifted(t.Context(), c); got != cloudprovider.DriftClass || err != nil {
		t.Errorf("drifted: %q, %v", got, err)
	}
}

func TestGetInstanceTypes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	w.fleet.states = []scaler.VMState{state(vm(pve1, 2000), scaler.PhaseMade)}
	w.evacuated = []topology.HostID{pve2}
	np := &karpv1.NodePool{}
	np.Name = "workers"
	types, err := w.GetInstanceTypes(t.Context(), np)
	if err != nil || len(types) != len(scheduling.DefaultInstanceTypes()) {
		t.Fatalf("%d types, %v", len(types), err)
	}
	open := map[string]bool{}
	for _, it := range types {
		for _, o := range it.Offerings.Available() {
			open[it.Name+" "+o.Requirements.Get(corev1.LabelTopologyZone).Any()] = true
		}
	}
	if !open["c1.4VCPU-8GB pve-1"] || open["c1.8VCPU-16GB pve-1"] || open["c1.4VCPU-8GB pve-2"] {
		t.Errorf("open are %v", open)
	}

	w.editClass(t, nil)
	if _, err := w.GetInstanceTypes(t.Context(), np); !karpenter.IsNodeClassNotReadyError(err) {
		t.Errorf("without a class: %v", err)
	}
	if _, err := w.GetInstanceTypes(t.Context(), nil); err == nil {
		t.Error("types of no NodePool are found")
	}
}

func TestWhatKarpenterAsksOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if w.Name() != "numaform" {
		t.Errorf("name is %q", w.Name())
	}
	classes := w.GetSupportedNodeClasses()
	if _, ours := classes[0].(*v1alpha1.ProxmoxNodeClass); len(classes) != 1 || !ours {
		t.Errorf("classes are %v", classes)
	}
	for i, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown} {
		policy := w.RepairPolicies()[i]
		if policy.ConditionType != corev1.NodeReady || policy.ConditionStatus != status || policy.TolerationDuration.Minutes() != 15 {
			t.Errorf("policy %d is %+v", i, policy)
		}
	}
}
