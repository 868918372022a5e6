package scheduling

import (
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// InPlace gives a Spec what of a class VMs take over while they run: tags, pool,
// security groups, and where the host agent puts the emulator of those that it pins.
// None of it is in ClassHash.
func InPlace(nc *v1alpha1.ProxmoxNodeClass, spec *fleet.Spec) {
	spec.Tags, spec.ResourcePool = sortedCopy(nc.Spec.Tags), nc.Spec.Pool
	spec.SecurityGroups = slices.Clone(nc.Spec.SecurityGroups)
	spec.Emulator = ""
	if spec.Policy.Pinned() && spec.PinWith == fleet.PinWithHostAgent {
		spec.Emulator = fleet.Emulator(nc.Spec.Placement.Emulator)
	}
}
