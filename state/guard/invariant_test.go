package guard_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/state/guard"
)

const (
	first      = "resource_changes.0."
	after      = first + "change.after."
	unknown    = first + "change.after_unknown."
	rootConfig = "configuration.root_module."
	call       = rootConfig + "module_calls.workers-2001."
	foreign    = "module.other.null_resource.x"
)

// TestCheckInvariants makes one edit in an allowed plan at a time, and checks that the
// edited plan is denied by the rule for it.
func TestCheckInvariants(t *testing.T) {
	t.Parallel()
	drift := func(action string, before, after any) edits {
		return edits{"resource_drift.+": map[string]any{
			"address": vm(2001).Address, "module_address": "module.workers-2001", "mode": "managed",
			"type": guard.ResourceType, "name": "node", "provider_name": guard.Provider,
			"change": map[string]any{"actions": []any{action}, "before": before, "after": after},
		}}
	}
	marked := func(key string, vmid int) map[string]any {
		return map[string]any{"vm_id": vmid, "description": "numaform/1 cluster=prod key=" + key}
	}
	key1, key2 := string(vm(2001).Key), string(vm(2002).Key)
	tests := []struct {
		name  string
		plan  string
		edits edits
		want  guard.Rule
		part  string
	}{
		{"incomplete", "create", edits{"complete": false}, guard.RulePlan, "incomplete"},
		{"old format", "create", edits{"format_version": "0.2"}, guard.RulePlan, "format"},
		{"deferred", "create", edits{"deferred_changes.+": map[string]any{"reason": "x"}}, guard.RulePlan, "defers"},
		{"action invoked", "create", edits{"action_invocations.+": map[string]any{"address": "action.x.y"}}, guard.RulePlan, "provider actions"},
		{"check fails", "create", edits{"checks.+": map[string]any{"status": "fail", "address": map[string]any{}}}, guard.RulePlan, "check"},
		{"check errors", "create", edits{"checks.+": map[string]any{"status": "error", "address": map[string]any{}}}, guard.RulePlan, "check"},
		{"null change", "create", edits{"resource_changes.+": nil}, guard.RulePlan, "null"},
		{"no change in a change", "create", edits{first + "change": nil}, guard.RulePlan, "null"},
		{"null in the values", "create", edits{"planned_values.root_module.child_modules.+": nil}, guard.RulePlan, "null"},
		{"no configuration", "create", edits{"configuration": absent}, guard.RulePlan, "configuration"},
		{"no root module", "create", edits{"configuration.root_module": absent}, guard.RulePlan, "configuration"},
		{"null module", "create", edits{call + "module": absent}, guard.RulePlan, "module"},
		{"null resource in a module", "create", edits{call + "module.resources.+": nil}, guard.RulePlan, "null"},
		{"null drift", "create", edits{"resource_drift.+": nil}, guard.RulePlan, "null"},

		{"output changes", "create", edits{"output_changes.x": map[string]any{"actions": []any{"create"}}}, guard.RuleConfig, "outputs are not allowed"},
		{"output declared", "create", edits{rootConfig + "outputs.x": map[string]any{}}, guard.RuleConfig, "outputs are not allowed"},
		{"resource in the root", "create", edits{rootConfig + "resources.+": map[string]any{"address": "data.http.x", "mode": "data"}}, guard.RuleConfig, "outside numaform's modules"},
		{"foreign provider", "create", edits{"configuration.provider_config.proxmox.full_name": "registry.terraform.io/bpg/proxmox"}, guard.RuleConfig, "provider"},
		{"credentials in the provider", "create", edits{"configuration.provider_config.proxmox.expressions.api_token": map[string]any{"references": []any{"var.t"}}}, guard.RuleConfig, "api_token is set"},
		{"remote module", "create", edits{call + "source": "git::https://example.com/m.git"}, guard.RuleConfig, "outside the fleet"},
		{"absolute module", "create", edits{call + "source": "/tmp/m"}, guard.RuleConfig, "outside the fleet"},
		{"count on the call", "create", edits{call + "count_expression": map[string]any{"constant_value": 2}}, guard.RuleConfig, "count or for_each"},
		{"for_each on the call", "create", edits{call + "for_each_expression": map[string]any{"constant_value": 2}}, guard.RuleConfig, "count or for_each"},
		{"module in a module", "create", edits{call + "module.module_calls.x": map[string]any{"source": "./x"}}, guard.RuleConfig, "calls module x"},
		{"data source in a module", "create", edits{call + "module.resources.0.mode": "data"}, guard.RuleConfig, "declares more than a VM"},
		{"other type in a module", "create", edits{call + "module.resources.0.type": "null_resource"}, guard.RuleConfig, "declares more than a VM"},
		{"other groups in a module", "create", edits{call + "module.resources.0.name": "x"}, guard.RuleConfig, "declares more than a VM"},
		{"other type of groups in a module", "create", edits{call + "module.resources.0.type": "x"}, guard.RuleConfig, "declares more than a VM"},
		{"null provider", "create", edits{"configuration.provider_config.proxmox": nil}, guard.RuleConfig, "provider"},
		{"null call", "create", edits{rootConfig + "module_calls.x": nil}, guard.RulePlan, "module"},
		{"other name in a module", "create", edits{call + "module.resources.0.name": "x"}, guard.RuleConfig, "declares more than a VM"},
		{"count in a module", "create", edits{call + "module.resources.0.count_expression": map[string]any{"constant_value": 1}}, guard.RuleConfig, "declares more than a VM"},
		{"provisioner", "create", edits{call + "module.resources.0.provisioners.+": map[string]any{"type": "local-exec"}}, guard.RuleConfig, "provisioners"},
		{"generated configuration", "import", edits{"resource_changes.1.change.generated_config": "x"}, guard.RuleConfig, "generated its configuration"},

		{"foreign address", "create", edits{first + "address": foreign}, guard.RuleAddress, "not a numaform VM"},
		{"nobody's address", "create", edits{first + "address": "x", first + "module_address": "module."}, guard.RuleAddress, "not a numaform VM"},
		{"nested address", "create", edits{first + "address": "module.a." + vm(2001).Address}, guard.RuleAddress, "not a numaform VM"},
		{"indexed address", "create", edits{first + "index": 0}, guard.RuleAddress, "not a numaform VM"},
		{"other module address", "create", edits{first + "module_address": "module.x"}, guard.RuleAddress, "not a numaform VM"},
		{"other mode", "create", edits{first + "mode": "data"}, guard.RuleAddress, "not a numaform VM"},
		{"other type", "create", edits{first + "type": "proxmox_vm"}, guard.RuleAddress, "not a numaform VM"},
		{"other name", "create", edits{first + "name": "nodes"}, guard.RuleAddress, "not a numaform VM"},
		{"other provider", "create", edits{first + "provider_name": "registry.opentofu.org/evil/proxmox"}, guard.RuleAddress, "not a numaform VM"},
		{"foreign resource unchanged", "mixed", edits{first + "type": "proxmox_vm"}, guard.RuleAddress, "not a numaform VM"},
		{"foreign drift", "create", edits{"resource_drift.+": map[string]any{"address": foreign, "change": map[string]any{"actions": []any{"update"}}}}, guard.RuleAddress, "not a numaform VM"},
		{"data source in the prior state", "mixed", edits{"prior_state.values.root_module.resources.+": map[string]any{"mode": "data", "address": "data.http.x"}}, guard.RuleAddress, "the state contains"},
		{"foreign VM in the prior state", "mixed", edits{"prior_state.values.root_module.child_modules.0.resources.0.address": foreign}, guard.RuleAddress, "the state contains"},
		{"VM as a data source in the prior state", "mixed", edits{"prior_state.values.root_module.child_modules.0.resources.0.mode": "data"}, guard.RuleAddress, "the state contains"},
		{"indexed VM in the prior state", "mixed", edits{"prior_state.values.root_module.child_modules.0.resources.0.index": 0}, guard.RuleAddress, "the state contains"},
		{"other type in the prior state", "mixed", edits{"prior_state.values.root_module.child_modules.0.resources.0.type": "proxmox_vm"}, guard.RuleAddress, "the state contains"},
		{"foreign VM in the planned values", "create", edits{"planned_values.root_module.child_modules.0.resources.0.provider_name": "x"}, guard.RuleAddress, "the plan contains"},

		{"replace", "mixed", edits{"resource_changes.1.change.actions": []any{"delete", "create"}}, guard.RuleReplace, "creates it again"},
		{"create before destroy", "mixed", edits{"resource_changes.1.change.actions": []any{"create", "delete"}}, guard.RuleReplace, "creates it again"},
		{"deposed", "mixed", edits{"resource_changes.1.deposed": "0a"}, guard.RuleReplace, "interrupted replacement"},
		{"read", "create", edits{first + "change.actions": []any{"read"}}, guard.RuleAction, `"read"`},
		{"unknown action", "create", edits{first + "change.actions": []any{"open"}}, guard.RuleAction, `"open"`},
		{"no action", "create", edits{first + "change.actions": []any{}}, guard.RuleAction, `""`},
		{"create of what exists", "create", edits{first + "change.before": map[string]any{}}, guard.RuleAction, "already exists"},
		{"unknown drift", "create", drift("create", nil, nil), guard.RuleAction, "drift"},
		{"the same change twice", "create", edits{"resource_changes.1.address": vm(2001).Address, "resource_changes.1.module_address": "module.workers-2001"}, guard.RuleSurplus, "was not requested"},
		{"import with a replacement", "import", edits{"resource_changes.1.change.actions": []any{"delete", "create"}}, guard.RuleImport, "delete+create"},

		{"VMID unknown", "create", edits{after + "vm_id": absent}, guard.RuleIdentity, "VMID in the plan"},
		{"VMID with a fraction", "create", edits{after + "vm_id": 2001.5}, guard.RuleIdentity, "VMID in the plan"},
		{"no marker", "create", edits{after + "description": "x"}, guard.RuleIdentity, "no numaform marker"},
		{"two markers", "create", edits{after + "description": "numaform/1 cluster=prod key=" + key1 + "\nnumaform/1 cluster=prod key=" + key2}, guard.RuleIdentity, "no numaform marker"},
		{"host unknown", "create", edits{after + "node_name": nil}, guard.RuleIdentity, "planned on host"},
		{"another name", "create", edits{after + "name": "workers-2002"}, guard.RuleIdentity, "name"},
		{"VMID twice", "create", edits{"planned_values.root_module.child_modules.1.resources.0.values.vm_id": 2001}, guard.RuleIdentity, "also planned"},
		{"update takes the marker away", "update", edits{after + "description": "x"}, guard.RuleIdentity, "description in the plan"},
		{"update of an unmarked VM", "update", edits{first + "change.before.description": "x"}, guard.RuleIdentity, "description in the state"},
		{"delete of an unmarked VM", "mixed", edits{"resource_changes.1.change.before.description": "x"}, guard.RuleIdentity, "description in the state"},
		{"import that changes the marker", "import", edits{"resource_changes.1.change.after.description": "x"}, guard.RuleIdentity, "description in the plan"},

		{"two retries", "create", edits{after + "clone.0.retries": 2}, guard.RuleFixed, "clone.retries"},
		{"retries unknown", "create", edits{after + "clone.0.retries": absent}, guard.RuleFixed, "clone.retries"},
		{"no clone", "create", edits{after + "clone": []any{}}, guard.RuleFixed, "not a clone"},
		{"restart on update", "create", edits{after + "reboot_after_update": true}, guard.RuleFixed, "reboot_after_update"},
		{"restart on update unknown", "create", edits{after + "reboot_after_update": nil}, guard.RuleFixed, "reboot_after_update"},
		{"no stop on destroy", "create", edits{after + "stop_on_destroy": false}, guard.RuleFixed, "stop_on_destroy"},
		{"template", "create", edits{after + "template": true}, guard.RuleFixed, "template"},
		{"restart on update, in an update", "update", edits{after + "reboot_after_update": true}, guard.RuleFixed, "reboot_after_update"},
		{"no stop on destroy, in an import", "import", edits{"resource_changes.1.change.after.stop_on_destroy": false}, guard.RuleFixed, "stop_on_destroy"},

		{"arguments", "create", edits{after + "kvm_arguments": "-x"}, guard.RulePrivileged, "kvm_arguments"},
		{"arguments unknown", "create", edits{unknown + "kvm_arguments": true}, guard.RulePrivileged, "kvm_arguments"},
		{"hookscript", "create", edits{after + "hook_script_file_id": "local:snippets/x"}, guard.RulePrivileged, "hook_script_file_id"},
		{"device by id", "create", edits{after + "hostpci.+": map[string]any{"device": "hostpci0", "id": "0000:01:00"}}, guard.RulePrivileged, "hostpci.id"},
		{"devices unknown", "create", edits{unknown + "hostpci": true}, guard.RulePrivileged, "hostpci.id"},
		{"device id unknown", "create", edits{unknown + "hostpci": []any{map[string]any{"id": true}}}, guard.RulePrivileged, "hostpci.id"},
		{"usb by id", "create", edits{after + "usb.+": map[string]any{"host": "1234:5678"}}, guard.RulePrivileged, "usb.host"},

		{"update of cores", "update", edits{after + "cpu.0.cores": 8}, guard.RuleUpdate, "cpu.cores would change"},
		{"update of memory", "update", edits{after + "memory.0.dedicated": 1}, guard.RuleUpdate, "memory.dedicated"},
		{"update from nothing", "update", edits{after + "memory.0.floating": 1024}, guard.RuleUpdate, "memory.floating"},
		{"update to nothing", "update", edits{after + "cpu.0.units": 0}, guard.RuleUpdate, "cpu.units"},
		{"update of what was not there", "update", edits{after + "novel": "x"}, guard.RuleUpdate, "novel"},
		{"update of what is not there any more", "update", edits{first + "change.before.novel": "x"}, guard.RuleUpdate, "novel"},
		{"update from a number to text", "update", edits{after + "cpu.0.cores": "4"}, guard.RuleUpdate, "cpu.cores"},
		{"update from text to a number", "update", edits{after + "cpu.0.type": 1}, guard.RuleUpdate, "cpu.type"},
		{"update from a value to a list", "update", edits{after + "bios": []any{"x"}}, guard.RuleUpdate, "bios"},
		{"update from a list to a value", "update", edits{after + "numa": "x"}, guard.RuleUpdate, "numa"},
		{"update of numa", "update", edits{after + "numa.0.hostnodes": "1"}, guard.RuleUpdate, "numa.hostnodes"},
		{"update that adds a numa node", "update", edits{after + "numa.+": map[string]any{"device": "numa1"}}, guard.RuleUpdate, "numa would change"},
		{"update that takes a block away", "update", edits{after + "numa": []any{}}, guard.RuleUpdate, "numa would change"},
		{"update that stops", "update", edits{after + "started": false}, guard.RuleUpdate, "started"},
		{"update of the clone", "update", edits{after + "clone.0.vm_id": 9001}, guard.RuleUpdate, "clone.vm_id"},
		{"update to the unknown", "update", edits{unknown + "cpu": []any{map[string]any{"cores": true}}}, guard.RuleUpdate, "cpu would change"},
		{"update all unknown", "update", edits{first + "change.after_unknown": true}, guard.RuleUpdate, "everything"},
		{"import of a larger VM", "import", edits{"resource_changes.1.change.before.cpu.0.cores": 8}, guard.RuleUpdate, "cpu.cores of the VM differs from the VM's file"},

		{"sensitive value", "create", edits{first + "change.after_sensitive.name": true}, guard.RuleSecret, "sensitive"},
		{"sensitive value in a block", "create", edits{first + "change.after_sensitive.cpu": []any{map[string]any{"type": true}}}, guard.RuleSecret, "sensitive"},
		{"secret in a root variable", "create", edits{"variables.x": map[string]any{"value": "PVEAPIToken=x"}}, guard.RuleSecret, "API token"},
		{"secret in a default", "create", edits{call + "module.variables.x": map[string]any{"default": "PVEAPIToken=x"}}, guard.RuleSecret, "API token"},
		{"secret in a root default", "create", edits{rootConfig + "variables.x": map[string]any{"default": "PVEAPIToken=x"}}, guard.RuleSecret, "API token"},
		{"secret in a call", "create", edits{call + "expressions.tags": map[string]any{"constant_value": []any{"PVEAPIToken=x"}}}, guard.RuleSecret, "API token"},
		{"secret in a block", "create", edits{call + "module.resources.0.expressions.cpu.0.type": map[string]any{"constant_value": "PVEAPIToken=x"}}, guard.RuleSecret, "API token"},
		{"secret in a provider", "create", edits{"configuration.provider_config.proxmox.expressions.endpoint": map[string]any{"constant_value": "https://h/?PVEAPIToken=x"}}, guard.RuleSecret, "API token"},
		{"secret in the planned values", "create", edits{"planned_values.root_module.child_modules.0.resources.0.values.tags.0": "PVEAPIToken=x"}, guard.RuleSecret, "API token"},
		{"secret as a key", "create", edits{after + "x": map[string]any{"PVEAPIToken=x": 1}}, guard.RuleSecret, "API token"},

		{"drift of the key", "create", drift("update", marked(key1, 2001), marked(key2, 2001)), guard.RuleDrift, "was changed in Proxmox"},
		{"drift of the VMID", "create", drift("update", marked(key1, 2001), marked(key1, 2002)), guard.RuleDrift, "was changed in Proxmox"},
		{"drift of the cluster", "create", drift("update", marked(key1, 2001), map[string]any{"vm_id": 2001, "description": "numaform/1 cluster=test key=" + key1}), guard.RuleDrift, "was changed in Proxmox"},
		{"drift of a VM without marker", "create", drift("update", map[string]any{"vm_id": 2001}, map[string]any{"vm_id": 2001}), guard.RuleDrift, "was changed in Proxmox"},
		{"drift without a change", "create", edits{"resource_drift.+": map[string]any{"address": vm(2001).Address}}, guard.RulePlan, "null"},
		{"drift loses the marker", "create", drift("update", marked(key1, 2001), map[string]any{"vm_id": 2001}), guard.RuleDrift, "was changed in Proxmox"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := check(edited(t, tt.plan, tt.edits), intents()[tt.plan], guard.DefaultRules())
			if v.Decision != guard.Deny || !has(v, guard.Deny, tt.want, tt.part) {
				t.Errorf("want denied by %s with %q, got\n%s", tt.want, tt.part, v)
			}
		})
	}
}

