package guard

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
)

// The places of values, for messages.
const (
	inState = "in the state"
	inPlan  = "in the plan"
)

// restoreState is the hint for an edited state.
const restoreState = "the state was edited: restore it, or remove the entry with the engine's `state rm`; numaform then imports the VM by its marker"

// change checks the change of one resource.
func (c *checker) change(rc *tfjson.ResourceChange) {
	switch {
	case rc == nil || rc.Change == nil:
		c.deny(RulePlan, "", "a change of the plan is null: plan again")
		return
	case rc.Mode == tfjson.DataResourceMode && slices.Contains(c.contents.data, rc.Type+"."+rc.Name):
		return // the engine reads it
	case !c.isOurs(rc):
		c.deny(RuleAddress, rc.Address, "not a numaform "+c.contents.kind+": keep other resources in a separate directory and state")
		return
	case rc.DeposedKey != "":
		c.deny(RuleReplace, rc.Address, "the plan deletes a deposed object, which an interrupted replacement left: inspect the VM, then remove the object from the state manually")
		return
	}
	if rc.Change.GeneratedConfig != "" {
		c.deny(RuleConfig, rc.Address, "the engine generated its configuration: plan without -generate-config-out, because only numaform writes fleet files")
	}
	if moved := rc.PreviousAddress != "" && rc.PreviousAddress != rc.Address; moved && c.contents.moves {
		c.needApproval(RuleMoved, rc.Address, "it was moved from "+rc.PreviousAddress+": approve if both addresses are the same VM")
	} else if moved {
		c.deny(RuleMoved, rc.Address, "it was moved from "+rc.PreviousAddress+": numaform does not move it, so restore the state")
	}
	c.contents.change(c, rc)
}

// nodeVM is the resource of a node's VM.
const nodeVM = ResourceType + ".node"

// nodes are the contents of a root of nodes.
var nodes = contents{
	kind: "VM", vmids: "vmid_range", vm: nodeVM, moves: true,
	managed: map[string]string{nodeVM: "", FirewallType + ".security_groups": "_security_groups"},
	change: func(c *checker, rc *tfjson.ResourceChange) {
		if rc.Type == FirewallType {
			c.firewall(rc)
		} else {
			c.vm(rc)
		}
	},
}

// vm checks the change of one of our VMs.
func (c *checker) vm(rc *tfjson.ResourceChange) {
	before, after := attributes(rc.Change.Before), attributes(rc.Change.After)
	if after != nil {
		c.vms[rc.Address] = after
		cpu := attributes(rc.Change.AfterUnknown)["cpu"]
		if cpu == true || !zero(single(cpu)["affinity"]) {
			c.deny(RulePins, rc.Address, "the CPUs of its affinity are not known before the apply: plan again")
		}
	}
	actions := rc.Change.Actions
	importing := rc.Change.Importing != nil
	switch {
	case importing && (actions.NoOp() || actions.Update()):
		c.imported(rc, before, after)
	case importing:
		c.deny(RuleImport, rc.Address, "the import would also "+join(actions)+" the VM: edit its file to match the VM")
	case actions.NoOp():
		// A requested update can be a change of the VM's security groups alone.
		if r := c.requests[rc.Address]; r != nil && r.operation == opUpdate {
			c.existing(rc.Address, before, r.Target, inState)
		}
	case actions.Create():
		c.create(rc, after)
	case actions.Delete():
		c.delete(rc, before)
	case actions.Update():
		c.update(rc, before, after)
	case actions.Replace() && rc.ActionReason == tfjson.ActionReasonReplaceBecauseTainted:
		c.deny(RuleReplace, rc.Address, "it is tainted, so the plan destroys the VM and creates it again: run `numaform apply`, which removes the entry from the state and imports the existing VM")
	case actions.Replace():
		c.deny(RuleReplace, rc.Address, "the plan destroys the VM and creates it again: revert the change in its file, or replace the node with a new one that has its own VMID")
	case actions.Forget():
		c.needApproval(RuleForget, rc.Address, "the VM leaves the state but remains in Proxmox: approve if another owner manages it")
	default:
		c.deny(RuleAction, rc.Address, fmt.Sprintf("numaform never requests the action %q: plan again", join(actions)))
	}
}

