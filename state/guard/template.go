package guard

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
)

// The types of the resources of a template, besides its VM, and the address of the provider
// that is built into the engines.
const (
	downloadType  = "proxmox_download_file"
	madeOfType    = "terraform_data"
	vmsType       = "proxmox_virtual_environment_vms"
	builtProvider = "terraform.io/builtin/terraform"
)

// TemplateIntent is the requested change of the templates of one host. A plan must contain
// all of it and nothing else.
type TemplateIntent struct {
	ClusterID string
	// VMIDs is the range of the templates' VMIDs.
	VMIDs fleet.VMIDRange
	// Create are the templates to create. Unfinished are the ones of which an earlier
	// change already created the VM, which is not a template yet: it may be replaced.
	Create, Unfinished []fleet.Template
	// Keep are existing templates: only their tags, pool and description may change.
	Keep []fleet.Template
	// Delete are the templates to delete. Nothing uses them.
	Delete []fleet.Template
	// Absent are templates to forget whose VM does not exist: only their images may still
	// exist.
	Absent []fleet.Template
}

// templateOperation is the requested change of a template.
type templateOperation int

const (
	templateCreate templateOperation = iota
	templateFinish
	templateKeep
	templateDelete
	templateAbsent
)

// templateRequest is one template of the intent, and whether the plan fulfills it.
type templateRequest struct {
	fleet.Template
	operation templateOperation
	done      bool
}

// templateAddress matches the addresses of a template's resources: the label of its module
// call, and the resource.
var templateAddress = regexp.MustCompile(`^module\.` + labelPattern + `\.([a-z_]+\.[a-z_]+)$`)

// templateUpdates lists the attributes of a template that may change in place. Everything
// else is another template.
var templateUpdates = []string{"description", "pool_id", "tags"}

// CheckTemplates checks a plan of the templates of one host. As Check does for nodes, it
// allows only changes that it fully understands.
func CheckTemplates(plan *tfjson.Plan, intent TemplateIntent, rules Rules) Verdict {
	c := &checker{intent: Intent{ClusterID: intent.ClusterID}, requests: map[string]*request{}, vms: map[string]values{}, harmless: map[string]bool{}}
	t := &templateChecker{checker: c, requests: map[string]*templateRequest{}}
	if rules.Policy == nil {
		c.deny(RuleRules, "", "no rules are loaded: load a policy, or use the default one")
	}
	for operation, templates := range [][]fleet.Template{intent.Create, intent.Unfinished, intent.Keep, intent.Delete, intent.Absent} {
		for i := range templates {
			t.request(templateOperation(operation), &templates[i], intent.VMIDs)
		}
	}
	if plan == nil {
		c.deny(RulePlan, "", "the plan is missing: plan again")
		return verdict(Allow, c.findings)
	}
	if err := plan.Validate(); err != nil || !strings.HasPrefix(plan.FormatVersion, "1.") {
		c.deny(RulePlan, "", fmt.Sprintf("plan format %.20q is unknown: use an engine that this numaform supports", plan.FormatVersion))
		return verdict(Allow, c.findings)
	}

	c.whole(plan)
	t.config(plan.Config)
	for _, r := range resources(plan.PlannedValues) {
		if r != nil {
			c.secrets(r.Address, r.AttributeValues)
		}
	}
	for _, rc := range plan.ResourceChanges {
		t.change(rc)
	}
	for label, r := range t.requests {
		if !r.done && r.operation != templateKeep && r.operation != templateAbsent {
			c.deny(RuleMissing, "module."+label, fmt.Sprintf("the plan does not contain the requested change of template %d: the files and the state disagree; plan again", r.VMID))
		}
	}
	c.policy(plan, rules.Policy)
	return verdict(Allow, c.findings)
}

// templateChecker collects findings about one plan of templates.
type templateChecker struct {
	*checker
	// requests are the templates of the intent by the labels of their module calls.
	requests map[string]*templateRequest
}

