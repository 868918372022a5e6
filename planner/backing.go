package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// backing is the kind of a host's memory that a guest has. What is of one kind is of no
// use to guests of another.
type backing int

const (
	ordinary backing = iota
	pages2Mi
	pages1Gi
	backings
)

// unheardOf backs nothing.
const unheardOf backing = -1

// backingOf returns what backs a wanted VM.
func backingOf(spec *fleet.Spec) backing {
	switch spec.HugePages {
	case "":
		return ordinary
	case fleet.HugePages2Mi:
		return pages2Mi
	case fleet.HugePages1Gi:
		return pages1Gi
	}
	return unheardOf
}

// mib is the size of one page: memory comes in multiples of it.
func (b backing) mib() int64 {
	switch b {
	case pages2Mi:
		return fleet.HugePages2Mi.MiB()
	case pages1Gi:
		return fleet.HugePages1Gi.MiB()
	}
	return 1
}

// in follows an amount of memory where it is huge pages.
func (b backing) in() string {
	switch b {
	case pages2Mi:
		return " in huge pages of 2 MiB"
	case pages1Gi:
		return " in huge pages of 1 GiB"
	}
	return ""
}

// backingOfGuest returns what backs a guest that exists. Proxmox takes pages of 1 GiB for
// one that may have any, if its memory is made of such; if the host has none reserved, it
// is rather the smaller ones that it found.
func (x *index) backingOfGuest(g *topology.Guest) backing {
	switch g.HugePagesKiB {
	case 0:
		return ordinary
	case 1 << 20:
		return pages1Gi
	case topology.Unknown:
		odd := slices.ContainsFunc(g.NUMA, func(c topology.NUMACell) bool { return c.MemoryMiB%pages1Gi.mib() != 0 })
		if x.memory[pages1Gi] > 0 && g.MemoryMiB%pages1Gi.mib() == 0 && !odd {
			return pages1Gi
		}
	}
	return pages2Mi
}

// lastPaged is the last NUMA node whose huge pages Proxmox can give to a guest: it takes
// an id of two digits for several nodes (qemu-server 9.2.6, src/PVE/QemuServer/Memory.pm:629).
const lastPaged = 9

// readHugePages reads what is reserved on each node, and whether a source told it.
func (x *index) readHugePages(host *topology.Host) {
	x.pagesKnown = host.TellsHugePages()
	for _, n := range host.NUMANodes {
		at, ok := x.nodeAt[n.ID]
		if !ok || n.ID > lastPaged {
			continue
		}
		for b := pages2Mi; b < backings; b++ {
			mib := n.HugePages[int(b.mib())<<10] * b.mib()
			x.nodes[at].memory[b] += mib
			x.memory[b] += mib
		}
	}
}

// settle works out what is free of each kind of memory. Guests have more huge pages than
// are reserved where Proxmox made some for them: these were ordinary memory.
func (s *state) settle() {
	bound, unbound := s.bound[ordinary], s.used[ordinary]-sum(s.bound[ordinary])
	s.left[ordinary] = s.memory[ordinary] - s.used[ordinary]
	for b := pages2Mi; b < backings; b++ {
		if s.used[b] == 0 && s.memory[b] == 0 {
			continue
		}
		if s.bound[b] == nil {
			s.bound[b] = make([]int64, len(s.nodes))
		}
		anywhere := s.used[b] - sum(s.bound[b])
		s.memFree[b] = spread(s.nodes, b, s.bound[b], anywhere)
		s.left[b] = sum(s.memFree[b])
		made := slices.Clone(bound)
		for i := range s.nodes {
			beyond := max(0, s.bound[b][i]-s.nodes[i].memory[b])
			made[i] += beyond
			anywhere -= s.nodes[i].memory[b] - (s.bound[b][i] - beyond) // what the node has left
			s.left[ordinary] -= beyond
		}
		bound = made
		unbound += max(0, anywhere)
		s.left[ordinary] -= max(0, anywhere)
	}
	s.left[ordinary] = max(0, s.left[ordinary])
	s.memFree[ordinary] = spread(s.nodes, ordinary, bound, unbound)
}

// sum adds up.
func sum(amounts []int64) int64 {
	var all int64
	for _, amount := range amounts {
		all += amount
	}
	return all
}
