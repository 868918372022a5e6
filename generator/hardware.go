package generator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/fleet"
)

// hardware is the hardware that a VM inherits from its template and that the module
// repeats, or that its class overrides. A missing field means the default of Proxmox, and
// for tablet and watchdog, the template's.
type hardware struct {
	Agent         *agent   `json:"agent,omitempty"`
	BIOS          string   `json:"bios,omitempty"`
	BootOrder     []string `json:"boot_order,omitempty"`
	Machine       string   `json:"machine,omitempty"`
	OSType        string   `json:"os_type,omitempty"`
	SCSIHardware  string   `json:"scsi_hardware,omitempty"`
	SerialDevices []string `json:"serial_devices,omitempty"`
	Tablet        *bool    `json:"tablet,omitempty"`
	VGA           *vga     `json:"vga,omitempty"`

	Watchdog *fleet.Watchdog `json:"watchdog,omitempty"`
}

type agent struct {
	Enabled bool   `json:"enabled"`
	Trim    bool   `json:"trim,omitempty"`
	Type    string `json:"type,omitempty"`
}

type vga struct {
	Type      string `json:"type,omitempty"`
	Memory    int    `json:"memory,omitempty"`
	Clipboard string `json:"clipboard,omitempty"`
}

// maxSerial is the number of serial ports that Proxmox supports.
const maxSerial = 4

// hardwareOf reads the options of a VM's template. It returns an error for invalid options,
// and for options that an API token cannot remove from a clone.
func hardwareOf(vm *fleet.VM) (hardware, error) {
	c := &checker{}
	options := vm.Source.Options
	for _, name := range slices.Sorted(maps.Keys(options)) {
		field := "source.options." + name
		c.valid(optionName.MatchString(name) && name != "for", "source.options", name, "is not a Proxmox option: remove it")
		c.require(name != "hookscript" && (name != "affinity" || affinity(vm) != ""), field,
			"template %s on host %s has this option, and an API token cannot remove it from a clone: run qm set %d --delete %s on that host",
			vm.Template, vm.Host, vm.Source.VMID, name)
		c.text(field, options[name])
	}
	h := hardware{
		BIOS:         options["bios"],
		Machine:      options["machine"],
		OSType:       options["ostype"],
		SCSIHardware: options["scsihw"],
	}

	if text, ok := options["agent"]; ok {
		fields := properties(text, "enabled")
		h.Agent = &agent{
			Enabled: flag(fields["enabled"]),
			Trim:    flag(fields["fstrim_cloned_disks"]),
			Type:    fields["type"],
		}
	}
	if order, ok := strings.CutPrefix(options["boot"], "order="); ok && order != "" {
		h.BootOrder = strings.Split(order, ";")
	} else if len(vm.DataDisks) > 0 { // without an order, Proxmox boots from the first disk
		h.BootOrder = []string{vm.Source.DiskInterface}
	}
	if text := options["vga"]; text != "" {
		fields := properties(text, "type")
		h.VGA = &vga{Type: fields["type"], Clipboard: fields["clipboard"]}
		if memory, ok := fields["memory"]; ok {
			var err error
			h.VGA.Memory, err = strconv.Atoi(memory)
			c.valid(err == nil, "source.options.vga", text, "memory must be a number: correct the display of the template")
		}
	}
	for i := range maxSerial {
		device, ok := options["serial"+strconv.Itoa(i)]
		if !ok {
			continue
		}
		c.require(len(h.SerialDevices) == i, fmt.Sprintf("source.options.serial%d", i),
			"serial%d is missing: number the template's serial ports from serial0 without gaps", len(h.SerialDevices))
		h.SerialDevices = append(h.SerialDevices, device)
	}
	if vm.Hardware != nil {
		h.override(vm.Hardware)
		c.hardware(vm.Hardware, h.SerialDevices)
	}
	return h, c.err
}

