package guard_test

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
)

// Paths in testdata's plans: the second change, the arguments of VM 2001, and the first VM
// of the prior state.
const (
	second    = "resource_changes.1.change."
	arguments = "configuration.root_module.module_calls.workers-2001.expressions."
	state1    = "prior_state.values.root_module.child_modules.0.resources.0.values."
)

// TestCheckIdentity edits the values that identify the guest in a plan, and checks that
// each edit is denied: the provider writes to the guest with the ID, regardless of the
// rest of the state.
func TestCheckIdentity(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, plan string
		edits      edits
		part       string
	}{
		{"delete by another id", "mixed", edits{second + "before.id": "150"}, `id in the state is "150", but vm_id is 2002`},
		{"delete without an id", "mixed", edits{second + "before.id": nil}, "id in the state is empty"},
		{"delete by a path", "mixed", edits{second + "before.id": "2002/../150"}, "id in the state"},
		{"delete of a number", "mixed", edits{second + "before.id": 2002}, "id in the state is 2002"},
		{"delete under another name", "mixed", edits{second + "before.name": "accounting"}, "name in the state"},
		{"delete on no host", "mixed", edits{second + "before.node_name": ""}, "no host in the state"},
		{"delete of a VM with another key", "mixed", edits{second + "before.description": "numaform/1 cluster=prod key=" + string(vm(2001).Key)}, "this is another VM"},
		{"delete of a VM of another cluster", "mixed", edits{second + "before.description": "numaform/1 cluster=test key=" + string(vm(2002).Key)}, "this is another VM"},
		{"delete of a VM without a marker", "mixed", edits{second + "before.description": "accounting"}, "may belong to another owner"},
		{"update of another id", "update", edits{first + "change.before.id": "150", after + "id": "150"}, `id in the state is "150"`},
		{"update to another id", "update", edits{after + "id": "150"}, `id in the plan is "150"`},
		{"update under another name", "update", edits{first + "change.before.name": "accounting"}, "name in the state"},
		{"import of another id", "imported", edits{first + "change.before.id": "150"}, `id in Proxmox is "150"`},
		{"an edited state", "mixed", edits{second + "before.id": "150"}, "would reach another guest: the state was edited"},
		{"an edited plan", "update", edits{after + "id": "150"}, "would reach another guest: plan again"},
		{"an import with the id of another", "imported", edits{first + "change.before.id": "150"}, "would reach another guest: plan again"},
		{"create with an id", "create", edits{after + "id": "150"}, "already has an ID"},
		{"a VM that stays", "mixed", edits{state1 + "id": "150"}, `id in the state is "150"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plan := edited(t, tt.plan, tt.edits)
			v := guard.Check(plan, filled(plan, intents()[tt.plan]), guard.DefaultRules())
			if v.Decision != guard.Deny || !has(v, guard.Deny, guard.RuleIdentity, tt.part) {
				t.Errorf("want denied by identity with %q, got\n%s", tt.part, v)
			}
		})
	}
}

// TestCheckExpected edits the values that a module derived from a VM's file. It checks
// that values that the file does not explain are denied, and that the verdict does not
// show a planned credential.
func TestCheckExpected(t *testing.T) {
	t.Parallel()
	const canary = "3fa85f64-5717-4562-b3fc-2c963f66afa6"
	for _, tt := range []struct {
		name, plan string
		edits      edits
		part       string
	}{
		{"a credential in the description", "create", edits{after + "description": "numaform/1 cluster=prod key=5f1d00000000000000000000000007d1\n" + canary}, "description is a string of 97 bytes"},
		{"a tag more", "create", edits{after + "tags.+": canary}, "tags has 4 elements, expected 3"},
		{"tags of the file in another order, and one twice", "create", edits{
			arguments + "tags.constant_value": []any{"workers", "able", "numaform"}, after + "tags": []any{"able", "numaform", "numaform-prod", "workers"},
		}, ""},
		{"more memory", "create", edits{after + "memory.0.dedicated": 8193}, "memory[0].dedicated is 8193, expected 8192"},
		{"a shorter timeout", "create", edits{after + "timeout_stop_vm": 1}, "timeout_stop_vm is 1, expected 300"},
		{"another template", "create", edits{after + "clone.0.vm_id": 100}, "clone[0].vm_id is 100, expected 9000"},
		{"started later", "create", edits{after + "started": false}, "started is false, expected true"},
		{"an empty list", "create", edits{after + "started": []any{}}, "started is empty, expected true"},
		{"a drive", "create", edits{after + "cdrom.+": map[string]any{"file_id": "local:iso/x.iso"}}, "cdrom is not empty"},
		{"an attribute of a newer provider", "create", edits{after + "power": "full"}, `power is "full"`},
		{"one that is empty", "create", edits{after + "power": ""}, ""},
		{"one that is unknown", "create", edits{unknown + "power": true}, "power is not known"},
		{"an unknown name", "create", edits{unknown + "name": true}, "name is not known"},
		{"an unknown block", "create", edits{unknown + "cpu": true}, "cpu is not known"},
		{"no NUMA node", "create", edits{
			arguments + "numa.constant_value": []any{}, after + "numa": []any{}, after + "cpu.0.numa": false,
		}, ""},
		{"NUMA without a node", "create", edits{
			arguments + "numa.constant_value": []any{}, after + "numa": []any{},
		}, "cpu[0].numa is true, expected false"},
		{"an argument that is null", "create", edits{arguments + "seed": nil}, ""},
		{"an unknown element", "create", edits{unknown + "cpu": []any{true}}, "cpu[0] is not known"},
		{"what the provider sets", "create", edits{after + "hotplug": "disk"}, "hotplug is set"},
		{"an update of more", "update", edits{first + "change.before.tags": []any{"x"}, after + "tags": []any{"y"}}, "tags has 1 elements"},
		{"an update of what is ignored", "update", edits{after + "clone.0.full": true}, "clone would change"},
		{"a delete that keeps its disks", "mixed", edits{second + "before.delete_unreferenced_disks_on_destroy": false}, "delete_unreferenced_disks_on_destroy in the state is false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plan := edited(t, tt.plan, tt.edits)
			v := guard.Check(plan, filled(plan, intents()[tt.plan]), guard.DefaultRules())
			if tt.part == "" {
				if v.Decision != guard.Allow {
					t.Errorf("want allowed, got\n%s", v)
				}
				return
			}
			if v.Decision != guard.Deny || !has(v, guard.Deny, guard.RuleExpected, tt.part) {
				t.Errorf("want denied by expected with %q, got\n%s", tt.part, v)
			}
			if strings.Contains(v.String(), canary) {
				t.Errorf("the verdict shows a planned value:\n%s", v)
			}
		})
	}
}

// TestCheckExpectedHardware edits the values that a module derived for a VM's disk,
// devices and seed, and checks that each edit is denied. Disk options that are not in the
// file have the provider's defaults.
func TestCheckExpectedHardware(t *testing.T) {
	t.Parallel()
	const seed = "local:iso/numaform-seed.iso"
	disk := func(attribute string, value any) []any {
		planned := map[string]any{
			"interface": "scsi0", "datastore_id": "local", "size": 40, "aio": "native", "backup": true, "cache": "none",
			"discard": "ignore", "iothread": false, "replicate": true, "ssd": false,
		}
		planned[attribute] = value
		return []any{planned}
	}
	device := func(mapping string) []any {
		return []any{map[string]any{"device": "hostpci0", "mapping": mapping, "pcie": true}}
	}
	network := func(bridge string) []any {
		return []any{map[string]any{"bridge": bridge, "enabled": true, "firewall": true, "model": "virtio", "mtu": 1500, "vlan_id": 7, "queues": 4}}
	}
	drive := func(file string) []any { return []any{map[string]any{"file_id": file, "interface": "ide2"}} }
	for name, tt := range map[string]struct {
		edits edits
		part  string
	}{
		"as the file says":           {nil, ""},
		"another disk":               {edits{after + "disk": disk("size", 41)}, "disk[0].size is 41, expected 40"},
		"a disk not as the file":     {edits{after + "disk": disk("aio", "io_uring")}, `disk[0].aio is "io_uring", expected "native"`},
		"a disk without the default": {edits{after + "disk": disk("cache", "unsafe")}, `disk[0].cache is "unsafe", expected "none"`},
		"another device":             {edits{after + "hostpci": device("nic")}, `hostpci[0].mapping is "nic", expected "gpu"`},
		"no device":                  {edits{after + "hostpci": []any{}}, "hostpci has 0 elements, expected 1"},
		"another bridge":             {edits{after + "network_device": network("vmbr0")}, `network_device[0].bridge is "vmbr0", expected "vmbr1"`},
		"another flag":               {edits{after + "cpu.0.flags": []any{"+pcid"}}, `cpu[0].flags[0] is "+pcid", expected "+aes"`},
		"no watchdog":                {edits{after + "watchdog": []any{}}, "watchdog has 0 elements, expected 1"},
		"a tablet":                   {edits{after + "tablet_device": true}, "tablet_device is true, expected false"},
		"another seed":               {edits{after + "cdrom": drive("local:iso/x.iso")}, `cdrom[0].file_id is "local:iso/x.iso"`},
		"a seed that is not read":    {edits{after + "boot_order": []any{"scsi0"}}, "boot_order has 1 elements, expected 2"},
		"another order":              {edits{after + "boot_order": []any{"scsi0", "net0"}}, `boot_order[1] is "net0", expected "ide2"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := edits{
				arguments + "disk.constant_value":            map[string]any{"interface": "scsi0", "datastore_id": "local", "size_gib": 40, "aio": "native"},
				arguments + "pci_devices.constant_value":     []any{map[string]any{"mapping": "gpu", "pcie": true}},
				arguments + "network_devices.constant_value": []any{map[string]any{"bridge": "vmbr1", "firewall": true, "mtu": 1500, "vlan_id": 7}},
				after + "network_device":                     network("vmbr1"), unknown + "network_device": absent,
				arguments + "seed.constant_value":                seed,
				arguments + "hardware.constant_value.boot_order": []any{"scsi0"},
				arguments + "hardware.constant_value.tablet":     false,
				arguments + "hardware.constant_value.watchdog":   map[string]any{"model": "ib700", "action": "none"},
				arguments + "cpu.constant_value.flags":           []any{"+aes"},
				after + "cpu.0.flags":                            []any{"+aes"}, after + "tablet_device": false,
				after + "watchdog": []any{map[string]any{"enabled": true, "model": "ib700", "action": "none"}},
				after + "disk":     disk("ssd", false), after + "hostpci": device("gpu"), after + "cdrom": drive(seed),
				after + "boot_order": []any{"scsi0", "ide2"}, unknown + "boot_order": absent,
			}
			maps.Copy(all, tt.edits)
			plan := edited(t, "create", all)
			v := guard.Check(plan, filled(plan, both), guard.DefaultRules())
			if tt.part == "" && v.Decision != guard.Allow {
				t.Errorf("want allowed, got\n%s", v)
			}
			if tt.part != "" && !has(v, guard.Deny, guard.RuleExpected, tt.part) {
				t.Errorf("want denied by expected with %q, got\n%s", tt.part, v)
			}
		})
	}
}

