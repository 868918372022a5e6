package guard_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
)

// firewall.json deletes VM 2002 and creates VM 2003, each with a security group.
const (
	groupsGo   = "resource_changes.2."
	groupsCome = "resource_changes.4."
	groupsCall = rootConfig + "module_calls.workers-2003_security_groups."
)

func TestCheckSecurityGroups(t *testing.T) {
	t.Parallel()
	if v := check(edited(t, "firewall", nil), mixed, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("want security groups to go with their VMs, got\n%s", v)
	}
	for group, denied := range map[string]bool{"": false, "open": true} {
		change := edits{}
		if group != "" {
			change[groupsCome+"change.after.rule.0.security_group"] = group
		}
		plan := edited(t, "firewall", change)
		if v := guard.Check(plan, filled(plan, mixed), guard.DefaultRules()); has(v, guard.Deny, guard.RuleExpected, "security_group is") != denied {
			t.Errorf("group %q: %s", group, v)
		}
	}
	tests := []struct {
		name   string
		intent guard.Intent
		edits  edits
		want   guard.Rule
		part   string
	}{
		{"of a VM that stays", creating(2003), nil, guard.RuleSurplus, "delete of this VM's security groups was not requested"},
		{"of a VM nobody asked for", intent(func(i *guard.Intent) { i.Delete = mixed.Delete }), nil, guard.RuleSurplus, "create of this VM's security groups was not requested"},
		{"of another VM", mixed, edits{groupsCome + "change.after.vm_id": 100}, guard.RuleIdentity, "do not belong to VM 2003"},
		{"of a container", mixed, edits{groupsCome + "change.after.container_id": 100}, guard.RuleIdentity, "do not belong to VM 2003"},
		{"deleted of another VM", mixed, edits{groupsGo + "change.before.vm_id": 100}, guard.RuleIdentity, "do not belong to VM 2002"},
		{"a rule of its own", mixed, edits{groupsCome + "change.after.rule.0.action": "ACCEPT"}, guard.RulePrivileged, "not a security group"},
		{"a rule without group", mixed, edits{groupsCome + "change.after.rule.0.security_group": nil}, guard.RulePrivileged, "not a security group"},
		{"a secret", mixed, edits{groupsCome + "change.after.rule.0.comment": "PVEAPIToken=x"}, guard.RuleSecret, "API token"},
		{"replaced", mixed, edits{groupsCome + "change.actions": []any{"delete", "create"}}, guard.RuleReplace, "add them again"},
		{"read", mixed, edits{groupsCome + "change.actions": []any{"read"}}, guard.RuleAction, `"read"`},
		{"updated with a create", mixed, edits{groupsCome + "change.actions": []any{"update"}}, guard.RuleSurplus, "update of this VM's security groups was not requested"},
		{"imported and created", mixed, edits{groupsCome + "change.importing": map[string]any{"id": "x"}}, guard.RuleImport, "would also create"},
		{"deposed", mixed, edits{groupsGo + "deposed": "0a"}, guard.RuleReplace, "interrupted replacement"},
		{"one of several", mixed, edits{groupsCome + "index": 0}, guard.RuleAddress, "not a numaform VM"},
		{"another name", mixed, edits{groupsCome + "address": "module.workers-2003_security_groups.proxmox_virtual_environment_firewall_rules.x"}, guard.RuleAddress, "not a numaform VM"},
		{"another module", mixed, edits{groupsCome + "module_address": "module.workers-2003"}, guard.RuleAddress, "not a numaform VM"},
		{"another type", mixed, edits{groupsCome + "type": "proxmox_virtual_environment_firewall_options"}, guard.RuleAddress, "not a numaform VM"},
		{"another resource name", mixed, edits{groupsCome + "name": "x"}, guard.RuleAddress, "not a numaform VM"},
		{"another provider", mixed, edits{groupsCome + "provider_name": "x"}, guard.RuleAddress, "not a numaform VM"},
		{"a data source", mixed, edits{groupsCome + "mode": "data"}, guard.RuleAddress, "not a numaform VM"},
		{"nobody's", mixed, edits{groupsCome + "address": "x", groupsCome + "module_address": "module."}, guard.RuleAddress, "not a numaform VM"},
		{"imported as they are", mixed, edits{groupsCome + "change.importing": map[string]any{"id": "x"}, groupsCome + "change.actions": []any{"no-op"}}, guard.RuleSurplus, "importing security groups of this VM was not requested"},
		{"from a source", mixed, edits{groupsCome + "change.after.rule.0.source": "0.0.0.0/0"}, guard.RulePrivileged, "not a security group"},
		{"to a destination", mixed, edits{groupsCome + "change.after.rule.0.dest": "0.0.0.0/0"}, guard.RulePrivileged, "not a security group"},
		{"of a VM in the state", mixed, edits{"prior_state.values.root_module.child_modules.2.resources.0.type": guard.ResourceType}, guard.RuleAddress, "the state contains"},
		{"of a container, in the state", mixed, edits{"prior_state.values.root_module.child_modules.2.resources.0.values.container_id": 100}, guard.RuleIdentity, "do not belong to a VM"},
		{"of a host, in the state", mixed, edits{"prior_state.values.root_module.child_modules.2.resources.0.values.vm_id": nil}, guard.RuleIdentity, "do not belong to a VM"},
		{"of no host, in the state", mixed, edits{"prior_state.values.root_module.child_modules.2.resources.0.values.node_name": ""}, guard.RuleIdentity, "do not belong to a VM"},
		{"VMID unknown", mixed, edits{groupsCome + "change.after.vm_id": nil}, guard.RuleIdentity, "do not belong to VM 2003"},
		{"of the cluster, in the state", mixed, edits{"prior_state.values.root_module.child_modules.2.resources.0.address": "proxmox_virtual_environment_firewall_rules.all"}, guard.RuleAddress, "the state contains"},
		{"in the VM's own call", mixed, edits{
			groupsCome + "address":        "module.workers-2003.proxmox_virtual_environment_firewall_rules.security_groups",
			groupsCome + "module_address": "module.workers-2003",
		}, guard.RuleAddress, "not a numaform VM"},
		{"count in the module", mixed, edits{groupsCall + "module.resources.0.count_expression": map[string]any{"constant_value": 1}}, guard.RuleConfig, "declares more than a VM"},
		{"for_each in the module", mixed, edits{groupsCall + "module.resources.0.for_each_expression": map[string]any{"constant_value": 1}}, guard.RuleConfig, "declares more than a VM"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := check(edited(t, "firewall", tt.edits), tt.intent, guard.DefaultRules())
			if v.Decision != guard.Deny || !has(v, guard.Deny, tt.want, tt.part) {
				t.Errorf("want denied by %s with %q, got\n%s", tt.want, tt.part, v)
			}
		})
	}
}

