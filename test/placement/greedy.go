package placement

import (
	"cmp"
	"math"
	"slices"
)

// greedy tries a few fast heuristics, which find a packing in most cases if one exists.
func (p *packing) greedy() bool {
	for _, weight := range []float64{0, 0.25, 0.5, 0.75, 1} {
		for _, rule := range []func(left, bin size) float64{tightest, mostEven} {
			if p.greedyBy(weight, rule) {
				return true
			}
		}
	}
	return false
}

// tightest prefers the bin with the least CPUs and memory left.
func tightest(left, bin size) float64 {
	return float64(left.cpus)/float64(bin.cpus) + float64(left.memory)/float64(bin.memory)
}

// mostEven prefers the bin whose CPUs and memory are used most evenly.
func mostEven(left, bin size) float64 {
	return math.Abs(float64(left.cpus)/float64(bin.cpus) - float64(left.memory)/float64(bin.memory))
}

// greedyBy packs the largest VMs first, each into the bin that the rule prefers. weight is
// the weight of memory in a VM's size.
func (p *packing) greedyBy(weight float64, rule func(left, bin size) float64) bool {
	left := slices.Clone(p.bins)
	for _, k := range p.bulkiest(weight) {
		for range p.count[k] {
			b := p.favorite(left, p.kinds[k], rule)
			if b < 0 {
				return false
			}
			left[b] = left[b].minus(p.kinds[k], 1)
		}
	}
	return true
}

// bulkiest orders the kinds of VM by their share of all CPUs and memory.
func (p *packing) bulkiest(weight float64) []int {
	var total size
	for _, b := range p.bins {
		total = total.minus(b, -1)
	}
	bulk := func(k int) float64 {
		return (1-weight)*float64(p.kinds[k].cpus)/float64(total.cpus) + weight*float64(p.kinds[k].memory)/float64(total.memory)
	}
	order := make([]int, len(p.kinds))
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(bulk(b), bulk(a)) })
	return order
}

// favorite returns the bin that the rule prefers among the bins with room for one more VM,
// or -1.
func (p *packing) favorite(left []size, vm size, rule func(left, bin size) float64) int {
	best, bestRank := -1, 0.0
	for b := range left {
		if left[b].holds(vm) == 0 {
			continue
		}
		if rank := rule(left[b].minus(vm, 1), p.bins[b]); best < 0 || rank < bestRank {
			best, bestRank = b, rank
		}
	}
	return best
}
