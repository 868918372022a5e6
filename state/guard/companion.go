package guard

import (
	"fmt"
	"regexp"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"
)

// FirewallType is the only resource type allowed in addition to a VM: the VM's security
// groups, in a module call of their own. They are created, changed and deleted with their
// VM.
const FirewallType = "proxmox_virtual_environment_firewall_rules"

// firewallPattern matches the addresses of security groups; its group is the module label
// of their VM.
var firewallPattern = regexp.MustCompile(`^module\.` + labelPattern + `_security_groups\.proxmox_virtual_environment_firewall_rules\.security_groups$`)

// VMOf returns the address of the VM to which the security groups at address belong, or
// "".
func VMOf(address string) string {
	match := firewallPattern.FindStringSubmatch(address)
	if match == nil {
		return ""
	}
	return "module." + match[1] + "." + ResourceType + ".node"
}

// isFirewall reports whether a change is about the security groups of one of our VMs.
func isFirewall(rc *tfjson.ResourceChange) bool {
	vm := VMOf(rc.Address)
	return vm != "" && rc.Index == nil && rc.ModuleAddress == "module."+label(vm)+"_security_groups" && rc.Mode == tfjson.ManagedResourceMode &&
		rc.Type == FirewallType && rc.Name == "security_groups" && rc.ProviderName == Provider
}

// firewallActions maps each change of a VM to the allowed changes of its security groups.
var firewallActions = map[operation][]tfjson.Action{
	opCreate: {tfjson.ActionCreate},
	opImport: {tfjson.ActionCreate},
	opUpdate: {tfjson.ActionCreate, tfjson.ActionUpdate, tfjson.ActionDelete},
	opDelete: {tfjson.ActionDelete},
}

// firewall checks a change of security groups: it must belong to a requested change of
// their VM.
func (j *judge) firewall(rc *tfjson.ResourceChange) {
	actions := rc.Change.Actions
	switch {
	case rc.Change.Importing != nil && (actions.NoOp() || actions.Update()):
		j.importedGroups(rc)
	case rc.Change.Importing != nil:
		j.deny(RuleImport, rc.Address, "the import would also "+join(actions)+" the security groups: plan again from fresh files")
	case actions.NoOp():
		if w := j.wanted[VMOf(rc.Address)]; w != nil {
			j.belongs(rc.Address, rc.Change.Before, *w)
			j.belongs(rc.Address, rc.Change.After, *w)
		}
	case actions.Replace():
		j.deny(RuleReplace, rc.Address, "the plan would take the security groups away and set them again: replace the node instead")
	case actions.Create() || actions.Delete() || actions.Update():
		j.serve(rc, actions[0])
	default:
		j.deny(RuleAction, rc.Address, fmt.Sprintf("action %q is none that numaform asks for", join(actions)))
	}
}

// serve checks whether a change of security groups belongs to their VM's change.
func (j *judge) serve(rc *tfjson.ResourceChange, action tfjson.Action) {
	w := j.wanted[VMOf(rc.Address)]
	if w == nil || !slices.Contains(firewallActions[w.operation], action) {
		j.deny(RuleSurplus, rc.Address, fmt.Sprintf("nobody asked to %s security groups of this VM: plan again from fresh files", action))
		return
	}
	w.served = true
	if action == tfjson.ActionDelete {
		j.belongs(rc.Address, rc.Change.Before, *w)
		return
	}
	if action == tfjson.ActionUpdate {
		j.belongs(rc.Address, rc.Change.Before, *w)
		j.inPlace(rc)
	}
	j.rules(rc, *w)
}

// importedGroups checks the import of a VM's security groups: together with the VM, or
// for a VM that is in the state without them because its create was interrupted. The
// provider does not create groups where some exist; it imports the existing ones,
// possibly none, and updates them to match the file.
func (j *judge) importedGroups(rc *tfjson.ResourceChange) {
	w := j.wanted[VMOf(rc.Address)]
	if w == nil || w.operation != opImport && w.operation != opUpdate {
		j.deny(RuleSurplus, rc.Address, "nobody asked to import security groups of this VM: plan again from fresh files")
		return
	}
	w.served = true
	if rc.Change.Importing.ID != "vm/"+w.ImportID() {
		j.deny(RuleImport, rc.Address, fmt.Sprintf("the import is not of the security groups of VM %d on %s", w.VMID, w.Host))
	}
	j.belongs(rc.Address, rc.Change.Before, *w)
	j.rules(rc, *w)
	if !groups(rc.Change.After).holds(groups(rc.Change.Before)) {
		j.ask(RuleImport, rc.Address, "the import would remove firewall rules that someone gave to the VM: approve if they may go")
	}
}

// groupNames are the security groups in firewall rules; another kind of rule has an empty
// name.
type groupNames []string

func groups(values any) groupNames {
	var names groupNames
	for _, rule := range list(attributes(values)["rule"]) {
		names = append(names, text(attributes(rule)["security_group"]))
	}
	return names
}

func (g groupNames) holds(others groupNames) bool {
	return !slices.ContainsFunc(others, func(name string) bool { return !slices.Contains(g, name) })
}

// rules checks the security groups that a VM will have.
func (j *judge) rules(rc *tfjson.ResourceChange, w wish) {
	j.belongs(rc.Address, rc.Change.After, w)
	for _, rule := range list(attributes(rc.Change.After)["rule"]) {
		r := attributes(rule)
		if zero(r["security_group"]) || !zero(r["action"]) || !zero(r["source"]) || !zero(r["dest"]) {
			j.deny(RulePrivileged, rc.Address, "a firewall rule is not a security group: numaform writes no rules of its own")
		}
	}
	if !j.recorded {
		j.expect(rc, &w)
	}
	j.secrets(rc.Address, rc.Change.After)
}

// belongs denies security groups of another guest.
func (j *judge) belongs(address string, values any, w wish) {
	vmid, ok := integer(attributes(values)["vm_id"])
	if !ok || vmid != int64(w.VMID) || text(attributes(values)["node_name"]) == "" || !zero(attributes(values)["container_id"]) {
		j.deny(RuleIdentity, address, fmt.Sprintf("the security groups are not those of VM %d on a host: plan again; if their entry in the state says so, %s", w.VMID, mendState))
	}
}
