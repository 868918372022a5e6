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
func (c *Change) Compare(shard fleet.Shard, plan *tfjson.Plan) map[fleet.VMID]VMDrift {
	look := newLooker(c)
	vms := byAddress(c.After.VMs, shard)
	if plan != nil {
		look.read(plan, vms, guard.DefaultRules())
	}
	found := map[fleet.VMID]VMDrift{}
	for _, vm := range vms {
		found[vm.VMID] = look.at(vm)
	}
	return found
}

// Differences returns how values differ.
func Differences(change *tfjson.Change) []DriftDifference { return differences(change) }

// LeaveOut returns the VMs of a host that still have to be planned after an error.
func (c *Change) LeaveOut(shard fleet.Shard, err error) (left map[string]fleet.VM, named bool) {
	left = byAddress(c.After.VMs, shard)
	named = newLooker(c).leaveOut(err, left)
	return left, named
}

// Compared returns what a refresh of a host's VMs reads.
func (c *Change) Compared(shard fleet.Shard) []string {
	return compared(byAddress(c.After.VMs, shard), locate(c.Snapshot))
}

// Elsewhere reports whether a shard's host may be down.
func (c *Change) Elsewhere(shard fleet.Shard) bool { return c.elsewhere(shard) }

// HostsOf returns the hosts to read before a shard is changed.
func (c *Change) HostsOf(shard fleet.Shard) []topology.HostName { return c.hostsOf(shard) }

// Behind returns what is outdated in the state about VMs to be removed.
func (w *wanted) Behind(resources ...state.Resource) (targets, groups []string) {
	return w.behind(resources, w.movedAway())
}

// StillThere refuses to repair a VM that is not provably ours.
func (w *wanted) StillThere(vm fleet.VM) error { return w.stillThere(vm) }

// Repairable refuses to repair a host, even without VMs.
func (w *wanted) Repairable() error { return w.repairable(nil) }

// IsNarrow reports whether planning is limited to the hosts that the change touches.
func (c *Change) IsNarrow() bool { return c.narrow }