func TestCheckAsks(t *testing.T) {
	t.Parallel()
	const second = "resource_changes.1."
	gone := edits{"resource_drift.+": map[string]any{
		"address": vm(2001).Address, "module_address": "module.workers-2001", "mode": "managed",
		"type": guard.ResourceType, "name": "node", "provider_name": guard.Provider,
		"change": map[string]any{"actions": []any{"delete"}},
	}}
	tests := []struct {
		name   string
		plan   string
		intent guard.Intent
		edits  edits
		want   guard.Rule
		part   string
	}{
		{"moved", "moved", nothing, nil, guard.RuleMoved, "was moved from " + vm(2002).Address},
		{"forgotten", "forget", nothing, nil, guard.RuleForget, "remains in Proxmox"},
		{"import nobody asked for", "import", nothing, nil, guard.RuleImport, "was not requested"},
		{"import without marker", "import", import2, edits{second + "change.before.description": ""}, guard.RuleImport, "is not VM 2002 on pve-1 with the marker"},
		{"import of another key", "import", import2, edits{second + "change.before.description": "numaform/1 cluster=prod key=" + string(vm(2001).Key)}, guard.RuleImport, "is not VM 2002 on pve-1 with the marker"},
		{"import of another cluster", "import", import2, edits{second + "change.before.description": "numaform/1 cluster=test key=" + string(vm(2002).Key)}, guard.RuleImport, "is not VM 2002 on pve-1 with the marker"},
		{"import by another id", "import", import2, edits{second + "change.importing.id": "pve-2/2002"}, guard.RuleImport, "is not VM 2002 on pve-1 with the marker"},
		{"import that changes the disk controller", "import", import2, edits{second + "change.before.scsi_hardware": "virtio-scsi-pci"}, guard.RuleUpdate, "scsi_hardware"},
		{"VM gone", "create", both, gone, guard.RuleDrift, "no longer exists in Proxmox"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := check(edited(t, tt.plan, tt.edits), tt.intent, guard.DefaultRules())
			if v.Decision != guard.NeedsApproval || !has(v, guard.NeedsApproval, tt.want, tt.part) {
				t.Errorf("want approval because of %s with %q, got\n%s", tt.want, tt.part, v)
			}
		})
	}
}

