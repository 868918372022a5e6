package generator

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/numaform/numaform/fleet"
)

// The values that Proxmox accepts in hostpciN.
var (
	mappingName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]+$`)
	mdevType    = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_-]*)?$`)
)

// maxPCIDevices is the number of hostpciN options in Proxmox.
const maxPCIDevices = 16

// devices checks the passed-through PCI devices.
func (c vmChecker) devices() error {
	if len(c.vm.PCIDevices) > maxPCIDevices {
		return refusef("pci_devices", "%d of them: Proxmox knows at most %d", len(c.vm.PCIDevices), maxPCIDevices)
	}
	for i, device := range c.vm.PCIDevices {
		name := fmt.Sprintf("pci_devices[%d].", i)
		if err := first(
			checkMatch(name+"mapping", device.Mapping, mappingName, "want the name of a resource mapping"),
			checkMatch(name+"mdev", device.MDev, mdevType, "want a type of mediated device, such as nvidia-63"),
		); err != nil {
			return err
		}
	}
	return nil
}

// mappings returns the names of the devices' mappings.
func mappings(devices []fleet.PCIDevice) string {
	names := make([]string, len(devices))
	for i, device := range devices {
		names[i] = device.Mapping
	}
	return strings.Join(names, ", ")
}
