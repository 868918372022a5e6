package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// hostAgents checks for each readable host whether its host agent is alive and pins for
// this cluster, and for each of our VMs whether it is pinned as its file declares. A
// missing agent that no class needs is only reported as information.
func (e *examination) hostAgents(ctx context.Context) {
	if len(e.seen.Hosts) == 0 {
		return
	}
	wanted, err := e.config.Fleet(ctx)
	if err != nil {
		wanted = fleet.Fleet{} // reported by the check of VMIDs
	}
	for i := range e.seen.Hosts {
		host := &e.seen.Hosts[i]
		if host.Problem != "" {
			continue
		}
		ours := pinnedOn(host, wanted.VMs)
		e.hostAgent(host, len(ours) > 0 || e.wantsAgent(host.ID()))
		e.pinned(host, ours)
	}
}

// wantsAgent reports whether a class may have nodes on the host that its agent pins.
func (e *examination) wantsAgent(host topology.HostID) bool {
	return slices.ContainsFunc(e.config.Classes, func(c v1alpha1.ProxmoxNodeClass) bool {
		placement := &c.Spec.Placement
		return placement.PinWith == v1alpha1.PinWithHostAgent && fleet.Policy(placement.EffectivePolicy()).Pinned() && scheduling.Allows(&c, host)
	})
}

// pinnedOn returns the running VMs on the host that its agent must pin.
func pinnedOn(host *topology.Host, vms []fleet.VM) []fleet.VM {
	var found []fleet.VM
	for _, vm := range vms {
		runs := slices.ContainsFunc(host.Guests, func(g topology.Guest) bool {
			return g.Running && g.VMID == int(vm.VMID) && g.Key == string(vm.Key)
		})
		if runs && vm.Host == host.ID() && vm.PinWith == fleet.PinWithHostAgent && len(vm.VCPUPins) > 0 {
			found = append(found, vm)
		}
	}
	return found
}

// hostAgent checks the host's agent.
func (e *examination) hostAgent(host *topology.Host, needed bool) {
	where, faults := host.ID().String(), host.AgentFaults(e.config.ClusterID, host.ReadAt)
	if a := host.Agent; a != nil && (len(faults) == 0 || !faults[0].Blocks) {
		e.ok("agent", where, fmt.Sprintf("numaform-agent %s lives: isolation %s, heard of %s ago", a.Version, a.Isolation, topology.Age(max(host.ReadAt.Sub(a.At), 0))))
	}
	for _, fault := range faults {
		finding := Finding{Check: "agent", Status: Warn, Where: where, What: fault.What, Mend: fault.Mend}
		switch {
		case !needed:
			finding.Status, finding.Mend = OK, ""
			finding.What += "; no ProxmoxNodeClass that is named pins by it there"
		case fault.Blocks && e.lacking[host.ID()]:
			finding.Status = Fail
		}
		e.add(finding)
	}
}

// pinned checks for each of our VMs whether the agent reports it as pinned as declared.
func (e *examination) pinned(host *topology.Host, vms []fleet.VM) {
	if host.Agent == nil || len(vms) == 0 {
		return
	}
	where, as := host.ID().String(), 0
	for _, vm := range vms {
		vmid := int(vm.VMID)
		declared, has := topology.Pins(vm.VCPUPins), host.Agent.Pinned[vmid]
		finding := Finding{Check: "pin", Status: Warn, Where: where}
		switch _, refused := host.Agent.Refused[vmid]; {
		case slices.Equal(declared, has):
			as++
			continue
		case refused:
			continue // hostAgent reported it
		case len(has) == 0:
			finding.What = fmt.Sprintf("VM %d (%s) declares CPUs %s, and the agent has not said that it is pinned", vmid, vm.Name, declared)
			finding.Mend = "the agent tells every five minutes; after that, numaform-agent status on the host says why"
		default:
			finding.What = fmt.Sprintf("VM %d (%s) declares CPUs %s in its file, but the agent has it on %s", vmid, vm.Name, declared, has)
			finding.Mend = "numaform drift says whether its description was changed; else wait for the agent, which tells every five minutes"
		}
		e.add(finding)
	}
	if as > 0 {
		e.ok("pin", where, fmt.Sprintf("%d of %s pinned as declared, by its host agent", as, count(len(vms), "VM")))
	}
}