func TestCheckImportOfAnotherVMID(t *testing.T) {
	t.Parallel()
	plan := edited(t, "import", edits{"resource_changes.1.change.before.vm_id": 150, "resource_changes.1.change.before.id": "150"})
	if v := check(plan, import2, guard.DefaultRules()); v.Decision != guard.Deny || !has(v, guard.NeedsApproval, guard.RuleImport, "is not VM 2002 on pve-1 with the marker of its file") {
		t.Errorf("got\n%s", v)
	}
}

func TestCheckImportMayChangeTags(t *testing.T) {
	t.Parallel()
	plan := edited(t, "import", edits{"resource_changes.1.change.before.tags": []any{"x"}})
	if v := check(plan, import2, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("got\n%s", v)
	}
}

func TestCheckAnAddressThatStays(t *testing.T) {
	t.Parallel()
	plan := edited(t, "create", edits{first + "previous_address": vm(2001).Address})
	if v := check(plan, both, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("got\n%s", v)
	}
}

func TestCheckLetsHarmlessDriftPass(t *testing.T) {
	t.Parallel()
	values := func(ip string) map[string]any {
		return map[string]any{"vm_id": 2001, "description": "numaform/1 cluster=prod key=" + string(vm(2001).Key), "ipv4_addresses": []any{ip}}
	}
	plan := edited(t, "create", edits{"resource_drift.+": map[string]any{
		"address": vm(2001).Address, "module_address": "module.workers-2001", "mode": "managed",
		"type": guard.ResourceType, "name": "node", "provider_name": guard.Provider,
		"change": map[string]any{"actions": []any{"update"}, "before": values(""), "after": values("10.0.0.1")},
	}})
	if v := check(plan, both, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("want an address that appeared to pass, got\n%s", v)
	}
}

