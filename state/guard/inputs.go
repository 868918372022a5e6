package guard

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
)

// inputs are the arguments of a node file by the names of the node module's variables, and
// the security groups of its second call. Missing arguments are zero; node applies the
// defaults. The generator has its own types for them: the guard denies an argument that only
// one of the two packages knows.
type inputs struct {
	FormatVersion  int               `json:"format_version"`
	ClusterID      string            `json:"cluster_id"`
	Name           string            `json:"name"`
	VMID           int64             `json:"vm_id"`
	Host           string            `json:"node_name"`
	Description    []string          `json:"description"`
	Tags           []string          `json:"tags"`
	ResourcePool   string            `json:"pool_id"`
	InstanceType   string            `json:"instance_type"`
	Clone          cloneInputs       `json:"clone"`
	CPU            cpuInputs         `json:"cpu"`
	MemoryMiB      int64             `json:"memory_mib"`
	HugePages      string            `json:"hugepages"`
	NUMA           []cellInputs      `json:"numa"`
	Disk           *diskInputs       `json:"disk"`
	DataDisks      []diskInputs      `json:"data_disks"`
	Networks       []networkInputs   `json:"network_devices"`
	PCIDevices     []fleet.PCIDevice `json:"pci_devices"`
	Seed           string            `json:"seed"`
	Standby        bool              `json:"standby"`
	Timeouts       timeoutInputs     `json:"timeouts"`
	Hardware       hardwareInputs    `json:"hardware"`
	Record         json.RawMessage   `json:"record"`
	SecurityGroups []string          `json:"security_groups"`
}

type cloneInputs struct {
	VMID        int64  `json:"vm_id"`
	Host        string `json:"node_name"`
	Full        bool   `json:"full"`
	DatastoreID string `json:"datastore_id"`
}

type cpuInputs struct {
	Type     string `json:"type"`
	Sockets  int64  `json:"sockets"`
	Cores    int64  `json:"cores"`
	Affinity string `json:"affinity"`

	Flags []string `json:"flags"`
}

type cellInputs struct {
	CPUs      string `json:"cpus"`
	HostNodes string `json:"hostnodes"`
	MemoryMiB int64  `json:"memory_mib"`
	Policy    string `json:"policy"`
}

type diskInputs struct {
	Interface   string  `json:"interface"`
	DatastoreID string  `json:"datastore_id"`
	SizeGiB     int64   `json:"size_gib"`
	AIO         *string `json:"aio"`
	Backup      *bool   `json:"backup"`
	Cache       *string `json:"cache"`
	Discard     *string `json:"discard"`
	IOThread    *bool   `json:"iothread"`
	Replicate   *bool   `json:"replicate"`
	SSD         *bool   `json:"ssd"`
}

type networkInputs struct {
	Bridge   string  `json:"bridge"`
	Model    string  `json:"model"`
	Firewall bool    `json:"firewall"`
	MTU      int64   `json:"mtu"`
	VLAN     int64   `json:"vlan_id"`
	MAC      *string `json:"mac_address"`

	RateLimit    float64 `json:"rate_limit"`
	Queues       int64   `json:"queues"`
	Trunks       []int64 `json:"trunks"`
	Disconnected bool    `json:"disconnected"`
}

type timeoutInputs struct {
	Create int64 `json:"create"`
	Start  int64 `json:"start"`
	Delete int64 `json:"delete"`
}

type hardwareInputs struct {
	Agent struct {
		Enabled bool   `json:"enabled"`
		Trim    bool   `json:"trim"`
		Type    string `json:"type"`
	} `json:"agent"`
	BIOS          string     `json:"bios"`
	BootOrder     []string   `json:"boot_order"`
	Machine       string     `json:"machine"`
	OSType        string     `json:"os_type"`
	SCSIHardware  string     `json:"scsi_hardware"`
	SerialDevices []string   `json:"serial_devices"`
	Tablet        *bool      `json:"tablet"`
	VGA           *vgaInputs `json:"vga"`

	Watchdog *fleet.Watchdog `json:"watchdog"`
}

type vgaInputs struct {
	Type      string `json:"type"`
	Memory    int64  `json:"memory"`
	Clipboard string `json:"clipboard"`
}

