package guard

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
)

// change checks what a plan does to one resource.
func (j *judge) change(rc *tfjson.ResourceChange) {
	if rc == nil || rc.Change == nil {
		j.deny(RulePlan, "", "a change of the plan is null: plan again")
		return
	}
	firewall := isFirewall(rc)
	if !firewall && !ours(rc) {
		j.deny(RuleAddress, rc.Address, "not a VM of numaform: keep other resources in a directory and a state of their own")
		return
	}
	if rc.DeposedKey != "" {
		j.deny(RuleReplace, rc.Address, "the plan deletes what a broken replacement left behind: look at the VM, then remove the deposed object from the state by hand")
		return
	}
	if rc.Change.GeneratedConfig != "" {
		j.deny(RuleConfig, rc.Address, "the engine made configuration up for it: only numaform writes fleet files")
	}
	if rc.PreviousAddress != "" && rc.PreviousAddress != rc.Address {
		j.ask(RuleMoved, rc.Address, "it moves here from "+rc.PreviousAddress+": approve if both are the same VM")
	}
	if firewall {
		j.firewall(rc)
		return
	}
	j.action(rc)
}

// ours reports whether a change is about one of our addresses, in every field that names
// it.
func ours(rc *tfjson.ResourceChange) bool {
	name := label(rc.Address)
	return name != "" && rc.ModuleAddress == "module."+name && rc.Mode == tfjson.ManagedResourceMode &&
		rc.Type == ResourceType && rc.Name == "node" && rc.Index == nil && rc.ProviderName == Provider
}

// action dispatches a change to the check for its action.
func (j *judge) action(rc *tfjson.ResourceChange) {
	actions := rc.Change.Actions
	importing := rc.Change.Importing != nil
	switch {
	case importing && (actions.NoOp() || actions.Update()):
		j.imported(rc)
	case importing:
		j.deny(RuleImport, rc.Address, "the import would also "+join(actions)+" the VM: make its file say what the VM is")
	case actions.NoOp():
		j.unchanged(rc)
	case actions.Create():
		j.create(rc)
	case actions.Delete():
		j.remove(rc)
	case actions.Update():
		j.update(rc)
	case actions.Replace():
		j.deny(RuleReplace, rc.Address, replaceMessage(rc))
	case actions.Forget():
		j.ask(RuleForget, rc.Address, "the VM leaves the state but stays in Proxmox: approve if someone else looks after it")
	default:
		j.deny(RuleAction, rc.Address, fmt.Sprintf("action %q is none that numaform asks for", join(actions)))
	}
}

func join(actions tfjson.Actions) string {
	words := make([]string, len(actions))
	for i, a := range actions {
		words[i] = string(a)
	}
	return strings.Join(words, "+")
}

func replaceMessage(rc *tfjson.ResourceChange) string {
	if rc.ActionReason == tfjson.ActionReasonReplaceBecauseTainted {
		return "it is tainted, so the plan destroys the VM and makes it again: run `numaform apply`, which takes the entry out of the state and imports what exists"
	}
	return "the plan destroys the VM and makes it again: undo the change in its file, or replace the node by a new one with its own VMID"
}

// surplus denies a change that was not requested.
func (j *judge) surplus(rc *tfjson.ResourceChange, op operation) {
	mend := "the files, the state and the request disagree; plan again from fresh files"
	if op == opDelete {
		mend = "its file is gone from the fleet: restore it from version control; to take the node out, restore it first and then `numaform remove` the node"
	}
	j.deny(RuleSurplus, rc.Address, fmt.Sprintf("nobody asked to %s it: %s", op, mend))
}

// unchanged checks a VM whose security groups alone should change.
func (j *judge) unchanged(rc *tfjson.ResourceChange) {
	if w := j.wanted[rc.Address]; w != nil && w.operation == opUpdate {
		j.existing(rc.Address, attributes(rc.Change.Before), w.Target, "in the state")
	}
}

func (j *judge) create(rc *tfjson.ResourceChange) {
	w := j.take(opCreate, rc.Address)
	if w == nil {
		j.surplus(rc, opCreate)
		return
	}
	after := attributes(rc.Change.After)
	if rc.Change.Before != nil {
		j.deny(RuleAction, rc.Address, "a create of something that is already there: plan again")
	}
	j.identity(rc.Address, after, w.Target, "planned")
	if !zero(after["id"]) {
		j.deny(RuleIdentity, rc.Address, "a create of a VM that has an id already: plan again from fresh files")
	}
	if host := text(after["node_name"]); host != string(w.Host) {
		j.deny(RuleIdentity, rc.Address, fmt.Sprintf("planned on host %.80q, asked for on %q", host, w.Host))
	}
	if name := text(after["name"]); name != nameOf(rc.Address) {
		j.deny(RuleIdentity, rc.Address, "the VM's name is not that of its module call")
	}
	if clones := list(after["clone"]); len(clones) != 1 {
		j.deny(RuleFixed, rc.Address, "the VM is not a clone of one template")
	}
	j.disks(rc.Address, after, w.Target)
	j.devices(rc.Address, after, w.PCIDevices)
	j.planned(rc, after, w)
}

