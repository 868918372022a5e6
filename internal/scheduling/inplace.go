package scheduling

import (
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// InPlace sets the fields of a Spec that a class changes while VMs run: tags, pool,
// security groups, and the emulator setting of VMs that the host agent pins. None of them
// is in ClassHash.
func InPlace(nc *v1alpha1.ProxmoxNodeClass, spec *fleet.Spec) {
	spec.Tags, spec.ResourcePool = sortedCopy(nc.Spec.Tags), nc.Spec.Pool
	spec.SecurityGroups = slices.Clone(nc.Spec.SecurityGroups)
	spec.Emulator = ""
	if spec.Policy.Pinned() && spec.PinWith == fleet.PinWithHostAgent {
		spec.Emulator = fleet.Emulator(nc.Spec.Placement.Emulator)
	}
}
