package topology

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// PCIDevice is a host device in a Proxmox resource mapping. A device in several mappings
// is listed once for each.
type PCIDevice struct {
	Mapping string `json:"mapping"`
	// Path is the device's address, such as 0000:01:00.0, or 0000:01:00 for all of its
	// functions; the addresses of devices that belong together are joined by ";".
	Path string `json:"path"`
	// NUMANode is the ID of the device's NUMA node, or Unknown.
	NUMANode int `json:"numa_node"`
}

// PassedDevice is a PCI device passed through to a guest, by mapping or by address.
type PassedDevice struct {
	Mapping string `json:"mapping,omitempty"`
	Address string `json:"address,omitempty"`
	// MDev is the type of the mediated device, which leaves capacity for other guests; empty
	// means that the guest has the whole device.
	MDev string `json:"mdev,omitempty"`
}

// UnmarshalJSON sets a missing NUMA node to Unknown instead of zero.
func (d *PCIDevice) UnmarshalJSON(data []byte) error {
	type plain PCIDevice
	device := plain{NUMANode: Unknown}
	if err := json.Unmarshal(data, &device); err != nil {
		return err
	}
	*d = PCIDevice(device)
	return nil
}

var (
	mappingPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]+$`)
	addressPattern = regexp.MustCompile(`^[a-f0-9]{4,8}(:[a-f0-9]{2}){2}(\.[a-f0-9])?$`)
	pathPattern    = regexp.MustCompile(`^[a-f0-9]{4,8}(:[a-f0-9]{2}){2}(\.[a-f0-9])?(;[a-f0-9]{4,8}(:[a-f0-9]{2}){2}(\.[a-f0-9])?)*$`)
)

// ParsePCIMap parses an element of a resource mapping, such as
// "node=pve-1,path=0000:01:00.0,id=10de:2204", and returns its host and device.
func ParsePCIMap(mapping, text string) (HostName, PCIDevice, error) {
	device := PCIDevice{Mapping: mapping, NUMANode: Unknown}
	var host HostName
	for part := range strings.SplitSeq(text, ",") {
		switch key, value, _ := strings.Cut(part, "="); key {
		case "node":
			host = HostName(value)
		case "path":
			device.Path = value
		}
	}
	if host == "" {
		return "", device, fmt.Errorf("parsing %s of PCI mapping %s: must have the form node=HOST,path=0000:01:00.0", quote(text), quote(mapping))
	}
	if err := device.check(); err != nil {
		return "", device, err
	}
	return host, device, nil
}

// LocatedDevices returns the host's devices with the NUMA nodes that its agent reports.
func (h *Host) LocatedDevices() []PCIDevice {
	located := slices.Clone(h.PCIDevices)
	if h.Agent == nil {
		return located
	}
	for i := range located {
		if node, ok := h.Agent.PCINodes[located[i].Functions()[0]]; ok {
			located[i].NUMANode = node
		}
	}
	return located
}

func (d *PCIDevice) check() error {
	if !mappingPattern.MatchString(d.Mapping) || !pathPattern.MatchString(d.Path) || d.NUMANode < Unknown {
		return fmt.Errorf("PCI device %s of mapping %s on NUMA node %d: must have an address such as 0000:01:00.0, a mapping such as gpu-1, and a NUMA node, or %d if that is unknown",
			quote(d.Path), quote(d.Mapping), d.NUMANode, Unknown)
	}
	return nil
}

// Functions returns the addresses in the device's path.
func (d *PCIDevice) Functions() []string { return strings.Split(d.Path, ";") }

// Overlaps reports whether the device shares a function with the address, such as 01:00.0
// or 0000:01:00.
func (d *PCIDevice) Overlaps(address string) bool {
	return slices.ContainsFunc(strings.Split(address, ";"), func(other string) bool {
		if strings.Count(other, ":") == 1 {
			other = "0000:" + other
		}
		return slices.ContainsFunc(d.Functions(), func(own string) bool {
			return own == other || strings.HasPrefix(own, other+".") || strings.HasPrefix(other, own+".")
		})
	})
}

// ParseHostPCI parses the value of a VM's hostpciN option.
func ParseHostPCI(text string) (PassedDevice, error) {
	var d PassedDevice
	for part := range strings.SplitSeq(text, ",") {
		key, value, keyed := strings.Cut(part, "=")
		switch {
		case !keyed:
			d.Address = part
		case key == "host":
			d.Address = value
		case key == "mapping":
			d.Mapping = value
		case key == "mdev":
			d.MDev = value
		}
	}
	if (d.Mapping == "") == (d.Address == "") {
		return PassedDevice{}, fmt.Errorf("parsing PCI device %s: must name either a mapping or an address, such as mapping=gpu or host=0000:01:00.0", quote(text))
	}
	return d, nil
}
