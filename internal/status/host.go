package status

import (
	"slices"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/topology"
)

// Host is the state of a Proxmox host, and the capacity that is free on it.
type Host struct {
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
	Agent     Agent               `json:"agent"`
	NUMANodes []NUMANode          `json:"numa_nodes"`
}

// NUMANode is the capacity of a NUMA node.
type NUMANode struct {
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

// Agent is the state of the numaform-agent of a host. If the host has no agent, only
// State is set.
type Agent struct {
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
	HostOnline      = "online"
	HostOffline     = "offline"
	HostMaintenance = "maintenance"
	HostUnreadable  = "unreadable"
)

// NewHost returns the state of a host with the fleet's VMs on it. An empty clusterID
// matches the VMs of any fleet.
func NewHost(host *topology.Host, vms []fleet.VM, clusterID string) Host {
	s := Host{
		Host:          host.ID(),
		State:         HostOnline,
		CPUs:          host.OnlineCPUs().Size(),
		MemoryMiB:     host.MemoryMiB,
		FreeMemoryMiB: host.MemoryMiB - host.ReservedMemoryMiB,
		Topology:      host.Confidence(),
		Agent:         newAgent(host, clusterID),
		NUMANodes:     []NUMANode{},
	}
	switch {
	case !host.Online:
		s.State = HostOffline
	case host.Problem != "":
		s.State = HostUnreadable
	case host.Maintenance:
		s.State = HostMaintenance
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
func (s *Host) addNodes(host *topology.Host, owners cpumap.Ownership, vms map[int]int) {
	for i := range host.NUMANodes {
		node := &host.NUMANodes[i]
		n := NUMANode{ID: node.ID, MemoryMiB: node.MemoryMiB, FreeMemoryMiB: node.MemoryMiB, VMs: vms[node.ID]}
		if n.MemoryMiB >= 0 {
			n.FreeMemoryMiB = max(0, n.MemoryMiB-owners.BoundMiB[node.ID])
		}
		s.NUMANodes = append(s.NUMANodes, n)
	}
	nodes := map[int]*NUMANode{}
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

func newAgent(host *topology.Host, clusterID string) Agent {
	s := Agent{State: host.AgentState(clusterID, host.ReadAt)}
	if host.ReadAt.IsZero() {
		s.State = topology.AgentUnread
	}
	if a := host.Agent; a != nil {
		s.Version = a.Version
		s.Isolation = a.Isolation
		s.Reported = a.At
		s.Age = topology.Age(ReportAge(host))
		s.Clusters = slices.Sorted(slices.Values(a.Clusters))
		s.ReservedCPUs = a.ReservedCPUs
		s.Pinned = len(a.Pinned)
		s.Refused = len(a.Refused)
	}
	return s
}

// ReportAge returns the time between the last report of a host's agent and the snapshot.
func ReportAge(host *topology.Host) time.Duration { return max(host.ReadAt.Sub(host.Agent.At), 0) }
