package scaler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// moved records a VM that is on another host than its file says, and the effect of its
// pins there.
func (l *looker) moved(found *VMDrift, guest located) {
	vm := found.VM
	if guest.host == vm.Host {
		return
	}
	found.Class = DriftMoved
	found.Differences = []DriftDifference{{Attribute: "node_name", File: string(vm.Host.Host), Proxmox: string(guest.host.Host)}}
	found.Notes = append(found.Notes, fmt.Sprintf("its Node's label topology.kubernetes.io/zone says %s", vm.Host.Host))
	found.Notes = append(found.Notes, l.pinsThere(vm, guest)...)
	found.Advice = fmt.Sprintf("move it back to %s in Proxmox, or drain the node and `numaform remove %s`; pods that need it get a new one",
		vm.Host.Host, vm.Name)
}

// pinsThere describes a VM's CPUs and NUMA nodes on its current host.
func (l *looker) pinsThere(vm fleet.VM, guest located) []string {
	var notes []string
	host := l.snapshot.Host(guest.host)
	if host == nil {
		return nil
	}
	if pins := vm.CPUs.Union(guest.Pins); !pins.IsEmpty() {
		notes = append(notes, fmt.Sprintf("its CPUs %s were chosen on %s and are other CPUs on %s", pins, vm.Host.Host, host.Name))
		notes = append(notes, l.pinConflicts(pins, vm, guest, host)...)
	}
	var nodes topology.CPUSet
	for _, cell := range vm.Cells {
		nodes = nodes.Union(cell.HostNodes)
	}
	if nodes.IsEmpty() {
		return notes
	}
	notes = append(notes, fmt.Sprintf("its memory is bound to NUMA nodes %s, which are others on %s", nodes, host.Name))
	if absent := nodes.Difference(numaNodes(host)); len(host.NUMANodes) > 0 && !absent.IsEmpty() {
		notes = append(notes, fmt.Sprintf("%s has no NUMA nodes %s: the VM does not start there again", host.Name, absent))
	}
	return notes
}

// pinConflicts lists the guests that own the CPUs of a VM's pins on its current host.
func (l *looker) pinConflicts(pins topology.CPUSet, vm fleet.VM, guest located, host *topology.Host) []string {
	var notes []string
	if absent := pins.Difference(cpusOf(host)); len(host.CPUs) > 0 && !absent.IsEmpty() {
		notes = append(notes, fmt.Sprintf("%s has no CPUs %s", host.Name, absent))
	}
	if reserved := pins.Intersection(host.ReservedCPUs); !reserved.IsEmpty() {
		notes = append(notes, fmt.Sprintf("CPUs %s are reserved for %s itself", reserved, host.Name))
	}
	for _, other := range l.sortedGuests(host.ID()) {
		if shared := pins.Intersection(other.Pins); other.VMID != guest.VMID && !shared.IsEmpty() {
			notes = append(notes, fmt.Sprintf("CPUs %s are pinned by guest %d (%s) there too", shared, other.VMID, other.Name))
		}
	}
	return append(notes, l.pinsToCome(pins, vm, host.ID())...)
}

// pinsToCome lists the pins that belong to VMs of the host that do not exist yet.
func (l *looker) pinsToCome(pins topology.CPUSet, vm fleet.VM, host topology.HostID) []string {
	var notes []string
	for i := range l.vms {
		other := &l.vms[i]
		_, exists := l.guests[guestID{other.Host.Region, other.VMID}]
		if shared := pins.Intersection(other.CPUs); !exists && other.Host == host && other.Key != vm.Key && !shared.IsEmpty() {
			notes = append(notes, fmt.Sprintf("CPUs %s are %s's, which is wanted there and does not exist yet", shared, other.Name))
		}
	}
	return notes
}

func cpusOf(host *topology.Host) topology.CPUSet {
	ids := make([]int, len(host.CPUs))
	for i, cpu := range host.CPUs {
		ids[i] = cpu.ID
	}
	return topology.CPUs(ids...)
}

func numaNodes(host *topology.Host) topology.CPUSet {
	ids := make([]int, len(host.NUMANodes))
	for i, node := range host.NUMANodes {
		ids[i] = node.ID
	}
	return topology.CPUs(ids...)
}

