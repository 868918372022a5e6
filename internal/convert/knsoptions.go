package convert

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// knsOptions are the options of Proxmox that vmOptions of a provider can contain: the
// parameters of POST /nodes/{node}/qemu. [n] is a number.
func knsOptions() []option {
	const (
		cloned    = "numaform clones a template, which has this option: set it there"
		ownDrive  = "numaform does not use the cloud-init drive of Proxmox: use metadata.type cdrom with templatesRef (docs/join.md); without a seed, guests use DHCP"
		overwrite = "KubeNodeSmith overwrites it"
		disks     = "the size and the storage: the first disk of the boot order, or else the first of scsi0, virtio0 and sata0, becomes the boot disk, a clone of the template's. Others become empty disks on SCSI slots"
		request   = "it is about the creation of the VM, and no property of it"
	)
	rows := []option{
		{"", "cpu", "ProxmoxNodeClass spec.cpuType, ProxmoxNodeClass spec.hardware.cpuFlags", "the type and its flags", knsCPU},
		{"", "scsi[n]", "ProxmoxNodeClass spec.bootDevice, ProxmoxNodeClass spec.dataDisks", disks, knsDisk},
		{"", "virtio[n]", "ProxmoxNodeClass spec.bootDevice, ProxmoxNodeClass spec.dataDisks", disks, knsDisk},
		{"", "sata[n]", "ProxmoxNodeClass spec.bootDevice, ProxmoxNodeClass spec.dataDisks", disks, knsDisk},
		{"", "net[n]", "ProxmoxNodeClass spec.networks", "unless networkInterfaces has it: bridge, model, VLAN, MTU, firewall, rate, queues, trunks and link_down, but no MAC address", knsCard},
		{"", "hostpci[n]", "ProxmoxNodeClass spec.pciDevices", "only with a mapping", knsPCI},
		{"", "machine", "ProxmoxNodeClass spec.hardware.machine", "the type", knsMachine},
		{"", "vga", "ProxmoxNodeClass spec.hardware.vga", "the type and the memory", knsVGA},
		{"", "watchdog", "ProxmoxNodeClass spec.hardware.watchdog", "", knsWatchdog},
		{"", "tablet", "ProxmoxNodeClass spec.hardware.tablet", "a template without a tablet stays without one", knsTablet},
		{"", "pool", "ProxmoxNodeClass spec.pool", "", copied},
		{"", "onboot", "", "numaform always starts its nodes when their host boots", knsAlways},
		{"", "start", "", "numaform always starts its nodes", knsAlways},
		{"", "sockets", "", "numaform sets sockets and cores from the vCPUs of the node", nil},
		{"", "numa", "", "numaform sets it from the placement", nil},
		{"", "numa[n]", "", "numaform sets it from the placement", nil},
		{"", "affinity", "", "numaform selects CPUs with placement.policy Dedicated or Isolated", nil},
		{"", "hugepages", "", "only root@pam can set it, and KubeNodeSmith uses a token: numaform sets it with placement.hugePages", nil},
		{"", "keephugepages", "", "numaform sets it with placement.hugePages", nil},
		{"", "ide[n]", "", "numaform attaches its seed to ide2, with metadata.type cdrom; other disks of the template stay", nil},
		{"", "cdrom", "", "numaform attaches its seed, with metadata.type cdrom", nil},
		{"", "cicustom", "", "use metadata.type cdrom with templatesRef, whose keys user-data, meta-data, network-config and vendor-data have the content of the snippets", nil},
		{"", "description", "", "numaform writes it, with the marker of its VM", nil},
		{"", "smbios1", "", "numaform sets the product to the instance type, and the serial number to the name and the VMID", nil},
		{"", "protection", "", "numaform could not remove a protected node", nil},
		{"", "template", "", "a node is no template", nil},
	}
	for _, group := range []struct{ note, names string }{
		{cloned, "acpi agent amd-sev audio[n] bios boot bootdisk cpuunits efidisk[n] freeze keyboard kvm localtime " +
			"migrate_downtime migrate_speed ostype parallel[n] reboot rng[n] scsihw serial[n] shares spice_enhancements startdate startup tdf tpmstate[n] usb[n] vmgenid vmstatestorage"},
		{cloned + ", without memory", "hotplug"},
		{"nodes have no balloon device", "balloon"},
		{"numaform sets the CPUs of its VMs, and does not use a template with this option", "cpulimit"},
		{"only root@pam can set it, and numaform does not use a template with it", "args hookscript ivshmem"},
		{ownDrive, "cipassword citype ciupgrade ciuser ipconfig[n] nameserver searchdomain sshkeys"},
		{overwrite, "cores memory name tags"},
		{"numaform sets sockets and cores from the vCPUs of the node", "smp vcpus"},
		{request, "archive autostart bwlimit force live-restore lock storage unique"},
	} {
		for name := range strings.FieldsSeq(group.names) {
			rows = append(rows, option{"", name, "", group.note, nil})
		}
	}
	return rows
}

