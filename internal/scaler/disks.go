package scaler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// NoSlotError reports that a template has no free SCSI slot for a VM's data disks.
type NoSlotError struct {
	Host         topology.HostID
	Template     int
	Wanted, Free int
}

func (e *NoSlotError) Error() string {
	return fmt.Sprintf("placing on %s: template %d leaves %d SCSI slots for %d data disks: remove drives from the template, or disks from spec.dataDisks",
		e.Host, e.Template, e.Free, e.Wanted)
}

// dataDisks assigns a request's data disks to the template's free slots, and to their
// storage.
func dataDisks(template *topology.Template, request Request) ([]fleet.DataDisk, error) {
	disks := slices.Clone(request.Spec.DataDisks)
	slots := fleet.FreeSlots(append(slices.Clone(template.Drives), template.DiskInterface), len(disks))
	if len(slots) < len(disks) {
		return nil, &NoSlotError{Host: request.Placement.Host, Template: template.VMID, Wanted: len(disks), Free: len(slots)}
	}
	for i := range disks {
		disks[i].Interface = slots[i]
		disks[i].Storage = cmp.Or(disks[i].Storage, request.Spec.Storage, template.Storage)
	}
	return disks, nil
}

// disks reports data disks that a VM lacks, because they were detached or its creation
// was interrupted. No plan shows this, because disks are ignored once they are created.
func (d *VMDrift) disks(guest located) {
	var lacking []string
	for _, disk := range d.VM.DataDisks {
		if len(guest.Disks) > 0 && !slices.Contains(guest.Disks, disk.Interface) {
			lacking = append(lacking, fmt.Sprintf("%s of %d GiB on %s", disk.Interface, disk.SizeGiB, disk.Storage))
		}
	}
	d.lacks("disk", lacking, guest)
}

// lacks reports what a VM was created with and no longer has.
func (d *VMDrift) lacks(attribute string, lacking []string, guest located) {
	if len(lacking) == 0 || d.Class != DriftNone && d.Class != DriftRepairable && d.Class != DriftReplace {
		return
	}
	d.Differences = append(d.Differences, DriftDifference{Attribute: attribute, File: strings.Join(lacking, ", "), Proxmox: "nothing"})
	d.Repairable = false
	d.replace(guest)
}
