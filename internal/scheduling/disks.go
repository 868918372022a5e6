package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// dataDisks returns a class's data disks in the form of a Spec. The result is meaningless
// for a class that Validate refuses.
func dataDisks(disks []v1alpha1.DataDisk) []fleet.DataDisk {
	var list []fleet.DataDisk
	for i := range disks {
		gib, _ := disks[i].SizeGiB()
		list = append(list, fleet.DataDisk{SizeGiB: gib, Storage: disks[i].Storage})
	}
	return list
}

// diskNeeds returns what the disks of a VM use on each storage, in MiB. Disks without a
// storage are on the template's.
func diskNeeds(spec *fleet.Spec, ofTemplate string, bootGiB int64) map[string]int64 {
	boot := cmp.Or(spec.Storage, ofTemplate)
	needs := map[string]int64{boot: needMiB(spec.Clone, bootGiB)}
	for _, d := range spec.DataDisks {
		needs[cmp.Or(d.Storage, boot)] += 1024 * d.SizeGiB
	}
	return needs
}

// diskFaults returns why the host has no room for the disks of the class's nodes.
func (c *class) diskFaults(host *topology.Host, from *template) []fault {
	var faults []fault
	add := func(condition, reason, message, mend string) {
		if message != "" {
			faults = append(faults, fault{Finding: Finding{condition, reason, message}, host: host.ID(), mend: mend})
		}
	}
	for i, d := range c.base.DataDisks {
		earlier := slices.ContainsFunc(c.base.DataDisks[:i], func(e fleet.DataDisk) bool { return e.Storage == d.Storage })
		if d.Storage == c.base.Storage || earlier {
			continue
		}
		add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonStorageNotFound, storageProblem(host, d.Storage, "images", "disk images"),
			"correct spec.dataDisks, or Datacenter > Storage in Proxmox")
	}
	add(v1alpha1.ConditionPlacementReady, v1alpha1.ReasonStorageFull, c.roomProblem(host, from), fullAdvice(&c.base))
	if from.Name == "" {
		return faults
	}
	wanted := len(c.base.DataDisks)
	if free := len(fleet.FreeSlots(append(slices.Clone(from.Drives), from.DiskInterface), wanted)); free < wanted {
		add(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateUnusable,
			fmt.Sprintf("has template %s, which leaves %d SCSI slots for %d data disks", describeTemplate(&c.fields.Template), free, wanted),
			"remove drives from the template, or disks from spec.dataDisks")
	}
	return faults
}

// roomProblem returns a problem if a storage for nodes' disks has no room for even the
// smallest. It ignores storages of unknown size.
func (c *class) roomProblem(host *topology.Host, from *template) string {
	if from.Name == "" {
		return ""
	}
	needs := diskNeeds(&c.base, from.Storage, max(c.smallestGiB, from.DiskGiB))
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		i := slices.IndexFunc(host.Storages, func(s topology.Storage) bool { return s.Name == name })
		if i < 0 || host.Storages[i].TotalMiB == 0 {
			continue
		}
		if free := host.Storages[i].FreeMiB; free < needs[name] {
			return fullProblem(name, free, needs[name], "")
		}
	}
	return ""
}

// fullAdvice returns the hint for a storage that is full.
func fullAdvice(spec *fleet.Spec) string {
	if len(spec.DataDisks) > 0 {
		return "make room there, or change spec.bootDevice or spec.dataDisks"
	}
	return "make room there, or change spec.bootDevice"
}
