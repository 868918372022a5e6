package fleet

import (
	"slices"
	"strconv"
)

// DataDisk is an empty disk that a VM has beside the one that it starts from. It is made
// with the VM and goes with it.
type DataDisk struct {
	// Interface is the slot, such as scsi1; a Spec names none, as the template decides.
	Interface string `json:"interface,omitempty"`
	SizeGiB   int64  `json:"size_gib"`
	// Storage takes it; a Spec names none where it is that of the boot disk.
	Storage string `json:"storage,omitempty"`
}

// scsiSlots is how many SCSI disks Proxmox knows.
const scsiSlots = 31

// FreeSlots returns the first SCSI slots besides those taken, at most so many.
func FreeSlots(taken []string, most int) []string {
	var free []string
	for i := range scsiSlots {
		if slot := "scsi" + strconv.Itoa(i); len(free) < most && !slices.Contains(taken, slot) {
			free = append(free, slot)
		}
	}
	return free
}