// changedBy returns a copy of a block with other values.
func changedBy(block map[string]any, values ...any) map[string]any {
	changed := maps.Clone(block)
	for i := 0; i < len(values); i += 2 {
		changed[values[i].(string)] = values[i+1]
	}
	return changed
}

// TestCheckSource checks that a VM is cloned only from the template on the host in its file, and
// that modules without templates of other hosts are not called with one.
func TestCheckSource(t *testing.T) {
	t.Parallel()
	source := arguments + "clone.constant_value.node_name"
	planned := after + "clone.0.node_name"
	for name, tt := range map[string]struct {
		module string
		edits  edits
		part   string
	}{
		"template of another host":  {"", edits{source: "pve-2", planned: "pve-2"}, ""},
		"another host than planned": {"", edits{source: "pve-2"}, `clone[0].node_name is "pve-1", expected "pve-2"`},
		"a host not in the file":    {"", edits{planned: "pve-2"}, `clone[0].node_name is "pve-2", expected "pve-1"`},
		"an earlier module":         {"f95ae3a2e756d6a4", edits{source: "pve-2", planned: "pve-2"}, "clones a template of another host, which the modules \"f95ae3a2e756d6a4\" do not support"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := edited(t, "create", tt.edits)
			request := filled(plan, both)
			for i := range request.Create {
				request.Create[i].Module = cmp.Or(tt.module, request.Create[i].Module)
			}
			v := guard.Check(plan, request, guard.DefaultRules())
			if tt.part == "" && v.Decision != guard.Allow {
				t.Errorf("want allowed, got\n%s", v)
			}
			if tt.part != "" && !has(v, guard.Deny, guard.RuleExpected, tt.part) {
				t.Errorf("want denied by expected with %q, got\n%s", tt.part, v)
			}
		})
	}
}

