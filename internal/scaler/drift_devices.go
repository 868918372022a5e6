package scaler

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// devices reports PCI devices that a VM lacks, because they were detached or its creation
// was interrupted. No plan shows this, because a template's own devices are ignored.
func (d *VMDrift) devices(guest located) {
	d.lacks("hostpci", lackingDevices(d.VM.PCIDevices, guest.PCIDevices), guest)
}

// lackingDevices returns the mappings of requested devices that are missing.
func lackingDevices(wanted []fleet.PCIDevice, there []topology.PassedDevice) []string {
	rest := slices.Clone(there)
	var lacking []string
	for _, w := range wanted {
		i := slices.Index(rest, topology.PassedDevice{Mapping: w.Mapping, MDev: w.MDev})
		if i < 0 {
			lacking = append(lacking, "mapping "+w.Mapping)
			continue
		}
		rest = slices.Delete(rest, i, i+1)
	}
	return lacking
}
