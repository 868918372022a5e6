package planner

import (
	"math"
	"slices"
)

// state is the used resources of one host. Only occupy changes it.
type state struct {
	floats
	claims []*claim
	*index

	taken []bool // by CPU: reserved, pinned, or the idle sibling of an isolated VM's pin
	free  []int  // by core: threads that are not taken
	byVM  []bool // by core: a guest takes some thread
	// byAgent marks the cores that the host agent pins VMs to; agentPinned is the number of
	// their CPUs, including siblings.
	byAgent     []bool
	agentPinned int
	// whole is the number of fully free cores, by group and size.
	whole [][]int
	// nodeFree is the number of free usable CPUs, by node.
	nodeFree []int

	used  [backings]int64   // memory of all guests
	bound [backings][]int64 // by node
	homed []int             // by node: vCPUs of floating guests whose memory is bound there
	left  [backings]int64   // memory that guests may still use, without overcommit
	// balance is the ordinary memory that is left, negative if it is overcommitted;
	// memoryRatio is the lowest memory overcommit that one of our VMs here tolerates, or +Inf.
	balance     int64
	memoryRatio float64
	memFree     [backings][]int64 // by node, see spread; nil for a kind that the host does not have
	pools       []pool            // of our VMs
	passed      pciUse
}

// pool is the number of VMs of one pool on the host.
type pool struct {
	name string
	vms  int64
}

// floats describes the floating vCPUs and the CPUs they share.
type floats struct {
	allFree int
	// floating is the number of vCPUs without pins; ratio is the lowest overcommit promised
	// to one of our floating VMs, or +Inf; promised is the number of CPUs that our floating
	// VMs need, each at its own ratio; unmanaged is the number of floating vCPUs of
	// unmanaged guests.
	floating, unmanaged int
	ratio, promised     float64
}

// newState returns the state of a host without guests.
func newState(x *index) *state {
	s := &state{
		index: x,

		memoryRatio: math.Inf(1),

		floats:   floats{allFree: x.usable, ratio: math.Inf(1)},
		taken:    slices.Clone(x.reserved),
		free:     make([]int, len(x.cores)),
		byVM:     make([]bool, len(x.cores)),
		byAgent:  make([]bool, len(x.cores)),
		whole:    make([][]int, len(x.groups)),
		nodeFree: make([]int, len(x.nodes)),
		homed:    make([]int, len(x.nodes)),
	}
	s.bound[ordinary] = make([]int64, len(x.nodes))
	if x.pci != nil {
		s.passed = pciUse{blocked: make([]int, len(x.pci.all)), uses: make([]int, len(x.pci.names))}
	}
	for g := range x.groups {
		s.whole[g] = make([]int, len(x.groups[g].sizes))
	}
	for i := range x.nodes {
		s.nodeFree[i] = x.nodes[i].usable
	}
	for i, c := range x.cores {
		for _, cpu := range c.cpus {
			if !s.taken[cpu] {
				s.free[i]++
			}
		}
		if c.group != none && s.free[i] == len(c.cpus) {
			s.whole[c.group][c.size]++
		}
	}
	s.updateFree()
	return s
}

// clone returns a copy that shares only immutable parts.
func (s *state) clone() *state {
	c := *s
	c.claims, c.pools = slices.Clone(s.claims), slices.Clone(s.pools)
	c.taken, c.passed = slices.Clone(s.taken), s.passed.clone()
	c.free = slices.Clone(s.free)
	c.byVM, c.byAgent = slices.Clone(s.byVM), slices.Clone(s.byAgent)
	c.whole = make([][]int, len(s.whole))
	for g := range s.whole {
		c.whole[g] = slices.Clone(s.whole[g])
	}
	c.nodeFree = slices.Clone(s.nodeFree)
	c.homed = slices.Clone(s.homed)
	for b := range s.bound {
		c.bound[b] = slices.Clone(s.bound[b])
		c.memFree[b] = slices.Clone(s.memFree[b])
	}
	return &c
}

