package fleet

import (
	"slices"
	"strconv"
)

// DataDisk is an empty disk in addition to the boot disk. It is created and deleted with
// the VM.
type DataDisk struct {
	// Interface is the slot, such as scsi1; empty in a Spec, because the free slots
	// depend on the template.
	Interface string `json:"interface,omitempty"`
	SizeGiB   int64  `json:"size_gib"`
	// Storage is the disk's storage; empty in a Spec means the boot disk's storage.
	Storage string `json:"storage,omitempty"`
}

// scsiSlots is the number of SCSI slots in Proxmox.
const scsiSlots = 31

// FreeSlots returns the first SCSI slots that are not in taken, up to most.
func FreeSlots(taken []string, most int) []string {
	var free []string
	for i := range scsiSlots {
		if slot := "scsi" + strconv.Itoa(i); len(free) < most && !slices.Contains(taken, slot) {
			free = append(free, slot)
		}
	}
	return free
}
