package planner

import (
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// View is what a host has for VMs like a spec, by the same counting as Fits and Place.
type View struct {
	// Fits is true if the host could take the VM now.
	Fits bool `json:"fits"`
	// Lacks is what the host lacks for the VM and Mend is the hint; both are empty if it
	// fits.
	Lacks string `json:"lacks,omitempty"`
	Mend  string `json:"mend,omitempty"`
	// CPUs is the number of online CPUs. Of them, Reserved are the host's own, and Taken
	// are pinned by guests or idle siblings of an isolated VM's pins.
	CPUs     int `json:"cpus"`
	Reserved int `json:"reserved_cpus"`
	Taken    int `json:"taken_cpus"`
	// Floating is the number of vCPUs without pins.
	Floating int `json:"floating_vcpus"`
	// VCPUs is the number of vCPUs that VMs of the policy may still have on the whole host.
	VCPUs int `json:"free_vcpus"`
	// MemoryMiB is what guests may have in total, FreeMiB the free part of it. For a VM in
	// huge pages, both count pages of its size.
	MemoryMiB int64 `json:"memory_mib"`
	FreeMiB   int64 `json:"free_mib"`
	// Nodes are its NUMA nodes, sorted by id.
	Nodes []NodeView `json:"numa_nodes,omitempty"`
}

// NodeView is a View of one NUMA node.
type NodeView struct {
	NUMANode int `json:"numa_node"`
	// CPUs is the number of online CPUs that are not the host's own; Taken of them are not
	// free.
	CPUs  int `json:"cpus"`
	Taken int `json:"taken_cpus"`
	// VCPUs is the number of vCPUs that VMs of the policy can have on the node: on whole
	// cores if they pin. It is nil if the policy binds VMs to no NUMA node.
	VCPUs     *int  `json:"free_vcpus,omitempty"`
	MemoryMiB int64 `json:"memory_mib"`
	FreeMiB   int64 `json:"free_mib"`
}

// View returns the view of a host for a spec. It ignores spec.Hosts and changes nothing.
// The view of an unknown host is empty.
func (p *Planner) View(spec fleet.Spec, host topology.HostID) View {
	at, known := p.at[host]
	w := wantOf(&spec)
	if !known {
		return View{Lacks: "is not known", Mend: "check its name and the connection to its region"}
	}
	s := p.hosts[at]
	v := View{
		CPUs: s.online, Reserved: s.online - s.usable, Taken: s.usable - s.allFree, Floating: s.floating,
	}
	problem := w.problem()
	of := max(ordinary, w.backing)
	v.MemoryMiB, v.FreeMiB = s.memory[of], s.left[of]
	if problem == "" {
		v.readNodes(s, w)
	}
	switch {
	case problem != "":
		v.Lacks = problem
	case s.problem != "":
		v.Lacks, v.Mend = s.problem, "bring it back"
	default:
		if _, v.Fits = s.evaluateAll(w); !v.Fits {
			g := s.gap(w)
			v.Lacks, v.Mend = g.has, g.mend
		}
	}
	return v
}

func (v *View) readNodes(s *state, w want) {
	v.VCPUs = max(0, s.floatRoom(w.ratio, s.allFree)-s.floating)
	if w.policy.Pinned() {
		v.VCPUs = s.pinRoom(w.ratio)
		if w.agent {
			v.VCPUs = min(v.VCPUs, s.agentRoom())
		}
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
}