func TestCheckDeleteOfWhatIsGone(t *testing.T) {
	t.Parallel()
	plan := edited(t, "mixed", nil)
	plan.ResourceDrift = append(plan.ResourceDrift, plan.ResourceChanges[1])
	plan.ResourceChanges = append(plan.ResourceChanges[:1:1], plan.ResourceChanges[2])
	if v := check(plan, mixed, guard.DefaultRules()); v.Decision != guard.Allow {
		t.Errorf("want the delete of a VM that is gone allowed, got\n%s", v)
	}
	other := mixed
	target := vm(2002)
	target.Key = vm(2001).Key
	other.Delete = []guard.Target{target}
	if v := check(plan, other, guard.DefaultRules()); !has(v, guard.Deny, guard.RuleIdentity, "marker in the state") {
		t.Errorf("want the delete of another VM denied, got\n%s", v)
	}
}

// TestCheckRealPlans checks that recorded plans of an engine with forbidden changes, such
// as a resize or an output, are denied, whatever the intent requests.
func TestCheckRealPlans(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]guard.Rule{
		"resize": guard.RuleUpdate, "tainted": guard.RuleReplace, "target": guard.RulePlan,
		"deposed": guard.RuleReplace, "output": guard.RuleConfig, "data": guard.RuleConfig,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, intent := range []guard.Intent{nothing, update1, mixed} {
				if v := check(edited(t, name, nil), intent, guard.DefaultRules()); v.Decision != guard.Deny {
					t.Errorf("want denied, got\n%s", v)
				}
			}
			if v := check(edited(t, name, nil), update1, guard.DefaultRules()); !has(v, guard.Deny, want, "") {
				t.Errorf("want denied by %s, got\n%s", want, v)
			}
		})
	}
	// The fix for a replacement depends on its reason.
	for name, edits := range map[string]edits{"tainted": nil, "update": {first + "change.actions": []any{"delete", "create"}}} {
		v, tainted := check(edited(t, name, edits), nothing, guard.DefaultRules()), name == "tainted"
		if has(v, guard.Deny, guard.RuleReplace, "it is tainted") != tainted || has(v, guard.Deny, guard.RuleReplace, "revert the change") == tainted {
			t.Errorf("%s: got\n%s", name, v)
		}
	}
}