// TestCheckDisks checks that a VM has exactly the boot disk and the data disks in its file,
// and that none is filled from an image.
func TestCheckDisks(t *testing.T) {
	t.Parallel()
	boot := map[string]any{
		"interface": "scsi0", "datastore_id": "local", "size": 40, "aio": "io_uring", "backup": true, "cache": "none",
		"discard": "ignore", "iothread": false, "replicate": true, "ssd": false, "file_id": "", "import_from": "",
	}
	data := changedBy(boot, "interface", "scsi1", "datastore_id", "fast", "size", 100)
	bootOfFile := map[string]any{"interface": "scsi0", "datastore_id": "local", "size_gib": 40}
	dataOfFile := []any{map[string]any{"interface": "scsi1", "datastore_id": "fast", "size_gib": 100}}
	for _, tt := range []struct {
		name      string
		disks     []any
		boot      any
		dataDisks []any
		part      string
	}{
		{"as asked", []any{boot, data}, bootOfFile, dataOfFile, ""},
		{"a boot disk that does not grow", []any{data}, absent, dataOfFile, ""},
		{"a boot disk alone", []any{boot}, bootOfFile, nil, ""},
		{"none", []any{boot}, bootOfFile, dataOfFile, "disk has 1 elements, expected 2"},
		{"one too many", []any{boot, data, changedBy(data, "interface", "scsi2")}, bootOfFile, dataOfFile, "disk has 3 elements, expected 2"},
		{"twice", []any{boot, data, data}, bootOfFile, dataOfFile, "disk has 3 elements, expected 2"},
		{"another in its place", []any{data, data}, bootOfFile, dataOfFile, `disk[0].interface is "scsi1", expected "scsi0"`},
		{"on another slot", []any{changedBy(data, "interface", "scsi2")}, absent, dataOfFile, `disk[0].interface is "scsi2", expected "scsi1"`},
		{"on no slot", []any{changedBy(data, "interface", "")}, absent, dataOfFile, `disk[0].interface is "", expected "scsi1"`},
		{"nobody asked", []any{data}, absent, nil, "disk is not empty"},
		{"larger", []any{boot, changedBy(data, "size", 101)}, bootOfFile, dataOfFile, "disk[1].size is 101, expected 100"},
		{"on another storage", []any{boot, changedBy(data, "datastore_id", "local")}, bootOfFile, dataOfFile, `disk[1].datastore_id is "local", expected "fast"`},
		{"of an image", []any{boot, changedBy(data, "file_id", "local:iso/x.img")}, bootOfFile, dataOfFile, `disk[1].file_id is "local:iso/x.img"`},
		{"a boot disk of an image", []any{changedBy(boot, "file_id", "local:iso/x.img")}, bootOfFile, nil, `disk[0].file_id is "local:iso/x.img"`},
		{"imported", []any{boot, changedBy(data, "import_from", "local:import/x")}, bootOfFile, dataOfFile, `disk[1].import_from is "local:import/x"`},
		{"somebody else's", []any{boot, changedBy(data, "path_in_datastore", "vm-100-disk-0")}, bootOfFile, dataOfFile, "disk[1].path_in_datastore is set"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			checkExpected(t, edits{
				after + "disk": tt.disks, arguments + "disk": constantOf(tt.boot), arguments + "data_disks": constantOf(tt.dataDisks),
			}, tt.part)
		})
	}
}