// request checks one template of the intent and adds it to the requests.
func (t *templateChecker) request(operation templateOperation, template *fleet.Template, vmids fleet.VMIDRange) {
	label := template.Name
	if label != "" && '0' <= label[0] && label[0] <= '9' {
		label = "_" + label
	}
	address := "module." + label
	switch {
	case t.intent.ClusterID == "" || template.Of == "" || template.Serial < 1 || template.Host.Host == "":
		t.deny(RuleIntent, address, "the intent lacks cluster ID, ProxmoxTemplate, serial or host, so the template cannot be identified: plan again")
	case !vmids.Contains(template.VMID) && operation != templateKeep:
		t.deny(RuleIntent, address, fmt.Sprintf("VMID %d is outside template_vmid_range, %d to %d, so numaform does not change the template: "+
			"widen template_vmid_range in numaform.yaml", template.VMID, vmids.Lower, vmids.Upper))
	case t.requests[label] != nil:
		t.deny(RuleIntent, address, "requested twice: request one operation for a template")
	}
	for other, r := range t.requests {
		if r.VMID == template.VMID {
			t.deny(RuleIntent, address, fmt.Sprintf("VMID %d is also requested for %s: assign each template its own VMID", template.VMID, other))
		}
	}
	t.requests[label] = &templateRequest{Template: *template, operation: operation}
	target := Target{Address: address + "." + ResourceType + ".template", VMID: template.VMID, Host: template.Host.Host}
	switch operation {
	case templateCreate, templateFinish:
		t.intent.Create = append(t.intent.Create, target)
	case templateDelete:
		t.intent.Delete = append(t.intent.Delete, target)
	case templateKeep, templateAbsent:
	}
}

// config checks the configuration of the plan: calls of the module of templates, and nothing
// else.
func (t *templateChecker) config(config *tfjson.Config) {
	if config == nil || config.RootModule == nil {
		t.deny(RulePlan, "", "the plan does not contain its configuration: plan again")
		return
	}
	for key, provider := range config.ProviderConfigs {
		switch {
		case provider != nil && provider.FullName == builtProvider && len(provider.Expressions) == 0:
			continue
		case provider == nil || provider.FullName != Provider:
			t.deny(RuleConfig, key, "numaform does not use this provider: configure only "+Provider)
			continue
		}
		for setting := range provider.Expressions {
			if !slices.Contains(providerSettings, setting) {
				t.deny(RuleConfig, key, "provider argument "+setting+" is set: remove it, and set credentials in the environment")
			}
		}
		t.expressions(key, provider.Expressions)
	}
	root := config.RootModule
	if len(root.Resources)+len(root.Outputs) > 0 {
		t.deny(RuleConfig, "", "the fleet directory declares resources or outputs outside numaform's modules: move them to a separate directory and state")
	}
	for name, call := range root.ModuleCalls {
		t.call("module."+name, call)
	}
}

// templateResources are the resources of a template.
var templateResources = []string{downloadType + ".image", madeOfType + ".made_of", ResourceType + ".template"}

// call checks a module call, and the called module.
func (t *templateChecker) call(address string, call *tfjson.ModuleCall) {
	if call == nil || call.Module == nil {
		t.deny(RulePlan, address, "the plan does not contain the module's configuration: plan again")
		return
	}
	if !strings.HasPrefix(call.Source, "../") || call.CountExpression != nil || call.ForEachExpression != nil || len(call.Module.ModuleCalls) > 0 {
		t.deny(RuleConfig, address, "not a single call of the module that numaform wrote: restore the file")
	}
	t.expressions(address, call.Expressions)
	for _, r := range call.Module.Resources {
		known := r != nil && (r.Mode == tfjson.ManagedResourceMode && slices.Contains(templateResources, r.Type+"."+r.Name) ||
			r.Mode == tfjson.DataResourceMode && r.Type == vmsType)
		if !known || r.CountExpression != nil || r.ForEachExpression != nil || len(r.Provisioners) > 0 {
			t.deny(RuleConfig, address, "the module declares more than a template and its image: use the module that numaform wrote")
		}
	}
}

