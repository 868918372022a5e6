package generator

import (
	"fmt"
	"math"
	"slices"

	"github.com/numaform/numaform/fleet"
)

// dataDisks returns a VM's data disks as arguments of the module, with the options of the
// boot disk.
func dataDisks(vm *fleet.VM) []disk {
	var disks []disk
	for _, d := range vm.DataDisks {
		one := disk{Interface: d.Interface, DatastoreID: d.Storage, SizeGiB: d.SizeGiB}
		one.takeOptions(vm)
		disks = append(disks, one)
	}
	return disks
}

// dataDisksOf is the inverse of dataDisks. It drops the options, which follow from the
// template.
func dataDisksOf(disks []disk) []fleet.DataDisk {
	var list []fleet.DataDisk
	for _, d := range disks {
		list = append(list, fleet.DataDisk{Interface: d.Interface, SizeGiB: d.SizeGiB, Storage: d.DatastoreID})
	}
	return list
}

// disks checks the data disks.
func (c vmChecker) disks() error {
	slots := fleet.FreeSlots([]string{c.vm.Source.DiskInterface}, math.MaxInt)
	for i, d := range c.vm.DataDisks {
		name := fmt.Sprintf("data_disks[%d].", i)
		at := slices.Index(slots, d.Interface)
		switch {
		case at < 0:
			return refuse(name+"interface", d.Interface, "want a SCSI slot of its own, such as scsi1")
		case d.SizeGiB < 1 || d.SizeGiB > math.MaxInt32:
			return refusef(name+"size_gib", "%d: want from 1 to %d", d.SizeGiB, math.MaxInt32)
		}
		if err := checkMatch(name+"storage", d.Storage, storage, "want the name of a Proxmox storage"); err != nil {
			return err
		}
		slots = slices.Delete(slots, at, at+1)
	}
	return nil
}
