package guard

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
)

// The resources of a template: its VM, its image, and the properties that require another
// VM.
const (
	templateVM   = ResourceType + ".template"
	downloadType = "proxmox_download_file"
	madeOfType   = "terraform_data"
	madeOf       = madeOfType + ".made_of"
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
	// Keep are existing templates: only their tags, pool and description may change. Import
	// are the ones that the state lost.
	Keep, Import []fleet.Template
	// Incomplete are templates to import whose VM is not a template yet: the import makes it
	// one.
	Incomplete []fleet.Template
	// Delete are the templates to delete. Nothing uses them.
	Delete []fleet.Template
	// Absent are templates to forget whose VM does not exist: only their images may still
	// exist.
	Absent []fleet.Template
	// Targeted is set for a plan that is restricted to some resources.
	Targeted bool
}

// The operations on templates, in addition to opCreate and opDelete.
const (
	opFinish operation = "finish"
	opKeep   operation = "keep"
	opForget operation = "forget"
)

// templates are the contents of a root of templates.
var templates = contents{
	kind: "template", vmids: "template_vmid_range", vm: templateVM, bounded: true,
	managed: map[string]string{templateVM: "", downloadType + ".image": "", madeOf: ""},
	data:    []string{"proxmox_virtual_environment_vms.all"}, // the VMIDs in use
	change:  (*checker).templatePart,
}

// templateActions lists the actions that an operation allows, by the type of the resource.
// Every operation allows that a resource does not change.
var templateActions = map[operation]map[string][]string{
	opCreate: {ResourceType: {"create"}, downloadType: {"create", "update", "replace"}, madeOfType: {"create", "update"}},
	opFinish: {ResourceType: {"create", "update", "replace"}, downloadType: {"create", "update", "replace"}, madeOfType: {"create", "update"}},
	opImport: {ResourceType: {"import"}, downloadType: {"create"}, madeOfType: {"create"}},
	opKeep:   {ResourceType: {"update"}, downloadType: {"create", "update"}, madeOfType: {"create"}},
	opDelete: {ResourceType: {"delete"}, downloadType: {"delete"}, madeOfType: {"delete"}},
	opForget: {downloadType: {"delete"}, madeOfType: {"delete"}},
}

// CheckTemplates checks a plan of the templates of one host. As Check does for nodes, it
// allows only changes that it fully understands.
func CheckTemplates(plan *tfjson.Plan, intent TemplateIntent, rules Rules) Verdict {
	c := newChecker(Intent{ClusterID: intent.ClusterID, VMIDs: intent.VMIDs, Targeted: intent.Targeted}, templates)
	for _, list := range []struct {
		operation  operation
		templates  []fleet.Template
		incomplete bool
	}{
		{opCreate, intent.Create, false},
		{opFinish, intent.Unfinished, false},
		{opKeep, intent.Keep, false},
		{opImport, intent.Import, false},
		{opImport, intent.Incomplete, true},
		{opDelete, intent.Delete, false},
		{opForget, intent.Absent, false},
	} {
		for i := range list.templates {
			t := &list.templates[i]
			label := t.Name
			if label != "" && '0' <= label[0] && label[0] <= '9' {
				label = "_" + label
			}
			target := Target{Address: "module." + label + "." + templateVM, VMID: t.VMID, Key: fleet.Key(t.Of), Host: t.Host.Host, Incomplete: list.incomplete}
			r := c.request(list.operation, target)
			r.template = t
			r.done = list.operation == opKeep || list.operation == opForget
			if t.Serial < 1 {
				c.deny(RuleIntent, target.Address, "the intent lacks the serial of the template: plan again")
			}
			switch list.operation {
			case opCreate, opFinish:
				c.intent.Create = append(c.intent.Create, target)
			case opImport:
				c.intent.Import = append(c.intent.Import, target)
			case opDelete:
				c.intent.Delete = append(c.intent.Delete, target)
			}
		}
	}
	return c.check(plan, rules)
}

