package guard_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// debian is a template, and debianVM the values of its VM.
func debian() fleet.Template {
	return fleet.Template{
		Of: "debian", Serial: 2, Name: "debian-01234567", VMID: 9100, Host: topology.HostID{Region: "lab", Host: "pve-1"},
		Image:    fleet.TemplateImage{URL: "https://images.example/a.qcow2", Checksum: strings.Repeat("a", 64), Algorithm: "sha256", Format: "qcow2", Storage: "local"},
		Hardware: fleet.TemplateHardware{Storage: "local-lvm", DiskGiB: 8, Networks: []fleet.Network{{Bridge: "vmbr0"}}},
	}
}

func debianVM() map[string]any {
	block := func(values map[string]any) []any { return []any{values} }
	return map[string]any{
		"vm_id": float64(9100), "name": "debian-01234567", "node_name": "pve-1", "template": true, "started": false, "on_boot": false,
		"description": "numaform-template/1 cluster=prod template=debian serial=2", "tags": []any{"numaform-template-9100"},
		"bios": "seabios", "machine": "pc", "scsi_hardware": "virtio-scsi-single", "boot_order": []any{"scsi0"},
		"agent": block(map[string]any{"enabled": true, "timeout": "10s", "type": "virtio", "wait_for_ip": block(map[string]any{"disabled": true})}),
		"cpu":   block(map[string]any{"cores": float64(2), "sockets": float64(1), "numa": true, "type": "host"}),
		"disk": block(map[string]any{
			"interface": "scsi0", "datastore_id": "local-lvm", "import_from": "local:import/template-9100.qcow2", "size": float64(8), "cache": "none",
			"discard": "on", "iothread": true, "aio": "io_uring", "backup": true, "replicate": true,
		}),
		"memory": block(map[string]any{"dedicated": float64(2048)}), "operating_system": block(map[string]any{"type": "l26"}),
		"serial_device": block(map[string]any{"device": "socket"}), "vga": block(map[string]any{"type": "serial0", "memory": float64(16)}),
		"network_device": block(map[string]any{"bridge": "vmbr0", "enabled": true, "model": "virtio"}),
		"acpi":           true, "keyboard_layout": "en-us", "tablet_device": true, "reboot_after_update": true,
		"delete_unreferenced_disks_on_destroy": true, "purge_on_destroy": true, "timeout_create": float64(3600),
		"timeout_clone": float64(1800), "timeout_migrate": float64(1800), "timeout_move_disk": float64(1800), "timeout_reboot": float64(1800),
		"timeout_shutdown_vm": float64(1800), "timeout_start_vm": float64(1800), "timeout_stop_vm": float64(300),
	}
}

// debianImage returns the values of the template's image, and debianMadeOf the values of the
// properties that require another VM.
func debianImage() map[string]any {
	return map[string]any{
		"node_name": "pve-1", "datastore_id": "local", "content_type": "import", "file_name": "template-9100.qcow2", "url": "https://images.example/a.qcow2",
		"checksum": strings.Repeat("a", 64), "checksum_algorithm": "sha256", "verify": true, "overwrite": false, "overwrite_unmanaged": false,
		"upload_timeout": float64(3600),
	}
}

func debianMadeOf() map[string]any {
	return map[string]any{"input": map[string]any{
		"checksum": strings.Repeat("a", 64), "bios": "seabios", "secure_boot": false, "tpm_version": "", "storage": "local-lvm", "size_gib": float64(8),
	}}
}

