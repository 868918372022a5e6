package planner

import (
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// View is what a host has for VMs like a spec, counted as Fits and Place count it.
type View struct {
	// Fits is true if the host could take the VM now.
	Fits bool `json:"fits"`
	// Lacks says what the host lacks for it and Mend what would help; both are empty
	// if it fits.
	Lacks string `json:"lacks,omitempty"`
	Mend  string `json:"mend,omitempty"`
	// CPUs are those online, of which Reserved are the host's own and Taken are
	// pinned by guests, or idle beside the pins of an isolated VM.
	CPUs     int `json:"cpus"`
	Reserved int `json:"reserved_cpus"`
	Taken    int `json:"taken_cpus"`
	// Floating are the vCPUs that no pin holds.
	Floating int `json:"floating_vcpus"`
	// VCPUs are those that VMs of the policy may still have on the host in all.
	VCPUs int `json:"free_vcpus"`
	// MemoryMiB is what guests may have, FreeMiB what none of them has: of the huge pages
	// of its size, if the VM has such.
	MemoryMiB int64 `json:"memory_mib"`
	FreeMiB   int64 `json:"free_mib"`
	// Nodes are its NUMA nodes, in the order of their ids.
	Nodes []NodeView `json:"numa_nodes,omitempty"`
}

// NodeView is a View of one NUMA node.
type NodeView struct {
	NUMANode int `json:"numa_node"`
	// CPUs are those online that are not the host's own, of which Taken are not free.
	CPUs  int `json:"cpus"`
	Taken int `json:"taken_cpus"`
	// VCPUs are those that VMs of the policy can have there: on whole cores if it
	// pins. It is nil where the policy binds VMs to no NUMA node.
	VCPUs     *int  `json:"free_vcpus,omitempty"`
	MemoryMiB int64 `json:"memory_mib"`
	FreeMiB   int64 `json:"free_mib"`
}

// View looks at a host for a spec. It ignores spec.Hosts and changes nothing. A host
// that the planner does not know has nothing.
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