// TestCheckDevices checks that a VM may have the PCI devices in its file, by mapping, and
// no others.
func TestCheckDevices(t *testing.T) {
	t.Parallel()
	gpu := map[string]any{"device": "hostpci0", "mapping": "gpu", "pcie": true}
	requested := []any{map[string]any{"mapping": "gpu", "pcie": true}}
	for _, tt := range []struct {
		name      string
		devices   []any
		requested []any
		part      string
	}{
		{"as asked", []any{gpu}, requested, ""},
		{"none", nil, requested, "hostpci has 0 elements, expected 1"},
		{"one too many", []any{gpu, gpu}, requested, "hostpci has 2 elements, expected 1"},
		{"nobody asked", []any{gpu}, nil, "hostpci is not empty"},
		{"another mapping", []any{changedBy(gpu, "mapping", "nic")}, requested, `hostpci[0].mapping is "nic", expected "gpu"`},
		{"another place", []any{changedBy(gpu, "device", "hostpci1")}, requested, `hostpci[0].device is "hostpci1", expected "hostpci0"`},
		{"a part of it", []any{changedBy(gpu, "mdev", "nvidia-63")}, requested, `hostpci[0].mdev is "nvidia-63"`},
		{"not by PCIe", []any{changedBy(gpu, "pcie", false)}, requested, "hostpci[0].pcie is false, expected true"},
		{"as primary card", []any{changedBy(gpu, "xvga", true)}, requested, "hostpci[0].xvga is true"},
		{"with a firmware", []any{changedBy(gpu, "rom_file", "x.rom")}, requested, `hostpci[0].rom_file is "x.rom"`},
		{"by address beside the mapping", []any{changedBy(gpu, "id", "0000:01:00.0")}, requested, `hostpci[0].id is "0000:01:00.0"`},
		{"by address too", []any{changedBy(gpu, "id", "0000:01:00.0"), gpu}, requested, "hostpci has 2 elements, expected 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			checkExpected(t, edits{after + "hostpci": tt.devices, arguments + "pci_devices": constantOf(tt.requested)}, tt.part)
		})
	}
}

