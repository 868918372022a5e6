package planner

// The parts of a cost, the weightiest first. What is not placed at all weighs
// more than any of them.
const (
	costResort     = iota // see resortUnknown and its like
	costSpread            // VMs of the same pool on the host, where they are spread
	costNodes             // NUMA nodes
	costDistance          // between them
	costSkew              // 1 if memory does not go with the CPUs of each node
	costOverload          // floating vCPUs at home on a node beyond its CPUs
	costCaches            // L3 caches
	costUneven            // difference between the guest's largest and least cell
	costEfficiency        // vCPUs on efficiency cores, and twice those on low-power ones
	costBroken            // cores newly broken
	costSlots             // loss of room for VMs of usual sizes
	costLeftMin           // what is left of the touched nodes: of CPUs or memory,
	costLeftSum           // whichever is less, in parts per million; then both
	costLargest           // loss of the host's largest free node
	costCrowd             // guests on the host
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

// setLeft prices what is left of the touched nodes in two dimensions: one that
// runs out while the other lies idle is waste.
func (c *cost) setLeft(cpus, memory int64) {
	c[costLeftMin], c[costLeftSum] = min(cpus, memory), cpus+memory
}
