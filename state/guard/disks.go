package guard

import (
	"fmt"

	"github.com/numaform/numaform/fleet"
)

// disks denies a new VM with other disks than requested: the named ones, each empty, and
// the template's boot disk, which may grow.
func (j *judge) disks(address string, after map[string]any, want Target) {
	wanted := map[string]fleet.DataDisk{}
	for _, d := range want.DataDisks {
		wanted[d.Interface] = d
	}
	boot := want.BootDisk
	for _, block := range list(after["disk"]) {
		got := attributes(block)
		slot := text(got["interface"])
		d, named := wanted[slot]
		switch {
		case filled(got):
			j.deny(RulePrivileged, address, fmt.Sprintf("disk %.40q would be of what lies on a storage: numaform makes empty ones only; use the module that it wrote", slot))
		case named && !isDisk(got, d):
			j.deny(RulePrivileged, address, fmt.Sprintf("disk %s would not be of %d GiB on %s, as the VM's file says: plan again from fresh files", slot, d.SizeGiB, d.Storage))
		case !named && (slot == "" || slot != boot):
			j.deny(RulePrivileged, address, fmt.Sprintf("disk %.40q is not among those of the VM's file: plan again from fresh files", slot))
		case !named:
			boot = ""
		}
		delete(wanted, slot)
	}
	if len(wanted) > 0 {
		j.deny(RulePrivileged, address, fmt.Sprintf("the VM would get %d disks of its %d: plan again from fresh files", len(want.DataDisks)-len(wanted), len(want.DataDisks)))
	}
}

// filled reports whether a disk would be created with existing content.
func filled(disk map[string]any) bool {
	return !zero(disk["file_id"]) || !zero(disk["import_from"]) || !zero(disk["path_in_datastore"])
}

// isDisk reports whether a planned disk has the requested disk's size and storage.
func isDisk(got map[string]any, want fleet.DataDisk) bool {
	size, ok := integer(got["size"])
	return ok && size == want.SizeGiB && text(got["datastore_id"]) == want.Storage
}
