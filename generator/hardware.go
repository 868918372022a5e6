package generator

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/fleet"
)

var diskInterface = regexp.MustCompile(`^(scsi|virtio|sata|ide)[0-9]+$`)

// hardware is the hardware that a VM inherits from its template and that the module
// repeats. A missing field means Proxmox' default.
type hardware struct {
	Agent         *agent   `json:"agent,omitempty"`
	BIOS          string   `json:"bios,omitempty"`
	BootOrder     []string `json:"boot_order,omitempty"`
	Machine       string   `json:"machine,omitempty"`
	OSType        string   `json:"os_type,omitempty"`
	SCSIHardware  string   `json:"scsi_hardware,omitempty"`
	SerialDevices []string `json:"serial_devices,omitempty"`
	VGA           *vga     `json:"vga,omitempty"`
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

// readHardware reads the options of a template, and refuses options that a clone cannot
// have.
func readHardware(vm *fleet.VM) (hardware, error) {
	options := vm.Source.Options
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if err := checkOption(vm, name, options[name]); err != nil {
			return hardware{}, err
		}
	}
	h := hardware{
		BIOS: options["bios"], Machine: options["machine"],
		OSType: options["ostype"], SCSIHardware: options["scsihw"],
	}
	if text, ok := options["agent"]; ok {
		fields := properties(text, "enabled")
		h.Agent = &agent{
			Enabled: flag(fields["enabled"]), Trim: flag(fields["fstrim_cloned_disks"]), Type: fields["type"],
		}
	}
	if order, ok := strings.CutPrefix(options["boot"], "order="); ok && order != "" {
		h.BootOrder = strings.Split(order, ";")
	} else if len(vm.DataDisks) > 0 { // otherwise Proxmox boots from the first disk that it finds
		h.BootOrder = []string{vm.Source.DiskInterface}
	}
	var err error
	if h.VGA, err = readVGA(options["vga"]); err != nil {
		return hardware{}, err
	}
	h.SerialDevices, err = readSerial(options)
	return h, err
}

func checkOption(vm *fleet.VM, name, value string) error {
	field := "source.options." + name
	switch {
	case !optionName.MatchString(name) || name == "for":
		return refuse("source.options", name, "is no option of Proxmox: leave it out")
	case name == "hookscript":
		return refusef(field, "template %s on host %s has one, which a token cannot remove from a clone: "+
			"run qm set %d --delete hookscript", vm.Template, vm.Host, vm.Source.VMID)
	case name == "affinity" && affinity(vm) == "":
		return refusef(field, "template %s on host %s has one, which a token cannot remove from a clone: "+
			"run qm set %d --delete affinity", vm.Template, vm.Host, vm.Source.VMID)
	}
	return checkText(field, value)
}

func readVGA(text string) (*vga, error) {
	if text == "" {
		return nil, nil
	}
	fields := properties(text, "type")
	display := &vga{Type: fields["type"], Clipboard: fields["clipboard"]}
	if memory, ok := fields["memory"]; ok {
		mib, err := strconv.Atoi(memory)
		if err != nil {
			return nil, refuse("source.options.vga", text, "memory is not a number: mend the template's display")
		}
		display.Memory = mib
	}
	return display, nil
}

func readSerial(options map[string]string) ([]string, error) {
	var devices []string
	for i := range maxSerial {
		device, ok := options["serial"+strconv.Itoa(i)]
		if !ok {
			continue
		}
		if len(devices) != i {
			return nil, refusef(fmt.Sprintf("source.options.serial%d", i),
				"there is no serial%d: number the template's serial ports from serial0 without gaps", len(devices))
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// properties parses a Proxmox property string such as "1,type=virtio"; unnamed is the key
// of a first value without one.
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

// disk is a data disk, or a boot disk that must be larger than the template's. The other
// fields repeat the template's boot disk, because the provider resets fields that are
// left out.
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

// grows reports whether a VM's boot disk must be resized after the clone.
func grows(vm *fleet.VM) bool { return vm.DiskGiB > vm.Source.DiskGiB }

func diskOf(vm *fleet.VM) *disk {
	if !grows(vm) {
		return nil
	}
	d := &disk{Interface: vm.Source.DiskInterface, DatastoreID: vm.Source.Storage, SizeGiB: vm.DiskGiB}
	d.takeOptions(vm)
	if vm.Clone == fleet.CloneFull && vm.Storage != "" {
		d.DatastoreID = vm.Storage
	}
	return d
}

// takeOptions sets the options of the template's boot disk on d.
func (d *disk) takeOptions(vm *fleet.VM) {
	fields := properties(vm.Source.Options[vm.Source.DiskInterface], "volume")
	optional := func(name string) *bool {
		text, ok := fields[name]
		if !ok {
			return nil
		}
		value := flag(text)
		return &value
	}
	d.AIO, d.Cache, d.Discard = fields["aio"], fields["cache"], fields["discard"]
	d.Backup, d.Replicate = optional("backup"), optional("replicate")
	d.IOThread, d.SSD = optional("iothread"), optional("ssd")
}