// change checks the change of one resource.
func (t *templateChecker) change(rc *tfjson.ResourceChange) {
	if rc == nil || rc.Change == nil {
		t.deny(RulePlan, "", "a change of the plan is null: plan again")
		return
	}
	if rc.Mode == tfjson.DataResourceMode && rc.Type == vmsType {
		return // the engine reads the VMIDs in use
	}
	request := t.requestOf(rc)
	if request == nil {
		t.deny(RuleAddress, rc.Address, "not a template that was requested, or that numaform created: keep other resources in a separate directory and state")
		return
	}
	if rc.DeposedKey != "" || rc.Change.GeneratedConfig != "" || rc.Change.Importing != nil || (rc.PreviousAddress != "" && rc.PreviousAddress != rc.Address) {
		t.deny(RuleAction, rc.Address, "numaform does not import or move templates, and does not delete deposed objects: inspect the state")
		return
	}
	before, after := attributes(rc.Change.Before), attributes(rc.Change.After)
	actions := rc.Change.Actions
	switch rc.Type {
	case ResourceType:
		t.vm(rc, request, before, after)
	case downloadType:
		t.image(rc, request, before, after)
	}
	if (request.operation == templateDelete || request.operation == templateAbsent) && !actions.Delete() && !actions.NoOp() {
		t.deny(RuleSurplus, rc.Address, "only its deletion was requested: plan again")
	}
}

// requestOf returns the request of the template that a resource belongs to, by every field
// that names it, or nil.
func (t *templateChecker) requestOf(rc *tfjson.ResourceChange) *templateRequest {
	provider := Provider
	if rc.Type == madeOfType {
		provider = builtProvider
	}
	match := templateAddress.FindStringSubmatch(rc.Address)
	if match == nil || rc.ModuleAddress != "module."+match[1] || match[2] != rc.Type+"."+rc.Name || rc.Index != nil ||
		rc.ProviderName != provider || rc.Mode != tfjson.ManagedResourceMode || !slices.Contains(templateResources, match[2]) {
		return nil
	}
	return t.requests[match[1]]
}

// vm checks the change of a template's VM.
func (t *templateChecker) vm(rc *tfjson.ResourceChange, r *templateRequest, before, after values) {
	actions := rc.Change.Actions
	switch {
	case actions.NoOp():
		r.done = r.done || r.operation == templateFinish || r.operation == templateCreate
		return
	case actions.Create() && (r.operation == templateCreate || r.operation == templateFinish):
	case actions.Replace() && r.operation == templateFinish:
		t.templateIdentity(rc.Address, &r.Template, before, inState)
	case actions.Delete() && r.operation == templateDelete:
		r.done = true
		t.templateIdentity(rc.Address, &r.Template, before, inState)
		return
	case actions.Update() && (r.operation == templateKeep || r.operation == templateFinish):
		for _, path := range changed(rc.Change) {
			if !slices.Contains(templateUpdates, topLevel(path)) {
				t.deny(RuleUpdate, rc.Address, fmt.Sprintf("%s would change in place, but clones may already have been created: revert the change", path))
			}
		}
		t.templateIdentity(rc.Address, &r.Template, before, inState)
	default:
		t.deny(RuleSurplus, rc.Address, fmt.Sprintf("the plan would %s the template, which was not requested: if the template still exists in Proxmox, restore its state; otherwise plan again", join(actions)))
		return
	}
	r.done = true
	t.templateIdentity(rc.Address, &r.Template, after, inPlan)
	t.templateValues(rc, &r.Template, after)
}

// templateIdentity denies values of a VM that is not the template.
func (t *templateChecker) templateIdentity(address string, want *fleet.Template, vm values, where string) {
	vmid, numbered := integer(vm["vm_id"])
	made, marked := fleet.ParseTemplateMarker(text(vm["description"]))
	owner := want.MadeFor(t.intent.ClusterID)
	// An update in place can raise the serial.
	same := marked && made.ClusterID == owner.ClusterID && made.Template == owner.Template && (where == inState || made.Serial == owner.Serial)
	switch {
	case !numbered || vmid != int64(want.VMID) || (where == inState && text(vm["id"]) != fmt.Sprint(vmid)):
		t.deny(RuleIdentity, address, fmt.Sprintf("VMID %s is %s, but %d was requested: plan again", where, shown(vm["vm_id"]), want.VMID))
	case !same:
		t.deny(RuleIdentity, address, "the description "+where+" does not have the marker of this template, so the VM may belong to another owner: check the VM, then plan again")
	case text(vm["name"]) != want.Name || text(vm["node_name"]) != string(want.Host.Host):
		t.deny(RuleIdentity, address, "the name or the host of the template "+where+" differs from the request: plan again")
	}
}

