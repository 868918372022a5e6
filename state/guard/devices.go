package guard

import (
	"fmt"
	"strconv"

	"github.com/numaform/numaform/fleet"
)

// devices denies a new VM with other PCI devices of its host than requested. A device
// named by its address is also denied by privileged.
func (j *judge) devices(address string, after map[string]any, wanted []fleet.PCIDevice) {
	blocks := list(after["hostpci"])
	if len(blocks) != len(wanted) {
		j.deny(RulePrivileged, address, fmt.Sprintf("the VM would get %d PCI devices of its host instead of %d: plan again from fresh files", len(blocks), len(wanted)))
		return
	}
	for i, block := range blocks {
		got := attributes(block)
		if !zero(got["rom_file"]) || text(got["device"]) != "hostpci"+strconv.Itoa(i) || wanted[i] != (fleet.PCIDevice{
			Mapping: text(got["mapping"]), MDev: text(got["mdev"]), PCIe: got["pcie"] == true, XVGA: got["xvga"] == true,
		}) {
			j.deny(RulePrivileged, address, fmt.Sprintf("%.40q would be another PCI device than %q of the VM's file: use the module that numaform wrote, and plan again",
				text(got["device"]), wanted[i].Mapping))
		}
	}
}
