package scaler

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// devices tells of PCI devices that a VM lacks: somebody took them off, or its making was
// cut off. No plan shows it, for a template's own devices are left alone.
func (d *VMDrift) devices(guest located) {
	d.lacks("hostpci", lackingDevices(d.VM.PCIDevices, guest.PCIDevices), guest)
}

// lackingDevices names the mappings of wanted devices that are not there.
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
