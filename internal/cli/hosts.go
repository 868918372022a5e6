package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// hostStatus is the state of a Proxmox host, and the capacity that is free on it.
type hostStatus struct {
	Host topology.HostID `json:"host"`
	// State is online, offline, maintenance or unreadable.
	State string `json:"state"`
	CPUs  int    `json:"cpus"`
	// FreeCPUs counts the online CPUs that are neither reserved nor pinned by a running or
	// planned guest.
	FreeCPUs  int   `json:"free_cpus"`
	MemoryMiB int64 `json:"memory_mib"`
	// FreeMemoryMiB is the memory that is neither reserved nor allocated to a running or
	// planned guest.
	FreeMemoryMiB int64 `json:"free_memory_mib"`
	// VMs counts the VMs of the fleet, and Shared the VMs among them that have no CPUs of
	// their own.
	VMs    int `json:"vms"`
	Shared int `json:"shared"`
	// Others counts the running guests that are not VMs of the fleet.
	Others int `json:"others"`
	// Topology says how much is known about the host's CPUs: exact, partial or counts only.
	Topology  topology.Confidence `json:"topology"`
	Agent     agentStatus         `json:"agent"`
	NUMANodes []numaStatus        `json:"numa_nodes"`
}

// numaStatus is the capacity of a NUMA node.
type numaStatus struct {
	ID       int `json:"id"`
	CPUs     int `json:"cpus"`
	FreeCPUs int `json:"free_cpus"`
	// MemoryMiB is the memory of the NUMA node, and FreeMemoryMiB the part that is not
	// bound by a guest. Both are -1 if they are unknown.
	MemoryMiB     int64 `json:"memory_mib"`
	FreeMemoryMiB int64 `json:"free_memory_mib"`
	// VMs counts the VMs of the fleet with memory on the NUMA node.
	VMs int `json:"vms"`
}

// agentStatus is the state of the numaform-agent of a host. If the host has no agent, only
// State is set.
type agentStatus struct {
	State     topology.AgentState `json:"state"`
	Version   string              `json:"version,omitempty"`
	Isolation string              `json:"isolation,omitempty"`
	// Reported is the time of the last report.
	Reported time.Time `json:"reported,omitzero"`
	// Age is the age of the last report when the host was read.
	Age          string          `json:"age,omitempty"`
	Clusters     []string        `json:"clusters,omitempty"`
	ReservedCPUs topology.CPUSet `json:"reserved_cpus,omitzero"`
	// Pinned and Refused count the VMs that the agent pins and refuses to pin.
	Pinned  int `json:"pinned"`
	Refused int `json:"refused"`
}

// States of hosts.
const (
	hostOnline      = "online"
	hostOffline     = "offline"
	hostMaintenance = "maintenance"
	hostUnreadable  = "unreadable"
)

// newHostStatus returns the state of a host with the fleet's VMs on it. An empty clusterID
// matches the VMs of any fleet.
func newHostStatus(host *topology.Host, vms []fleet.VM, clusterID string) hostStatus {
	s := hostStatus{
		Host:          host.ID(),
		State:         hostOnline,
		CPUs:          host.OnlineCPUs().Size(),
		MemoryMiB:     host.MemoryMiB,
		FreeMemoryMiB: host.MemoryMiB - host.ReservedMemoryMiB,
		Topology:      host.Confidence(),
		Agent:         newAgentStatus(host, clusterID),
		NUMANodes:     []numaStatus{},
	}
	switch {
	case !host.Online:
		s.State = hostOffline
	case host.Problem != "":
		s.State = hostUnreadable
	case host.Maintenance:
		s.State = hostMaintenance
	}

	onNode := map[int]int{} // number of VMs by NUMA node
	count := func(pins topology.CPUSet, cells []topology.NUMACell) {
		s.VMs++
		if pins.IsEmpty() {
			s.Shared++
		}
		var nodes topology.CPUSet
		for _, cell := range cells {
			nodes = nodes.Union(cell.HostNodes)
		}
		for _, node := range nodes.List() {
			onNode[node]++
		}
	}
	running := map[int]bool{}
	for i := range host.Guests {
		guest := &host.Guests[i]
		if !guest.Running || guest.Template {
			continue
		}
		running[guest.VMID] = true
		s.FreeMemoryMiB -= guest.MemoryMiB
		switch {
		case slices.ContainsFunc(vms, func(vm fleet.VM) bool { return int(vm.VMID) == guest.VMID }):
		case guest.ClusterID != "" && (clusterID == "" || clusterID == guest.ClusterID):
			count(guest.Pins, guest.NUMA)
		default:
			s.Others++
		}
	}
	for i := range vms {
		count(vms[i].CPUs, vms[i].Cells)
		if !running[int(vms[i].VMID)] && vms[i].Reserves() {
			s.FreeMemoryMiB -= vms[i].MemoryMiB
		}
	}
	s.FreeMemoryMiB = max(s.FreeMemoryMiB, 0)

	s.addNodes(host, cpumap.Owners(host, vms), onNode)
	return s
}

// addNodes adds the NUMA nodes, with the number of VMs on each of them, and counts the free
// CPUs.
func (s *hostStatus) addNodes(host *topology.Host, owners cpumap.Ownership, vms map[int]int) {
	for i := range host.NUMANodes {
		node := &host.NUMANodes[i]
		n := numaStatus{ID: node.ID, MemoryMiB: node.MemoryMiB, FreeMemoryMiB: node.MemoryMiB, VMs: vms[node.ID]}
		if n.MemoryMiB >= 0 {
			n.FreeMemoryMiB = max(0, n.MemoryMiB-owners.BoundMiB[node.ID])
		}
		s.NUMANodes = append(s.NUMANodes, n)
	}
	nodes := map[int]*numaStatus{}
	for i := range s.NUMANodes {
		nodes[s.NUMANodes[i].ID] = &s.NUMANodes[i]
	}
	for i := range host.CPUs {
		cpu := &host.CPUs[i]
		if !cpu.Online {
			continue
		}
		_, owned := owners.CPUs[cpu.ID]
		if !owned {
			s.FreeCPUs++
		}
		if node := nodes[cpu.NUMANode]; node != nil {
			node.CPUs++
			if !owned {
				node.FreeCPUs++
			}
		}
	}
}

func newAgentStatus(host *topology.Host, clusterID string) agentStatus {
	s := agentStatus{State: host.AgentState(clusterID, host.ReadAt)}
	if host.ReadAt.IsZero() {
		s.State = topology.AgentUnread
	}
	if a := host.Agent; a != nil {
		s.Version = a.Version
		s.Isolation = a.Isolation
		s.Reported = a.At
		s.Age = topology.Age(reportAge(host))
		s.Clusters = slices.Sorted(slices.Values(a.Clusters))
		s.ReservedCPUs = a.ReservedCPUs
		s.Pinned = len(a.Pinned)
		s.Refused = len(a.Refused)
	}
	return s
}

// hostTable prints a row for each host. A wide table also has a row for each NUMA node, and
// the details of agents.
func (w *printer) hostTable(hosts []hostStatus, wide bool) {
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
		if h.State != hostOnline {
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
			if h.State != hostOnline {
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
	case hostOnline:
		return w.Paint(term.Green, state)
	case hostMaintenance:
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
	return linesOf(report)
}
