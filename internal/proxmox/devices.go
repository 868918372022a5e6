package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/numaform/numaform/topology"
)

// The resource mappings of PCI devices. Proxmox lists only mappings that the credential
// may see.
const pciMappingsPath = "/cluster/mapping/pci"

// maxHostPCI is the number of hostpciN options in Proxmox.
const maxHostPCI = 16

// pciMapping is a resource mapping of PCI devices.
type pciMapping struct {
	ID  string   `json:"id"`
	Map []string `json:"map"`
}

// readMappings sets the hosts' devices from the resource mappings. If that fails, no
// class can have devices, and everything else continues.
func (c *Client) readMappings(ctx context.Context, region *regionRead, hosts []topology.Host) {
	if !region.maps {
		return
	}
	var mappings []pciMapping
	if err := c.get(ctx, pciMappingsPath, &mappings); err != nil {
		region.MappingsProblem = "its resource mappings cannot be read: " + short(err)
		return
	}
	slices.SortFunc(mappings, func(a, b pciMapping) int { return cmp.Compare(a.ID, b.ID) })
	for _, mapping := range mappings {
		for _, text := range mapping.Map {
			name, device, err := topology.ParsePCIMap(mapping.ID, text)
			if err != nil {
				region.MappingsProblem = fmt.Sprintf("its resource mapping %s cannot be understood: %s", mapping.ID, err)
				continue
			}
			i := slices.IndexFunc(hosts, func(h topology.Host) bool { return h.Name == name })
			if i >= 0 {
				hosts[i].PCIDevices = append(hosts[i].PCIDevices, device)
			}
		}
	}
}

// readDevices reads the PCI devices passed through to a VM. It skips a device that cannot
// be parsed, because no mapping can contain it.
func readDevices(config values) []topology.PassedDevice {
	var devices []topology.PassedDevice
	for i := range maxHostPCI {
		text, ok := config["hostpci"+strconv.Itoa(i)]
		if !ok {
			continue
		}
		if device, err := topology.ParseHostPCI(text); err == nil {
			devices = append(devices, device)
		}
	}
	return devices
}

// locate sets the NUMA nodes of the hosts' devices, if agents report them.
func locate(hosts []topology.Host) {
	for i := range hosts {
		hosts[i].PCIDevices = hosts[i].LocatedDevices()
	}
}

// DeviceRole is the role that numaform's user needs on each resource mapping named in a
// class, to see it and to give its devices to VMs.
func DeviceRole() Role { return Role{Name: "NumaformDevice", Privileges: []string{"Mapping.Use"}} }