// readInputs parses the arguments of a node file. Arguments that the modules do not have
// are errors.
func readInputs(text []byte) (*inputs, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	in := &inputs{}
	if err := decoder.Decode(in); err != nil {
		return nil, fmt.Errorf("reading the arguments of the VM's file: %w: restore the file, or use the version of numaform that wrote it", err)
	}
	return in, nil
}

// The default timeouts of the provider and of the module, in seconds.
const (
	waitLong  = 1800
	waitShort = 300
)

// nodeModule contains the values that differ between releases of the node module.
type nodeModule struct {
	// migrate is timeout_migrate, in seconds.
	migrate int64
	// standby is set if the release has standby VMs.
	standby bool
	// options is set if the release has the arguments in inputs.options.
	options bool
	// deviceGroups is set if the release has security groups of single network devices.
	deviceGroups bool
	// remote is set if the release clones templates of other hosts.
	remote bool
	// emulator is set if the release has the emulator setting in the description.
	emulator bool
	// adopted is set for the modules of adopted VMs.
	adopted bool
}

// nodeModules maps the hash of each release of the modules to its values. If a release
// derives other values from its inputs than the earlier releases, nodeModule gets a field
// for the difference.
var nodeModules = map[string]nodeModule{
	"53eb0066f3e67bbd": {migrate: 900},
	"c62bcf5233d88919": {migrate: waitLong},
	"2eb0b7e97a74c03e": {migrate: waitLong, standby: true},
	"f95ae3a2e756d6a4": {migrate: waitLong, standby: true, options: true},
	"33b01d5508ee4608": {migrate: waitLong, standby: true, options: true, deviceGroups: true},
	"da59ea1a23b689cb": {migrate: waitLong, standby: true, options: true, deviceGroups: true, remote: true},
	"b7f279dbcf8f390b": {migrate: waitLong, standby: true, options: true, deviceGroups: true, remote: true, emulator: true},
	modules.Adopted:    {migrate: waitLong, adopted: true},
}

// GroupsOfDevices reports whether the modules with a hash support security groups of single
// network devices. An empty hash means the modules of new VMs, which do.
func GroupsOfDevices(hash string) bool { return hash == "" || nodeModules[hash].deviceGroups }

// EmulatorSettings reports whether the modules with a hash support the emulator setting of VMs
// that the host agent pins. An empty hash means the modules of new VMs, which do.
func EmulatorSettings(hash string) bool { return hash == "" || nodeModules[hash].emulator }

// options reports whether the file has arguments of hardware or network devices that the
// first releases of the module do not have, and would ignore.
func (in *inputs) options() bool {
	return len(in.CPU.Flags) > 0 || in.Hardware.Tablet != nil || in.Hardware.Watchdog != nil ||
		slices.ContainsFunc(in.Networks, func(n networkInputs) bool {
			return n.RateLimit != 0 || n.Queues != 0 || len(n.Trunks) > 0 || n.Disconnected
		})
}

// computed is the expected value of an attribute that the provider sets: unknown before
// an apply, and unchanged by an update.
type computed struct{}

// ignored is the expected value of an attribute whose changes the module ignores: a new
// VM gets the initial value, and later changes have no effect.
type ignored struct{ initial any }

