package planner

import "github.com/numaform/numaform/topology"

// Free is the free CPUs and memory of one NUMA node.
type Free struct {
	// NUMANode is its id on the host; a host with unknown NUMA nodes has one.
	NUMANode int
	// CPUs are neither reserved nor pinned, nor idle siblings of an isolated VM's pins.
	// Floating vCPUs have no CPU of their own and are not subtracted: see Room.Floating of
	// the host.
	CPUs int
	// MemoryMiB is ordinary memory.
	MemoryMiB int64
}

// Room is the free CPUs and memory of one host.
type Room struct {
	Host topology.HostID
	// Problem says why no VM may be placed there, or is empty.
	Problem string
	// Floating is the number of vCPUs without pins.
	Floating int
	// Nodes are its NUMA nodes, sorted by id.
	Nodes []Free
}

// Room returns what is free on every host, sorted by name. It changes nothing.
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
