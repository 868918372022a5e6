package qemu

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var pciAddress = regexp.MustCompile(`^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])$`)

// Devices returns the addresses of the PCI devices that are passed through to a VM, sorted,
// from QEMU's arguments. They are whole functions: for mediated devices the interrupts
// remain with the host's driver.
func (r Reader) Devices(run Run) ([]string, error) {
	data, err := r.read(fmt.Sprintf("proc/%d/cmdline", run.PID))
	if err != nil {
		return nil, fmt.Errorf("reading how QEMU was started: %w", err)
	}
	return ParseDevices(strings.Split(string(data), "\x00")), nil
}

// ParseDevices reads QEMU's arguments. It ignores arguments not spelled like Proxmox'.
func ParseDevices(args []string) []string {
	var devices []string
	for i := 1; i < len(args); i++ {
		if args[i-1] != "-device" {
			continue
		}
		if device, ok := parseDevice(args[i]); ok {
			devices = append(devices, device)
		}
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}

func parseDevice(arg string) (string, bool) {
	fields := strings.Split(arg, ",")
	// Two commas escape one comma in a value.
	if fields[0] != "vfio-pci" || slices.Contains(fields, "") {
		return "", false
	}
	device := ""
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		switch {
		case key == "sysfsdev", key == "host" && device != "":
			return "", false
		case key == "host":
			device = value
		}
	}
	found := pciAddress.FindStringSubmatch(device)
	if found == nil {
		return "", false
	}
	domain := found[1]
	if domain == "" {
		domain = "0000"
	}
	return domain + ":" + found[2], true
}
