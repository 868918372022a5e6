package qemu

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

// Config is the relevant part of a running guest's configuration.
type Config struct {
	Description string
	// Affinity is the set that root configured for the guest, or empty: the affinity of a
	// VM, or the cpuset.cpus in a container's file.
	Affinity topology.CPUSet
}

// config reads a guest's file in /etc/pve.
func (r Reader) config(kind string, vmid int) (Config, error) {
	name := fmt.Sprintf("etc/pve/%s/%d.conf", kind, vmid)
	data, err := r.read(name)
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration: %w", err)
	}
	config, err := ParseConfig(string(data))
	if err != nil {
		return Config{}, fmt.Errorf("reading /%s: %w", name, err)
	}
	return config, nil
}

// ParseConfig reads the first section of a guest's file: pending changes and snapshots follow
// it. The description is URL-encoded, in comment lines or after the key description.
func ParseConfig(text string) (Config, error) {
	var config Config
	var description strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "[") {
			break
		}
		if encoded, ok := strings.CutPrefix(line, "#"); ok {
			description.WriteString(decode(encoded) + "\n")
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		var err error
		switch key {
		case "description":
			description.WriteString(decode(strings.TrimSpace(value)) + "\n")
		case "affinity", "lxc.cgroup2.cpuset.cpus", "lxc.cgroup.cpuset.cpus":
			config.Affinity, err = topology.ParseCPUSet(value)
		}
		if err != nil {
			return Config{}, fmt.Errorf("reading %s: %w", key, err)
		}
	}
	config.Description = description.String()
	return config, nil
}

// decode reverts the encoding of Proxmox; text that is not encoded is unchanged.
func decode(text string) string {
	if decoded, err := url.PathUnescape(text); err == nil {
		return decoded
	}
	return text
}

var pciAddress = regexp.MustCompile(`^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])$`)

// Devices returns the addresses of the PCI devices that are passed through to a VM, sorted,
// from QEMU's arguments. It omits mediated devices, because their interrupts remain with the
// host's driver.
func (r Reader) Devices(run Run) ([]string, error) {
	data, err := r.read(fmt.Sprintf("proc/%d/cmdline", run.PID))
	if err != nil {
		return nil, fmt.Errorf("reading the arguments of QEMU: %w", err)
	}
	return ParseDevices(strings.Split(string(data), "\x00")), nil
}

// ParseDevices reads QEMU's arguments. It ignores arguments that Proxmox would not write.
func ParseDevices(args []string) []string {
	var devices []string
	for i := 1; i < len(args); i++ {
		fields := strings.Split(args[i], ",")
		// Two commas escape one comma in a value.
		if args[i-1] != "-device" || fields[0] != "vfio-pci" || slices.Contains(fields, "") {
			continue
		}
		var hosts []string
		mediated := false
		for _, field := range fields[1:] {
			key, value, _ := strings.Cut(field, "=")
			mediated = mediated || key == "sysfsdev"
			if key == "host" {
				hosts = append(hosts, value)
			}
		}
		if mediated || len(hosts) != 1 {
			continue
		}
		if found := pciAddress.FindStringSubmatch(hosts[0]); found != nil {
			devices = append(devices, cmp.Or(found[1], "0000")+":"+found[2])
		}
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}
