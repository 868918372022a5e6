package scaler

import (
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Compare classifies the VMs of a host by the change's snapshot and by a refreshed plan,
// if there is one.
func (c *Change) Compare(host topology.HostID, plan *tfjson.Plan) map[fleet.VMID]VMDrift {
	comparison := newComparison(c)
	vms := byAddress(c.After.VMs, host)
	if plan != nil {
		comparison.read(plan, vms, guard.DefaultRules())
	}
	found := map[fleet.VMID]VMDrift{}
	for _, vm := range vms {
		found[vm.VMID] = comparison.classify(vm)
	}
	return found
}

// Differences returns how values differ.
func Differences(change *tfjson.Change) []DriftDifference { return differences(change) }

// LeaveOut returns the VMs of a host that still have to be planned after an error.
func (c *Change) LeaveOut(host topology.HostID, err error) (left map[string]fleet.VM, named bool) {
	left = byAddress(c.After.VMs, host)
	named = newComparison(c).leaveOut(err, left)
	return left, named
}

// Compared returns what a refresh of a host's VMs reads.
func (c *Change) Compared(host topology.HostID) []string {
	return refreshTargets(byAddress(c.After.VMs, host), c.index())
}

// OnlyMovedAway reports whether a host may be down.
func (c *Change) OnlyMovedAway(host topology.HostID) bool { return c.onlyMovedAway(host) }

// HostsOf returns the hosts to read before a host is changed.
func (c *Change) HostsOf(host topology.HostID) []topology.HostName { return c.hostsOf(host) }

// Outdated returns what is outdated in the state about VMs to be removed.
func (v *hostView) Outdated(resources ...state.Resource) (targets, groups []string) {
	return v.outdated(resources, v.movedAway())
}

// Repairable refuses to repair a host's VMs.
func (v *hostView) Repairable(repaired ...fleet.VM) error {
	return v.repairable(byAddress(repaired, v.id))
}

// IsNarrow reports whether planning is limited to the hosts that the change touches.
func (c *Change) IsNarrow() bool { return c.narrow }
