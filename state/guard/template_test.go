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
		Hardware: fleet.TemplateHardware{Storage: "local-lvm", DiskGiB: 8},
	}
}

func debianVM() map[string]any {
	return map[string]any{
		"vm_id": float64(9100), "name": "debian-01234567", "node_name": "pve-1", "template": true, "started": false, "on_boot": false,
		"description": "numaform-template/1 cluster=prod template=debian serial=2\n", "tags": []any{"numaform-template-9100"},
		"disk": []any{map[string]any{"datastore_id": "local-lvm", "import_from": "local:import/template-9100.qcow2"}},
	}
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
	resource := func(mode tfjson.ResourceMode, kind, name string) *tfjson.ConfigResource {
		return &tfjson.ConfigResource{Address: kind + "." + name, Mode: mode, Type: kind, Name: name}
	}
	plan := &tfjson.Plan{
		FormatVersion: "1.2",
		Config: &tfjson.Config{RootModule: &tfjson.ConfigModule{ModuleCalls: map[string]*tfjson.ModuleCall{
			"debian-01234567": {Source: "../../../modules/proxmox-template/0123456789abcdef", Module: &tfjson.ConfigModule{Resources: []*tfjson.ConfigResource{
				resource(tfjson.DataResourceMode, "proxmox_virtual_environment_vms", "all"),
				resource(tfjson.ManagedResourceMode, "proxmox_download_file", "image"),
				resource(tfjson.ManagedResourceMode, "terraform_data", "made_of"),
				resource(tfjson.ManagedResourceMode, "proxmox_virtual_environment_vm", "template"),
			}}},
		}}},
		ResourceChanges: []*tfjson.ResourceChange{change(guard.ResourceType, "template", guard.Provider, before, after)},
	}
	if actions.Create() {
		plan.ResourceChanges = append(plan.ResourceChanges,
			change("terraform_data", "made_of", "terraform.io/builtin/terraform", nil, map[string]any{"input": map[string]any{}}),
			change("proxmox_download_file", "image", guard.Provider, nil, map[string]any{
				"node_name": "pve-1", "datastore_id": "local", "content_type": "import", "url": "https://images.example/a.qcow2",
				"checksum": strings.Repeat("a", 64), "checksum_algorithm": "sha256", "overwrite": false, "overwrite_unmanaged": false,
			}))
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

// TestCheckTemplates checks which plans of templates are allowed.
func TestCheckTemplates(t *testing.T) {
	t.Parallel()
	rules := guard.DefaultRules()
	list := []fleet.Template{debian()}
	create, keep := guard.TemplateIntent{Create: list}, guard.TemplateIntent{Keep: list}
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
		{name: "tags", intent: keep, actions: updated, before: existingVM(), after: edited(existingVM(), "tags", []any{"numaform-template-9100", "x"})},
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
			plan.ResourceChanges[1].Change.After = map[string]any{
				"node_name": "pve-1", "datastore_id": "local", "content_type": "import", "url": "https://images.example/a.qcow2",
				"checksum": strings.Repeat("a", 64), "checksum_algorithm": "sha256", "overwrite": false, "overwrite_unmanaged": false,
			}
		}},
		{name: "delete an image unasked", intent: keep, actions: deleted, want: guard.RuleSurplus, edit: onlyImage(existingImage())},
		{name: "another cluster's", intent: remove, actions: deleted, before: edited(existingVM(), "description", "numaform-template/1 cluster=dev template=debian serial=2"), want: guard.RuleIdentity},
		{name: "hardware in place", intent: keep, actions: updated, before: existingVM(), after: edited(existingVM(), "bios", "ovmf"), want: guard.RuleUpdate},
		{name: "another VMID", intent: create, actions: made, after: edited(debianVM(), "vm_id", float64(9101)), want: guard.RuleIdentity},
		{name: "another host", intent: create, actions: made, after: edited(debianVM(), "node_name", "pve-2"), want: guard.RuleIdentity},
		{name: "no marker", intent: create, actions: made, after: edited(debianVM(), "description", ""), want: guard.RuleIdentity},
		{name: "a VM", intent: create, actions: made, after: edited(debianVM(), "template", false), want: guard.RuleFixed},
		{name: "it starts with its host", intent: create, actions: made, after: edited(debianVM(), "on_boot", true), want: guard.RuleFixed},
		{name: "no tag", intent: create, actions: made, after: edited(debianVM(), "tags", []any{}), want: guard.RuleFixed},
		{name: "hookscript", intent: create, actions: made, after: edited(debianVM(), "hook_script_file_id", "local:snippets/a"), want: guard.RulePrivileged},
		{name: "host device", intent: create, actions: made, after: edited(debianVM(), "hostpci", []any{map[string]any{"id": "0000:01:00"}}), want: guard.RulePrivileged},
		{name: "pinned", intent: create, actions: made, after: edited(debianVM(), "cpu", []any{map[string]any{"affinity": "0-3"}}), want: guard.RulePrivileged},
		{name: "disk elsewhere", intent: create, actions: made, after: edited(debianVM(), "disk", []any{map[string]any{"datastore_id": "ceph", "import_from": "local:import/a"}}), want: guard.RuleExpected},
		{name: "another image", intent: create, actions: made, after: debianVM(), want: guard.RuleExpected, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[2].Change.After.(map[string]any)["url"] = "https://evil.example/a.qcow2"
		}},
		{name: "overwrite", intent: create, actions: made, after: debianVM(), want: guard.RuleFixed, edit: func(plan *tfjson.Plan) {
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
		{name: "import", intent: keep, actions: tfjson.Actions{tfjson.ActionNoop}, before: existingVM(), after: existingVM(), want: guard.RuleAction, edit: func(plan *tfjson.Plan) {
			plan.ResourceChanges[0].Change.Importing = &tfjson.Importing{ID: "pve-1/9100"}
		}},
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
