package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Published is the name of a topology with SourceAgent in warnings. The caller replaces it
// with the place in Proxmox where the topology is published.
const Published = "the topology that is published in Proxmox"

// dropContradicting removes sources that contradict the live host. Such a source describes
// another machine, or this machine before a change of hardware or firmware. Its siblings and
// caches may be wrong, and with wrong siblings the planner would assign a core twice.
// dropContradicting returns a warning for each removed source.
func dropContradicting(machines []Machine) ([]Machine, []string) {
	var rest []Machine
	var warnings []string
	for _, m := range byRank(machines, FactCPUs) {
		source := m.Sources[FactCPUs]
		why := ""
		if source != "" && source.rank() < SourceReport.rank() {
			why = m.Contradiction(machines...)
		}
		if why == "" {
			rest = append(rest, m)
			continue
		}
		warnings = append(warnings, fmt.Sprintf("%s is not used: %s: it describes another machine, or this one before a change; %s",
			source.name(), why, source.fix()))
	}
	return rest, warnings
}

// Contradiction describes how the machine contradicts the live sources, or returns "".
// Merge ignores a machine that contradicts them. The live sources are a report and, for a
// host whose report cannot be read, counts. Any difference from these counts in the number
// of online CPUs is a contradiction.
//
// A CPU that is offline in the report is not a contradiction. A CPU that came online is,
// because it may be an unlisted sibling: a source that lists each CPU as its own core would
// let the planner assign siblings to two VMs. This does not apply to node-capacity, which
// lists no siblings.
func (m *Machine) Contradiction(live ...Machine) string {
	at := slices.IndexFunc(live, func(l Machine) bool { return l.Sources[FactCPUs] == SourceReport })
	report := at >= 0
	if !report {
		at = slices.IndexFunc(live, func(l Machine) bool { return l.Sources[FactCPUs] == SourceStatus })
	}
	if at < 0 {
		return ""
	}
	host := &live[at]
	online, onlineNow := m.OnlineCPUs(), host.OnlineCPUs()
	if !report && online.Size() != onlineNow.Size() {
		return fmt.Sprintf("it lists %d CPUs, but Proxmox counts %d", online.Size(), onlineNow.Size())
	}
	if report {
		if why := m.contradictsReport(host); why != "" {
			return why
		}
	}

	threads := host.Threads
	if threads.PerCore == 0 {
		return ""
	}
	most := 0
	for _, core := range m.Cores() {
		size := core.CPUs.Size()
		if threads.Even && size != threads.PerCore {
			return fmt.Sprintf("it lists CPUs %s as a whole core, but the host's number of threads per core is %d", core.CPUs, threads.PerCore)
		}
		most = max(most, size)
	}
	if m.SiblingsKnown() && most != threads.PerCore {
		return fmt.Sprintf("its number of threads per core is at most %d, but the host's is %d", most, threads.PerCore)
	}
	return ""
}

// contradictsReport describes how the CPUs, NUMA nodes or model contradict the live host,
// or returns "".
func (m *Machine) contradictsReport(host *Machine) string {
	listed, has := m.cpuIDs(), host.cpuIDs()
	partial := m.Sources[FactCPUs] == SourceCapacity // lists only online CPUs, without siblings
	switch added := host.OnlineCPUs().Difference(m.OnlineCPUs()); {
	case !listed.IsSubsetOf(has), !partial && !listed.Equal(has):
		return fmt.Sprintf("it lists CPUs %s, but the host has %s", listed, has)
	case !partial && !added.IsEmpty():
		return fmt.Sprintf("it lists CPUs %s as offline, but they are online", added)
	case host.provides(FactNUMA) && m.provides(FactNUMA) && !m.nodeIDs().IsSubsetOf(host.nodeIDs()):
		return fmt.Sprintf("it lists NUMA nodes %s, but the host has %s", m.nodeIDs(), host.nodeIDs())
	case m.Model != "" && host.Model != "" && !slices.Equal(strings.Fields(m.Model), strings.Fields(host.Model)):
		return fmt.Sprintf("it is for model %s, but the host is %s", quote(m.Model), quote(host.Model))
	}
	return ""
}

// fix returns how to correct a source that does not match the host.
func (s Source) fix() string {
	switch s {
	case SourceAgent:
		return "publish it again with `systemctl start numaform-agent-publish` or `numaform topology collect -o notes` on the host"
	case SourceCapacity:
		return "correct the VM, or run `numaform topology collect` on the host and add the file to machines in numaform.yaml"
	case SourceCollected:
		return "run `numaform topology collect` on the host again"
	default:
		return "run `numaform topology collect` on the host and add the file to machines in numaform.yaml"
	}
}

// name returns the source's name for a message. It names the location of the source, so
// that a user can fix it.
func (s Source) name() string {
	switch s {
	case SourceAgent:
		return Published
	case SourceCollected:
		return "the collected file under machines"
	case SourceCapacity:
		return "VM node-capacity"
	default:
		return "the " + string(s)
	}
}
