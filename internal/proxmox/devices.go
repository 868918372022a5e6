package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/numaform/numaform/topology"
)

// The resource mappings of PCI devices, of which Proxmox lists those that the credential
// may see.
const pciMappingsPath = "/cluster/mapping/pci"

// maxHostPCI is how many hostpciN Proxmox knows.
const maxHostPCI = 16

// pciMapping is a resource mapping of PCI devices.
type pciMapping struct {
	ID  string   `json:"id"`
	Map []string `json:"map"`
}

// readMappings gives the hosts the devices that resource mappings name. Where that fails,
// no class can have devices, and all else goes on.
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

// readDevices reads the PCI devices that are passed through to a VM. One that cannot be
// read is none that a mapping names.
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

// locate tells the NUMA nodes of the hosts' devices, as far as agents say them.
func locate(hosts []topology.Host) {
	for i := range hosts {
		hosts[i].PCIDevices = hosts[i].LocatedDevices()
	}
}

// DeviceRole is what numaform's user needs on each resource mapping that a class names, to
// see it and to give its devices to VMs.
func DeviceRole() Role { return Role{Name: "NumaformDevice", Privileges: []string{"Mapping.Use"}} }