// templatePart checks the change of one resource of a template.
func (c *checker) templatePart(rc *tfjson.ResourceChange) {
	module, _, _ := strings.Cut(strings.TrimPrefix(rc.Address, "module."), ".")
	r := c.requests["module."+module+"."+templateVM]
	if r == nil {
		c.deny(RuleAddress, rc.Address, "not a template that was requested: keep other resources in a separate directory and state")
		return
	}
	t := r.template
	vm := rc.Type == ResourceType
	if importing := rc.Change.Importing; importing != nil && (!vm || r.operation != opImport || importing.ID != r.ImportID()) {
		c.deny(RuleImport, rc.Address, "the import was not requested: inspect the state")
		return
	}
	action := actionOf(rc)
	if action == string(tfjson.ActionNoop) {
		r.done = r.done || vm && (r.operation == opCreate || r.operation == opFinish)
		return
	}
	if !slices.Contains(templateActions[r.operation][rc.Type], action) {
		c.deny(RuleSurplus, rc.Address, fmt.Sprintf("%s of this resource was not requested: "+
			"if the template still exists in Proxmox, restore its state; otherwise plan again", action))
		return
	}
	r.done = r.done || vm

	before, after := attributes(rc.Change.Before), attributes(rc.Change.After)
	if before != nil {
		c.existingPart(rc, r, before)
	}
	if after == nil {
		return
	}
	if vm {
		c.templateIdentity(rc.Address, t, after, inPlan)
	}
	if action == string(tfjson.ActionUpdate) {
		c.inPlace(rc)
	}
	expected := map[string]func(*fleet.Template) values{ResourceType: c.templateValues, downloadType: imageOf, madeOfType: madeOfValues}[rc.Type]
	c.compare(rc, expected(t))
	if sensitive(rc.Change.After, rc.Change.AfterSensitive) {
		c.deny(RuleSecret, rc.Address, "a value is sensitive: the plan and the state would contain it")
	}
}

// existingPart checks which VM or file of Proxmox a change is about, and that an import
// changes only what the provider does not read from Proxmox.
func (c *checker) existingPart(rc *tfjson.ResourceChange, r *request, before values) {
	t := r.template
	switch rc.Type {
	case ResourceType:
		c.numbered(rc.Address, before, inState)
		c.templateIdentity(rc.Address, t, before, inState)
		if rc.Change.Importing == nil {
			return
		}
		for _, name := range changed(rc.Change) {
			allowed := mayUpdate(rc.Type, name) || r.Incomplete && name == "template"
			if !allowed && name != "disk.import_from" && !slices.Contains(providerOnly, name) && !strings.HasPrefix(name, "timeout_") {
				c.deny(RuleUpdate, rc.Address, name+" of the template differs from its file, so it was not created from that file: "+
					"check the template, and delete it in Proxmox if nothing needs it")
			}
		}
	case downloadType:
		// The provider deletes whatever the state names: any volume of any storage.
		image := imageOf(t)
		image["id"] = t.ImageVolume()
		for _, name := range []string{"id", "node_name", "datastore_id", "content_type"} {
			if text(before[name]) != image[name] {
				c.deny(RuleIdentity, rc.Address, fmt.Sprintf("%s in the state is %s, but %q was requested, so the file may belong to another owner: check the state, then plan again",
					name, shown(before[name]), image[name]))
			}
		}
	}
}

// templateIdentity denies values of a VM that is not the template.
func (c *checker) templateIdentity(address string, want *fleet.Template, vm values, where string) {
	vmid, numbered := integer(vm["vm_id"])
	made, marked := fleet.ParseTemplateMarker(text(vm["description"]))
	owner := want.MadeFor(c.intent.ClusterID)
	switch {
	case !numbered || vmid != int64(want.VMID):
		c.deny(RuleIdentity, address, fmt.Sprintf("VMID %s is %s, but %d was requested: plan again", where, shown(vm["vm_id"]), want.VMID))
	// An update in place can raise the serial.
	case !marked || made.ClusterID != owner.ClusterID || made.Template != owner.Template || where == inPlan && made.Serial != owner.Serial:
		c.deny(RuleIdentity, address, "the description "+where+" does not have the marker of this template, so the VM may belong to another owner: check the VM, then plan again")
	case text(vm["name"]) != want.Name || text(vm["node_name"]) != string(want.Host.Host):
		c.deny(RuleIdentity, address, "the name or the host of the template "+where+" differs from the request: plan again")
	}
}

// templateHour is an hour in seconds, the timeout of long operations on templates.
const templateHour = 3600