// occupy adds the claim of a guest.
func (s *state) occupy(c *claim) {
	for _, id := range c.pins {
		if cpu, ok := s.at[id]; ok {
			s.take(cpu)
			core := s.coreOf[cpu]
			if c.agent && !s.byAgent[core] {
				s.byAgent[core] = true
				s.agentPinned += len(s.cores[core].cpus)
			}
			if c.isolated {
				for _, sibling := range s.cores[core].cpus {
					s.take(sibling)
				}
			}
		}
	}
	s.floating += c.floating
	if c.ratio > 0 {
		s.ratio = min(s.ratio, c.ratio)
		s.promised += float64(c.floating) / c.ratio
	} else {
		s.unmanaged += c.floating
	}
	if c.memoryRatio > 0 {
		s.memoryRatio = min(s.memoryRatio, c.memoryRatio)
	}
	for i := range s.nodes {
		s.homed[i] += c.homed[i]
	}
	for b := range c.memory {
		s.used[b] += c.memory[b]
		if s.bound[b] == nil && c.bound[b] != nil {
			s.bound[b] = make([]int64, len(s.nodes))
		}
		for i, mib := range c.bound[b] {
			s.bound[b][i] += mib
		}
	}
	s.takeDevices(c.devices)
	s.updateFree()
	s.claims = append(s.claims, c)

	if c.group == "" {
		return
	}
	i := slices.IndexFunc(s.pools, func(p pool) bool { return p.name == c.group })
	if i < 0 {
		i = len(s.pools)
		s.pools = append(s.pools, pool{name: c.group})
	}
	s.pools[i].vms++
}

// take marks one CPU as taken by a guest.
func (s *state) take(cpu int) {
	at := s.coreOf[cpu]
	c := &s.cores[at]
	s.byVM[at] = true
	if s.taken[cpu] {
		return
	}
	if c.group != none && s.free[at] == len(c.cpus) {
		s.whole[c.group][c.size]--
	}
	s.taken[cpu] = true
	s.free[at]--
	s.allFree--
	if n := s.nodeOf[cpu]; n != none {
		s.nodeFree[n]--
	}
}

// without returns the state of the host without one of its claims. The live part of the
// claim, if any, remains as an unmanaged guest.
func (s *state) without(removed *claim) *state {
	fresh := newState(s.index)
	for _, c := range s.claims {
		if c != removed {
			fresh.occupy(c)
		}
	}
	if removed.live != nil {
		fresh.occupy(removed.live)
	}
	return fresh
}

// isWhole reports whether every thread of the core is free.
func (s *state) isWhole(at int) bool { return s.free[at] == len(s.cores[at].cpus) }

// nodeMemFree returns the memory of a node that guests may still use.
func (s *state) nodeMemFree(n int, of backing) int64 {
	switch {
	case s.flat && of == ordinary:
		return s.left[of]
	case s.memFree[of] == nil:
		return 0
	}
	return s.memFree[of][n]
}

// remaining returns the memory that is left, which is negative if it is overcommitted.
func (s *state) remaining(of backing) int64 {
	if of == ordinary {
		return s.balance
	}
	return s.left[of]
}

// memoryRoom returns the memory that guests may still use if a VM with the request is one of
// them. All ordinary memory of a host is alike to Linux, so it is overcommitted only as far
// as each of our VMs there tolerates. A VM never has more memory than the host.
func (s *state) memoryRoom(w *request) int64 {
	ratio := min(w.memoryRatio, s.memoryRatio)
	if w.backing != ordinary || ratio <= 1 {
		return s.left[w.backing]
	}
	beyond := int64(math.Floor((ratio-1)*float64(s.memory[ordinary]) + 1e-9))
	return min(max(0, s.balance+beyond), s.memory[ordinary])
}

// floatRoom returns how many vCPUs may float over the given number of CPUs, at the given
// ratio or the lowest one promised to our floating VMs on the host, whichever is lower.
func (s *floats) floatRoom(ratio float64, cpus int) int {
	return int(math.Floor(min(ratio, s.ratio)*float64(cpus) + 1e-9))
}

// agentRoom returns how many more CPUs the host agent allows to be pinned, including
// siblings.
func (s *state) agentRoom() int { return max(0, s.pinnable-s.agentPinned) }

// pinRoom returns how many CPUs may be pinned without giving our floating VMs less than
// promised, or unmanaged guests, which have no promise, less than the given ratio.
func (s *floats) pinRoom(ratio float64) int {
	need := max(float64(s.floating)/s.ratio, s.promised+float64(s.unmanaged)/ratio)
	return max(0, s.allFree-int(min(math.Ceil(need-1e-9), float64(s.allFree))))
}
