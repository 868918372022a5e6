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
	desired, err := e.config.Fleet(ctx)
	if err != nil {
		desired = fleet.Fleet{} // reported by the check of VMIDs
	}
	for i := range e.seen.Hosts {
		host := &e.seen.Hosts[i]
		if host.Problem != "" {
			continue
		}
		// The running VMs that the agent must pin.
		ours := slices.DeleteFunc(slices.Clone(desired.VMs), func(vm fleet.VM) bool {
			return vm.Host != host.ID() || vm.PinWith != fleet.PinWithHostAgent || len(vm.VCPUPins) == 0 ||
				!slices.ContainsFunc(host.Guests, func(g topology.Guest) bool {
					return g.Running && g.VMID == int(vm.VMID) && g.Key == string(vm.Key)
				})
		})
		// A class that may have nodes on the host that its agent pins.
		needed := slices.ContainsFunc(e.config.Classes, func(c v1alpha1.ProxmoxNodeClass) bool {
			placement := &c.Spec.Placement
			return placement.PinWith == v1alpha1.PinWithHostAgent && fleet.Policy(placement.EffectivePolicy()).Pinned() && scheduling.Allows(&c, host.ID())
		})
		e.hostAgent(host, needed || len(ours) > 0)
		e.pinned(host, ours)
	}
}

// hostAgent checks the host's agent.
func (e *examination) hostAgent(host *topology.Host, needed bool) {
	where := host.ID().String()
	faults := host.AgentFaults(e.config.ClusterID, host.ReadAt)
	if a := host.Agent; a != nil && (len(faults) == 0 || !faults[0].Blocks) {
		e.ok("agent", where, fmt.Sprintf("numaform-agent %s lives: isolation %s, heard of %s ago", a.Version, a.Isolation, topology.Age(max(host.ReadAt.Sub(a.At), 0))))
	}
	for _, fault := range faults {
		switch {
		case !needed:
			e.ok("agent", where, fault.What+"; no ProxmoxNodeClass that is named pins by it there")
		case fault.Blocks && e.lacking[host.ID()]:
			e.add("agent", Fail, where, fault.What, fault.Fix)
		default:
			e.add("agent", Warn, where, fault.What, fault.Fix)
		}
	}
}

// pinned checks for each of our VMs whether the agent reports it as pinned as declared.
func (e *examination) pinned(host *topology.Host, vms []fleet.VM) {
	if host.Agent == nil || len(vms) == 0 {
		return
	}
	where := host.ID().String()
	asDeclared := 0
	for _, vm := range vms {
		vmid := int(vm.VMID)
		declared, reported := topology.Pins(vm.VCPUPins), host.Agent.Pinned[vmid]
		_, refused := host.Agent.Refused[vmid]
		switch {
		case slices.Equal(declared, reported):
			asDeclared++
		case refused: // hostAgent reported it
		case len(reported) == 0:
			e.add("pin", Warn, where,
				fmt.Sprintf("VM %d (%s) declares CPUs %s, and the agent has not said that it is pinned", vmid, vm.Name, declared),
				"the agent reports every five minutes; after that, numaform-agent status on the host says why")
		default:
			e.add("pin", Warn, where,
				fmt.Sprintf("VM %d (%s) declares CPUs %s in its file, but the agent has it on %s", vmid, vm.Name, declared, reported),
				"numaform drift says whether its description was changed; else wait for the agent, which reports every five minutes")
		}
	}
	if asDeclared > 0 {
		e.ok("pin", where, fmt.Sprintf("%d of %s pinned as declared, by its host agent", asDeclared, count(len(vms), "VM")))
	}
}
