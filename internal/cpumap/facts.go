package cpumap

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/numaform/numaform/topology"
)

// shape describes the parts of the machine.
func (l *layout) shape() string {
	caches := map[string]map[int]bool{"L3": {}, "L2": {}}
	for i := range l.host.CPUs {
		if cpu := &l.host.CPUs[i]; cpu.Online && cpu.L3 != topology.Unknown {
			caches[level(cpu)][cpu.L3] = true
		}
	}
	parts := []string{topology.Count(l.host.OnlineCPUs().Size(), "CPU")}
	if l.host.SiblingsKnown() {
		parts = append(parts, topology.Count(len(l.host.Cores()), "core"))
	} else {
		parts = append(parts, "siblings unknown")
	}
	switch count := len(caches["L3"]); {
	case count > 0:
		parts = append(parts, topology.Count(count, "L3 cache"))
	case len(caches["L2"]) > 0:
		parts = append(parts, topology.Count(len(caches["L2"]), "L2 cache")+" and no L3")
	}
	parts = append(parts, topology.Count(len(l.host.NUMANodes), "NUMA node"))
	return strings.Join(parts, ", ")
}

// level returns the level of a CPU's last-level cache.
func level(cpu *topology.CPU) string {
	if cpu.CacheLevel == 2 {
		return "L2"
	}
	return "L3"
}

// origin returns the sources of the facts, and lists the assumed facts.
func (l *layout) origin() string {
	bySource := map[topology.Source][]string{}
	for fact, source := range l.host.Sources {
		bySource[source] = append(bySource[source], string(fact))
	}
	var parts []string
	for _, source := range slices.Sorted(maps.Keys(bySource)) {
		facts := bySource[source]
		slices.Sort(facts)
		if source != topology.SourceAssumed {
			parts = append(parts, fmt.Sprintf("from %s: %s", source, strings.Join(facts, ", ")))
		}
	}
	if assumed := bySource[topology.SourceAssumed]; assumed != nil {
		parts = append(parts, "assumed: "+strings.Join(assumed, ", "))
	}
	if len(parts) == 0 {
		return ""
	}
	return "topology " + strings.Join(parts, "; ")
}

// confidence describes how complete the facts are, and how to complete them.
func (l *layout) confidence() string {
	text := "confidence " + string(l.host.Confidence())
	missing := l.host.Missing()
	if len(missing) == 0 {
		return text
	}
	names := make([]string, len(missing))
	for i, fact := range missing {
		names[i] = string(fact)
	}
	text += ": unknown for some: " + strings.Join(names, ", ")
	if source := l.host.Sources[topology.FactCPUs]; source != topology.SourceCollected && source != topology.SourceAgent {
		text += "; run `numaform topology collect` on the host and add the file to machines"
	}
	return text
}

// warnings returns warnings about sources that contradict each other or could not be
// read, and about a host that currently takes no guests, or only if no other host does.
func (l *layout) warnings() []string {
	var texts []string
	if l.host.Maintenance {
		texts = append(texts, "in maintenance: Proxmox HA keeps guests off this host, so it gets no new nodes")
	}
	if l.host.Backup {
		texts = append(texts, "guests are being backed up: other hosts are preferred for new nodes")
	}
	for _, warning := range l.host.Warnings {
		texts = append(texts, "warning: "+printable(warning))
	}
	return texts
}

// totals returns the numbers of CPUs by their use, and the vCPUs that share the free CPUs.
func (l *layout) totals() []string {
	totals := []string{fmt.Sprintf("%d free", l.free), fmt.Sprintf("%d owned", l.owned), fmt.Sprintf("%d reserved", l.reserved)}
	if l.shared() {
		totals = append(totals, topology.Count(l.sharedVCPUs, "vCPU")+" not pinned")
	}
	return totals
}

// sharedText describes the free CPUs of a host whose guests share them.
func (l *layout) sharedText() string {
	return fmt.Sprintf("free, shared by %s with %s", topology.Count(len(l.owners.Floating), "guest"), topology.Count(l.sharedVCPUs, "vCPU"))
}

// floating lists the guests without CPUs of their own, or returns "".
func (l *layout) floating() string {
	if len(l.owners.Floating) == 0 {
		return ""
	}
	texts := make([]string, len(l.owners.Floating))
	for i, guest := range l.owners.Floating {
		texts[i] = printable(guest.Name) + " " + topology.Count(guest.VCPUs, "vCPU")
	}
	return "not pinned: " + strings.Join(texts, ", ")
}

// printable replaces characters that would disturb a terminal, because names come from
// Proxmox.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
}