func TestSecretsAreNamedNotShown(t *testing.T) {
	t.Parallel()
	for kind, secret := range map[string]string{
		"Proxmox API token":    "root@pam!ci=0a1b2c3d-0000-4000-8000-canary000000",
		"Proxmox ticket":       "PVE:root@pam:5F3C1A2B::canary",
		"k3s or RKE2":          "K10abcdef0123456789::server:canary",
		"bootstrap token":      "abcdef.0123456789canary",
		"private key":          "-----BEGIN EC PRIVATE KEY-----\ncanary",
		"kubeconfig":           "apiVersion: v1\nkind: Config\ncanary: 1",
		"JSON web token":       "eyJhbGciOiJSUzI1.eyJjYW5hcnkiOjEyMw.canary",
		"cloud access key":     "AKIA0123456789CANARY",
		"password hash":        "$6$canary$x",
		"cloud-init document":  "#cloud-config\ncanary: 1",
		"a password or token:": "password: canary",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			v := check(edited(t, "create", edits{after + "tags.0": secret}), both, guard.DefaultRules())
			if !has(v, guard.Deny, guard.RuleSecret, kind) {
				t.Errorf("want a %s found, got\n%s", kind, v)
			}
			if strings.Contains(strings.ToLower(v.String()), "canary") {
				t.Errorf("the verdict shows the secret:\n%s", v)
			}
		})
	}
}

func TestHarmlessTextIsNoSecret(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"worker.abcdefghijklmnop.example.com", "10.0.0.1", "local:iso/numaform-prod-2001-1.iso", "tokens: none",
		"../modules/proxmox-node/0123456789abcdef", "12 pods want 8 cpu, 16 GiB", "https://pve-1.example:8006/",
		"Size: type s1.8VCPU-32GB (on-demand), class vault-secret: 8 vCPUs, 32768 MiB, template debian.",
	} {
		v := check(edited(t, "create", edits{after + "tags.0": s}), both, guard.DefaultRules())
		if v.Decision != guard.Allow {
			t.Errorf("%q: got\n%s", s, v)
		}
	}
}
