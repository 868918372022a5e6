package planner

import (
	"slices"
)

// repairTries limits the exchanges of new VMs that one call of Place tries, both for
// unplaced specs and for better places.
const repairTries = 2000

// splitTries is the number of additional tries for an exchange whose VM spans NUMA nodes,
// because such an exchange takes longer.
const splitTries = 20

// repair makes room for unplaced specs, and finds better places for VMs that span NUMA
// nodes. Only new VMs move; VMs placed before the batch never do.
func (b *batch) repair() {
	type question struct {
		request
		list int
	}
	missed := map[question]bool{}
	for _, i := range b.order {
		q := question{b.requests[i], b.lists[i]}
		if b.placed[i].place == nil && b.requests[i].problem() == "" && !missed[q] {
			missed[q] = !b.improve(i)
		}
	}
	b.repack()
	for _, i := range b.order {
		if b.tries > 0 && b.placed[i].place != nil && b.isPoor(i) {
			b.improve(i)
		}
	}

	for _, i := range b.order { // some exchanges leave more room than before
		if b.placed[i].place == nil {
			b.place(i)
		}
	}
	for _, i := range b.order {
		exact := b.requests[i]
		partial, may := exact.onPartialCores()
		if b.placed[i].place != nil || !may {
			continue
		}
		b.requests[i] = partial
		if b.place(i); b.placed[i].place == nil {
			b.requests[i] = exact
		}
	}
}

// score is the number of unplaced specs, followed by the sums of the most significant costs
// of the placed ones: lower is better.
type score [costCaches + 2]int64

// scoreOf returns the score of some specs.
func (b *batch) scoreOf(specs ...int) score {
	var sum score
	for _, i := range specs {
		if b.placed[i].place == nil {
			sum[0]++
			continue
		}
		sum.add(&b.placed[i].cost)
	}
	return sum
}

func (s *score) add(c *cost) {
	for at := range costCaches + 1 {
		s[at+1] += c[at]
	}
}

func (s *score) less(o score) bool { return slices.Compare(s[:], o[:]) < 0 }

// isPoor reports whether a VM uses more NUMA nodes, or a worse resort, than it would use on
// its host if the host were empty.
func (b *batch) isPoor(i int) bool {
	c := &b.placed[i].cost
	if c[costNodes] <= 1 && c[costResort]&^resortUnknown == 0 {
		return false
	}
	b.tries--
	empty, ok := newState(b.Planner.hosts[b.hostOf(i)].index).evaluate(b.requests[i])
	return ok && (empty.cost[costNodes] < c[costNodes] || empty.cost[costResort] < c[costResort])
}

// hostOf returns the position of a placed spec's host.
func (b *batch) hostOf(i int) int { return b.at[b.placed[i].place.Host] }

// improve puts spec i in the place of another new VM and moves that VM to the best
// remaining place, if such an exchange is better for both together. It reports whether it
// found one.
func (b *batch) improve(i int) bool {
	for _, j := range b.order {
		if b.placed[j].place == nil || b.requests[i] == b.requests[j] {
			continue
		}
		host := b.hostOf(j)
		if _, ok := slices.BinarySearch(b.hosts[i], host); !ok {
			continue
		}
		if b.tries--; b.tries < 0 {
			return false
		}

		before, restore := b.scoreOf(i, j), b.saved(i, j)
		b.unplace(j)
		if b.placed[i].place != nil {
			b.unplace(i)
		}
		if p, ok := b.Planner.hosts[host].evaluate(b.requests[i]); ok {
			b.tries -= splitTries * b2i(len(p.parts) > 1)
			b.commit(i, host, &p)
			to, q, ok := b.best(j)
			after := b.scoreOf(i)
			after.add(&q.cost)
			if ok && after.less(before) {
				b.commit(j, to, &q)
				return true
			}
		}
		restore()
	}
	return false
}

// unplace removes a placed spec from its host.
func (b *batch) unplace(i int) {
	host := b.hostOf(i)
	b.publish(host, b.Planner.hosts[host].without(b.placed[i].claim))
	b.placed[i] = placedSpec{}
}

// saved returns a function that restores the places of some specs and the states of their
// hosts. No other host may change until then.
func (b *batch) saved(specs ...int) (restore func()) {
	hosts := map[int]*state{}
	placed := make([]placedSpec, len(specs))
	for at, i := range specs {
		placed[at] = b.placed[i]
		if b.placed[i].place != nil {
			host := b.hostOf(i)
			hosts[host] = b.Planner.hosts[host]
		}
	}
	return func() {
		for host, s := range hosts {
			b.publish(host, s)
		}
		for at, i := range specs {
			b.placed[i] = placed[at]
		}
	}
}
