package placement

import "slices"

// layout is an allocator's view of a machine: the position of each CPU. It assumes that
// every core, socket and cache has the average size, rounded down.
type layout struct {
	cpus                         map[int]spot
	perCore, perSocket, perCache int
	sockets, nodes               int
}

// spot is the position of a CPU. Its IDs are only valid within the layout.
type spot struct{ node, socket, core, cache int }

// trait returns one of a spot's IDs.
type trait func(spot) int

func nodeOf(s spot) int   { return s.node }
func socketOf(s spot) int { return s.socket }
func coreOf(s spot) int   { return s.core }
func cacheOf(s spot) int  { return s.cache }

// newLayout computes the average sizes.
func newLayout(cpus map[int]spot) *layout {
	l := &layout{cpus: cpus}
	count := func(of trait) int {
		ids := map[int]bool{}
		for _, s := range cpus {
			ids[of(s)] = true
		}
		return max(1, len(ids))
	}
	l.nodes, l.sockets = count(nodeOf), count(socketOf)
	l.perSocket = len(cpus) / l.sockets
	l.perCore = len(cpus) / count(coreOf)
	l.perCache = len(cpus) / count(cacheOf)
	return l
}

// trueLayout returns the machine's real layout, including reserved CPUs.
func trueLayout(m *Machine) *layout {
	cpus := map[int]spot{}
	for _, c := range m.CPUs {
		cpus[c.ID] = spot{node: c.Node, socket: c.Socket, core: c.Core, cache: c.L3}
	}
	return newLayout(cpus)
}

// with returns the CPUs, free or not, whose trait has that ID, ascending.
func (l *layout) with(of trait, id int) []int {
	var ids []int
	for cpu, s := range l.cpus {
		if of(s) == id {
			ids = append(ids, cpu)
		}
	}
	slices.Sort(ids)
	return ids
}
