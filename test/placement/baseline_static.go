package placement

import (
	"cmp"
	"maps"
	"slices"
)

// allocation is one run of the static CPU allocation described in the kubelet's
// documentation and KEPs 2902 and 4800. It takes whole NUMA nodes and sockets, then, if
// requested, whole or single uncore caches, then whole cores, then single CPUs, always from
// the unit with the fewest free CPUs. karpenter-provider-proxmox contains a copy.
//
// It reproduces a bug on purpose: it treats a core as free if it has as many free CPUs as
// the machine's average core has CPUs, and then takes all of its CPUs. If cores differ,
// one of these CPUs can be in use by another VM.
type allocation struct {
	*layout
	free map[int]bool
	need int
	got  []int
}

// allocate picks free CPUs, or reports that too few are free.
func (l *layout) allocate(free []int, need int, alignCaches bool) ([]int, bool) {
	if need > len(free) {
		return nil, false
	}
	a := &allocation{layout: l, free: map[int]bool{}, need: need}
	for _, id := range free {
		a.free[id] = true
	}
	steps := []func(){a.wholeSockets, a.wholeNodes}
	if l.sockets >= l.nodes {
		slices.Reverse(steps)
	}
	if alignCaches {
		steps = append(steps, a.caches)
	}
	steps = append(steps, a.wholeCores, a.singles)
	for _, step := range steps {
		if a.need > 0 {
			step()
		}
	}
	slices.Sort(a.got)
	return slices.Compact(a.got), true
}

// take takes CPUs, even if they are not free.
func (a *allocation) take(cpus []int) {
	for _, id := range cpus {
		delete(a.free, id)
	}
	a.got = append(a.got, cpus...)
	a.need -= len(cpus)
}

// freeWith returns the free CPUs whose trait has that ID, ascending.
func (a *allocation) freeWith(of trait, id int) []int {
	var ids []int
	for cpu := range a.free {
		if of(a.cpus[cpu]) == id {
			ids = append(ids, cpu)
		}
	}
	slices.Sort(ids)
	return ids
}

// fewestFree returns the IDs of a trait among some free CPUs, ordered by the number of free
// CPUs on the whole machine, fewest first.
func (a *allocation) fewestFree(of trait, among []int) []int {
	count := map[int]int{}
	for cpu := range a.free {
		count[of(a.cpus[cpu])]++
	}
	seen := map[int]bool{}
	for _, cpu := range among {
		seen[of(a.cpus[cpu])] = true
	}
	return slices.SortedFunc(maps.Keys(seen), func(x, y int) int {
		return cmp.Or(cmp.Compare(count[x], count[y]), cmp.Compare(x, y))
	})
}

// nested returns the IDs of an inner trait, ordered by the IDs of the outer trait.
func (a *allocation) nested(outer []int, outerOf, innerOf trait) []int {
	var ids []int
	for _, id := range outer {
		ids = append(ids, a.fewestFree(innerOf, a.freeWith(outerOf, id))...)
	}
	return ids
}

// nodeOrder and socketOrder return the IDs of NUMA nodes and sockets, ordered by the
// containing unit first.
func (a *allocation) nodeOrder() []int {
	if a.sockets >= a.nodes {
		return a.fewestFree(nodeOf, slices.Collect(maps.Keys(a.free)))
	}
	return a.nested(a.socketOrder(), socketOf, nodeOf)
}

func (a *allocation) socketOrder() []int {
	if a.sockets >= a.nodes {
		return a.nested(a.nodeOrder(), nodeOf, socketOf)
	}
	return a.fewestFree(socketOf, slices.Collect(maps.Keys(a.free)))
}

// coreOrder returns the cores with free CPUs.
func (a *allocation) coreOrder() []int {
	if a.sockets >= a.nodes {
		return a.nested(a.socketOrder(), socketOf, coreOf)
	}
	return a.nested(a.nodeOrder(), nodeOf, coreOf)
}

// wholeNodes takes NUMA nodes with all CPUs free.
func (a *allocation) wholeNodes() {
	a.whole(nodeOf, a.nodeOrder(), func(id int) int { return len(a.with(nodeOf, id)) })
}

// wholeSockets takes sockets with as many free CPUs as the average socket has CPUs.
func (a *allocation) wholeSockets() {
	a.whole(socketOf, a.socketOrder(), func(int) int { return a.perSocket })
}

// wholeCores takes cores with as many free CPUs as the average core has CPUs.
func (a *allocation) wholeCores() {
	a.whole(coreOf, a.coreOrder(), func(int) int { return a.perCore })
}

// whole takes all CPUs of each ID with size free CPUs, as long as that many are needed.
func (a *allocation) whole(of trait, order []int, size func(id int) int) {
	var free []int
	for _, id := range order {
		if len(a.freeWith(of, id)) == size(id) {
			free = append(free, id)
		}
	}
	for _, id := range free {
		if all := a.with(of, id); a.need >= len(all) {
			a.take(all)
		}
	}
}

// singles takes CPUs one by one.
func (a *allocation) singles() {
	for _, core := range a.coreOrder() {
		for _, cpu := range a.freeWith(coreOf, core) {
			if a.need < 1 {
				return
			}
			a.take([]int{cpu})
		}
	}
}

// caches takes whole caches as long as that many CPUs are needed, and the rest from one
// cache.
func (a *allocation) caches() {
	for _, cache := range a.nested(a.nodeOrder(), nodeOf, cacheOf) {
		if a.need >= a.perCache {
			a.whole(cacheOf, a.nested(a.nodeOrder(), nodeOf, cacheOf), func(id int) int { return len(a.with(cacheOf, id)) })
		}
		if a.need < 1 {
			return
		}
		a.oneCache(cache)
		if a.need < 1 {
			return
		}
	}
}

// oneCache takes the rest from one cache, if the free CPUs of its first cores add up to
// exactly that number.
func (a *allocation) oneCache(cache int) {
	cores := map[int]bool{}
	for _, cpu := range a.freeWith(cacheOf, cache) {
		cores[a.cpus[cpu].core] = true
	}
	wanted := slices.Sorted(maps.Keys(cores))
	wanted = wanted[:min(len(wanted), (a.need+a.perCore-1)/a.perCore)]
	var free []int
	for _, core := range wanted {
		free = append(free, a.freeWith(coreOf, core)...)
	}
	slices.Sort(free)
	if a.need%2 != 0 && a.perCore > 1 && len(free) > a.need {
		free = free[:len(free)-1]
	}
	if len(free) == a.need {
		a.take(free)
	}
}