// node returns the expected values of a VM. Attributes that are not listed are empty.
func (m nodeModule) node(in *inputs) values {
	create, remove := cmp.Or(in.Timeouts.Create, waitLong), cmp.Or(in.Timeouts.Delete, waitShort)
	hardware := &in.Hardware
	expected := values{
		"name": in.Name, "vm_id": in.VMID, "description": strings.Join(in.Description, "\n"),
		"tags": tags(in), "pool_id": in.ResourcePool,
		"on_boot": !in.Standby, "started": !in.Standby, "reboot": false, "reboot_after_update": false, "stop_on_destroy": true, "migrate": true,
		"timeout_clone": create, "timeout_migrate": m.migrate, "timeout_shutdown_vm": remove,
		"timeout_start_vm": cmp.Or(in.Timeouts.Start, waitShort), "timeout_stop_vm": remove,
		"bios": cmp.Or(hardware.BIOS, "seabios"), "machine": hardware.Machine, "scsi_hardware": cmp.Or(hardware.SCSIHardware, "lsi"),
		"boot_order": bootOrder(in), "network_device": networks(in),
		"agent": blocks{values{
			"enabled": hardware.Agent.Enabled, "timeout": "10s", "trim": hardware.Agent.Trim, "type": cmp.Or(hardware.Agent.Type, "virtio"),
			"wait_for_ip": blocks{values{"disabled": true}},
		}},
		"cpu": blocks{values{
			"affinity": in.CPU.Affinity, "cores": in.CPU.Cores, "numa": len(in.NUMA) > 0, "sockets": in.CPU.Sockets, "type": in.CPU.Type,
			"units": computed{}, "flags": texts(in.CPU.Flags),
		}},
		"memory": blocks{values{
			"dedicated": in.MemoryMiB, "hugepages": in.HugePages, "keep_hugepages": in.HugePages != "",
		}},
		"operating_system": blocks{values{"type": cmp.Or(hardware.OSType, "other")}},
		"smbios":           blocks{values{"product": in.InstanceType, "serial": in.Name + "/" + strconv.FormatInt(in.VMID, 10), "uuid": computed{}}},
		"vga":              vga(hardware.VGA),

		// The provider's defaults.
		"delete_unreferenced_disks_on_destroy": true, "purge_on_destroy": true,
		"timeout_create": int64(waitLong), "timeout_move_disk": int64(waitLong), "timeout_reboot": int64(waitLong),

		"id": computed{}, "hotplug": computed{}, "ipv4_addresses": computed{}, "ipv6_addresses": computed{},
		"mac_addresses": computed{}, "network_interface_names": computed{},

		"node_name": ignored{in.Host}, "clone": ignored{blocks{values{
			"vm_id": in.Clone.VMID, "node_name": cmp.Or(in.Clone.Host, in.Host), "full": in.Clone.Full, "datastore_id": in.Clone.DatastoreID, "retries": int64(1),
		}}},
		"disk": ignored{disks(in)}, "hostpci": ignored{pciDevices(in)},
		"acpi": ignored{true}, "keyboard_layout": ignored{"en-us"}, "tablet_device": ignored{or(hardware.Tablet, true)},
		"cdrom": ignored{},
	}
	for _, name := range []string{
		"amd_sev", "audio_device", "efi_disk", "hook_script_file_id", "initialization", "kvm_arguments", "rng", "startup", "tpm_state",
		"usb", "virtiofs", "watchdog",
	} {
		expected[name] = ignored{}
	}
	if w := hardware.Watchdog; w != nil {
		expected["watchdog"] = ignored{blocks{values{"enabled": true, "model": w.Model, "action": w.Action}}}
	}
	if in.Seed != "" {
		expected["cdrom"] = ignored{blocks{values{"file_id": in.Seed, "interface": "ide2"}}}
	}
	var numa, serial blocks
	for i, cell := range in.NUMA {
		numa = append(numa, values{
			"device": "numa" + strconv.Itoa(i), "cpus": cell.CPUs, "hostnodes": cell.HostNodes, "memory": cell.MemoryMiB, "policy": cell.Policy,
		})
	}
	for _, device := range hardware.SerialDevices {
		serial = append(serial, values{"device": device})
	}
	expected["numa"], expected["serial_device"] = numa, serial
	return expected
}

// adoptedNode returns the expected values of an adopted VM: everything but its description,
// its tags and the provider's own settings stays as it is.
func adoptedNode(m nodeModule, in *inputs) values {
	remove := cmp.Or(in.Timeouts.Delete, waitShort)
	expected := values{
		"name": in.Name, "vm_id": in.VMID, "description": strings.Join(in.Description, "\n"), "tags": tags(in),
		"reboot": false, "reboot_after_update": false, "stop_on_destroy": true, "migrate": true,
		"timeout_migrate": m.migrate, "timeout_shutdown_vm": remove, "timeout_stop_vm": remove,

		// The provider's defaults.
		"delete_unreferenced_disks_on_destroy": true, "purge_on_destroy": true,
		"timeout_clone": int64(waitLong), "timeout_create": int64(waitLong), "timeout_move_disk": int64(waitLong),
		"timeout_reboot": int64(waitLong), "timeout_start_vm": int64(waitLong),

		"id": computed{}, "ipv4_addresses": computed{}, "ipv6_addresses": computed{},
		"mac_addresses": computed{}, "network_interface_names": computed{},
	}
	for _, name := range []string{
		"acpi", "agent", "amd_sev", "audio_device", "bios", "boot_order", "cdrom", "clone", "cpu", "disk", "efi_disk", "hook_script_file_id",
		"hostpci", "hotplug", "initialization", "keyboard_layout", "kvm_arguments", "machine", "memory", "network_device", "node_name", "numa",
		"on_boot", "operating_system", "pool_id", "protection", "rng", "scsi_hardware", "serial_device", "smbios", "started", "startup",
		"tablet_device", "tpm_state", "usb", "vga", "virtiofs", "watchdog",
	} {
		expected[name] = ignored{}
	}
	return expected
}

