package guard

import (
	"fmt"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"
)

// FirewallType is the only resource type allowed in addition to a VM: the VM's security
// groups, in a separate module call. They are created, changed and deleted with their VM.
const FirewallType = "proxmox_virtual_environment_firewall_rules"

// VMOf returns the address of the VM to which the security groups at address belong, or
// "".
func VMOf(address string) string {
	match := partPattern.FindStringSubmatch(address)
	if match == nil || match[2]+match[3] != "_security_groups"+FirewallType+".security_groups" {
		return ""
	}
	return "module." + match[1] + "." + nodeVM
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
func (c *checker) firewall(rc *tfjson.ResourceChange) {
	actions := rc.Change.Actions
	importing := rc.Change.Importing != nil
	r := c.requests[VMOf(rc.Address)]
	switch {
	case importing && (actions.NoOp() || actions.Update()):
		c.importedGroups(rc, r)

	case importing:
		c.deny(RuleImport, rc.Address, "the import would also "+join(actions)+" the security groups: plan again")

	case actions.NoOp():
		if r != nil {
			c.belongs(rc.Address, rc.Change.Before, r)
			c.belongs(rc.Address, rc.Change.After, r)
		}

	case actions.Replace():
		c.deny(RuleReplace, rc.Address, "the plan would remove the security groups and add them again: replace the node instead")

	case actions.Create() || actions.Delete() || actions.Update():
		if r == nil || !slices.Contains(firewallActions[r.operation], actions[0]) {
			c.deny(RuleSurplus, rc.Address, fmt.Sprintf("%s of this VM's security groups was not requested: plan again", actions[0]))
			return
		}
		r.regrouped = true
		if !actions.Create() {
			c.belongs(rc.Address, rc.Change.Before, r)
		}
		if actions.Update() {
			c.inPlace(rc)
		}
		if !actions.Delete() {
			c.plannedGroups(rc, r)
		}

	default:
		c.deny(RuleAction, rc.Address, fmt.Sprintf("numaform never requests the action %q: plan again", join(actions)))
	}
}

// importedGroups checks the import of a VM's security groups: together with the VM, or
// for a VM that is in the state without them because its create was interrupted. The
// provider does not create groups where some exist; it imports the existing ones,
// possibly none, and updates them to match the file.
func (c *checker) importedGroups(rc *tfjson.ResourceChange, r *request) {
	if r == nil || r.operation != opImport && r.operation != opUpdate {
		c.deny(RuleSurplus, rc.Address, "importing security groups of this VM was not requested: plan again")
		return
	}
	r.regrouped = true
	if rc.Change.Importing.ID != "vm/"+r.ImportID() {
		c.deny(RuleImport, rc.Address, fmt.Sprintf("the ID of the import does not belong to the security groups of VM %d on %s: plan again", r.VMID, r.Host))
	}
	c.belongs(rc.Address, rc.Change.Before, r)
	c.plannedGroups(rc, r)

	remaining := groups(rc.Change.After)
	for _, group := range groups(rc.Change.Before) {
		if !slices.Contains(remaining, group) {
			c.needApproval(RuleImport, rc.Address, "the import would remove firewall rules that another client added to the VM: approve if they may be removed")
			return
		}
	}
}

// groups returns the security group and the network device of each firewall rule, or an empty
// group for a rule of another kind.
func groups(firewall any) []string {
	var names []string
	for _, rule := range list(attributes(firewall)["rule"]) {
		rule := attributes(rule)
		names = append(names, text(rule["security_group"])+"@"+text(rule["iface"]))
	}
	return names
}

// plannedGroups checks the security groups that a VM will have.
func (c *checker) plannedGroups(rc *tfjson.ResourceChange, r *request) {
	c.belongs(rc.Address, rc.Change.After, r)
	for _, rule := range list(attributes(rc.Change.After)["rule"]) {
		rule := attributes(rule)
		if zero(rule["security_group"]) || !zero(rule["action"]) || !zero(rule["source"]) || !zero(rule["dest"]) {
			c.deny(RulePrivileged, rc.Address, "a firewall rule is not a security group: use the module that numaform wrote")
		}
	}
	if !c.recorded {
		c.expect(rc, r)
	}
	c.secrets(rc.Address, rc.Change.After)
}

// belongs denies security groups that do not belong to the request's guest.
func (c *checker) belongs(address string, firewall any, r *request) {
	groups := attributes(firewall)
	vmid, ok := integer(groups["vm_id"])
	if !ok || vmid != int64(r.VMID) || text(groups["node_name"]) == "" || !zero(groups["container_id"]) {
		c.deny(RuleIdentity, address, fmt.Sprintf("the security groups do not belong to VM %d: plan again; if their entry in the state is wrong, %s", r.VMID, restoreState))
	}
}