func join(actions tfjson.Actions) string {
	words := make([]string, len(actions))
	for i, a := range actions {
		words[i] = string(a)
	}
	return strings.Join(words, "+")
}

// requested returns the request for op at an address. If there is none, it denies the
// change and returns nil.
func (c *checker) requested(op operation, address string) *request {
	r := c.take(op, address)
	if r == nil {
		fix := "the files, the state and the request disagree; plan again"
		if op == opDelete {
			fix = "its file was deleted from the fleet: restore it from version control; to remove the node, restore the file and run `numaform remove`"
		}
		c.deny(RuleSurplus, address, fmt.Sprintf("%s was not requested: %s", op, fix))
	}
	return r
}

func (c *checker) create(rc *tfjson.ResourceChange, after values) {
	r := c.requested(opCreate, rc.Address)
	if r == nil {
		return
	}
	if rc.Change.Before != nil {
		c.deny(RuleAction, rc.Address, "the plan creates a VM that already exists: plan again")
	}
	c.identity(rc.Address, after, r.Target, inPlan)
	if !zero(after["id"]) {
		c.deny(RuleIdentity, rc.Address, "the plan creates a VM that already has an ID: plan again")
	}
	if host := text(after["node_name"]); host != string(r.Host) {
		c.deny(RuleIdentity, rc.Address, fmt.Sprintf("planned on host %.80q, but requested on %q: plan again", host, r.Host))
	}
	if name := text(after["name"]); name != nameOf(rc.Address) {
		c.deny(RuleIdentity, rc.Address, "the VM's name differs from the name of its module call: plan again")
	}
	if clones := list(after["clone"]); len(clones) != 1 {
		c.deny(RuleFixed, rc.Address, "the VM is not a clone of exactly one template: plan again")
	}
	c.planned(rc, after, r)
}

func (c *checker) delete(rc *tfjson.ResourceChange, before values) {
	r := c.requested(opDelete, rc.Address)
	if r == nil {
		return
	}
	c.existing(rc.Address, before, r.Target, inState)

	// The provider deletes with the settings in the state. A setting is missing after an
	// import that did not finish; the provider then destroys less. Any other value than true
	// is evidence of an edited state, although the provider treats false like a missing one.
	for _, name := range []string{"delete_unreferenced_disks_on_destroy", "purge_on_destroy", "stop_on_destroy"} {
		if before[name] != nil && before[name] != true {
			c.deny(RuleExpected, rc.Address, name+" in the state is "+shown(before[name])+", expected true: "+restoreState)
		}
	}
	if !zero(before["template"]) {
		c.deny(RuleFixed, rc.Address, "the VM in the state is a template: "+restoreState)
	}

	switch {
	case r.Blocked != "":
		c.deny(RuleDrained, rc.Address, fmt.Sprintf("VM %d cannot be deleted until its Node is drained: %.200s", r.VMID, r.Blocked))
	case !r.Drained:
		c.deny(RuleDrained, rc.Address, fmt.Sprintf("VM %d cannot be deleted until its Node is drained: drain Node %s, or delete the Node if its machine no longer exists",
			r.VMID, nameOf(rc.Address)))
	}
}

func (c *checker) update(rc *tfjson.ResourceChange, before, after values) {
	if r := c.take(opWake, rc.Address); r != nil {
		c.wake(rc, before, after, r)
		return
	}
	r := c.requested(opUpdate, rc.Address)
	if r == nil {
		return
	}
	c.existing(rc.Address, before, r.Target, inState)
	c.existing(rc.Address, after, r.Target, inPlan)
	c.inPlace(rc)
	c.keepsAddresses(rc.Address, before, after)

	// The pins that the host agent sets can change in place, because they are part of the
	// description. But a VM that Proxmox pins must not have such pins, and each vCPU must
	// have exactly one pin.
	was, _ := fleet.ParseMarker(text(before["description"]))
	is, marked := fleet.ParseMarker(text(after["description"]))
	if marked && len(is.Pins) > 0 && !slices.Equal(was.Pins, is.Pins) {
		cpu := single(after["cpu"])
		sockets, hasSockets := integer(cpu["sockets"])
		cores, hasCores := integer(cpu["cores"])
		switch {
		case text(cpu["affinity"]) != "":
			c.deny(RulePins, rc.Address, "its description would pin a VM that has an affinity, which only root may change: replace the node instead")
		case !hasSockets || !hasCores || int64(len(is.Pins)) != sockets*cores:
			c.deny(RulePins, rc.Address, fmt.Sprintf("its description has pins for %d vCPUs, but cpu.sockets is %s and cpu.cores is %s: replace the node instead",
				len(is.Pins), shown(cpu["sockets"]), shown(cpu["cores"])))
		}
	}
	c.planned(rc, after, r)
}

