package scaler_test

import (
	"errors"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// TestAgree checks a VM for which state, plan and Proxmox differ right before it is
// deleted or changed: the error names the attribute that differs.
func TestAgree(t *testing.T) {
	t.Parallel()
	ours, other := vm(pve1, 2000), vm(pve1, 2001)
	marker := func(cluster string, key fleet.Key) string {
		return "a node\n" + fleet.Marker{ClusterID: cluster, Key: key}.String()
	}
	// values returns the VM's values, with one of them changed.
	values := func(attribute string, value any) map[string]any {
		v := map[string]any{
			"id": "2000", "vm_id": 2000.0, "name": ours.Name, "node_name": "pve-1", "description": marker(clusterID, ours.Key),
		}
		v[attribute] = value
		return v
	}
	same := values("id", "2000")
	live := func(edit func(*topology.Guest)) topology.Guest {
		guest := guestOf(ours)
		edit(&guest)
		return guest
	}
	for _, tt := range []struct {
		name          string
		before, after map[string]any
		live          topology.Guest
		want          string // the attribute that the error names
	}{
		{name: "nothing in a delete", before: same},
		{name: "nothing in an update", before: same, after: same},
		{name: "nothing, with an id that is not known yet", before: same, after: values("id", nil)},
		{
			name: "nothing, with a name that is put back", before: values("name", "renamed"), after: same,
			live: live(func(g *topology.Guest) { g.Name = "renamed" }),
		},

		{name: "id in the state", before: values("id", "150"), want: "id"},
		{name: "no id in the state", before: values("id", nil), after: same, want: "id"},
		{name: "id in the plan", before: same, after: values("id", "150"), want: "id"},
		{name: "vm_id in the state", before: values("vm_id", 150.0), want: "vm_id"},
		{name: "no vm_id in the state", before: values("vm_id", nil), after: same, want: "vm_id"},
		{name: "vm_id in the plan", before: same, after: values("vm_id", 150.0), want: "vm_id"},
		{name: "host in the state", before: values("node_name", "pve-2"), want: "host"},
		{name: "host in the plan", before: same, after: values("node_name", "pve-2"), want: "host"},
		{name: "name in the state", before: values("name", "accounting"), want: "name"},
		{name: "name in Proxmox", before: same, after: same, live: live(func(g *topology.Guest) { g.Name = "accounting" }), want: "name"},
		{name: "marker in the state", before: values("description", marker("other", ours.Key)), want: "marker"},
		{name: "no marker in the state", before: values("description", "a node"), after: same, want: "marker"},
		{name: "marker in the plan", before: same, after: values("description", marker("other", ours.Key)), want: "marker"},
		{name: "no marker in the plan", before: same, after: values("description", "a node"), want: "marker"},
		{name: "marker in Proxmox", before: same, live: live(func(g *topology.Guest) { g.ClusterID = "other" }), want: "marker"},
		{
			name: "marker in state and Proxmox", before: values("description", marker("other", ours.Key)),
			live: live(func(g *topology.Guest) { g.ClusterID = "other" }), want: "marker",
		},
		{name: "key in the state", before: values("description", marker(clusterID, other.Key)), want: "key"},
		{name: "key in the plan", before: same, after: values("description", marker(clusterID, other.Key)), want: "key"},
		{name: "key in Proxmox", before: same, live: live(func(g *topology.Guest) { g.Key = string(other.Key) }), want: "key"},
		{
			name: "key in state and Proxmox", before: values("description", marker(clusterID, other.Key)),
			live: live(func(g *topology.Guest) { g.Key = string(other.Key) }), want: "key",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			target := guard.Target{Address: generator.Address(&ours), Key: ours.Key, VMID: ours.VMID}
			intent := guard.Intent{Delete: []guard.Target{target}}
			change := remove(ours)
			change.Change.Before = tt.before
			if tt.after != nil {
				intent = guard.Intent{Update: []guard.Target{target}}
				change.Change.Actions, change.Change.After = tfjson.Actions{tfjson.ActionUpdate}, tt.after
			}
			guest := tt.live
			if guest.VMID == 0 {
				guest = guestOf(ours)
			}
			after := fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{ours}}
			err := newScaler(t, nil).StillAsPlanned(t.Context(), &scaler.Change{After: after, Snapshot: snapshot(guest)}, pve1,
				&tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{change}}, intent)
			wrong, disagrees := errors.AsType[*scaler.DisagreeError](err)
			switch {
			case tt.want == "" && err == nil:
			case !disagrees || wrong.Attribute != tt.want || wrong.VMID != ours.VMID || wrong.Host != pve1 || wrong.State == wrong.Live:
				t.Errorf("got %v, want a disagreement about %q", err, tt.want)
			case !wrong.Concerns(ours.Key) || wrong.Concerns(other.Key):
				t.Errorf("%v concerns other VMs than it names", err)
			}
		})
	}
}