var lastNumber = regexp.MustCompile(`[0-9]+$`)

// knsOption converts an option of vmOptions.
func knsOption(c *conversion, at *place) {
	fields, _ := at.value.(map[string]any)
	name := text(fields["name"])
	rows := knsOptions()
	i := slices.IndexFunc(rows, func(row option) bool { return row.path == name })
	if i < 0 {
		i = slices.IndexFunc(rows, func(row option) bool { return row.path == lastNumber.ReplaceAllString(name, "[n]") })
	}
	if i < 0 {
		at.verdict, at.reason = Unknown, name+" is not an option that this version of numaform knows: see whether the template needs it"
		return
	}
	row := rows[i]
	if row.apply == nil {
		at.drop(name + ": " + row.note)
		return
	}
	at.ours, at.note, at.value = row.ours, row.note, text(fields["value"])
	at.verdict, at.reason = Kept, ""
	row.apply(c, at)
	if at.verdict == Dropped {
		at.reason = name + ": " + at.reason
	}
}

// knsProperties returns the properties of a value such as "virtio,bridge=vmbr0": one without a
// name has the name first.
func knsProperties(value any, first string) map[string]string {
	properties := map[string]string{}
	for part := range strings.SplitSeq(text(value), ",") {
		name, property, ok := strings.Cut(part, "=")
		if !ok {
			name, property = first, name
		}
		properties[name] = property
	}
	return properties
}

// others reports the properties that have no place.
func (at *place) others(properties map[string]string, known ...string) {
	for _, name := range sorted(properties) {
		if !slices.Contains(known, name) {
			at.change(name + " is not kept")
		}
	}
}

func knsCPU(c *conversion, at *place) {
	properties := knsProperties(at.value, "cputype")
	spec := c.spec(at.from.Name)
	spec["cpuType"] = properties["cputype"]
	if flags := properties["flags"]; flags != "" {
		put(spec, "hardware.cpuFlags", nil, signed(strings.Split(flags, ";")))
	}
	at.others(properties, "cputype", "flags")
}

