package planner

import (
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// backing is the kind of host memory behind a guest: ordinary memory or huge pages of one
// size. Memory of one kind cannot back guests of another.
type backing int

const (
	ordinary backing = iota
	pages2Mi
	pages1Gi
	backings
)

// unheardOf is the backing of an unknown page size; no host has memory of it.
const unheardOf backing = -1

// backingOf returns the backing that a spec requests.
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

// mib returns the size of one page in MiB: memory is allocated in multiples of it.
func (b backing) mib() int64 {
	switch b {
	case pages2Mi:
		return fleet.HugePages2Mi.MiB()
	case pages1Gi:
		return fleet.HugePages1Gi.MiB()
	}
	return 1
}

// in returns the suffix for an amount of memory in reasons; it is empty for ordinary
// memory.
func (b backing) in() string {
	switch b {
	case pages2Mi:
		return " in huge pages of 2 MiB"
	case pages1Gi:
		return " in huge pages of 1 GiB"
	}
	return ""
}

// backingOfGuest returns the backing of an existing guest. For a guest that accepts any
// huge pages, Proxmox uses 1 GiB pages if the guest's memory is a multiple of them; if the
// host has no 1 GiB pages reserved, the smaller ones are the better guess.
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

// lastPaged is the last NUMA node whose huge pages Proxmox can give to a guest: Proxmox
// reads a two-digit id as several nodes (qemu-server 9.2.6,
// src/PVE/QemuServer/Memory.pm:629).
const lastPaged = 9

// readHugePages reads the pages reserved on each node, and whether a source reported them.
func (x *index) readHugePages(host *topology.Host) {
	x.pagesKnown = host.HugePagesKnown()
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

// settle computes the free memory of each kind. Guests may use more huge pages than are
// reserved, where Proxmox allocated some for them: the surplus was ordinary memory.
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
			anywhere -= s.nodes[i].memory[b] - (s.bound[b][i] - beyond) // minus what the node has left
			s.left[ordinary] -= beyond
		}
		bound = made
		unbound += max(0, anywhere)
		s.left[ordinary] -= max(0, anywhere)
	}
	s.left[ordinary] = max(0, s.left[ordinary])
	s.memFree[ordinary] = spread(s.nodes, ordinary, bound, unbound)
}

func sum(amounts []int64) int64 {
	var all int64
	for _, amount := range amounts {
		all += amount
	}
	return all
}
