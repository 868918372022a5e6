package cli

import (
	"fmt"
	"strings"

	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// hostTable prints a row for each host. A wide table also has a row for each NUMA node, and
// the details of agents.
func (w *printer) hostTable(hosts []status.Host, wide bool) {
	columns := []column{
		{title: "HOST"},
		{title: "STATE", drop: 5},
		{title: "CPUS"},
		{title: "FREE CPUS"},
		{title: "GIB"},
		{title: "FREE GIB"},
		{title: "VMS"},
		{title: "SHARED", drop: 4},
		{title: "OTHERS", drop: 3},
		{title: "TOPOLOGY", drop: 2},
		{title: "AGENT", drop: 1},
	}
	if wide {
		for _, title := range []string{"VERSION", "ISOLATION", "REPORTED", "CLUSTERS", "RESERVED CPUS", "PINNED", "REFUSED"} {
			columns = append(columns, column{title: title})
		}
	}
	var rows [][]string
	for i := range hosts {
		h, a := &hosts[i], &hosts[i].Agent
		row := []string{
			h.Host.String(), w.hostState(h.State), fmt.Sprint(h.CPUs), fmt.Sprint(h.FreeCPUs), wholeGiB(h.MemoryMiB), wholeGiB(h.FreeMemoryMiB),
			fmt.Sprint(h.VMs), fmt.Sprint(h.Shared), fmt.Sprint(h.Others), string(h.Topology), string(a.State),
		}
		if h.State != status.HostOnline {
			row[3], row[5] = "-", "-" // no VM can be placed there
		}
		if wide {
			row = append(row, a.Version, a.Isolation, "", strings.Join(a.Clusters, ","), a.ReservedCPUs.String(), fmt.Sprint(a.Pinned), fmt.Sprint(a.Refused))
			if a.Age != "" {
				row[13] = a.Age + " ago"
			}
		}
		rows = append(rows, row)
		if !wide {
			continue
		}
		for _, n := range h.NUMANodes {
			row := []string{
				fmt.Sprintf("  NUMA node %d", n.ID), "", fmt.Sprint(n.CPUs), fmt.Sprint(n.FreeCPUs), wholeGiB(n.MemoryMiB), wholeGiB(n.FreeMemoryMiB), fmt.Sprint(n.VMs),
			}
			if h.State != status.HostOnline {
				row[3], row[5] = "-", "-"
			}
			rows = append(rows, row)
		}
	}
	w.columns(columns, rows, wide)
}

// hostState returns a host's state in its color.
func (w *printer) hostState(state string) string {
	switch state {
	case status.HostOnline:
		return w.Paint(term.Green, state)
	case status.HostMaintenance:
		return w.Paint(term.Yellow, state)
	}
	return w.Paint(term.Red, state)
}

// wholeGiB formats MiB as GiB, rounded down, or as "-" if they are unknown.
func wholeGiB(mib int64) string {
	if mib < 0 {
		return "-"
	}
	return fmt.Sprint(mib / 1024)
}

// hostProblems returns the problems of hosts and their agents, each sentence once with its
// hosts.
func hostProblems(hosts []topology.Host, clusterID string) []string {
	var report doctor.Report
	for i := range hosts {
		host := &hosts[i]
		if host.Problem != "" {
			report = append(report, doctor.Finding{Where: host.ID().String(), What: host.Problem})
			continue
		}
		report = append(report, agentFaults(host, clusterID)...)
	}
	return report.Lines()
}