func tags(in *inputs) blocks {
	all := append([]string{"numaform", "numaform-" + in.ClusterID}, in.Tags...)
	slices.Sort(all)
	return texts(slices.Compact(all))
}

func texts(list []string) blocks {
	all := blocks{}
	for _, text := range list {
		all = append(all, text)
	}
	return all
}

// bootOrder returns the boot order in the file, with the seed's drive, or computed{} if the
// file has none.
func bootOrder(in *inputs) any {
	order := in.Hardware.BootOrder
	if order == nil {
		return computed{}
	}
	if in.Seed != "" && !slices.Contains(order, "ide2") {
		order = append(slices.Clone(order), "ide2")
	}
	return texts(order)
}

// networks returns the network devices in the file, or computed{} if it has none and the VM
// keeps the template's.
func networks(in *inputs) any {
	if len(in.Networks) == 0 {
		return computed{}
	}
	devices := blocks{}
	for _, n := range in.Networks {
		model := cmp.Or(n.Model, "virtio")
		device := values{
			"bridge": n.Bridge, "enabled": true, "firewall": n.Firewall, "mac_address": computed{}, "model": model, "mtu": n.MTU, "vlan_id": n.VLAN,
		}
		if n.MAC != nil {
			device["mac_address"] = *n.MAC
		}
		if model == "virtio" {
			device["queues"] = cmp.Or(n.Queues, min(in.CPU.Sockets*in.CPU.Cores, 64))
		}
		device["rate_limit"], device["disconnected"] = n.RateLimit, n.Disconnected
		var trunks []string
		for _, vlan := range n.Trunks {
			trunks = append(trunks, strconv.FormatInt(vlan, 10))
		}
		device["trunks"] = strings.Join(trunks, ";")
		devices = append(devices, device)
	}
	return devices
}

func vga(in *vgaInputs) any {
	if in == nil {
		return computed{}
	}
	return blocks{values{"type": cmp.Or(in.Type, "std"), "memory": cmp.Or(in.Memory, 16), "clipboard": in.Clipboard}}
}

func disks(in *inputs) blocks {
	all := blocks{}
	given := in.DataDisks
	if in.Disk != nil {
		given = append([]diskInputs{*in.Disk}, given...)
	}
	for _, d := range given {
		all = append(all, values{
			"interface": d.Interface, "datastore_id": d.DatastoreID, "size": d.SizeGiB,
			"aio": or(d.AIO, "io_uring"), "backup": or(d.Backup, true), "cache": or(d.Cache, "none"), "discard": or(d.Discard, "ignore"),
			"iothread": or(d.IOThread, false), "replicate": or(d.Replicate, true), "ssd": or(d.SSD, false),
			"file_format": computed{}, "path_in_datastore": computed{},
		})
	}
	return all
}

// or returns the value of a variable, or the provider's default for the attribute.
func or[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}

func pciDevices(in *inputs) blocks {
	all := blocks{}
	for i, d := range in.PCIDevices {
		all = append(all, values{
			"device": "hostpci" + strconv.Itoa(i), "mapping": d.Mapping, "mdev": d.MDev, "pcie": d.PCIe, "xvga": d.XVGA,
		})
	}
	return all
}

// groupsOf returns the expected values of a VM's security groups.
func groupsOf(in *inputs) values {
	rules := blocks{}
	for _, group := range in.SecurityGroups {
		name, device, _ := strings.Cut(group, "@")
		rules = append(rules, values{"security_group": name, "iface": device, "comment": "numaform", "enabled": true, "pos": computed{}})
	}
	return values{"id": computed{}, "vm_id": in.VMID, "node_name": ignored{in.Host}, "rule": rules}
}