// follow updates the state to the current hosts of VMs to be removed, and reports whether
// that was necessary. The engine destroys a resource without a file as the state recorded
// it before the plan, even if the plan refreshes, and the provider would look for the VM
// on its old host. So this is a separate plan that changes only the state. Security
// groups are deleted with their VM; their entries name the old host, which may no longer
// exist.
func (s *Scaler) follow(ctx context.Context, plan *ShardPlan, w *wanted) (followed bool, err error) {
	moved := w.movedAway()
	if len(moved) == 0 || plan.dry {
		return false, nil
	}
	resources, err := plan.workspace.Resources(ctx)
	if err != nil {
		return false, err
	}
	targets, groups := w.behind(resources, moved)
	if len(groups) > 0 {
		if err := plan.workspace.Forget(ctx, groups...); err != nil {
			return false, err
		}
		plan.outside = append(plan.outside, "took out of the state, as their VMs are on another host: "+strings.Join(groups, ", "))
	}
	if len(targets) > 0 {
		s.config.Progress(plan.Shard, "reading where VMs are that were moved: "+strings.Join(targets, ", "))
		err = s.refreshState(ctx, plan, w, targets)
	}
	return len(targets)+len(groups) > 0, err
}

// behind returns the module calls of moved VMs whose host is outdated in the state, and
// the addresses of moved VMs' security groups.
func (w *wanted) behind(resources []state.Resource, moved []fleet.VM) (targets, groups []string) {
	for _, resource := range resources {
		for _, vm := range moved {
			now := w.guests[guestID{w.shard.Region, vm.VMID}].host
			switch i := slices.Index(generator.Addresses(&vm), resource.Address); {
			case i == 0 && resource.Host != now.Host:
				targets = append(targets, generator.Calls(&vm)[0])
			case i > 0:
				groups = append(groups, resource.Address)
			}
		}
	}
	return targets, groups
}

// refreshState updates the targets in the state from Proxmox.
func (s *Scaler) refreshState(ctx context.Context, plan *ShardPlan, w *wanted, targets []string) error {
	refresh, err := s.planWith(ctx, plan.workspace, state.PlanOptions{RefreshOnly: true, Targets: targets})
	if err != nil {
		return err
	}
	intent := guard.Intent{ClusterID: w.clusterID, Targeted: true}
	if verdict := guard.Check(refresh.JSON, intent, s.config.Rules); verdict.Decision != guard.Allow {
		return &DeniedError{Shard: plan.Shard, Verdict: verdict}
	}
	if _, err = plan.workspace.Apply(ctx, refresh); err == nil {
		plan.outside = append(plan.outside, fmt.Sprintf("wrote into the state on which host %s is, by plan %s", strings.Join(targets, ", "), refresh.SHA256))
	}
	return err
}

// movedAway returns the VMs to be removed that are now on another host, sorted.
func (w *wanted) movedAway() []fleet.VM {
	var moved []fleet.VM
	for _, vm := range w.removed {
		guest, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
		if exists && w.is(guest, vm) && guest.host != w.shard {
			moved = append(moved, vm)
		}
	}
	slices.SortFunc(moved, func(a, b fleet.VM) int { return cmp.Compare(a.VMID, b.VMID) })
	return moved
}

// elsewhere reports whether a change only removes VMs of a host that are now on other
// hosts, all of which are usable. It then does not matter if the host itself is down.
func (c *Change) elsewhere(shard fleet.Shard) bool {
	removed := byAddress(c.Removed, shard)
	if len(removed) == 0 || len(byAddress(c.Added, shard)) > 0 {
		return false
	}
	guests := locate(c.Snapshot)
	for _, vm := range removed {
		guest, exists := guests[guestID{shard.Region, vm.VMID}]
		if !exists || guest.host == shard || fleet.Key(guest.Key) != vm.Key || guest.ClusterID != c.After.ClusterID {
			return false
		}
		if host := c.Snapshot.Host(guest.host); host == nil || !host.Online || host.Problem != "" {
			return false
		}
	}
	return true
}

// hostsOf returns the hosts whose guests must be read before a host is changed: the host
// itself, and the hosts to which its VMs have moved.
func (c *Change) hostsOf(shard fleet.Shard) []topology.HostName {
	hosts := []topology.HostName{shard.Host}
	guests := locate(c.Snapshot)
	for _, vms := range [][]fleet.VM{c.Before.VMs, c.Removed} {
		for _, vm := range byAddress(vms, shard) {
			if guest, exists := guests[guestID{shard.Region, vm.VMID}]; exists && fleet.Key(guest.Key) == vm.Key {
				hosts = append(hosts, guest.host.Host)
			}
		}
	}
	slices.SortFunc(hosts, func(a, b topology.HostName) int { return strings.Compare(string(a), string(b)) })
	return slices.Compact(hosts)
}
