package planner

// packed is a cost in few words. Of two costs the one whose packed form is less is less;
// those whose packed form is the same are the same, unless it is blurred.
type packed [4]uint64

// packedBits is how many bits each part of a cost has, from the highest of the first
// word down.
var packedBits = [costParts]uint{
	costResort: 8, costSpread: 16, costNodes: 8, costDistance: 24, costSkew: 8,
	costOverload: 16, costCaches: 16, costUneven: 16, costEfficiency: 16,
	costBroken: 8, costSlots: 36, costLeftMin: leftMinBits,
	costLeftSum: 32, costLargest: 16, costCrowd: crowdBits,
}

// What floor packs itself, and how far from the lowest bit of its word.
const (
	resortAt, spreadAt, nodesAt = 56, 40, 32
	overloadAt, cachesAt        = 48, 32
	brokenAt, slotsAt           = 56, 20
	leftSumAt, largestAt        = 32, 16

	leftMinBits, crowdBits = 20, 16
)

// dearest is more than any cost.
func dearest() packed { return packed{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)} }

// pack packs a cost. From the first part on that is too large for its bits, all bits
// are set: the packed form is blurred.
func (c *cost) pack() packed {
	var p packed
	word, free, blurred := 0, uint(64), false
	for i, bits := range packedBits {
		most := uint64(1)<<bits - 1
		part := uint64(max(0, c[i]))
		if blurred = blurred || part >= most; blurred {
			part = most
		}
		if free < bits {
			word, free = word+1, 64
		}
		free -= bits
		p[word] |= part << free
	}
	return p
}

// blurred reports whether dearer costs may have the same packed form.
func (p *packed) blurred() bool { return ^p[3]<<(64-crowdBits) == 0 }

// less reports whether p is better.
func (p *packed) less(o *packed) bool {
	for i := range p {
		if p[i] != o[i] {
			return p[i] < o[i]
		}
	}
	return false
}

// leads reports whether the parts down to costSlots are less.
func (p *packed) leads(o *packed) bool {
	switch {
	case p[0] != o[0]:
		return p[0] < o[0]
	case p[1] != o[1]:
		return p[1] < o[1]
	}
	return p[2]>>leftMinBits < o[2]>>leftMinBits
}

// lower sets least to p if that is less, and tells so.
func (p *packed) lower(least *packed) bool {
	if !p.less(least) {
		return false
	}
	*least = *p
	return true
}

// next returns the packed form that comes after p.
func (p packed) next() packed {
	for i := len(p) - 1; i >= 0 && p != dearest(); i-- {
		if p[i]++; p[i] != 0 {
			break
		}
	}
	return p
}

// clamp fits a part of a lower bound into its bits.
func clamp[N int | int64](part N, bits uint) uint64 { return min(uint64(max(0, part)), 1<<bits-1) }
