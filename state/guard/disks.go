package guard

import (
	"fmt"

	"github.com/numaform/numaform/fleet"
)

// disks denies a new VM that would get other disks than it is to have: those that are
// named, each empty, and the template's boot disk, which may grow.
func (j *judge) disks(address string, after map[string]any, want Target) {
	wanted := map[string]fleet.DataDisk{}
	for _, d := range want.DataDisks {
		wanted[d.Interface] = d
	}
	boot := 1
	for _, block := range list(after["disk"]) {
		got := attributes(block)
		slot := text(got["interface"])
		d, named := wanted[slot]
		delete(wanted, slot)
		size, sized := integer(got["size"])
		switch {
		case !zero(got["file_id"]), !zero(got["import_from"]), !zero(got["path_in_datastore"]):
			j.deny(RulePrivileged, address, fmt.Sprintf("disk %.40q would be of what lies on a storage: numaform makes empty ones only; use the module that it wrote", slot))
		case named && (!sized || size != d.SizeGiB || text(got["datastore_id"]) != d.Storage):
			j.deny(RulePrivileged, address, fmt.Sprintf("disk %s would not be of %d GiB on %s, as the VM's file says: plan again from fresh files", slot, d.SizeGiB, d.Storage))
		case !named && (boot == 0 || want.BootDisk != "" && slot != want.BootDisk):
			j.deny(RulePrivileged, address, fmt.Sprintf("disk %.40q is not among those of the VM's file: plan again from fresh files", slot))
		case !named:
			boot--
		}
	}
	if len(wanted) > 0 {
		j.deny(RulePrivileged, address, fmt.Sprintf("the VM would get %d disks of its %d: plan again from fresh files", len(want.DataDisks)-len(wanted), len(want.DataDisks)))
	}
}
