package scaler

import (
	"fmt"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// DisagreeError reports that a guest in Proxmox differs from what the state says about
// the VM that a plan writes to.
type DisagreeError struct {
	VM   string
	VMID fleet.VMID
	Host topology.HostID
	// Attribute is the attribute that differs, with its values in State and Live.
	Attribute, State, Live string
}

func (e *DisagreeError) Error() string {
	return fmt.Sprintf("vm %s: guest %d has %s %.80q in Proxmox, and %.80q in the state of %s: nothing was changed; "+
		"set it back in Proxmox, or take the VM out of the state by `state rm`, then apply again", e.VM, e.VMID, e.Attribute, e.Live, e.State, e.Host)
}

// agree refuses, right before an apply, to write to a VM for which state, plan and
// Proxmox disagree. The guard has checked that state and plan agree with the intent.
func (w *wanted) agree(plan *tfjson.Plan, intent guard.Intent) error {
	targets := map[string]guard.Target{}
	for _, list := range [][]guard.Target{intent.Delete, intent.Import, intent.Update} {
		for _, target := range list {
			targets[target.Address] = target
		}
	}
	for _, change := range plan.ResourceChanges {
		target, asked := targets[change.Address]
		if !asked || change.Type != guard.ResourceType {
			continue
		}
		before, _ := change.Change.Before.(map[string]any)
		if err := w.agreed(target, before, func(string) bool { return true }); err != nil {
			return err
		}
		after, _ := change.Change.After.(map[string]any)
		given := func(attribute string) bool { return attribute != "name" && after[attribute] != nil }
		if err := w.agreed(target, after, given); err != nil {
			return err
		}
	}
	return nil
}

// agreed compares a guest with the values that counts selects: values in the state, read
// for an import, or in the plan, where unknown values are ignored.
func (w *wanted) agreed(target guard.Target, values map[string]any, counts func(attribute string) bool) error {
	guest, exists := w.guests[guestID{w.shard.Region, target.VMID}]
	if !exists {
		return nil // stillOurs and stillUpdatable report a missing guest
	}
	name, _ := values["name"].(string)
	host, _ := values["node_name"].(string)
	id, _ := values["id"].(string)
	description, _ := values["description"].(string)
	marker, _ := fleet.ParseMarker(description)
	live := fmt.Sprint(guest.VMID)
	for _, one := range []struct{ of, attribute, state, live string }{
		{"id", "id", id, live},
		{"vm_id", "vm_id", fmt.Sprint(vmidOf(values)), live},
		{"name", "name", name, guest.Name},
		{"node_name", "host", host, string(guest.host.Host)},
		{"description", "marker", w.clusterID, guest.ClusterID},
		{"description", "marker", marker.ClusterID, guest.ClusterID},
		{"description", "key", string(target.Key), guest.Key},
		{"description", "key", string(marker.Key), guest.Key},
	} {
		if counts(one.of) && one.state != one.live {
			return &DisagreeError{
				VM: name, VMID: target.VMID, Host: w.shard, Attribute: one.attribute, State: one.state, Live: one.live,
			}
		}
	}
	return nil
}