// constantOf returns a constant argument of a module call, or absent.
func constantOf(value any) any {
	if value == absent {
		return absent
	}
	return map[string]any{"constant_value": value}
}

// checkExpected checks that an edited create is denied by RuleExpected with a message, or
// allowed if part is empty.
func checkExpected(t *testing.T, edits edits, part string) {
	t.Helper()
	plan := edited(t, "create", edits)
	v := guard.Check(plan, filled(plan, both), guard.DefaultRules())
	if part == "" && v.Decision != guard.Allow {
		t.Errorf("want allowed, got\n%s", v)
	}
	if part != "" && !has(v, guard.Deny, guard.RuleExpected, part) {
		t.Errorf("want denied by expected with %q, got\n%s", part, v)
	}
}

// TestCheckNeedsInputs checks that a plan is denied if its intent lacks a VM's arguments,
// or has invalid ones, those of another VM, or unknown modules.
func TestCheckNeedsInputs(t *testing.T) {
	t.Parallel()
	plan := edited(t, "create", nil)
	for _, tt := range []struct {
		name string
		edit func(*guard.Target)
		rule guard.Rule
		part string
	}{
		{"none", func(t *guard.Target) { t.Inputs = nil }, guard.RuleExpected, "lacks the arguments"},
		{"unreadable", func(t *guard.Target) { t.Inputs = []byte("{") }, guard.RuleIntent, "reading the arguments"},
		{"an argument more", func(t *guard.Target) { t.Inputs = []byte(`{"hook":"x"}`) }, guard.RuleIntent, "hook"},
		{"another VM's", func(t *guard.Target) { t.Inputs = argumentsOf(plan, vm(2002).Address) }, guard.RuleIntent, "differs from the intent"},
		{"other modules", func(t *guard.Target) { t.Module = "0123456789abcdef" }, guard.RuleExpected, "0123456789abcdef"},
	} {
		asked := filled(plan, both)
		tt.edit(&asked.Create[0])
		if v := guard.Check(plan, asked, guard.DefaultRules()); !has(v, guard.Deny, tt.rule, tt.part) {
			t.Errorf("%s: want denied by %s with %q, got\n%s", tt.name, tt.rule, tt.part, v)
		}
	}
}