func (j *judge) remove(rc *tfjson.ResourceChange) {
	w := j.take(opDelete, rc.Address)
	if w == nil {
		j.surplus(rc, opDelete)
		return
	}
	before := attributes(rc.Change.Before)
	j.existing(rc.Address, before, w.Target, "in the state")
	j.destroyed(rc.Address, before)
	j.drained(w.Target)
}

// destroyed denies a delete if settings in the state differ from the module's, because
// the provider deletes with the settings in the state. A missing setting destroys less.
func (j *judge) destroyed(address string, before map[string]any) {
	for _, name := range []string{"delete_unreferenced_disks_on_destroy", "purge_on_destroy", "stop_on_destroy"} {
		if before[name] != nil && before[name] != true {
			j.deny(RuleExpected, address, name+" in the state is "+shown(before[name])+", expected true: "+mendState)
		}
	}
	if !zero(before["template"]) {
		j.deny(RuleFixed, address, "the VM in the state is a template: "+mendState)
	}
}

// mendState is the hint for an edited state.
const mendState = "the state was edited: restore it, or take the entry out by `state rm`; numaform imports the VM again by its marker"

// drained denies the deletion of a VM whose Node may still run pods.
func (j *judge) drained(target Target) {
	switch {
	case target.Blocked != "":
		j.deny(RuleDrained, target.Address, fmt.Sprintf("VM %d stays until its Node is drained: %.200s", target.VMID, target.Blocked))
	case !target.Drained:
		j.deny(RuleDrained, target.Address, fmt.Sprintf("VM %d stays until its Node is drained, and nobody says that it is: drain the Node %s, or delete it if it is gone",
			target.VMID, nameOf(target.Address)))
	}
}

func (j *judge) update(rc *tfjson.ResourceChange) {
	w := j.take(opUpdate, rc.Address)
	if w == nil {
		j.surplus(rc, opUpdate)
		return
	}
	before, after := attributes(rc.Change.Before), attributes(rc.Change.After)
	j.existing(rc.Address, before, w.Target, "in the state")
	j.existing(rc.Address, after, w.Target, "planned")
	j.inPlace(rc)
	j.repinned(rc)
	j.planned(rc, after, w)
}

// repinned denies host agent pins that a running VM cannot have. They change in place
// because they are part of the description, but a VM that Proxmox pins has none in
// addition, and each vCPU has exactly one. The check for CPUs used by others covers all
// VMs.
func (j *judge) repinned(rc *tfjson.ResourceChange) {
	before, after := attributes(rc.Change.Before), attributes(rc.Change.After)
	was, _ := fleet.ParseMarker(text(before["description"]))
	is, ok := fleet.ParseMarker(text(after["description"]))
	if !ok || len(is.Pins) == 0 || slices.Equal(was.Pins, is.Pins) {
		return
	}
	cpu := single(after["cpu"])
	sockets, known := integer(cpu["sockets"])
	cores, alsoKnown := integer(cpu["cores"])
	switch {
	case text(cpu["affinity"]) != "":
		j.deny(RulePins, rc.Address, "its description would pin a VM that has an affinity: only root may change that; replace the node instead")
	case !known || !alsoKnown || int64(len(is.Pins)) != sockets*cores:
		j.deny(RulePins, rc.Address, fmt.Sprintf("it would run with pins for %d vCPUs and has another number: replace the node instead", len(is.Pins)))
	}
}

// inPlace denies updates of attributes that must not change on a running VM.
func (j *judge) inPlace(rc *tfjson.ResourceChange) {
	for _, path := range changed(attributes(rc.Change.Before), attributes(rc.Change.After), rc.Change.AfterUnknown) {
		if !mayUpdate(rc.Type, path) {
			j.deny(RuleUpdate, rc.Address, fmt.Sprintf("%s would change in place on a running VM: replace the node instead", path))
		}
	}
}

// imported checks the import of an existing VM.
func (j *judge) imported(rc *tfjson.ResourceChange) {
	w := j.take(opImport, rc.Address)
	j.planned(rc, attributes(rc.Change.After), w)
	if w == nil || !w.Incomplete {
		j.imports(rc)
	}
	if w == nil {
		j.ask(RuleImport, rc.Address, "nobody asked to import it: approve if this VM is to become ours")
		return
	}
	j.existing(rc.Address, attributes(rc.Change.After), w.Target, "planned")
	j.numbered(rc.Address, attributes(rc.Change.Before), "in Proxmox")
	if !j.same(attributes(rc.Change.Before), w.Target) || rc.Change.Importing.ID != w.ImportID() {
		j.ask(RuleImport, rc.Address, fmt.Sprintf("the VM in Proxmox does not carry VMID %d and the marker of its file: approve if it is to become ours", w.VMID))
	}
}

