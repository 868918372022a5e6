package planner

import (
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// View is the capacity of a host for VMs of a spec, counted as in Fits and Place.
type View struct {
	// Fits is true if the host could take the VM now.
	Fits bool `json:"fits"`
	// Lacks is what the host lacks for the VM, and Fix is how to fix that; both are empty
	// if it fits. An invalid spec has only Lacks.
	Lacks string `json:"lacks,omitempty"`
	Fix   string `json:"fix,omitempty"`
	// CPUs is the number of online CPUs. Reserved is the number reserved for the host
	// itself. Taken is the number pinned by guests or idle as siblings of an isolated VM's
	// pins.
	CPUs     int `json:"cpus"`
	Reserved int `json:"reserved_cpus"`
	Taken    int `json:"taken_cpus"`
	// Floating is the number of vCPUs without pins.
	Floating int `json:"floating_vcpus"`
	// VCPUs is the number of vCPUs that VMs of the policy may still have on the whole host.
	VCPUs int `json:"free_vcpus"`
	// MemoryMiB is the memory available to guests, and FreeMiB the free part of it. For a
	// VM with huge pages, both count pages of its size.
	MemoryMiB int64 `json:"memory_mib"`
	FreeMiB   int64 `json:"free_mib"`
	// Nodes are the host's NUMA nodes, sorted by id.
	Nodes []NodeView `json:"numa_nodes,omitempty"`
}

// NodeView is a View of one NUMA node.
type NodeView struct {
	NUMANode int `json:"numa_node"`
	// CPUs is the number of online CPUs that are not reserved for the host. Taken is the
	// number of these CPUs that are in use.
	CPUs  int `json:"cpus"`
	Taken int `json:"taken_cpus"`
	// VCPUs is the number of vCPUs that VMs of the policy can have on the node: on whole
	// cores if the policy pins them. It is nil if the policy binds VMs to no NUMA node.
	VCPUs     *int  `json:"free_vcpus,omitempty"`
	MemoryMiB int64 `json:"memory_mib"`
	FreeMiB   int64 `json:"free_mib"`
}

// View returns the view of a host for a spec. It ignores spec.Hosts and changes nothing.
// The view of an unknown host has only Lacks and Fix.
func (p *Planner) View(spec fleet.Spec, host topology.HostID) View {
	at, known := p.at[host]
	if !known {
		return View{Lacks: "is unknown", Fix: "check its name and the connection to its region"}
	}
	w := requestOf(&spec)
	s := p.hosts[at]
	of := max(ordinary, w.backing)
	v := View{
		CPUs: s.online, Reserved: s.online - s.usable, Taken: s.usable - s.allFree, Floating: s.floating,
		MemoryMiB: s.memory[of], FreeMiB: s.left[of],
	}
	if v.Lacks = w.problem(); v.Lacks != "" {
		return v
	}

	v.VCPUs = max(0, s.floatRoom(w.ratio, s.allFree)-s.floating)
	if w.policy.Pinned() {
		v.VCPUs = s.pinRoom(w.ratio)
	}
	if w.agent {
		v.VCPUs = min(v.VCPUs, s.agentRoom())
	}
	gives := map[int]int{}
	if w.policy != fleet.PolicyShared {
		for _, supply := range s.supplyFor(w) {
			gives[supply.node] = supply.whole
		}
	}
	for i := range s.nodes {
		n := NodeView{
			NUMANode: s.nodes[i].id, CPUs: s.nodes[i].usable, Taken: s.nodes[i].usable - s.nodeFree[i],
			MemoryMiB: s.nodes[i].memory[w.backing], FreeMiB: s.nodeMemFree(i, w.backing),
		}
		if w.policy != fleet.PolicyShared {
			n.VCPUs = new(gives[i])
		}
		v.Nodes = append(v.Nodes, n)
	}

	_, v.Fits = s.evaluateAll(w)
	switch {
	case s.problem != "":
		v.Lacks, v.Fix = "is unavailable: "+s.problem, "make the host available again"
	case !v.Fits:
		_, explain := s.lacks(w)
		g := explain()
		v.Lacks, v.Fix = g.has, g.fix
	}
	return v
}

// Free is the free CPUs and memory of one NUMA node.
type Free struct {
	// NUMANode is the node's id on the host. A host with unknown NUMA nodes has one node.
	NUMANode int
	// CPUs is the number of CPUs that are neither reserved nor pinned, nor idle siblings of
	// an isolated VM's pins. Floating vCPUs have no CPU of their own and are not
	// subtracted: see Room.Floating.
	CPUs int
	// MemoryMiB is the free ordinary memory.
	MemoryMiB int64
}

// Room is the free CPUs and memory of one host.
type Room struct {
	Host topology.HostID
	// Problem is the reason why no VM may be placed on the host, or empty.
	Problem string
	// Floating is the number of vCPUs without pins.
	Floating int
	// Nodes are the host's NUMA nodes, sorted by id.
	Nodes []Free
}

// Room returns the free resources of every host, sorted by region and name. It changes
// nothing.
func (p *Planner) Room() []Room {
	rooms := make([]Room, len(p.hosts))
	for i, s := range p.hosts {
		rooms[i] = Room{Host: s.id, Problem: s.problem, Floating: s.floating}
		for n := range s.nodes {
			rooms[i].Nodes = append(rooms[i].Nodes, Free{
				NUMANode: s.nodes[n].id, CPUs: s.nodeFree[n], MemoryMiB: s.nodeMemFree(n, ordinary),
			})
		}
	}
	return rooms
}
