package garbage_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// TestLeftNodes checks that a Node without a NodeClaim and a VM is deleted after a minute, and
// that no other Node is.
func TestLeftNodes(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(w *world, node *corev1.Node, vm fleet.VM)
		kept   bool
	}{
		"nothing else exists": {change: func(*world, *corev1.Node, fleet.VM) {}},
		"the Node is of no class": {kept: true, change: func(w *world, node *corev1.Node, _ fleet.VM) {
			node.Labels = map[string]string{}
			w.update(node)
		}},
		"the Node is ready": {kept: true, change: func(w *world, node *corev1.Node, _ fleet.VM) {
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			if err := w.Status().Update(w.t.Context(), node); err != nil {
				w.t.Fatal(err)
			}
		}},
		"the VM runs":                  {kept: true, change: func(w *world, _ *corev1.Node, vm fleet.VM) { w.runs(vm) }},
		"another guest has its VMID":   {kept: true, change: func(w *world, _ *corev1.Node, vm fleet.VM) { w.runs(vm, func(g *topology.Guest) { g.Key = "" }) }},
		"the VM is in the fleet":       {kept: true, change: func(w *world, _ *corev1.Node, vm fleet.VM) { w.wants(vm, scaler.PhaseRemoving, nil) }},
		"the NodeClaim exists":         {kept: true, change: func(w *world, _ *corev1.Node, vm fleet.VM) { w.claim(vm) }},
		"a host is off":                {kept: true, change: func(w *world, _ *corev1.Node, _ fleet.VM) { w.snapshot.Hosts[0].Online = false }},
		"the region hides guests":      {kept: true, change: func(w *world, _ *corev1.Node, _ fleet.VM) { w.snapshot.Regions[0].HidesGuests = true }},
		"the region is not configured": {kept: true, change: func(w *world, _ *corev1.Node, _ fleet.VM) { w.snapshot.Regions[0].Name = "other" }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			vm := newVM(2000)
			node := w.node(vm)
			node.Labels = map[string]string{v1alpha1.LabelNodeClass: "class"}
			w.update(node)
			tt.change(w, node, vm)
			w.look("nodes")
			w.after(59 * time.Second)
			w.look("nodes")
			w.wantEvents()
			w.after(time.Second)
			w.look("nodes")
			if tt.kept {
				w.wantEvents()
			} else {
				w.wantEvents("Node/workers-2000 NodeLeft: Node workers-2000 has no NodeClaim, and its VM is neither in the fleet nor in Proxmox: the Node is deleted")
			}
			err := w.Get(t.Context(), client.ObjectKeyFromObject(node), node)
			if exists := err == nil; exists != tt.kept || client.IgnoreNotFound(err) != nil {
				t.Errorf("the node exists: %t (%v), want %t", exists, err, tt.kept)
			}
		})
	}
}

func (w *world) update(object client.Object) {
	w.t.Helper()
	if err := w.Update(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}