// TestCheckSecurityGroupsOfDevices checks that a group of one device is expected as the module
// writes it, and that modules that do not have such groups are refused.
func TestCheckSecurityGroupsOfDevices(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, iface, module string
		part                string
	}{
		{"its device", "net1", modules.Hash(), ""},
		{"another device", "net0", modules.Hash(), "rule[0].iface"},
		{"all devices", "", modules.Hash(), "rule[0].iface"},
		{"an older module", "net1", "f95ae3a2e756d6a4", "security groups of network devices, which the modules"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plan := edited(t, "firewall", edits{groupsCome + "change.after.rule.0.iface": tt.iface})
			asked := filled(plan, mixed)
			asked.Create = slices.Clone(asked.Create)
			target := &asked.Create[0]
			group := texts(t, target.Inputs)[0]
			target.Module = tt.module
			target.Inputs = []byte(strings.Replace(string(target.Inputs), `"`+group+`"`, `"`+group+`@net1"`, 1))
			v := guard.Check(plan, asked, guard.DefaultRules())
			if denied := has(v, guard.Deny, guard.RuleExpected, tt.part); tt.part == "" && v.Decision != guard.Allow || tt.part != "" && !denied {
				t.Errorf("want %q, got\n%s", tt.part, v)
			}
		})
	}
}

// texts returns the security groups in the arguments of a file.
func texts(t *testing.T, inputs []byte) []string {
	t.Helper()
	var in struct {
		Groups []string `json:"security_groups"`
	}
	if err := json.Unmarshal(inputs, &in); err != nil || len(in.Groups) == 0 {
		t.Fatalf("arguments %s: %v", inputs, err)
	}
	return in.Groups
}

