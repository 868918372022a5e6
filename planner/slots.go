package planner

// Usual VMs have 2 or 4 GiB of memory per vCPU. A node with less memory per free CPU has no
// room for them.
const (
	leanMiB = 2048
	richMiB = 4096
)

// roomFor returns the value of free whole cores and memory. VMs with 2 GiB per vCPU count
// double: most VMs are like that, and whatever holds a larger one holds a smaller one too.
func roomFor(cpus int, memory int64) int64 {
	memory = max(0, memory)
	return 2*slots(min(cpus, int(memory/leanMiB))) + slots(min(cpus, int(memory/richMiB)))
}

// fewSlots caches slots for nodes of usual sizes.
var fewSlots = func() (few [257]int64) {
	for cpus := range few {
		few[cpus] = countSlots(cpus)
	}
	return few
}()

// slots counts the VMs of each usual size (1, 2, 4, 8, … and half as much again) that fit,
// weighted by the square of the size: large slots are the scarcest.
func slots(cpus int) int64 {
	switch {
	case cpus <= 0:
		return 0
	case cpus < len(fewSlots):
		return fewSlots[cpus]
	}
	return countSlots(cpus)
}

func countSlots(cpus int) int64 {
	var worth int64
	for k := 0; cpus>>k > 0; k++ { // sizes of 1<<k and 3<<k
		n := cpus >> k
		worth += int64(n+9*(n/3)) << (2 * k)
	}
	return worth
}

// priceSlots prices the slots that the plan takes from the nodes it touches.
func (q *search) priceSlots(p *plan) {
	for _, part := range p.parts {
		free, takes := q.wholeOn(part.node), q.wholeCPUs(part) // pinning VMs find no room on partially allocated cores
		switch {
		case q.allowed == nil:
			free, takes = q.floatRoom(q.want.ratio, q.nodeFree[part.node])-q.homed[part.node], part.vcpus
		case part.odd != none && q.isWhole(part.odd):
			takes += len(q.cores[part.odd].cpus)
		}
		memory := q.nodeMemFree(part.node, q.want.backing)
		p.cost[costSlots] += roomFor(free, memory) - roomFor(free-takes, memory-part.memory)
	}
}

// wholeOn returns the number of CPUs on a node's whole free cores.
func (s *state) wholeOn(node int) int {
	cpus := 0
	for _, g := range s.nodes[node].groups {
		for size, count := range s.whole[g] {
			cpus += count * s.groups[g].sizes[size]
		}
	}
	return cpus
}

// lessRoom returns the room for usual VMs that a node loses with that much memory.
func (s *state) lessRoom(node int, memory int64) int64 {
	cpus, free := s.wholeOn(node), s.memFree[ordinary][node]
	return roomFor(cpus, free) - roomFor(cpus, free-memory)
}