// templateValues returns the expected values of a template's VM. Attributes that are not
// listed are empty.
func (c *checker) templateValues(t *fleet.Template) values {
	hardware := &t.Hardware
	storage := hardware.Storage
	tags := append([]string{"numaform-template-" + strconv.Itoa(int(t.VMID))}, t.Tags...)
	slices.Sort(tags)
	discard := "on"
	if hardware.NoDiscard {
		discard = "ignore"
	}
	networks := blocks{}
	for _, n := range hardware.Networks {
		networks = append(networks, values{
			"bridge": n.Bridge, "enabled": true, "firewall": n.Firewall, "mac_address": computed{}, "model": cmp.Or(n.Model, "virtio"), "mtu": int64(n.MTU), "vlan_id": int64(n.VLAN),
		})
	}
	expected := values{
		"name": t.Name, "vm_id": int64(t.VMID), "node_name": string(t.Host.Host), "description": fleet.TemplateMarker(t.MadeFor(c.intent.ClusterID)),
		"tags": texts(slices.Compact(tags)), "pool_id": t.Pool, "template": true,
		"bios": cmp.Or(hardware.BIOS, "seabios"), "machine": cmp.Or(hardware.Machine, "pc"), "scsi_hardware": "virtio-scsi-single",
		"boot_order": texts([]string{"scsi0"}), "network_device": networks,
		"agent": blocks{values{
			"enabled": true, "timeout": "10s", "trim": hardware.Trim, "type": cmp.Or(hardware.AgentType, "virtio"),
			"wait_for_ip": blocks{values{"disabled": true}},
		}},
		"cpu": blocks{values{
			"cores": int64(2), "sockets": int64(1), "numa": true, "type": cmp.Or(hardware.CPUType, "host"), "flags": texts(hardware.CPUFlags), "units": computed{},
		}},
		"disk": blocks{values{
			"interface": "scsi0", "datastore_id": storage, "import_from": t.ImageVolume(),
			"size": hardware.DiskGiB, "cache": cmp.Or(hardware.Cache, "none"), "discard": discard, "iothread": true, "ssd": hardware.SSD,
			"aio": "io_uring", "backup": true, "replicate": true, "file_format": computed{}, "path_in_datastore": computed{},
		}},
		"memory":           blocks{values{"dedicated": int64(2048)}},
		"operating_system": blocks{values{"type": "l26"}},
		"serial_device":    blocks{values{"device": "socket"}},
		"vga":              blocks{values{"type": cmp.Or(hardware.VGA, "serial0"), "memory": cmp.Or(hardware.VGAMiB, 16)}},
		"timeout_create":   int64(templateHour),

		// The provider's defaults.
		"acpi": true, "keyboard_layout": "en-us", "tablet_device": true, "reboot_after_update": true,
		"delete_unreferenced_disks_on_destroy": true, "purge_on_destroy": true,
		"timeout_clone": int64(waitLong), "timeout_migrate": int64(waitLong), "timeout_move_disk": int64(waitLong), "timeout_reboot": int64(waitLong),
		"timeout_shutdown_vm": int64(waitLong), "timeout_start_vm": int64(waitLong), "timeout_stop_vm": int64(waitShort),

		"id": computed{}, "hotplug": computed{}, "ipv4_addresses": computed{}, "ipv6_addresses": computed{},
		"mac_addresses": computed{}, "network_interface_names": computed{},
	}
	if hardware.BIOS == "ovmf" {
		expected["efi_disk"] = blocks{values{"datastore_id": storage, "file_format": "raw", "type": "4m", "pre_enrolled_keys": hardware.SecureBoot}}
	}
	if hardware.TPM != "" {
		expected["tpm_state"] = blocks{values{"datastore_id": storage, "version": hardware.TPM}}
	}
	return expected
}

// imageOf returns the expected values of a template's image.
func imageOf(t *fleet.Template) values {
	return values{
		"node_name": string(t.Host.Host), "datastore_id": t.Image.Storage, "content_type": "import",
		"file_name": path.Base(t.ImageVolume()), "url": t.Image.URL,
		"checksum": strings.ToLower(t.Image.Checksum), "checksum_algorithm": t.Image.Algorithm, "verify": !t.Image.Insecure,
		"upload_timeout": int64(templateHour), "id": computed{}, "size": computed{},
	}
}

// madeOfValues returns the expected values of the properties that require another VM.
func madeOfValues(t *fleet.Template) values {
	return values{"id": computed{}, "output": computed{}, "input": values{
		"checksum": strings.ToLower(t.Image.Checksum), "bios": cmp.Or(t.Hardware.BIOS, "seabios"), "secure_boot": t.Hardware.SecureBoot,
		"tpm_version": t.Hardware.TPM, "storage": t.Hardware.Storage, "size_gib": t.Hardware.DiskGiB,
	}}
}
