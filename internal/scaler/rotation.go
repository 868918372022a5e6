package scaler

import (
	"maps"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/topology"
)

// rotations are the VMID rotations by region.
type rotations map[topology.RegionName]fleet.Rotation

// rotations returns the VMID rotations: from the history, and from the fleet's VMs in
// regions that it does not contain.
func (s *Scaler) rotations(f *fleet.Fleet, recent []audit.Entry) rotations {
	found := rotations{}
	for i := range recent {
		for region, rotation := range recent[i].Change.Rotations {
			if known, ok := found[region]; !ok || rotation.Compare(known) > 0 {
				found[region] = rotation
			}
		}
	}
	unknown := slices.DeleteFunc(slices.Clone(f.VMs), func(vm fleet.VM) bool {
		_, known := found[vm.Host.Region]
		return known
	})
	s.past(found, unknown)
	return found
}

// past advances the rotations past the VMIDs of VMs.
func (s *Scaler) past(r rotations, vms []fleet.VM) {
	for _, vm := range vms {
		name := vm.Host.Region
		if bounds := s.region(name).VMIDs; bounds.Lower <= vm.VMID && vm.VMID <= bounds.Upper {
			r[name] = r[name].Past(vm.VMID)
		}
	}
}

// rotated returns the rotations once the change has begun, including VMs that others
// added to the files.
func (s *Scaler) rotated(change *Change, plans []ShardPlan) rotations {
	after := maps.Clone(change.rotations)
	if after == nil {
		after = rotations{}
	}
	for i := range plans {
		s.past(after, plans[i].Made)
	}
	return after
}

// lastOf returns the ID of the newest change, or "".
func lastOf(entries []audit.Entry) string {
	if len(entries) == 0 {
		return ""
	}
	return entries[len(entries)-1].Change.ID
}
