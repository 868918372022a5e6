package scheduling

import (
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// agentFaults returns why the host agent would not pin a new VM of the class. Existing
// VMs stay, because their pins remain while the agent is gone.
func (c *class) agentFaults(host *topology.Host) []fault {
	if !c.base.Policy.Pinned() || c.base.PinWith != fleet.PinWithHostAgent {
		return nil
	}
	for _, f := range host.AgentFaults(c.clusterID, host.ReadAt) {
		if f.Blocks {
			finding := Finding{v1alpha1.ConditionPlacementReady, v1alpha1.ReasonHostAgentNotReady, f.What}
			return []fault{{Finding: finding, host: host.ID(), mend: f.Mend}}
		}
	}
	return nil
}

// lacksAgentOnly reports whether a working host agent is all that a host lacks.
func lacksAgentOnly(faults []fault) bool {
	return len(faults) > 0 && !slices.ContainsFunc(faults, func(f fault) bool { return f.Reason != v1alpha1.ReasonHostAgentNotReady })
}
