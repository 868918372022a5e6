package planner

import (
	"cmp"
	"slices"
)

// divide shares out vCPUs over NUMA nodes so that each gets some, in whole cores
// but for one odd remainder. caps bounds each share besides the node's CPUs. odd
// is the node that takes the remainder, or none. Even shares differ by a core at
// most where the nodes allow it; others fill the largest node first.
func divide(sub []supply, caps []int, vcpus int, even bool) (shares []int, odd int, ok bool) {
	shares = make([]int, len(sub))
	need := vcpus
	order := byRoom(sub, caps)
	if even {
		for i := range sub {
			shares[i] = exact(sub[i].sizes, min(caps[i], vcpus/len(sub)))
			need -= shares[i]
		}
	}
	for at, i := range order {
		// Whoever comes later must keep at least one vCPU.
		most := need - waiting(shares, order[at+1:])
		grown := exact(sub[i].sizes, min(caps[i], shares[i]+max(0, most)))
		if grown > shares[i] {
			need -= grown - shares[i]
			shares[i] = grown
		}
	}
	odd = none
	if need > 0 {
		if odd = oddNode(sub, caps, shares, need); odd == none {
			return nil, none, false
		}
		shares[odd] += need
	}
	return shares, odd, !slices.Contains(shares, 0)
}

// byRoom orders nodes by what they can give, most first.
func byRoom(sub []supply, caps []int) []int {
	order := sequence(len(sub))
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(min(caps[b], sub[b].whole), min(caps[a], sub[a].whole))
	})
	return order
}

// waiting counts the nodes that have no share yet.
func waiting(shares, nodes []int) int {
	n := 0
	for _, i := range nodes {
		if shares[i] == 0 {
			n++
		}
	}
	return n
}

// oddNode returns the node that takes the remainder: one without a share, else one
// with a broken core, else the one with most whole cores left.
func oddNode(sub []supply, caps, shares []int, rest int) int {
	best, bestRoom, most := none, -1, 0
	for i := range sub {
		most = max(most, sub[i].whole+1)
	}
	for i := range sub {
		room := sub[i].whole - shares[i]
		if caps[i]-shares[i] < rest || room < rest && sub[i].loose < rest {
			continue
		}
		if sub[i].loose >= rest {
			room += most
		}
		if shares[i] == 0 { // else the set would not be used in full
			room += 2 * most
		}
		if room > bestRoom {
			best, bestRoom = i, room
		}
	}
	return best
}

// divideMemory shares out the memory in the ratio of the vCPUs, and what a node
// lacks goes to those that have room. Every node gets some.
func divideMemory(sub []supply, vcpus []int, w want) ([]int64, bool) {
	memory := make([]int64, len(sub))
	left := w.memory
	for i := range sub {
		memory[i] = min(sub[i].memory, max(1, w.memory*int64(vcpus[i])/int64(w.vcpus)))
		left -= memory[i]
	}
	for i := range sub {
		more := min(sub[i].memory-memory[i], left)
		if more < 0 {
			more = max(more, 1-memory[i])
		}
		memory[i] += more
		left -= more
	}
	return memory, left == 0
}