func TestCheckUpdateOfSecurityGroups(t *testing.T) {
	t.Parallel()
	// An update of VM 2003 may add, change, or remove security groups.
	updating := intent(func(i *guard.Intent) { i.Update = creating(2003).Create; i.Delete = mixed.Delete })
	for _, action := range []string{"create", "update", "delete"} {
		plan := edited(t, "firewall", edits{groupsCome + "change.actions": []any{action}})
		groups, node := plan.ResourceChanges[4].Change, numbered(plan.ResourceChanges[3].Change)
		groups.Before, groups.AfterUnknown = groups.After, nil
		node.Actions, node.Before = []tfjson.Action{"update"}, node.After
		node.AfterUnknown = nil
		if v := check(plan, updating, guard.DefaultRules()); v.Decision != guard.Allow {
			t.Errorf("%s: got\n%s", action, v)
		}
	}
	plan := edited(t, "firewall", edits{groupsCome + "change.actions": []any{"update"}})
	groups, alone := plan.ResourceChanges[4].Change, numbered(plan.ResourceChanges[3].Change)
	groups.Before, groups.AfterUnknown = groups.After, nil
	alone.Actions, alone.Before = []tfjson.Action{"no-op"}, alone.After
	if v := check(plan, updating, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("groups alone: got\n%s", v)
	}
	other := updating
	other.Update = []guard.Target{{Address: vm(2003).Address, VMID: 2003, Host: "pve-1", Key: vm(2001).Key}}
	if v := check(plan, other, guard.DefaultRules()); !has(v, guard.Deny, guard.RuleIdentity, "marker in the state") {
		t.Errorf("groups of another VM: got\n%s", v)
	}
	importing := intent(func(i *guard.Intent) { i.Import = creating(2003).Create; i.Delete = mixed.Delete })
	plan = edited(t, "firewall", nil)
	node := numbered(plan.ResourceChanges[3].Change)
	node.Actions, node.Before, node.Importing = []tfjson.Action{"no-op"}, node.After, &tfjson.Importing{ID: "pve-1/2003"}
	node.AfterUnknown = nil
	if v := check(plan, importing, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("import: got\n%s", v)
	}
	node.Actions, node.Importing = []tfjson.Action{"delete"}, nil
	leaving := intent(func(i *guard.Intent) { i.Delete = creating(2002, 2003).Create })
	if v := check(plan, leaving, guard.DefaultRules()); !has(v, guard.Deny, guard.RuleSurplus, "create of this VM's security groups was not requested") {
		t.Errorf("groups for a VM that leaves: got\n%s", v)
	}
}

// numbered sets the ID that a created VM has once it exists.
func numbered(change *tfjson.Change) *tfjson.Change {
	after := change.After.(map[string]any)
	after["id"] = fmt.Sprint(after["vm_id"])
	return change
}

// importedGroups returns a plan that imports security groups of VM 2003, and leaves the VM
// unchanged or, unless vmImport is empty, imports it by that ID.
func importedGroups(t *testing.T, action, vmImport string, edits edits) *tfjson.Plan {
	t.Helper()
	plan := edited(t, "firewall", edits)
	groups, node := plan.ResourceChanges[4].Change, numbered(plan.ResourceChanges[3].Change)
	groups.Actions, groups.AfterUnknown = []tfjson.Action{tfjson.Action(action)}, nil
	if groups.Before == nil {
		groups.Before = groups.After
	}
	if groups.Importing == nil {
		groups.Importing = &tfjson.Importing{ID: "vm/pve-1/2003"}
	}
	node.Actions, node.Before, node.AfterUnknown = []tfjson.Action{"no-op"}, node.After, nil
	if vmImport != "" {
		node.Importing = &tfjson.Importing{ID: vmImport}
	}
	return plan
}