// templatePlan returns a plan with one change of the template's VM and, if it is created, of
// its image.
func templatePlan(t *testing.T, actions tfjson.Actions, before, after map[string]any) *tfjson.Plan {
	t.Helper()
	change := func(kind, name, provider string, before, after map[string]any) *tfjson.ResourceChange {
		rc := &tfjson.ResourceChange{
			Address: "module.debian-01234567." + kind + "." + name, ModuleAddress: "module.debian-01234567", Mode: tfjson.ManagedResourceMode,
			Type: kind, Name: name, ProviderName: provider, Change: &tfjson.Change{Actions: actions},
		}
		if before != nil {
			rc.Change.Before = before
		}
		if after != nil {
			rc.Change.After = after
		}
		return rc
	}
	plan := &tfjson.Plan{
		FormatVersion: "1.2",
		Config: &tfjson.Config{RootModule: &tfjson.ConfigModule{ModuleCalls: map[string]*tfjson.ModuleCall{
			"debian-01234567": {Source: "../../../modules/proxmox-template/0123456789abcdef", Module: &tfjson.ConfigModule{Resources: []*tfjson.ConfigResource{
				{Address: "data.proxmox_virtual_environment_vms.all", Mode: tfjson.DataResourceMode, Type: "proxmox_virtual_environment_vms", Name: "all"},
				resourceOf("proxmox_download_file", "image"), resourceOf("terraform_data", "made_of"), resourceOf(guard.ResourceType, "template"),
			}}},
		}}},
		ResourceChanges: []*tfjson.ResourceChange{change(guard.ResourceType, "template", guard.Provider, before, after)},
	}
	if actions.Create() {
		plan.ResourceChanges = append(plan.ResourceChanges,
			change("terraform_data", "made_of", "terraform.io/builtin/terraform", nil, debianMadeOf()),
			change("proxmox_download_file", "image", guard.Provider, nil, debianImage()))
	}
	// A copy, so that no test changes the values of another.
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := guard.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

// existingVM returns the values of the template in the state.
func existingVM() map[string]any {
	vm := debianVM()
	vm["id"] = "9100"
	return vm
}

// existingImage returns the values of the template's image in the state.
func existingImage() map[string]any {
	return map[string]any{
		"id": "local:import/template-9100.qcow2", "node_name": "pve-1", "datastore_id": "local",
		"content_type": "import", "file_name": "template-9100.qcow2",
	}
}

// withImage adds the deletion of an image to a plan, and onlyImage replaces the plan's
// changes with it.
func withImage(image map[string]any) func(*tfjson.Plan) {
	return func(plan *tfjson.Plan) {
		plan.ResourceChanges = append(plan.ResourceChanges, &tfjson.ResourceChange{
			Address: "module.debian-01234567.proxmox_download_file.image", ModuleAddress: "module.debian-01234567",
			Mode: tfjson.ManagedResourceMode, Type: "proxmox_download_file", Name: "image", ProviderName: guard.Provider,
			Change: &tfjson.Change{Actions: tfjson.Actions{tfjson.ActionDelete}, Before: image},
		})
	}
}

func onlyImage(image map[string]any) func(*tfjson.Plan) {
	return func(plan *tfjson.Plan) {
		plan.ResourceChanges = nil
		withImage(image)(plan)
	}
}

// importing marks the first change of a plan as an import.
func importing(id string) func(*tfjson.Plan) {
	return func(plan *tfjson.Plan) { plan.ResourceChanges[0].Change.Importing = &tfjson.Importing{ID: id} }
}

func resourceOf(kind, name string) *tfjson.ConfigResource {
	return &tfjson.ConfigResource{Address: kind + "." + name, Mode: tfjson.ManagedResourceMode, Type: kind, Name: name}
}

// TestCheckTemplates checks which plans of templates are allowed.
func TestCheckTemplates(t *testing.T) {
	t.Parallel()
	rules := guard.DefaultRules()
	list := []fleet.Template{debian()}
	create, keep := guard.TemplateIntent{Create: list}, guard.TemplateIntent{Keep: list}
	tagged := debian()
	tagged.Tags = []string{"x"}
	finish, remove := guard.TemplateIntent{Unfinished: list}, guard.TemplateIntent{Delete: list}
	edited := func(vm map[string]any, name string, value any) map[string]any {
		vm[name] = value
		return vm
	}
	made := tfjson.Actions{tfjson.ActionCreate}
	updated := tfjson.Actions{tfjson.ActionUpdate}
	deleted := tfjson.Actions{tfjson.ActionDelete}
	replaced := tfjson.Actions{tfjson.ActionDelete, tfjson.ActionCreate}
	for _, tt := range []struct {
		name          string
		intent        guard.TemplateIntent
		actions       tfjson.Actions
		before, after map[string]any
		edit          func(*tfjson.Plan)
		// want is the rule that denies the plan, or "" if it is allowed.
		want guard.Rule
	}{
		{name: "create", intent: create, actions: made, after: debianVM()},
		{name: "finish", intent: finish, actions: made, after: debianVM()},
		{name: "replace an unfinished one", intent: finish, actions: replaced, before: existingVM(), after: debianVM()},
		{name: "tags", intent: guard.TemplateIntent{Keep: []fleet.Template{tagged}}, actions: updated, before: existingVM(), after: edited(existingVM(), "tags", []any{"numaform-template-9100", "x"})},
		{name: "higher serial", intent: keep, actions: updated, before: edited(existingVM(), "description", "numaform-template/1 cluster=prod template=debian serial=1"), after: existingVM()},
		{name: "delete", intent: remove, actions: deleted, before: existingVM()},
		{name: "forget one without a VM", intent: guard.TemplateIntent{Absent: list}, actions: tfjson.Actions{tfjson.ActionNoop}, before: existingVM(), after: existingVM()},
		{name: "nothing", intent: keep, actions: tfjson.Actions{tfjson.ActionNoop}, before: existingVM(), after: existingVM()},

		{name: "create an existing one", intent: keep, actions: made, after: debianVM(), want: guard.RuleSurplus},
		{name: "delete a VM that does not exist", intent: guard.TemplateIntent{Absent: list}, actions: deleted, before: existingVM(), want: guard.RuleSurplus},
		{name: "replace a ready one", intent: keep, actions: replaced, before: existingVM(), after: debianVM(), want: guard.RuleSurplus},
		{name: "delete unasked", intent: keep, actions: deleted, before: existingVM(), want: guard.RuleSurplus},
		{name: "delete is missing", intent: remove, actions: tfjson.Actions{tfjson.ActionNoop}, before: existingVM(), after: existingVM(), want: guard.RuleMissing},
		{name: "delete another owner's VM", intent: remove, actions: deleted, before: edited(existingVM(), "description", "database"), want: guard.RuleIdentity},
		{name: "delete another VMID", intent: remove, actions: deleted, before: edited(existingVM(), "id", "100"), want: guard.RuleIdentity},
		{name: "delete its image", intent: remove, actions: deleted, before: existingVM(), edit: withImage(existingImage())},
		{name: "delete the image of one without a VM", intent: guard.TemplateIntent{Absent: list}, actions: deleted, edit: onlyImage(existingImage())},
		{name: "delete another file", intent: remove, actions: deleted, before: existingVM(), want: guard.RuleIdentity, edit: withImage(edited(existingImage(), "id", "local:iso/debian.iso"))},
		{name: "delete a disk", intent: guard.TemplateIntent{Absent: list}, actions: deleted, want: guard.RuleIdentity, edit: onlyImage(edited(existingImage(), "id", "local-lvm:vm-100-disk-0"))},
		{name: "delete a file of another storage", intent: remove, actions: deleted, before: existingVM(), want: guard.RuleIdentity, edit: withImage(edited(existingImage(), "datastore_id", "backup"))},
		{name: "delete a file on another host", intent: remove, actions: deleted, before: existingVM(), want: guard.RuleIdentity, edit: withImage(edited(existingImage(), "node_name", "pve-2"))},
		{name: "replace another file", intent: finish, actions: replaced, before: existingVM(), after: debianVM(), want: guard.RuleIdentity, edit: func(plan *tfjson.Plan) {
			withImage(edited(existingImage(), "id", "local:import/other.qcow2"))(plan)
			plan.ResourceChanges[1].Change.Actions = replaced
			plan.ResourceChanges[1].Change.After = debianImage()
		}},
		{name: "delete an image unasked", intent: keep, actions: deleted, want: guard.RuleSurplus, edit: onlyImage(existingImage())},
		{name: "another cluster's", intent: remove, actions: deleted, before: edited(existingVM(), "description", "numaform-template/1 cluster=dev template=debian serial=2"), want: guard.RuleIdentity},
		{name: "hardware in place", intent: keep, actions: updated, before: existingVM(), after: edited(existingVM(), "bios", "ovmf"), want: guard.RuleUpdate},
		{name: "another VMID", intent: create, actions: made, after: edited(debianVM(), "vm_id", float64(9101)), want: guard.RuleIdentity},
		{name: "another host", intent: create, actions: made, after: edited(debianVM(), "node_name", "pve-2"), want: guard.RuleIdentity},
		{name: "no marker", intent: create, actions: made, after: edited(debianVM(), "description", ""), want: guard.RuleIdentity},
		{name: "a VM", intent: create, actions: made, after: edited(debianVM(), "template", false), want: guard.RuleExpected},
		{name: "it starts with its host", intent: create, actions: made, after: edited(debianVM(), "on_boot", true), want: guard.RuleExpected},
		{name: "no tag", intent: create, actions: made, after: edited(debianVM(), "tags", []any{}), want: guard.RuleExpected},
		{name: "hookscript", intent: create, actions: made, after: edited(debianVM(), "hook_script_file_id", "local:snippets/a"), want: guard.RuleExpected},
		{name: "host device", intent: create, actions: made, after: edited(debianVM(), "hostpci", []any{map[string]any{"id": "0000:01:00"}}), want: guard.RuleExpected},
		{name: "pinned", intent: create, actions: made, after: edited(debianVM(), "cpu", []any{map[string]any{"affinity": "0-3"}}), want: guard.RuleExpected},
		{name: "disk elsewhere", intent: create, actions: made, after: edited(debianVM(), "disk", []any{map[string]any{"datastore_id": "ceph", "import_from": "local:import/a"}}), want: guard.RuleExpected},
		{name: "another image", intent: create, actions: made, after: debianVM(), want: guard.RuleExpected, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[2].Change.After.(map[string]any)["url"] = "https://evil.example/a.qcow2"
		}},
		{name: "address of a service in the host's network", intent: create, actions: made, after: debianVM(), want: guard.RuleExpected, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[2].Change.After.(map[string]any)["url"] = "http://169.254.169.254/latest"
		}},
		{name: "image without a checked certificate", intent: create, actions: made, after: debianVM(), want: guard.RuleExpected, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[2].Change.After.(map[string]any)["verify"] = false
		}},
		{name: "image with another name", intent: create, actions: made, after: debianVM(), want: guard.RuleExpected, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[2].Change.After.(map[string]any)["file_name"] = "other.qcow2"
		}},
		{name: "unpacked image", intent: create, actions: made, after: debianVM(), want: guard.RuleExpected, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[2].Change.After.(map[string]any)["decompression_algorithm"] = "gz"
		}},
		{name: "unknown hookscript", intent: create, actions: made, after: debianVM(), want: guard.RuleExpected, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[0].Change.AfterUnknown = map[string]any{"hook_script_file_id": true}
		}},
		{name: "another bridge", intent: create, actions: made, after: edited(debianVM(), "network_device", []any{map[string]any{"bridge": "vmbr1", "enabled": true, "model": "virtio"}}), want: guard.RuleExpected},
		{name: "an attribute that a newer provider adds", intent: create, actions: made, after: edited(debianVM(), "rootkit", "x"), want: guard.RuleExpected},
		{name: "image of another VM", intent: create, actions: made, after: edited(debianVM(), "disk", []any{map[string]any{"interface": "scsi0", "datastore_id": "local-lvm", "import_from": "local:import/template-9101.qcow2"}}), want: guard.RuleExpected},
		{name: "other properties", intent: create, actions: made, after: debianVM(), want: guard.RuleExpected, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[1].Change.After.(map[string]any)["input"].(map[string]any)["bios"] = "ovmf"
		}},
		{name: "replaced properties of a ready one", intent: keep, actions: tfjson.Actions{tfjson.ActionNoop}, before: existingVM(), after: existingVM(), want: guard.RuleSurplus, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges = append(plan.ResourceChanges, templatePlan(t, made, nil, debianVM()).ResourceChanges[1])
			plan.ResourceChanges[1].Change.Actions, plan.ResourceChanges[1].Change.Before = updated, map[string]any{}
		}},
		{name: "moved", intent: keep, actions: tfjson.Actions{tfjson.ActionNoop}, before: existingVM(), after: existingVM(), want: guard.RuleMoved, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[0].PreviousAddress = "module.other.proxmox_virtual_environment_vm.template"
		}},
		{name: "deposed", intent: remove, actions: deleted, before: existingVM(), want: guard.RuleReplace, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[0].DeposedKey = "0123abcd"
		}},
		{name: "another resource in the state", intent: create, actions: made, after: debianVM(), want: guard.RuleAddress, edit: func(plan *tfjson.Plan) {
			plan.PriorState = &tfjson.State{Values: &tfjson.StateValues{RootModule: &tfjson.StateModule{Resources: []*tfjson.StateResource{
				{Address: "null_resource.x", Mode: tfjson.ManagedResourceMode, Type: "null_resource", Name: "x", ProviderName: "registry.opentofu.org/hashicorp/null"},
			}}}}
		}},
		{name: "resource in the root", intent: create, actions: made, after: debianVM(), want: guard.RuleConfig, edit: func(plan *tfjson.Plan) {
			plan.Config.RootModule.Resources = []*tfjson.ConfigResource{resourceOf("null_resource", "x")}
		}},
		{name: "resource in the module", intent: create, actions: made, after: debianVM(), want: guard.RuleConfig, edit: func(plan *tfjson.Plan) {
			call := plan.Config.RootModule.ModuleCalls["debian-01234567"].Module
			call.Resources = append(call.Resources, resourceOf("null_resource", "x"))
		}},
		{name: "data source in the module", intent: create, actions: made, after: debianVM(), want: guard.RuleConfig, edit: func(plan *tfjson.Plan) {
			call := plan.Config.RootModule.ModuleCalls["debian-01234567"].Module
			call.Resources = append(call.Resources, &tfjson.ConfigResource{Address: "data.http.x", Mode: tfjson.DataResourceMode, Type: "http", Name: "x"})
		}},
		{name: "provider", intent: create, actions: made, after: debianVM(), want: guard.RuleConfig, edit: func(plan *tfjson.Plan) {
			plan.Config.ProviderConfigs = map[string]*tfjson.ProviderConfig{"null": {Name: "null", FullName: "registry.opentofu.org/hashicorp/null"}}
		}},
		{name: "output", intent: create, actions: made, after: debianVM(), want: guard.RuleConfig, edit: func(plan *tfjson.Plan) {
			plan.Config.RootModule.Outputs = map[string]*tfjson.ConfigOutput{"x": {}}
		}},
		{name: "module in the module", intent: create, actions: made, after: debianVM(), want: guard.RuleConfig, edit: func(plan *tfjson.Plan) {
			plan.Config.RootModule.ModuleCalls["debian-01234567"].Module.ModuleCalls = map[string]*tfjson.ModuleCall{"x": {Source: "../x"}}
		}},
		{name: "overwrite", intent: create, actions: made, after: debianVM(), want: guard.RuleExpected, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[2].Change.After.(map[string]any)["overwrite_unmanaged"] = true
		}},
		{name: "another resource", intent: create, actions: made, after: debianVM(), want: guard.RuleAddress, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[1].Type, plan.ResourceChanges[1].Name = "proxmox_virtual_environment_file", "x"
		}},
		{name: "another module", intent: create, actions: made, after: debianVM(), want: guard.RuleAddress, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[2].Address = "module.other.proxmox_download_file.image"
		}},
		{name: "provisioner", intent: create, actions: made, after: debianVM(), want: guard.RuleConfig, edit: func(plan *tfjson.Plan) {
			plan.Config.RootModule.ModuleCalls["debian-01234567"].Module.Resources[3].Provisioners = []*tfjson.ConfigProvisioner{{Type: "local-exec"}}
		}},
		{name: "module of another source", intent: create, actions: made, after: debianVM(), want: guard.RuleConfig, edit: func(plan *tfjson.Plan) {
			plan.Config.RootModule.ModuleCalls["debian-01234567"].Source = "example/module"
		}},
		{name: "outside the range", intent: guard.TemplateIntent{Create: list, VMIDs: fleet.VMIDRange{Lower: 100, Upper: 200}}, actions: made, after: debianVM(), want: guard.RuleIntent},
		{name: "import", intent: keep, actions: tfjson.Actions{tfjson.ActionNoop}, before: existingVM(), after: existingVM(), want: guard.RuleImport, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[0].Change.Importing = &tfjson.Importing{ID: "pve-1/9100"}
		}},
		{name: "import a lost one", intent: guard.TemplateIntent{Import: list}, actions: updated, before: edited(existingVM(), "tags", []any{}), after: existingVM(), edit: importing("pve-1/9100")},
		{name: "import one that is not a template yet", intent: guard.TemplateIntent{Incomplete: list}, actions: updated, before: edited(existingVM(), "template", false), after: existingVM(), edit: importing("pve-1/9100")},
		{name: "import a VM as a template", intent: guard.TemplateIntent{Import: list}, actions: updated, before: edited(existingVM(), "template", false), after: existingVM(), want: guard.RuleUpdate, edit: importing("pve-1/9100")},
		{name: "import an unfinished one that would change", intent: guard.TemplateIntent{Incomplete: list}, actions: updated, before: edited(existingVM(), "bios", "ovmf"), after: existingVM(), want: guard.RuleUpdate, edit: importing("pve-1/9100")},
		{name: "import another VM", intent: guard.TemplateIntent{Import: list}, actions: updated, before: edited(existingVM(), "tags", []any{}), after: existingVM(), want: guard.RuleImport, edit: importing("pve-1/9101")},
		{name: "import a VM of another owner", intent: guard.TemplateIntent{Import: list}, actions: updated, before: edited(existingVM(), "description", ""), after: existingVM(), want: guard.RuleIdentity, edit: importing("pve-1/9100")},
		{name: "import one that would change", intent: guard.TemplateIntent{Import: list}, actions: updated, before: edited(existingVM(), "bios", "ovmf"), after: existingVM(), want: guard.RuleUpdate, edit: importing("pve-1/9100")},
		{name: "create a lost one", intent: guard.TemplateIntent{Import: list}, actions: made, after: debianVM(), want: guard.RuleSurplus},
		{name: "replace a lost one", intent: guard.TemplateIntent{Import: list}, actions: replaced, before: existingVM(), after: debianVM(), want: guard.RuleSurplus, edit: importing("pve-1/9100")},
		{name: "secret", intent: create, actions: made, after: edited(debianVM(), "tags", []any{"numaform-template-9100"}), want: guard.RuleSecret, edit: func(plan *tfjson.Plan) {
			plan.Config.RootModule.ModuleCalls["debian-01234567"].Expressions = map[string]*tfjson.Expression{
				"url": {ExpressionData: &tfjson.ExpressionData{ConstantValue: "https://images.example/a?token=abcdef0123"}},
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plan := templatePlan(t, tt.actions, tt.before, tt.after)
			if tt.edit != nil {
				tt.edit(plan)
			}
			tt.intent.ClusterID = "prod"
			if tt.intent.VMIDs == (fleet.VMIDRange{}) {
				tt.intent.VMIDs = fleet.VMIDRange{Lower: 9100, Upper: 9199}
			}
			got := guard.CheckTemplates(plan, tt.intent, rules)
			if tt.want == "" {
				if got.Decision != guard.Allow {
					t.Errorf("denied: %s", got)
				}
				return
			}
			if got.Decision != guard.Deny || !slices.ContainsFunc(got.Findings, func(f guard.Finding) bool { return f.Rule == tt.want && f.Decision == guard.Deny }) {
				t.Errorf("want a denial by %s: %s", tt.want, got)
			}
		})
	}
	if got := guard.CheckTemplates(nil, create, rules); got.Decision != guard.Deny {
		t.Errorf("no plan: %s", got)
	}
	if got := guard.CheckTemplates(templatePlan(t, made, nil, debianVM()), guard.TemplateIntent{ClusterID: "prod", Create: list, VMIDs: fleet.VMIDRange{Lower: 9100, Upper: 9199}}, guard.Rules{}); got.Decision != guard.Deny {
		t.Errorf("no rules: %s", got)
	}
}