// keepsAddresses denies a new description of an existing VM that lacks a static address: its
// guest keeps the address, and another VM would get it.
func (c *checker) keepsAddresses(address string, before, after values) {
	if _, marked := fleet.ParseMarker(text(before["description"])); !marked {
		return
	}
	kept := fleet.ParseAddresses(text(after["description"]))
	for _, ip := range fleet.ParseAddresses(text(before["description"])) {
		if !slices.Contains(kept, ip) {
			c.deny(RuleAddresses, address, fmt.Sprintf("its description has the address %s, which the VM's file lacks, so another VM could get it: restore the VM's file, or replace the node; "+
				"if the description was edited by hand, remove the address there", ip))
		}
	}
}

// wakes lists the attributes that start a VM. In a wake, nothing else may change except for
// guestReports, because all other attributes were checked when the VM was created.
var wakes = []string{"on_boot", "started"}

// guestReports lists the attributes that the provider reads from the running guest. They
// are unknown before the VM starts.
var guestReports = []string{"ipv4_addresses", "ipv6_addresses", "network_interface_names"}

// wake checks the start of a standby VM.
func (c *checker) wake(rc *tfjson.ResourceChange, before, after values, r *request) {
	c.existing(rc.Address, before, r.Target, inState)
	c.existing(rc.Address, after, r.Target, inPlan)
	for _, path := range changed(rc.Change) {
		switch {
		case slices.Contains(guestReports, path) && after[path] == nil:
		case !slices.Contains(wakes, path):
			c.deny(RuleUpdate, rc.Address, fmt.Sprintf("%s would change when the standby VM starts: replace the VM instead", path))
		case before[path] != false || after[path] != true:
			c.deny(RuleUpdate, rc.Address, fmt.Sprintf("%s would change to %s, but a wake only starts a VM: plan again", path, shown(after[path])))
		}
	}
	c.planned(rc, after, r)
}

// updatable lists, for each resource type, the attributes that Proxmox can safely change
// on a running VM. Updates of other attributes are denied.
var updatable = map[string][]string{
	ResourceType: {"description", "on_boot", "pool_id", "tags"},
	FirewallType: {"rule"},
	downloadType: {"upload_timeout", "verify"},
	madeOfType:   {"input", "output"},
}

// mayUpdate reports whether the attribute at path may change in place.
func mayUpdate(resourceType, path string) bool {
	return slices.Contains(updatable[resourceType], topLevel(path))
}

// inPlace denies updates of attributes that must not change on a running VM.
func (c *checker) inPlace(rc *tfjson.ResourceChange) {
	for _, path := range changed(rc.Change) {
		if !mayUpdate(rc.Type, path) {
			c.deny(RuleUpdate, rc.Address, fmt.Sprintf("%s would change in place on a running VM: replace the node instead", path))
		}
	}
}

// deepAttributes lists the attributes that the import of a completed VM must not change: if
// one differs, the VM was not created from its file.
var deepAttributes = []string{
	"bios", "clone", "cpu", "disk", "efi_disk", "hook_script_file_id", "hostpci", "initialization", "kvm_arguments",
	"machine", "memory", "name", "node_name", "numa", "template", "tpm_state", "usb", "virtiofs", "vm_id",
}

