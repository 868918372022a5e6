package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Published is how warnings refer to a topology with SourceAgent. The caller knows where
// in Proxmox it is published.
const Published = "the topology that is published in Proxmox"

// again is the hint for a source that does not match the host.
const again = "run `numaform topology collect` on the host again"

// dropForeign removes sources that contradict the live host: they describe another
// machine, or this one before a change of hardware or firmware. Their siblings and caches
// would be wrong, and wrong siblings assign a core twice. It returns a warning for each.
func dropForeign(machines []Machine) ([]Machine, []string) {
	report, status := living(machines)
	var kept []Machine
	var warnings []string
	for _, m := range byRank(machines, FactCPUs) {
		source := m.Sources[FactCPUs]
		why := ""
		if source != "" && source.rank() < SourceReport.rank() {
			why = m.contradicts(report, status)
		}
		if why == "" {
			kept = append(kept, m)
			continue
		}
		warnings = append(warnings, fmt.Sprintf("%s is not used: %s: it is of another machine, or of before a change; %s",
			source.name(), why, again))
	}
	return kept, warnings
}

// living returns the machines read from the live host, or nil.
func living(machines []Machine) (report, status *Machine) {
	for i := range machines {
		switch machines[i].Sources[FactCPUs] {
		case SourceReport:
			report = &machines[i]
		case SourceStatus:
			status = &machines[i]
		}
	}
	return report, status
}

// Contradiction returns how the machine contradicts the live sources, a report and
// counts, or "" if it does not. Merge leaves out a machine that does.
func (m *Machine) Contradiction(live ...Machine) string { return m.contradicts(living(live)) }

func (m *Machine) contradicts(report, status *Machine) string {
	switch {
	case report != nil:
		return m.contradictsReport(report)
	case status != nil:
		return m.contradictsCounts(status)
	default:
		return ""
	}
}

// contradictsReport returns how the listed CPUs contradict the live ones. A CPU that has
// gone offline is no contradiction, but one that has come online is: it may be an
// unlisted sibling.
func (m *Machine) contradictsReport(live *Machine) string {
	listed, has := m.cpuIDs(), live.cpuIDs()
	partial := m.Sources[FactCPUs] == SourceCapacity // lists only online CPUs, without siblings
	switch added := live.OnlineCPUs().Difference(m.OnlineCPUs()); {
	case !listed.IsSubsetOf(has), !partial && !listed.Equal(has):
		return fmt.Sprintf("it lists CPUs %s, but the host has %s", listed, has)
	case !partial && !added.IsEmpty():
		return fmt.Sprintf("it lists CPUs %s as offline, but they are online", added)
	case live.told(FactNUMA) && m.told(FactNUMA) && !m.nodeIDs().IsSubsetOf(live.nodeIDs()):
		return fmt.Sprintf("it lists NUMA nodes %s, but the host has %s", m.nodeIDs(), live.nodeIDs())
	case m.Model != "" && live.Model != "" && !slices.Equal(strings.Fields(m.Model), strings.Fields(live.Model)):
		return fmt.Sprintf("it is of an %s, but the host has an %s", quote(m.Model), quote(live.Model))
	default:
		return m.contradictsThreads(live.Threads)
	}
}

// contradictsThreads returns how the listed cores contradict the host's counts. A source
// that lists each CPU as its own core would assign siblings to two VMs.
func (m *Machine) contradictsThreads(live Threads) string {
	if live.PerCore == 0 {
		return ""
	}
	most := 0
	for _, core := range m.Cores() {
		size := core.CPUs.Size()
		if live.Even && size != live.PerCore {
			return fmt.Sprintf("it lists CPUs %s as a whole core, but the host's cores have %d threads", core.CPUs, live.PerCore)
		}
		most = max(most, size)
	}
	if m.SiblingsKnown() && most != live.PerCore {
		return fmt.Sprintf("it lists cores of at most %d threads, but the host has such of %d", most, live.PerCore)
	}
	return ""
}

// contradictsCounts compares with counts, for hosts whose report cannot be read.
func (m *Machine) contradictsCounts(live *Machine) string {
	listed, has := m.OnlineCPUs().Size(), live.OnlineCPUs().Size()
	if listed == has {
		return m.contradictsThreads(live.Threads)
	}
	return fmt.Sprintf("it lists %d CPUs, but Proxmox counts %d", listed, has)
}

// name returns the source's name for a message: where it is, so that a user can fix it.
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
