package scaler

import (
	"context"
	"fmt"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// A host that left its Proxmox cluster for good took its VMs with it. No engine can plan it:
// the provider would wait for the host. Its VMs keep their files until their removal is
// requested. The removal then only deletes their files and their entries in the state, and ends
// the unfinished work of the host. See topology.Snapshot.Left for what counts as left.

// lost reports whether a VM does not exist: no guest has its VMID, or only one that is provably
// not the VM.
func (g guestIndex) lost(vm *fleet.VM) bool {
	_, exists := g.with(vm)
	return !exists || len(g.reused([]fleet.VM{*vm})) > 0
}

// onlyForgets reports whether a change does nothing on a host except that it removes VMs that do
// not exist. index has the current guests.
func (c *Change) onlyForgets(host topology.HostID, index guestIndex) bool {
	if len(on(slices.Concat(c.Added, c.Repaired, c.Updated, c.Woken, c.Foreign), host)) > 0 {
		return false
	}
	removed, unfinished := c.removedFrom(host)
	removed = slices.Concat(removed, unfinished)
	for i := range removed {
		if !index.lost(&removed[i]) {
			return false
		}
	}
	_, open := c.open[host]
	return open || len(removed) > 0
}

// leftProblem returns why a host that left its Proxmox cluster cannot be changed, and how to
// remove its VMs.
func (c *Change) leftProblem(host topology.HostID, index guestIndex) string {
	removed, unfinished := c.removedFrom(host)
	for _, vm := range slices.Concat(removed, unfinished) {
		if guest, _ := index.with(&vm); !index.lost(&vm) {
			return fmt.Sprintf("it left the Proxmox cluster, but guest %d of vm %s is on %s now: remove this VM alone, when that host can be used", vm.VMID, vm.Name, guest.host)
		}
	}
	return "it left the Proxmox cluster: to remove its VMs from the fleet, delete their NodeClaims, or run `numaform remove` with only their names"
}

// abandoned reports whether a host left its Proxmox cluster, and has neither VMs nor unfinished
// work: only its empty root is left.
func (c *Change) abandoned(host topology.HostID) bool {
	_, open := c.open[host]
	return !open && c.Snapshot.Left(host) && len(on(c.Before.VMs, host))+len(on(c.After.VMs, host)) == 0
}

// leftWarnings returns a warning for each host that left its Proxmox cluster and still has VMs
// in the fleet.
func (c *Change) leftWarnings() []string {
	var warnings []string
	for _, host := range c.After.AllHosts() {
		if !c.Snapshot.Left(host) {
			continue
		}
		if vms := on(c.After.VMs, host); len(vms) > 0 {
			warnings = append(warnings, fmt.Sprintf("host %s left the Proxmox cluster, but the fleet still contains %s of it, which use up the limits of their NodePools: "+
				"if the host is lost for good, delete their NodeClaims, or run `numaform remove` with their names: %s", host, topology.Count(len(vms), "VM"), names(vms)))
		}
	}
	return warnings
}

// excludesRemoval reports whether the removal of a VM and the removals of a change on its host
// exclude each other: on a host that left its Proxmox cluster, VMs that are now on another host
// are removed by a plan, and the others are only forgotten.
func (c *Change) excludesRemoval(vm *fleet.VM) bool {
	others := on(c.Removed, vm.Host)
	if len(others) == 0 || !c.Snapshot.Left(vm.Host) {
		return false
	}
	index := c.index()
	return index.lost(&others[0]) != index.lost(vm)
}

// planLeft plans the removal of VMs of a host that left its Proxmox cluster. The plan is not the
// engine's: forgetLeft carries it out.
func (s *Scaler) planLeft(ctx context.Context, plan *RootPlan, v *hostView) {
	text := fmt.Sprintf("No changes. Host %s left the Proxmox cluster. ", plan.Host)
	if lost := v.lostNames(); lost != "" {
		text += "numaform removes the files of " + lost + " and their entries in the state."
	} else {
		text += "numaform ends the unfinished work of the host."
	}
	plan.left = true
	plan.Plan = &state.Plan{JSON: &tfjson.Plan{}, Text: text}
	plan.Verdict = guard.Verdict{Decision: guard.Allow} // nothing changes in Proxmox
	s.checkNodes(ctx, v, nil)
	for _, address := range sortedKeys(v.removed) {
		if reason := v.blocked[address]; reason != "" {
			plan.Verdict = plan.Verdict.And(guard.Verdict{Decision: guard.Deny, Findings: []guard.Finding{{
				Rule: guard.RuleDrained, Decision: guard.Deny, Address: address, Message: "the VM stays in the fleet until its Node is drained: " + reason,
			}}})
		}
	}
}

// lostNames lists the VMs to be removed.
func (v *hostView) lostNames() string {
	var vms []fleet.VM
	for _, address := range sortedKeys(v.removed) {
		vms = append(vms, v.removed[address])
	}
	return names(vms)
}

// forgetLeft removes VMs of a host that left its Proxmox cluster from the state, after it has
// checked again that the host has left. outside lists what it did.
func (s *Scaler) forgetLeft(ctx context.Context, change *Change, plan *RootPlan) (outside []string, err error) {
	if plan.Verdict.Decision == guard.Deny {
		return nil, &DeniedError{Host: plan.Host, Verdict: plan.Verdict}
	}
	v, err := s.viewHost(ctx, change, plan.Host, true)
	if err != nil {
		return nil, err
	}
	if !v.left {
		return nil, fmt.Errorf("host %s is part of its Proxmox cluster again: the next apply removes the VMs", plan.Host)
	}
	addresses := map[string]bool{}
	for _, vm := range v.removed {
		for _, address := range generator.Addresses(withAnyGroups(vm)) {
			addresses[address] = true
		}
	}
	var entries []string
	if len(addresses) > 0 {
		resources, err := plan.workspace.Resources(ctx)
		if err != nil {
			return nil, err
		}
		for _, resource := range resources {
			if addresses[resource.Address] {
				entries = append(entries, resource.Address)
			}
		}
	}
	did := fmt.Sprintf("host %s left the Proxmox cluster: ended its unfinished work", plan.Host)
	if lost := v.lostNames(); lost != "" {
		did = fmt.Sprintf("host %s left the Proxmox cluster: removed %s from the fleet", plan.Host, lost)
	}
	if len(entries) > 0 {
		if err := plan.workspace.Forget(ctx, entries...); err != nil {
			return nil, err
		}
		did += ", and from the state: " + strings.Join(entries, ", ")
	}
	s.config.Progress(plan.Host, did)
	return []string{did}, nil
}