// templateValues checks the values that a template will have.
func (t *templateChecker) templateValues(rc *tfjson.ResourceChange, want *fleet.Template, after values) {
	// The provider ignores started for a template, which cannot start.
	if after["template"] != true || !zero(after["on_boot"]) {
		t.deny(RuleFixed, rc.Address, "the VM would not be a template: use the module that numaform wrote")
	}
	if tag := fmt.Sprintf("numaform-template-%d", want.VMID); !slices.ContainsFunc(list(after["tags"]), func(v any) bool { return v == tag }) {
		t.deny(RuleFixed, rc.Address, "the template would lack the tag "+tag+", which protects other VMs with its VMID: use the module that numaform wrote")
	}
	for _, name := range []string{"hook_script_file_id", "kvm_arguments", "hostpci", "usb", "virtiofs", "clone", "initialization"} {
		if !zero(after[name]) {
			t.deny(RulePrivileged, rc.Address, name+" is set: use the module that numaform wrote")
		}
	}
	if cpu := single(after["cpu"]); !zero(cpu["affinity"]) {
		t.deny(RulePrivileged, rc.Address, "the template would be pinned, and its clones would inherit the pins: use the module that numaform wrote")
	}
	disks := list(after["disk"])
	if disk := single(after["disk"]); len(disks) != 1 || text(disk["datastore_id"]) != want.Hardware.Storage ||
		!strings.HasPrefix(text(disk["import_from"]), want.Image.Storage+":import/") {
		t.deny(RuleExpected, rc.Address, "the template would not have exactly the disk of its image, on the storage of its file: use the module that numaform wrote")
	}
}

// image checks the change of a template's image.
func (t *templateChecker) image(rc *tfjson.ResourceChange, r *templateRequest, before, after values) {
	if rc.Change.Actions.Delete() || rc.Change.Actions.Replace() {
		t.deletedImage(rc, r, before)
	}
	if after != nil && !rc.Change.Actions.NoOp() {
		t.download(rc, &r.Template, after)
	}
}

// deletedImage checks the deletion of a template's image. The provider deletes whatever the
// state names: any volume of any storage.
func (t *templateChecker) deletedImage(rc *tfjson.ResourceChange, r *templateRequest, before values) {
	if r.operation == templateKeep {
		t.deny(RuleSurplus, rc.Address, "the plan would delete the image of a template that stays: plan again")
	}
	image := r.Image
	for _, one := range []struct{ name, want string }{
		{"id", fmt.Sprintf("%s:import/template-%d.%s", image.Storage, r.VMID, image.Format)},
		{"node_name", string(r.Host.Host)},
		{"datastore_id", image.Storage},
		{"content_type", "import"},
	} {
		if text(before[one.name]) != one.want {
			t.deny(RuleIdentity, rc.Address, fmt.Sprintf("%s in the state is %s, but %q was requested, so the file may belong to another owner: check the state, then plan again",
				one.name, shown(before[one.name]), one.want))
		}
	}
}

// download checks the download of a template's image.
func (t *templateChecker) download(rc *tfjson.ResourceChange, want *fleet.Template, after values) {
	for _, one := range []struct{ name, want string }{
		{"node_name", string(want.Host.Host)},
		{"datastore_id", want.Image.Storage},
		{"content_type", "import"},
		{"url", want.Image.URL},
		{"checksum", strings.ToLower(want.Image.Checksum)},
		{"checksum_algorithm", want.Image.Algorithm},
	} {
		if text(after[one.name]) != one.want {
			t.deny(RuleExpected, rc.Address, one.name+" of the image differs from the template's file: plan again")
		}
	}
	if after["overwrite"] != false || after["overwrite_unmanaged"] != false {
		t.deny(RuleFixed, rc.Address, "the download could overwrite another file: use the module that numaform wrote")
	}
}
