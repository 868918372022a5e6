package guard

import (
	"fmt"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// updatable lists, for each resource type, the attributes that Proxmox can safely change
// on a running VM. Updates of other attributes are denied.
var updatable = map[string][]string{
	ResourceType: {"description", "on_boot", "pool_id", "tags"},
	FirewallType: {"rule"},
}

// mayUpdate reports whether the attribute at path may change in place.
func mayUpdate(resourceType, path string) bool {
	return slices.Contains(updatable[resourceType], topLevel(path))
}

// deepAttributes are the attributes that make up a VM: if they differ, it is another VM.
var deepAttributes = []string{
	"bios", "clone", "cpu", "disk", "efi_disk", "hook_script_file_id", "hostpci", "initialization", "kvm_arguments",
	"machine", "memory", "name", "node_name", "numa", "template", "tpm_state", "usb", "virtiofs", "vm_id",
}

// providerOnly reports whether an attribute is only the provider's own setting, which
// Proxmox does not store: after an import, all of these are new.
func providerOnly(path string) bool {
	switch path {
	case "agent.timeout", "agent.wait_for_ip", "delete_unreferenced_disks_on_destroy", "migrate",
		"purge_on_destroy", "reboot", "reboot_after_update", "stop_on_destroy":
		return true
	}
	return strings.HasPrefix(path, "timeout_")
}

// planned checks the values that a VM will have. w is nil if the change was not
// requested.
func (j *judge) planned(rc *tfjson.ResourceChange, after map[string]any, w *wish) {
	if w != nil && !j.recorded {
		j.expect(rc, w)
	}
	j.fixed(rc.Address, after)
	j.privileged(rc.Address, after, attributes(rc.Change.AfterUnknown))
	j.secrets(rc.Address, rc.Change.After)
	if sensitive(rc.Change.After, rc.Change.AfterSensitive) {
		j.deny(RuleSecret, rc.Address, "a value is sensitive: it would stand in the plan and in the state; give it to the guest by its seed")
	}
}

// fixed checks the attributes that prevent the provider from touching unmanaged VMs and
// from restarting ours.
func (j *judge) fixed(address string, after map[string]any) {
	for _, clone := range list(after["clone"]) {
		if retries, ok := integer(attributes(clone)["retries"]); !ok || retries != 1 {
			j.deny(RuleFixed, address, "clone.retries is not 1: with more the provider takes a foreign VM of the same VMID for its own")
		}
	}
	if after["reboot_after_update"] != false {
		j.deny(RuleFixed, address, "reboot_after_update is not false: an update would restart the VM without a drain")
	}
	if after["stop_on_destroy"] != true {
		j.deny(RuleFixed, address, "stop_on_destroy is not true: a delete would wait for a guest that may not answer")
	}
	if !zero(after["template"]) {
		j.deny(RuleFixed, address, "the VM would become a template")
	}
}

// privileged denies attributes that give a guest, or its creator, power over the host.
func (j *judge) privileged(address string, after, unknown map[string]any) {
	for _, name := range []string{"hook_script_file_id", "kvm_arguments"} {
		if !zero(after[name]) || !zero(unknown[name]) {
			j.deny(RulePrivileged, address, name+" is set: it runs code on the host; use the module that numaform wrote")
		}
	}
	for _, device := range []struct{ block, attribute string }{{"hostpci", "id"}, {"usb", "host"}} {
		blocks := append(slices.Clone(list(after[device.block])), list(unknown[device.block])...)
		named := func(b any) bool { return !zero(attributes(b)[device.attribute]) }
		if slices.ContainsFunc(blocks, named) || unknown[device.block] == true {
			j.deny(RulePrivileged, address, fmt.Sprintf("%s.%s is set: pass host devices by a resource mapping", device.block, device.attribute))
		}
	}
}