func TestCheckImportOfSecurityGroups(t *testing.T) {
	t.Parallel()
	updating := intent(func(i *guard.Intent) { i.Update = creating(2003).Create; i.Delete = mixed.Delete })
	importing := intent(func(i *guard.Intent) { i.Import = creating(2003).Create; i.Delete = mixed.Delete })
	rule := func(group, action string) []any {
		return []any{map[string]any{"security_group": group, "action": action}}
	}
	before := func(vmid int, rules []any) map[string]any {
		return map[string]any{"vm_id": vmid, "node_name": "pve-1", "rule": rules}
	}
	tests := []struct {
		name, action, vmImport string
		intent                 guard.Intent
		edits                  edits
		decision               guard.Decision
		part                   string
	}{
		{name: "as they are", action: "no-op", intent: updating, decision: guard.Allow},
		{name: "none yet", action: "update", intent: updating, edits: edits{groupsCome + "change.before": before(2003, nil)}, decision: guard.Allow},
		{name: "with the VM", action: "no-op", vmImport: "pve-1/2003", intent: importing, decision: guard.Allow},
		{name: "none yet, with the VM", action: "update", vmImport: "pve-1/2003", intent: importing, edits: edits{groupsCome + "change.before": before(2003, nil)}, decision: guard.Allow},
		{name: "a rule by hand", action: "update", intent: updating, edits: edits{groupsCome + "change.before": before(2003, rule("", "ACCEPT"))}, decision: guard.NeedsApproval, part: "another client added"},
		{name: "a group by hand", action: "update", intent: updating, edits: edits{groupsCome + "change.before": before(2003, rule("ssh", ""))}, decision: guard.NeedsApproval, part: "another client added"},
		{name: "for a create", action: "update", intent: mixed, decision: guard.Deny, part: "importing security groups of this VM was not requested"},
		{name: "for nothing", action: "no-op", intent: intent(func(i *guard.Intent) { i.Delete = mixed.Delete }), decision: guard.Deny, part: "importing security groups of this VM was not requested"},
		{name: "replaced", action: "delete", intent: updating, decision: guard.Deny, part: "would also delete"},
		{name: "another VM's, by its import", action: "update", intent: updating, edits: edits{groupsCome + "change.importing": map[string]any{"id": "vm/pve-1/100"}}, decision: guard.Deny, part: "does not belong to the security groups of VM 2003"},
		{name: "another VM's", action: "update", intent: updating, edits: edits{groupsCome + "change.before": before(100, nil)}, decision: guard.Deny, part: "do not belong to VM 2003"},
		{name: "into a rule of its own", action: "update", intent: updating, edits: edits{groupsCome + "change.after.rule.0.action": "ACCEPT"}, decision: guard.Deny, part: "not a security group"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := check(importedGroups(t, tt.action, tt.vmImport, tt.edits), tt.intent, guard.DefaultRules())
			if v.Decision != tt.decision || tt.part != "" && !has(v, tt.decision, findingRule(v, tt.part), tt.part) {
				t.Errorf("want %s with %q, got\n%s", tt.decision, tt.part, v)
			}
		})
	}
}

// findingRule returns the rule of the finding that contains part.
func findingRule(v guard.Verdict, part string) guard.Rule {
	for _, f := range v.Findings {
		if strings.Contains(f.Message, part) {
			return f.Rule
		}
	}
	return ""
}

// TestCheckPoolOfDigits checks that the plan of a VM whose pool begins with a digit has
// the addresses that generator returns, and is allowed if the VM has its own name.
func TestCheckPoolOfDigits(t *testing.T) {
	t.Parallel()
	vm := fleet.VM{Name: fleet.NodeName("10g", 2003), Spec: fleet.Spec{SecurityGroups: []string{"web"}}}
	addresses := generator.Addresses(&vm)
	raw := strings.ReplaceAll(string(read(t, "firewall")), "module.workers-2003", "module._10g-2003")
	raw = strings.ReplaceAll(raw, `"workers-2003":`, `"_10g-2003":`)
	raw = strings.ReplaceAll(raw, `"workers-2003_security_groups":`, `"_10g-2003_security_groups":`)
	for _, name := range []string{vm.Name, "_" + vm.Name} {
		plan, err := guard.Decode([]byte(strings.ReplaceAll(raw, `"workers-2003"`, `"`+name+`"`)))
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.ResourceChanges[4].Address; got != addresses[1] {
			t.Fatalf("the plan has %s, generator %s", got, addresses[1])
		}
		asked := mixed
		asked.Create = []guard.Target{{Address: addresses[0], VMID: 2003, Key: creating(2003).Create[0].Key, Host: "pve-1"}}
		v := check(plan, asked, guard.DefaultRules())
		if name == vm.Name && v.Decision != guard.Allow {
			t.Errorf("got\n%s", v)
		}
		if name != vm.Name && !has(v, guard.Deny, guard.RuleIdentity, "differs from the name of its module call") {
			t.Errorf("VM named %s: got\n%s", name, v)
		}
	}
}
