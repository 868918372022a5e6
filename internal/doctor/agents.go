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

// hostAgents checks that the agent of each readable host reports and pins for this cluster,
// and that the fleet's VMs are pinned as their files declare. A missing agent is a problem
// only if a class or a running VM of the fleet needs it.
func (e *examination) hostAgents(ctx context.Context) {
	if len(e.seen.Hosts) == 0 {
		return
	}
	desired, err := e.config.Fleet(ctx)
	if err != nil {
		desired = fleet.Fleet{} // the check of VMIDs reports the error
	}
	for i := range e.seen.Hosts {
		host := &e.seen.Hosts[i]
		if host.Problem != "" {
			continue
		}
		// ours are the running VMs that the agent must pin.
		ours := slices.DeleteFunc(slices.Clone(desired.VMs), func(vm fleet.VM) bool {
			return vm.Host != host.ID() || vm.PinWith != fleet.PinWithHostAgent || len(vm.VCPUPins) == 0 ||
				!slices.ContainsFunc(host.Guests, func(g topology.Guest) bool {
					return g.Running && g.VMID == int(vm.VMID) && g.Key == string(vm.Key)
				})
		})
		// A class may pin nodes on this host with its agent.
		needed := len(ours) > 0 || slices.ContainsFunc(e.config.Classes, func(c v1alpha1.ProxmoxNodeClass) bool {
			placement := &c.Spec.Placement
			return placement.PinWith == v1alpha1.PinWithHostAgent && fleet.Policy(placement.EffectivePolicy()).Pinned() && scheduling.Allows(&c, host.ID())
		})

		where := host.ID().String()
		faults := host.AgentFaults(e.config.ClusterID, host.ReadAt)
		if a := host.Agent; a != nil && (len(faults) == 0 || !faults[0].Blocks) {
			what, values := topology.Sentence("numaform-agent %s is running: isolation %s, last report %s ago",
				a.Version, a.Isolation, topology.Elapsed(max(host.ReadAt.Sub(a.At), 0)))
			e.report = append(e.report, Finding{Check: "agent", Status: OK, Where: where, What: what, Values: values})
		}
		for _, fault := range faults {
			finding := Finding{Check: "agent", Status: Warn, Where: where, What: fault.What, Values: fault.Values, Fix: fault.Fix}
			switch {
			case !needed:
				finding.Status, finding.Fix = OK, ""
				finding.What += "; no ProxmoxNodeClass uses it on this host"
			case fault.Blocks && e.lacking[host.ID()]:
				finding.Status = Fail
			}
			e.report = append(e.report, finding)
		}
		e.pinned(host, ours)
	}
}

// pinned checks that the agent reports the declared pins of the VMs.
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
		case refused: // hostAgents reported it
		case len(reported) == 0:
			e.add("pin", Warn, where,
				fmt.Sprintf("VM %d (%s) declares CPUs %s in its file, but the agent does not report it as pinned", vmid, vm.Name, declared),
				"wait five minutes for the next report, then run numaform-agent status on the host")
		default:
			e.add("pin", Warn, where,
				fmt.Sprintf("VM %d (%s) declares CPUs %s in its file, but the agent reports %s", vmid, vm.Name, declared, reported),
				"wait five minutes for the next report, then run numaform drift to check the VM's description")
		}
	}
	if asDeclared > 0 {
		e.ok("pin", where, fmt.Sprintf("the host agent pins %d of %s as declared", asDeclared, topology.Count(len(vms), "VM")))
	}
}