// imports checks what an import changes on the VM.
func (j *judge) imports(rc *tfjson.ResourceChange) {
	for _, path := range changed(attributes(rc.Change.Before), attributes(rc.Change.After), rc.Change.AfterUnknown) {
		switch {
		case mayUpdate(rc.Type, path) || providerOnly(path):
		case slices.Contains(deepAttributes, topLevel(path)):
			j.deny(RuleUpdate, rc.Address, fmt.Sprintf("%s of the VM is not what its file says: it is not the VM that was made from it; remove it on purpose", path))
		default:
			j.ask(RuleUpdate, rc.Address, fmt.Sprintf("the import would change %s of the VM", path))
		}
	}
}

// same reports whether values match the target's VMID, cluster and key.
func (j *judge) same(values map[string]any, want Target) bool {
	vmid, numbered := integer(values["vm_id"])
	marker, ok := fleet.ParseMarker(text(values["description"]))
	return numbered && vmid == int64(want.VMID) && ok && marker.Key == want.Key && marker.ClusterID == j.intent.ClusterID
}

// identity denies values of a VM that differ from its target's.
func (j *judge) identity(address string, values map[string]any, want Target, where string) {
	vmid, ok := integer(values["vm_id"])
	if !ok || vmid != int64(want.VMID) {
		j.deny(RuleIdentity, address, fmt.Sprintf("VMID %s is not %d, which was asked for", where, want.VMID))
	}
	marker, ok := fleet.ParseMarker(text(values["description"]))
	if !ok {
		j.deny(RuleIdentity, address, "the description "+where+" has no marker of numaform: this VM may be someone else's")
		return
	}
	if marker.Key != want.Key || marker.ClusterID != j.intent.ClusterID {
		j.deny(RuleIdentity, address, fmt.Sprintf("the marker %s names cluster %s and key %s, asked for were cluster %s and key %s: this VM is another one",
			where, marker.ClusterID, marker.Key, j.intent.ClusterID, want.Key))
	}
}

// existing denies values of an existing VM that differ from its target's, and an ID that
// is not its VMID: the provider writes to the guest with that ID, whatever else is in the
// state.
func (j *judge) existing(address string, values map[string]any, want Target, where string) {
	j.identity(address, values, want, where)
	j.numbered(address, values, where)
	if name := text(values["name"]); name != nameOf(address) {
		j.deny(RuleIdentity, address, "the VM's name "+where+" is not that of its module call")
	}
	if text(values["node_name"]) == "" {
		j.deny(RuleIdentity, address, "the VM has no host "+where)
	}
}

// numbered denies values of a VM whose ID is not its VMID.
func (j *judge) numbered(address string, values map[string]any, where string) {
	if vmid, ok := integer(values["vm_id"]); !ok || text(values["id"]) != strconv.FormatInt(vmid, 10) {
		j.deny(RuleIdentity, address, fmt.Sprintf("id %s is %s and VMID %s, so a write would reach another guest: %s",
			where, shown(values["id"]), shown(values["vm_id"]), mendState))
	}
}

// drift checks changes made in Proxmox outside the state. What the plan does about them
// is checked like any other change.
func (j *judge) drift(changes []*tfjson.ResourceChange) {
	for _, rc := range changes {
		switch {
		case rc == nil || rc.Change == nil:
			j.deny(RulePlan, "", "a drift of the plan is null: plan again")
		case isFirewall(rc):
			// What the plan does about it is checked as a change.
		case !ours(rc):
			j.deny(RuleAddress, rc.Address, "not a VM of numaform: keep other resources in a directory and a state of their own")
		case rc.Change.Actions.Update():
			j.drifted(rc)
		case rc.Change.Actions.Delete():
			j.gone(rc)
		case !rc.Change.Actions.NoOp():
			j.deny(RuleAction, rc.Address, fmt.Sprintf("drift %q is none that numaform knows", join(rc.Change.Actions)))
		}
	}
}

// gone checks a VM that a refresh did not find. If the VM was to be deleted, there is
// nothing left to do.
func (j *judge) gone(rc *tfjson.ResourceChange) {
	if w := j.take(opDelete, rc.Address); w != nil {
		j.existing(rc.Address, attributes(rc.Change.Before), w.Target, "in the state")
		return
	}
	j.ask(RuleDrift, rc.Address, "the VM is gone from Proxmox: approve that the state forgets it")
}

func (j *judge) drifted(rc *tfjson.ResourceChange) {
	before, after := attributes(rc.Change.Before), attributes(rc.Change.After)
	was, wasOK := fleet.ParseMarker(text(before["description"]))
	is, isOK := fleet.ParseMarker(text(after["description"]))
	if !wasOK || !isOK || was.Key != is.Key || was.ClusterID != is.ClusterID ||
		!equal(before["vm_id"], after["vm_id"]) || !equal(before["id"], after["id"]) {
		j.deny(RuleDrift, rc.Address, "VMID or marker of the VM were changed in Proxmox: put its description back, or take the VM out of the state by hand")
	}
}