// override replaces the template's hardware with that of the VM's class.
func (h *hardware) override(by *fleet.Hardware) {
	h.Machine = cmp.Or(by.Machine, h.Machine)
	if by.Display != "" || by.DisplayMiB != 0 {
		display := vga{}
		if h.VGA != nil {
			display = *h.VGA
		}
		display.Type = cmp.Or(by.Display, display.Type)
		display.Memory = cmp.Or(by.DisplayMiB, display.Memory)
		h.VGA = &display
	}
	if by.NoTablet {
		h.Tablet = new(false)
	}
	h.Watchdog = by.Watchdog
}

// hardware checks the hardware that a class overrides.
func (c *checker) hardware(h *fleet.Hardware, serial []string) {
	const field = "hardware."
	c.match(field+"machine", h.Machine, machineType, "must be a machine type such as q35 or pc-q35-9.2")
	c.oneOf(field+"display", h.Display, append([]string{""}, displays...)...)
	c.require(h.DisplayMiB == 0 || minDisplayMiB <= h.DisplayMiB && h.DisplayMiB <= maxDisplayMiB, field+"display_mib",
		"%d: must be from %d to %d", h.DisplayMiB, minDisplayMiB, maxDisplayMiB)
	if port, is := strings.CutPrefix(h.Display, "serial"); is {
		n, _ := strconv.Atoi(port)
		c.valid(n < len(serial), field+"display", h.Display, "the template has no such serial port: add it with qm set, or set another display")
	}
	for i, flag := range h.CPUFlags {
		c.match(fmt.Sprintf("%scpu_flags[%d]", field, i), flag, cpuFlag, "must be + or - and the name of a CPU flag, such as +aes")
	}
	if h.Watchdog != nil {
		c.oneOf(field+"watchdog.model", h.Watchdog.Model, "i6300esb", "ib700")
		c.oneOf(field+"watchdog.action", h.Watchdog.Action, "reset", "shutdown", "poweroff", "pause", "debug", "none")
	}
}

// properties parses a Proxmox property string such as "1,type=virtio"; unnamed is the key
// of a value that has none.
func properties(text, unnamed string) map[string]string {
	fields := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, named := strings.Cut(strings.TrimSpace(part), "=")
		if !named {
			name, value = unnamed, name
		}
		fields[name] = value
	}
	return fields
}

// flag parses a Proxmox boolean.
func flag(text string) bool {
	return slices.Contains([]string{"1", "on", "yes", "true"}, strings.ToLower(text))
}

// disk is a data disk, or a boot disk that must be larger than the template's. The fields
// after SizeGiB repeat the options of the template's boot disk, because the provider resets
// missing ones.
type disk struct {
	Interface   string `json:"interface"`
	DatastoreID string `json:"datastore_id"`
	SizeGiB     int64  `json:"size_gib"`
	AIO         string `json:"aio,omitempty"`
	Backup      *bool  `json:"backup,omitempty"`
	Cache       string `json:"cache,omitempty"`
	Discard     string `json:"discard,omitempty"`
	IOThread    *bool  `json:"iothread,omitempty"`
	Replicate   *bool  `json:"replicate,omitempty"`
	SSD         *bool  `json:"ssd,omitempty"`
}

// diskOf returns a disk with the options of the boot disk of the VM's template.
func diskOf(vm *fleet.VM, slot, storage string, sizeGiB int64) disk {
	fields := properties(vm.Source.Options[vm.Source.DiskInterface], "volume")
	optional := func(name string) *bool {
		text, ok := fields[name]
		if !ok {
			return nil
		}
		value := flag(text)
		return &value
	}
	return disk{
		Interface:   slot,
		DatastoreID: storage,
		SizeGiB:     sizeGiB,
		AIO:         fields["aio"],
		Backup:      optional("backup"),
		Cache:       fields["cache"],
		Discard:     fields["discard"],
		IOThread:    optional("iothread"),
		Replicate:   optional("replicate"),
		SSD:         optional("ssd"),
	}
}

// grows reports whether a VM's boot disk must be resized after the clone.
func grows(vm *fleet.VM) bool { return vm.DiskGiB > vm.Source.DiskGiB }