// TestCheckVMIDs checks that VMIDs outside the range of Proxmox are denied, and that its
// first and last VMID are not.
func TestCheckVMIDs(t *testing.T) {
	t.Parallel()
	for vmid, ours := range map[fleet.VMID]bool{fleet.MinVMID - 1: false, fleet.MinVMID: true, fleet.MaxVMID: true, fleet.MaxVMID + 1: false} {
		v := check(edited(t, "create", nil), creating(2001, vmid), guard.DefaultRules())
		if denied := has(v, guard.Deny, guard.RuleIntent, "is not valid in Proxmox"); denied == ours {
			t.Errorf("VMID %d: got\n%s", vmid, v)
		}
	}
}

// TestCheckRange checks that all changes of VMs outside vmid_range are denied.
func TestCheckRange(t *testing.T) {
	t.Parallel()
	for name, asked := range intents() {
		plan := edited(t, name, nil)
		asked = filled(plan, asked)
		asked.VMIDs = fleet.VMIDRange{Lower: 2001, Upper: 2003}
		if v := guard.Check(plan, asked, guard.DefaultRules()); v.Decision != guard.Allow {
			t.Errorf("%s inside: got\n%s", name, v)
		}
		asked.VMIDs = fleet.VMIDRange{Lower: 3000, Upper: 3999}
		if v := guard.Check(plan, asked, guard.DefaultRules()); !has(v, guard.Deny, guard.RuleIntent, "outside vmid_range, 3000 to 3999") {
			t.Errorf("%s outside: got\n%s", name, v)
		}
	}
}

// TestCheckRangeOfClass checks that a VM is not created outside the range of its class, and
// that its VMID stays correct when the VM is changed or deleted.
func TestCheckRangeOfClass(t *testing.T) {
	t.Parallel()
	for name, asked := range intents() {
		plan := edited(t, name, nil)
		asked = filled(plan, asked)
		asked.Create = slices.Clone(asked.Create)
		for i := range asked.Create {
			asked.Create[i].ClassVMIDs = fleet.VMIDRange{Lower: 2001, Upper: 2003}
		}
		if v := guard.Check(plan, asked, guard.DefaultRules()); v.Decision != guard.Allow {
			t.Errorf("%s inside: got\n%s", name, v)
		}
		for i := range asked.Create {
			asked.Create[i].ClassVMIDs = fleet.VMIDRange{Lower: 2100, Upper: 2199}
		}
		v := guard.Check(plan, asked, guard.DefaultRules())
		if denied := has(v, guard.Deny, guard.RuleIntent, "outside spec.vmidRange of its class, 2100 to 2199"); denied != (len(asked.Create) > 0) {
			t.Errorf("%s outside: got\n%s", name, v)
		}
	}
}

// TestKnowsModules checks that nodeModules has an entry for all modules that numaform
// contains. The tests of generator compare the entries with the engine.
func TestKnowsModules(t *testing.T) {
	t.Parallel()
	for _, hash := range append(modules.Hashes(), modules.Hash()) {
		if !guard.Knows(hash) {
			t.Errorf("nodeModules has no entry for modules %s: add one", hash)
		}
	}
}
