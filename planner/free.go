package planner

import "github.com/numaform/numaform/topology"

// Free is what of one NUMA node nothing has taken.
type Free struct {
	// NUMANode is its id on the host; a host whose NUMA nodes are not known has one.
	NUMANode int
	// CPUs are neither reserved, nor pinned, nor idle beside the pins of an isolated VM.
	// vCPUs that float have no CPU of their own and are not taken off: they are the
	// host's Room.Floating.
	CPUs int
	// MemoryMiB is ordinary memory.
	MemoryMiB int64
}

// Room is what of one host nothing has taken.
type Room struct {
	Host topology.HostID
	// Problem says why nothing may be placed there, or is empty.
	Problem string
	// Floating are the vCPUs that no pin holds.
	Floating int
	// Nodes are its NUMA nodes, in the order of their ids.
	Nodes []Free
}

// Room returns what is free of every host, in the order of their names. It changes
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
