package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// AgentAge is the maximum age of the last publication of an agent that is considered alive.
// Agents publish every five minutes.
const AgentAge = 15 * time.Minute

// AgentState is the state of a host's agent.
type AgentState string

// The states of a host's agent.
const (
	AgentLiving AgentState = "living"
	// AgentUnread means that the state is unknown because the notes cannot be read, or the
	// agent's section in them is invalid.
	AgentUnread AgentState = "unread"
	// AgentAbsent means that no agent has published its state.
	AgentAbsent AgentState = "absent"
	// AgentOld means that the last publication is older than AgentAge.
	AgentOld AgentState = "old"
	// AgentClockDiffers means that the last publication is dated more than AgentAge in the
	// future.
	AgentClockDiffers AgentState = "clock differs"
	// AgentFailing means that the agent's last round failed: it could not read its host or
	// change the host's settings.
	AgentFailing AgentState = "failing"
	// AgentDisagrees means that the agent is alive but its configuration or topology
	// differs from numaform's, or that it refuses to pin a VM as declared.
	AgentDisagrees AgentState = "disagrees"
)

// AgentFault is a problem with a host's agent.
type AgentFault struct {
	State AgentState
	// What completes a sentence that begins with the host's name. Fix says how to fix it.
	What, Fix string
	// Values are the values in What.
	Values []Value
	// Blocks is true if the agent would not pin VMs placed on the host now.
	Blocks bool
	// VMID is the affected VM, or 0 if the fault is not about a single VM.
	VMID int
}

// AgentState returns the state of the agent at time now, for VMs of the given cluster.
func (h *Host) AgentState(clusterID string, now time.Time) AgentState {
	if faults := h.AgentFaults(clusterID, now); len(faults) > 0 {
		return faults[0].State
	}
	return AgentLiving
}

// AgentFaults returns the problems with the agent at time now, usually the host's ReadAt, for
// VMs of the given cluster. If the agent's data is missing, outdated or dated in the future,
// it returns only that problem. Faults that block come first. An empty clusterID matches any
// cluster.
func (h *Host) AgentFaults(clusterID string, now time.Time) []AgentFault {
	var faults []AgentFault
	add := func(state AgentState, what, fix string) {
		faults = append(faults, AgentFault{State: state, What: what, Fix: fix, Blocks: true})
	}

	// Without current data, no other check is possible.
	switch {
	case h.AgentProblem != "":
		add(AgentUnread, "does not show whether numaform-agent is running", h.AgentProblem)
		return faults
	case h.Agent == nil:
		add(AgentAbsent, "has no numaform-agent that publishes its state",
			"install or upgrade numaform-agent on the host, then run `systemctl start numaform-agent-publish`")
		return faults
	}
	switch age := now.Sub(h.Agent.At); {
	case age > AgentAge:
		what, values := Sentence("has a numaform-agent that has published nothing for %s, since %s", Elapsed(age), Moment(h.Agent.At))
		add(AgentOld, what, "run `systemctl status numaform-agent numaform-agent-publish.timer` on the host")
		faults[0].Values = values
		return faults
	case age < -AgentAge:
		what, values := Sentence("has a numaform-agent whose clock is %s ahead of numaform's", Elapsed(-age))
		add(AgentClockDiffers, what, "synchronize the clocks of both (timedatectl, chronyc tracking)")
		faults[0].Values = values
		return faults
	}

	if h.Agent.Problem != "" {
		add(AgentFailing, "has a numaform-agent whose last round failed: "+h.Agent.Problem,
			"run `numaform-agent status` and `journalctl -u numaform-agent` on the host; the next report, within five minutes, shows whether it is fixed")
	}
	if ids := h.Agent.Clusters; clusterID != "" && !slices.Contains(ids, clusterID) {
		others := "clusterIDs " + strings.Join(ids, ", ")
		switch len(ids) {
		case 0:
			others = "no cluster"
		case 1:
			others = "clusterID " + ids[0]
		}
		add(AgentDisagrees, fmt.Sprintf("has a numaform-agent that pins VMs of %s, not of clusterID %s", others, clusterID),
			fmt.Sprintf("add %s to clusters in /etc/numaform-agent.yaml on the host, then run systemctl restart numaform-agent", clusterID))
	}
	if refused := h.Agent.ReservedCPUs.Intersection(h.OnlineCPUs()).Difference(h.ReservedCPUs); !refused.IsEmpty() {
		add(AgentDisagrees, fmt.Sprintf("has a numaform-agent that pins no VM to CPUs %s, but numaform would place VMs there", refused),
			"reserve them in topology_file, or remove them from reserved_cpus in /etc/numaform-agent.yaml on the host, then run systemctl restart numaform-agent")
	}

	if h.Contradicted != "" {
		faults = append(faults, AgentFault{
			State: AgentDisagrees, What: "has a numaform-agent whose topology is not used: " + h.Contradicted,
			Fix: "run `systemctl start numaform-agent-publish` on the host",
		})
	}
	for _, vmid := range slices.Sorted(maps.Keys(h.Agent.Refused)) {
		i := slices.IndexFunc(h.Guests, func(g Guest) bool { return g.VMID == vmid })
		if i < 0 || h.Guests[i].ClusterID != clusterID && clusterID != "" {
			continue
		}
		reason := h.Agent.Refused[vmid]
		what := fmt.Sprintf("has a numaform-agent that refuses to pin VM %d %s as declared: %s (%s)", vmid, h.Guests[i].Name, refusalText(reason), reason)
		if pins := h.Agent.Pinned[vmid]; len(pins) > 0 {
			what += fmt.Sprintf("; it is still pinned to CPUs %s", pins)
		}
		faults = append(faults, AgentFault{State: AgentDisagrees, What: what, VMID: vmid, Fix: refusalHint(reason)})
	}
	return faults
}

