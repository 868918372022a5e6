package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Published is how warnings call a topology of SourceAgent. Whoever read it knows where
// it stood.
const Published = "the topology that is published in Proxmox"

// again is how a source that does not fit is mended.
const again = "run `numaform topology collect` on the host again"

// dropForeign leaves out sources that the live host contradicts: those of another
// machine, and those of this one before its hardware or firmware changed. Their
// siblings and caches would be wrong, and a wrong sibling gives a core away twice. It
// returns a warning for each.
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

// living returns the machines that tell of the host as it is now, or nil.
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

// Contradiction says how the machine is not the one that live sources, a report and
// counts, tell of; Merge leaves it out for that. It is empty if it may be.
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

// contradictsReport says how what is listed differs from the live CPUs. A CPU that
// went offline since changes nothing, while one that came online may be a sibling that
// nobody has told of.
func (m *Machine) contradictsReport(live *Machine) string {
	listed, has := m.cpuIDs(), live.cpuIDs()
	partial := m.Sources[FactCPUs] == SourceCapacity // has the online CPUs alone, and tells no siblings
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

// contradictsThreads says how the cores that are listed differ from what the host
// counts. Who says that each CPU is a core of its own would have siblings given to two.
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

// contradictsCounts is for hosts whose report cannot be read.
func (m *Machine) contradictsCounts(live *Machine) string {
	listed, has := m.OnlineCPUs().Size(), live.OnlineCPUs().Size()
	if listed == has {
		return m.contradictsThreads(live.Threads)
	}
	return fmt.Sprintf("it lists %d CPUs, but Proxmox counts %d", listed, has)
}

// name is the source in a sentence for a user: where it is, so that it can be mended.
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