// providerOnly lists the provider's own settings, except the timeouts. Proxmox does not
// store them, so every import adds them.
var providerOnly = []string{
	"agent.timeout", "agent.wait_for_ip", "delete_unreferenced_disks_on_destroy", "migrate",
	"purge_on_destroy", "reboot", "reboot_after_update", "stop_on_destroy",
}

// imported checks the import of an existing VM.
func (c *checker) imported(rc *tfjson.ResourceChange, before, after values) {
	r := c.take(opImport, rc.Address)
	c.planned(rc, after, r)
	c.keepsAddresses(rc.Address, before, after)
	if r == nil || !r.Incomplete {
		for _, path := range changed(rc.Change) {
			switch {
			case mayUpdate(rc.Type, path) || slices.Contains(providerOnly, path) || strings.HasPrefix(path, "timeout_"):
			case slices.Contains(deepAttributes, topLevel(path)):
				c.deny(RuleUpdate, rc.Address, fmt.Sprintf("%s of the VM differs from the VM's file, so the VM was not created from that file: check the VM, and delete it in Proxmox if nothing needs it", path))
			default:
				c.needApproval(RuleUpdate, rc.Address, fmt.Sprintf("the import would change %s of the VM: approve if the value in its file is correct", path))
			}
		}
	}
	if r == nil {
		c.needApproval(RuleImport, rc.Address, "the import was not requested: approve if numaform should manage this VM")
		return
	}

	c.existing(rc.Address, after, r.Target, inPlan)
	c.numbered(rc.Address, before, "in Proxmox")
	vmid, numbered := integer(before["vm_id"])
	marker, marked := fleet.ParseMarker(text(before["description"]))
	same := numbered && vmid == int64(r.VMID) && marked && marker.Key == r.Key && marker.ClusterID == c.intent.ClusterID
	if !same || rc.Change.Importing.ID != r.ImportID() {
		c.needApproval(RuleImport, rc.Address, fmt.Sprintf("the VM to import is not VM %d on %s with the marker of its file: approve if numaform should manage it", r.VMID, r.Host))
	}
}

// identity denies values of a VM that differ from its target's.
func (c *checker) identity(address string, vm values, want Target, where string) {
	vmid, ok := integer(vm["vm_id"])
	if !ok || vmid != int64(want.VMID) {
		c.deny(RuleIdentity, address, fmt.Sprintf("VMID %s is %s, but %d was requested: plan again", where, shown(vm["vm_id"]), want.VMID))
	}
	marker, ok := fleet.ParseMarker(text(vm["description"]))
	if !ok {
		c.deny(RuleIdentity, address, "the description "+where+" has no numaform marker, so the VM may belong to another owner: check the VM, then plan again")
		return
	}
	if marker.Key != want.Key || marker.ClusterID != c.intent.ClusterID {
		c.deny(RuleIdentity, address, fmt.Sprintf("the marker %s has cluster %s and key %s, but cluster %s and key %s were requested: this is another VM; plan again",
			where, marker.ClusterID, marker.Key, c.intent.ClusterID, want.Key))
	}
}

// existing denies values of an existing VM that differ from its target's.
func (c *checker) existing(address string, vm values, want Target, where string) {
	c.identity(address, vm, want, where)
	c.numbered(address, vm, where)
	if text(vm["name"]) != nameOf(address) {
		c.deny(RuleIdentity, address, "the VM's name "+where+" differs from the name of its module call: plan again")
	}
	if text(vm["node_name"]) == "" {
		c.deny(RuleIdentity, address, "the VM has no host "+where+": plan again")
	}
}

// numbered denies values of a VM whose ID is not its VMID: the provider writes to the
// guest with that ID, regardless of the rest of the state.
func (c *checker) numbered(address string, vm values, where string) {
	if vmid, ok := integer(vm["vm_id"]); !ok || text(vm["id"]) != strconv.FormatInt(vmid, 10) {
		fix := "plan again"
		if where == inState {
			fix = restoreState
		}
		c.deny(RuleIdentity, address, fmt.Sprintf("id %s is %s, but vm_id is %s, so a write would reach another guest: %s",
			where, shown(vm["id"]), shown(vm["vm_id"]), fix))
	}
}

