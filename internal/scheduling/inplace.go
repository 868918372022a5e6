package scheduling

import (
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// InPlace gives a Spec what of a class VMs take over while they run: tags, pool and
// security groups. None of it is in ClassHash.
func InPlace(nc *v1alpha1.ProxmoxNodeClass, spec *fleet.Spec) {
	spec.Tags, spec.ResourcePool = sortedCopy(nc.Spec.Tags), nc.Spec.Pool
	spec.SecurityGroups = slices.Clone(nc.Spec.SecurityGroups)
}