var diskOf = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_.-]*):([0-9]+)$`)

// knsBootDisk returns the name of the disk that becomes the boot disk.
func knsBootDisk(o *Object) string {
	values := map[string]string{}
	for _, row := range mappings(o.at("spec", "proxmox", "vmOptions")) {
		values[text(row["name"])] = text(row["value"])
	}
	order := strings.Split(strings.TrimPrefix(values["boot"], "order="), ";")
	for _, name := range append(order, "scsi0", "virtio0", "sata0") {
		if _, ok := values[name]; ok && slices.Contains([]string{"scsi", "virtio", "sata"}, lastNumber.ReplaceAllString(name, "")) {
			return name
		}
	}
	return ""
}

func knsDisk(c *conversion, at *place) {
	volume, rest, _ := strings.Cut(text(at.value), ",")
	found := diskOf.FindStringSubmatch(volume)
	if found == nil {
		at.drop("is not STORAGE:SIZE")
		return
	}
	spec := c.spec(at.from.Name)
	disk := map[string]any{"storage": found[1], "size": found[2] + "G"}
	if at.named() == knsBootDisk(at.from) {
		spec["bootDevice"] = disk
		at.change("the boot disk has this size and storage, and the other properties of the template's")
		return
	}
	list, _ := spec["dataDisks"].([]any)
	spec["dataDisks"] = append(list, disk)
	at.change("an empty disk of this size and storage, on a SCSI slot")
	if rest != "" {
		at.change("its other properties are not kept")
	}
}

// named returns the name of an option of vmOptions.
func (at *place) named() string {
	return text(mappings(at.from.at("spec", "proxmox", "vmOptions"))[at.index[0]]["name"])
}

func knsCard(c *conversion, at *place) {
	for i, card := range mappings(at.from.at("spec", "proxmox", "networkInterfaces")) {
		if name := text(card["name"]); name == at.named() || name == "" && "net"+strconv.Itoa(i) == at.named() {
			at.drop("KubeNodeSmith overwrites it with networkInterfaces")
			return
		}
	}
	properties := knsProperties(at.value, "model")
	card := map[string]any{}
	for _, model := range []string{"virtio", "e1000", "e1000e", "rtl8139", "vmxnet3"} {
		if _, fixed := properties[model]; fixed || properties["model"] == model {
			card["model"] = model
			if fixed || properties["macaddr"] != "" {
				at.change("the MAC address is not kept, because each node needs its own")
			}
			delete(properties, model)
		}
	}
	delete(properties, "macaddr")
	card["bridge"] = properties["bridge"]
	for theirs, ours := range map[string]string{"tag": "vlan", "mtu": "mtu", "queues": "queues"} {
		if number, err := strconv.Atoi(properties[theirs]); err == nil {
			card[ours] = number
		}
	}
	for theirs, ours := range map[string]string{"firewall": "firewall", "link_down": "disconnected"} {
		if properties[theirs] == "1" {
			card[ours] = true
		}
	}
	if properties["rate"] != "" {
		card["rateMBps"] = properties["rate"]
	}
	var trunks []any
	for vlan := range strings.SplitSeq(properties["trunks"], ";") {
		if number, err := strconv.Atoi(vlan); err == nil {
			trunks = append(trunks, number)
		}
	}
	if trunks != nil {
		card["trunks"] = trunks
	}
	if properties["bridge"] == "" {
		at.drop("has no bridge, and numaform's network cards need one")
		return
	}
	at.others(properties, "model", "bridge", "tag", "mtu", "queues", "firewall", "link_down", "rate", "trunks")
	spec := c.spec(at.from.Name)
	list, _ := spec["networks"].([]any)
	if want := "net" + strconv.Itoa(len(list)); want != at.named() {
		at.change("it becomes " + want)
	}
	spec["networks"] = append(list, card)
}

func knsPCI(c *conversion, at *place) {
	properties := knsProperties(at.value, "host")
	if properties["mapping"] == "" {
		at.drop("numaform passes devices through by resource mappings only: create one under Datacenter > Resource Mappings")
		return
	}
	device := map[string]any{"mapping": properties["mapping"]}
	if properties["mdev"] != "" {
		device["mdev"] = properties["mdev"]
	}
	for theirs, ours := range map[string]string{"pcie": "pcie", "x-vga": "xvga"} {
		if value, ok := properties[theirs]; ok {
			device[ours] = value == "1"
		}
	}
	at.others(properties, "mapping", "mdev", "pcie", "x-vga")
	spec := c.spec(at.from.Name)
	list, _ := spec["pciDevices"].([]any)
	spec["pciDevices"] = append(list, device)
}

func knsMachine(c *conversion, at *place) {
	properties := knsProperties(at.value, "type")
	at.put(c, properties["type"])
	at.others(properties, "type")
}

func knsVGA(c *conversion, at *place) {
	properties := knsProperties(at.value, "type")
	vga := map[string]any{}
	if properties["type"] != "" {
		vga["type"] = properties["type"]
	}
	if memory, err := strconv.Atoi(properties["memory"]); err == nil {
		vga["memoryMiB"] = memory
	}
	at.put(c, vga)
	if strings.HasPrefix(properties["type"], "serial") {
		at.change("the template must have this serial port")
	}
	at.others(properties, "type", "memory")
}

func knsWatchdog(c *conversion, at *place) {
	properties := knsProperties(at.value, "model")
	watchdog := map[string]any{}
	for _, name := range []string{"model", "action"} {
		if properties[name] != "" {
			watchdog[name] = properties[name]
		}
	}
	at.put(c, watchdog)
}

func knsTablet(c *conversion, at *place) {
	if is, err := boolean(at.value); err == nil && is == false {
		at.put(c, false)
		return
	}
	at.change(at.note)
}

func knsAlways(_ *conversion, at *place) {
	if is, err := boolean(at.value); err != nil || is == false {
		at.drop(at.note)
	}
}