// planned checks the values that a VM will have. r is nil if the change was not
// requested.
func (c *checker) planned(rc *tfjson.ResourceChange, after values, r *request) {
	if r != nil && !c.recorded {
		c.expect(rc, r)
	}
	deny := func(rule Rule, message string) { c.deny(rule, rc.Address, message) }

	// These attributes prevent the provider from touching unmanaged VMs and from
	// restarting ours.
	for _, clone := range list(after["clone"]) {
		if retries, ok := integer(attributes(clone)["retries"]); !ok || retries != 1 {
			deny(RuleFixed, "clone.retries is not 1, so the provider could adopt an unmanaged VM with the same VMID: use the module that numaform wrote")
		}
	}
	if after["reboot_after_update"] != false {
		deny(RuleFixed, "reboot_after_update is not false, so an update would restart the VM without a drain: use the module that numaform wrote")
	}
	if after["stop_on_destroy"] != true {
		deny(RuleFixed, "stop_on_destroy is not true, so a delete would wait for a guest that may not respond: use the module that numaform wrote")
	}
	if !zero(after["template"]) {
		deny(RuleFixed, "the VM would become a template: use the module that numaform wrote")
	}

	// These give a guest, or its creator, power over the host.
	unknown := attributes(rc.Change.AfterUnknown)
	for _, name := range []string{"hook_script_file_id", "kvm_arguments"} {
		if !zero(after[name]) || !zero(unknown[name]) {
			deny(RulePrivileged, name+" is set: it runs code on the host; use the module that numaform wrote")
		}
	}
	for _, device := range []struct{ block, attribute string }{{"hostpci", "id"}, {"usb", "host"}} {
		all := slices.Concat(list(after[device.block]), list(unknown[device.block]))
		named := func(block any) bool { return !zero(attributes(block)[device.attribute]) }
		if slices.ContainsFunc(all, named) || unknown[device.block] == true {
			deny(RulePrivileged, fmt.Sprintf("%s.%s is set: pass host devices through a resource mapping", device.block, device.attribute))
		}
	}

	c.secrets(rc.Address, rc.Change.After)
	if sensitive(rc.Change.After, rc.Change.AfterSensitive) {
		deny(RuleSecret, "a value is sensitive: the plan and the state would contain it; pass it to the guest in its seed")
	}
}

// drift checks changes in Proxmox that the state does not contain. The plan's own changes
// of the same resources are checked like any other change.
func (c *checker) drift(changes []*tfjson.ResourceChange) {
	for _, rc := range changes {
		if rc == nil || rc.Change == nil {
			c.deny(RulePlan, "", "a drift of the plan is null: plan again")
			continue
		}
		before, after := attributes(rc.Change.Before), attributes(rc.Change.After)
		switch {
		case !c.isOurs(rc):
			c.deny(RuleAddress, rc.Address, "not a numaform "+c.contents.kind+": keep other resources in a separate directory and state")
		case rc.Type+"."+rc.Name != nodeVM:
			// The plan's own change of these security groups, or of a part of a template, is
			// checked separately.
		case rc.Change.Actions.Update():
			was, wasMarked := fleet.ParseMarker(text(before["description"]))
			is, isMarked := fleet.ParseMarker(text(after["description"]))
			if !wasMarked || !isMarked || was.Key != is.Key || was.ClusterID != is.ClusterID ||
				!equal(before["vm_id"], after["vm_id"]) || !equal(before["id"], after["id"]) {
				c.deny(RuleDrift, rc.Address, "VMID or marker of the VM was changed in Proxmox: restore its description, or remove the VM from the state manually")
			}
		case rc.Change.Actions.Delete():
			// If its deletion was requested, nothing is left to do.
			if r := c.take(opDelete, rc.Address); r != nil {
				c.existing(rc.Address, before, r.Target, inState)
			} else {
				c.needApproval(RuleDrift, rc.Address, "the VM no longer exists in Proxmox: approve its removal from the state")
			}
		case !rc.Change.Actions.NoOp():
			c.deny(RuleAction, rc.Address, fmt.Sprintf("drift action %q is unknown: plan again", join(rc.Change.Actions)))
		}
	}
}
