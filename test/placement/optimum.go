package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// optimumSteps limits the search for one length of the list. It counts steps instead of
// time, so that the result is reproducible.
const optimumSteps = 300_000

// Optimum is the length of the longest prefix of a list in which every VM is on one NUMA
// node, if all VMs are known in advance.
type Optimum struct {
	// Found is the longest length for which a packing is known. Longer prefixes than Bound
	// have no packing.
	Found, Bound int
}

// Proved reports whether Found is the optimum.
func (o Optimum) Proved() bool { return o.Found == o.Bound }

// BestPrefix computes the optimum for packing the list's VMs into the machine's NUMA nodes
// by CPUs and memory. Two VMs may share a core, so that no placer has more freedom than the
// optimum.
func BestPrefix(m *Machine, list []VM) Optimum {
	o := Optimum{Bound: len(list)}
	for n := len(list); n > 0; n-- {
		switch newPacking(m, list[:n]).solve() {
		case packs:
			o.Found = n
			return o
		case packsNot:
			o.Bound = n - 1
		case packsPerhaps:
		}
	}
	return o
}

// answer is the result of a search.
type answer int

const (
	packs answer = iota
	packsNot
	packsPerhaps // the step limit was reached
)

// size is an amount of CPUs and of memory in GiB.
type size struct{ cpus, memory int }

func (a size) minus(b size, times int) size {
	return size{a.cpus - b.cpus*times, a.memory - b.memory*times}
}

// holds returns how many times b fits into a.
func (a size) holds(b size) int { return max(0, min(a.cpus/b.cpus, a.memory/b.memory)) }

// packing is the problem of packing some VMs into some NUMA nodes.
type packing struct {
	bins  []size // equal bins are adjacent
	kinds []size // distinct VMs, largest first
	count []int  // VMs of each kind left to pack
	// slack is the total amount that may remain unused in all bins.
	slack size
	steps int
	// failed contains the sets of VMs that could not be packed into the bins from an index
	// on.
	failed map[string]bool
}

// newPacking counts VMs by kind. Memory is in GiB because all VMs have whole GiB.
func newPacking(m *Machine, list []VM) *packing {
	p := &packing{failed: map[string]bool{}, steps: optimumSteps}
	for _, n := range m.Nodes {
		p.bins = append(p.bins, size{len(n.CPUs), int(n.MemoryMiB / gib)})
		p.slack = p.slack.minus(p.bins[len(p.bins)-1], -1)
	}
	slices.SortFunc(p.bins, func(a, b size) int {
		return cmp.Or(cmp.Compare(b.cpus, a.cpus), cmp.Compare(b.memory, a.memory))
	})
	counts := map[size]int{}
	for _, vm := range list {
		s := size{vm.VCPUs, int(vm.MemoryMiB / gib)}
		if counts[s] == 0 {
			p.kinds = append(p.kinds, s)
		}
		counts[s]++
		p.slack = p.slack.minus(s, 1)
	}
	slices.SortFunc(p.kinds, func(a, b size) int {
		return cmp.Or(cmp.Compare(b.cpus, a.cpus), cmp.Compare(b.memory, a.memory))
	})
	for _, k := range p.kinds {
		p.count = append(p.count, counts[k])
	}
	return p
}

// solve searches for a packing, first with heuristics, then by branch and bound. It returns
// packsPerhaps if the search reaches its limit of steps.
func (p *packing) solve() answer {
	if p.slack.cpus < 0 || p.slack.memory < 0 {
		return packsNot
	}
	if p.greedy() || p.fillBin(0, p.slack, nil) {
		return packs
	}
	if p.steps <= 0 {
		return packsPerhaps
	}
	return packsNot
}

// fillBin tries every filling of a bin that can lead to a complete packing. before is the
// filling of the previous bin of equal size. Equal bins are filled in descending order, so
// that packings do not differ only in the order of bins.
func (p *packing) fillBin(bin int, slack size, before []int) bool {
	if bin == len(p.bins) {
		return !slices.ContainsFunc(p.count, func(n int) bool { return n > 0 })
	}
	key := fmt.Sprint(bin, p.count, before)
	if p.failed[key] {
		return false
	}
	f := filling{packing: p, bin: bin, slack: slack, before: before, of: make([]int, len(p.kinds))}
	if f.choose(0, p.bins[bin], before != nil) {
		return true
	}
	if p.steps > 0 {
		p.failed[key] = true
	}
	return false
}

// filling is one bin while its VMs are chosen.
type filling struct {
	*packing
	bin    int
	slack  size
	before []int
	of     []int // VMs of each kind in the bin
}

// choose picks the number of VMs of a kind for the bin, most first. tied is true while the
// numbers chosen so far equal the numbers in the previous bin, if that bin has the same
// size.
func (f *filling) choose(kind int, left size, tied bool) bool {
	if f.steps--; f.steps <= 0 {
		return false
	}
	if kind == len(f.kinds) {
		return f.close(left)
	}
	if f.wastes(kind, left) {
		return false
	}
	most := min(f.count[kind], left.holds(f.kinds[kind]))
	if tied {
		most = min(most, f.before[kind])
	}
	for n := most; n >= 0; n-- {
		f.of[kind] = n
		f.count[kind] -= n
		ok := f.choose(kind+1, left.minus(f.kinds[kind], n), tied && n == f.before[kind])
		if ok {
			return true
		}
		f.count[kind] += n
	}
	f.of[kind] = 0
	return false
}

// wastes reports whether the bin would exceed the slack even with all remaining VMs of this
// kind and the following kinds.
func (f *filling) wastes(kind int, left size) bool {
	for k := kind; k < len(f.kinds); k++ {
		left = left.minus(f.kinds[k], f.count[k])
	}
	return left.cpus > f.slack.cpus || left.memory > f.slack.memory
}

// close continues with the next bin if no remaining VM fits into this one. It is enough to
// search for packings with this property: the packing that fills the first bin most, then
// the second and so on, has this property, and its equal bins are in descending order.
func (f *filling) close(left size) bool {
	rest := size{f.slack.cpus - left.cpus, f.slack.memory - left.memory}
	if rest.cpus < 0 || rest.memory < 0 {
		return false
	}
	for k := range f.kinds {
		if f.count[k] > 0 && left.holds(f.kinds[k]) > 0 {
			return false
		}
	}
	var before []int
	if f.bin+1 < len(f.bins) && f.bins[f.bin+1] == f.bins[f.bin] {
		before = slices.Clone(f.of)
	}
	return f.fillBin(f.bin+1, rest, before)
}
