package planner

// The parts of a cost, the most significant first. Not being placed at all outweighs all of
// them.
const (
	costResort     = iota // see resortUnknown and the following constants
	costSpread            // VMs of the same pool on the host, where they are spread
	costNodes             // number of NUMA nodes
	costDistance          // sum of the distances between them
	costSkew              // 1 if memory is not proportional to the CPUs of each node
	costOverload          // floating vCPUs at home on a node beyond its CPUs
	costCaches            // number of L3 caches
	costUneven            // difference between the guest's largest and smallest cell
	costEfficiency        // vCPUs on efficiency cores, plus twice those on low-power cores
	costBroken            // whole cores that become partially allocated
	costSlots             // loss of room for VMs of usual sizes
	costLeftMin           // what is left of the touched nodes, CPUs or memory,
	costLeftSum           // whichever is less, in parts per million; then the sum of both
	costLargest           // loss of the host's largest free node
	costCrowd             // number of guests on the host
	costParts
)

// cost compares places for one VM: the first part that differs decides.
type cost [costParts]int64

// less reports whether c is better.
func (c *cost) less(other *cost) bool {
	for i := range c {
		if c[i] != other[i] {
			return c[i] < other[i]
		}
	}
	return false
}

// million is the scale of shares in costs.
const million = 1_000_000

// share returns part of whole in parts per million.
func share(part, whole int64) int64 {
	if whole <= 0 {
		return 0
	}
	return max(0, part) * million / whole
}

// setLeft prices the free CPUs and memory that are left on the touched nodes: CPUs without
// memory, or memory without CPUs, are wasted.
func (c *cost) setLeft(cpus, memory int64) {
	c[costLeftMin], c[costLeftSum] = min(cpus, memory), cpus+memory
}