// refusalText explains the reason for which the agent refuses to pin a VM, as docs/agent.md does.
func refusalText(reason string) string {
	switch reason {
	case "malformed":
		return "its declaration is malformed or of another version"
	case "foreign_cluster":
		return "the agent does not pin VMs of its cluster"
	case "no_such_cpu":
		return "a declared CPU does not exist or is offline"
	case "reserved_cpu":
		return "a declared CPU is reserved for the host"
	case "vcpus_differ":
		return "the number of its running vCPUs is unknown or differs from the number of pins"
	case "affinity":
		return "a pin conflicts with an affinity that root set for this VM or another guest"
	case "overlap":
		return "a declared CPU is assigned to another guest"
	case "key_twice":
		return "another guest has the same marker"
	case "ceiling":
		return "more than max_pinned_percent of the host would be pinned, or no core would remain free"
	case "unread":
		return "its configuration cannot be read"
	case "failed":
		return "the kernel rejected the change, and the agent tries again"
	}
	return "for a reason that this version of numaform does not know"
}

// refusalHint returns the fix for a VM that the agent refuses to pin for the given reason.
func refusalHint(reason string) string {
	switch reason {
	case "foreign_cluster":
		return "add the cluster ID to clusters in /etc/numaform-agent.yaml on the host, then run systemctl restart numaform-agent"
	case "reserved_cpu":
		return "reserve these CPUs in topology_file, then replace the VM"
	case "ceiling":
		return "raise max_pinned_percent in /etc/numaform-agent.yaml on the host, then run systemctl restart numaform-agent; " +
			"or reserve CPUs in topology_file, then replace the VM"
	case "key_twice":
		return "remove the marker from the description of the clone"
	case "vcpus_differ":
		return "replace the VM"
	}
	return "run `numaform-agent status` on the host; docs/agent.md explains the reasons"
}

// Age formats a duration in the largest unit of which it has at least two, rounded down:
// 20s, 47m, 3h, 2d.
func Age(age time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case age < 2*time.Minute:
		return fmt.Sprintf("%ds", int(age.Seconds()))
	case age < 2*time.Hour:
		return fmt.Sprintf("%dm", int(age.Minutes()))
	case age < 2*day:
		return fmt.Sprintf("%dh", int(age.Hours()))
	default:
		return fmt.Sprintf("%dd", int(age/day))
	}
}
